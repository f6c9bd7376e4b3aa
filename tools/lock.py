"""Rewrites constraints.txt: the versions pip would choose today for convloom and its extras.

    .venv/bin/python tools/lock.py

Run it on the oldest supported Python, so that every pinned version exists for all of them. cuda13
comes with the tests, which compile for GPUs that are not there; cuda12 is left out.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HEADER = """\
# The versions that `make` installs and that the tests were last run with; made by tools/lock.py.
"""


def resolve() -> list[tuple[str, str]]:
    """(name, version) of all that an installation with every extra but cuda12 would hold."""
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
    command += ["--report", "-", f"{ROOT}[test,compiler,plot]"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    found = [(item["metadata"]["name"], item["metadata"]["version"]) for item in report["install"]]
    # A local version such as +cpu is one machine's build of a release that all can get.
    pins = {name.lower().replace("_", "-"): version.split("+")[0] for name, version in found}
    del pins["convloom"]
    return sorted(pins.items())


def main() -> None:
    """Write the file."""
    lines = [f"{name}=={version}\n" for name, version in resolve()]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines))
    print(f"constraints.txt: {len(lines)} versions")


if __name__ == "__main__":
    main()
