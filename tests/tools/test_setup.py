"""tools/setup.sh, with programs that only record what they are asked: nothing is installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NEEDED = ("sh", "dirname", "grep", "mkdir", "cp", "chmod", "cat")

#: A Python that makes an environment of itself and writes down what pip is asked for.
PYTHON = """#!/bin/sh
case "$*" in
    "-m venv --clear .venv")
        echo made >> made
        mkdir -p .venv/bin && cp "$0" .venv/bin/python
        echo "VIRTUAL_ENV=$(pwd -P)/.venv" > .venv/bin/activate ;;
    "-m pip "*) echo "$*" > asked ;;
    --version) echo "Python 3.11.2" ;;
    *) {reply} ;;
esac
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A clone in a folder with a space, and beside it ``bin`` with what a bare system has."""
    folder = tmp_path / "a clone"
    (folder / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup.sh", folder / "tools")
    (tmp_path / "bin").mkdir()
    for name in NEEDED:
        found = shutil.which(name)
        assert found
        (tmp_path / "bin" / name).symlink_to(found)
    return folder


def program(clone: Path, name: str, text: str) -> None:
    path = clone.parent / "bin" / name
    path.write_text(text)
    path.chmod(0o755)


def setup(clone: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the script with nothing but ``bin`` on the path."""
    return subprocess.run(
        ["sh", "tools/setup.sh", *words],
        cwd=clone,
        env={"PATH": str(clone.parent / "bin"), **variables},
        capture_output=True,
        text=True,
    )


def test_without_python(clone: Path) -> None:
    done = setup(clone)
    assert done.returncode == 1
    assert "no python3 on PATH. As root: apt-get install make python3-venv" in done.stderr


def test_with_an_old_python(clone: Path) -> None:
    old = '#!/bin/sh\n[ "$1" = --version ] && echo Python 3.9.2 || exit 1\n'
    program(clone, "python3", old)
    done = setup(clone)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer; found only python3 (Python 3.9.2)" in done.stderr


def test_a_newer_python_beside_an_old_one(clone: Path) -> None:
    program(clone, "python3", "#!/bin/sh\nexit 1\n")
    program(clone, "python3.12", PYTHON.format(reply="exit 0"))
    program(clone, "g++", "")
    assert setup(clone).returncode == 0


def test_without_venv(clone: Path) -> None:
    reply = 'case "$*" in *ensurepip*) exit 1 ;; esac'
    program(clone, "python3", PYTHON.format(reply=reply))
    done = setup(clone)
    assert done.returncode == 1
    assert "venv module is missing. As root: apt-get install make python3-venv" in done.stderr
    assert not (clone / ".venv").exists()


def test_a_compiler_is_installed_where_there_is_none(clone: Path) -> None:
    program(clone, "python3", PYTHON.format(reply="exit 0"))
    done = setup(clone)
    assert done.returncode == 0
    assert "no C++ compiler found" in done.stdout
    assert (clone / "asked").read_text().endswith("--editable .[compiler]\n")
    setup(clone, "test")
    assert (clone / "asked").read_text().endswith("--editable .[test,compiler]\n")
    assert (clone / "made").read_text() == "made\n"  # the second time it was there already


@pytest.mark.parametrize(
    ("variables", "name"), [({}, "clang++"), ({"CXX": "mine -O1"}, "mine"), ({}, "c++")]
)
def test_a_compiler_that_is_there_is_taken(
    clone: Path, variables: dict[str, str], name: str
) -> None:
    program(clone, "python3", PYTHON.format(reply="exit 0"))
    program(clone, name, "")
    done = setup(clone, "test", **variables)
    assert done.returncode == 0
    assert (clone / "asked").read_text().endswith("--editable .[test]\n")


def test_a_moved_clone_gets_a_new_environment(clone: Path) -> None:
    program(clone, "python3", PYTHON.format(reply="exit 0"))
    setup(clone)
    moved = clone.rename(clone.parent / "moved")
    assert setup(moved).returncode == 0
    assert (moved / "made").read_text() == "made\nmade\n"


def test_pip_that_fails(clone: Path) -> None:
    program(clone, "python3", PYTHON.format(reply="exit 0").replace('echo "$*" > asked', "exit 1"))
    done = setup(clone)
    assert done.returncode == 1
    assert "pip could not install convloom" in done.stderr
