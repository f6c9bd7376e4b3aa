"""Running the command line, in this process or in one of its own."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

from typer.testing import CliRunner, Result

import convloom
from convloom.cli.main import app

SOURCE = Path(convloom.__file__).parent.parent
#: Seconds after which a process of these tests is taken for hanging.
PATIENCE = 120
#: An example that is a network of one's own, as commands name it.
DROPOUT_NET = f"{SOURCE.parent / 'examples' / 'dropout_net.py'}:make_model"


def words(line: str) -> list[str]:
    """The words of a line, as a shell would part them."""
    return shlex.split(line)


def invoke(*given: object) -> Result:
    """``convloom GIVEN`` in this process."""
    return CliRunner().invoke(app, [str(word) for word in given], prog_name="convloom")


def command(*given: object) -> list[str]:
    """The words that start ``convloom GIVEN`` as a process."""
    return [sys.executable, "-m", "convloom", *map(str, given)]


def environment(**changes: str) -> dict[str, str]:
    """The environment of a new process, in which this convloom is found."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", **changes}


def spawn(*given: object, cwd: Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """``convloom GIVEN`` in a process of its own, without a terminal."""
    return subprocess.run(
        command(*given),
        cwd=cwd,
        env=environment(**changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


def refused(code: int, *given: object) -> str:
    """The one line with which ``convloom GIVEN`` refuses, exiting with ``code``."""
    result = invoke(*given)
    lines = result.stderr.splitlines()
    assert result.exit_code == code, result.output
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("convloom: error: ")
    return lines[0]
