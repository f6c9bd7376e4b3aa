"""What all commands share: help, exit codes, errors, and output that suits its reader."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from rich.console import Console

import convloom
import convloom.data
from convloom.backends.cpu.backend import RUNGS
from convloom.cli.main import app
from convloom.cli.progress import bar
from convloom.data import catalog
from convloom.nn import models
from tests.cli.running import PATIENCE, command, environment, invoke, refused, spawn, words

COMMANDS = [
    "train",
    "resume",
    "sweep",
    "eval",
    "predict",
    "features",
    "plan",
    "build",
    "check-grads",
    "bench ladder",
    "bench pytorch",
    "version",
    "data list",
    "data get",
    "data info",
]


def test_help_names_every_command() -> None:
    result = invoke("--help")
    assert result.exit_code == 0
    for name in COMMANDS:
        assert re.search(rf"^  {name.split()[0]} ", result.stdout, re.MULTILINE)
    assert invoke().stdout == result.stdout
    assert invoke("data").stdout == invoke("data", "--help").stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_complete(name: str) -> None:
    result = invoke(*name.split(), "--help")
    assert result.exit_code == 0
    assert f"Usage: convloom {name}" in result.stdout
    assert f"  convloom {name}" in result.stdout.partition("Examples:")[2]
    assert "--traceback" in result.stdout


def test_every_option_says_what_it_does_and_its_default() -> None:
    group = typer.main.get_command(app)
    leaves = [c for c in group.commands.values() if not hasattr(c, "commands")]
    for name in ("data", "bench"):
        leaves += group.commands[name].commands.values()
    assert len(leaves) == len(COMMANDS)
    for leaf in leaves:
        for parameter in leaf.params:
            assert parameter.help, (leaf.name, parameter.name)
            if parameter.param_type_name == "option" and not parameter.is_flag:
                assert parameter.show_default or parameter.required, (leaf.name, parameter.name)


def test_help_names_what_there_is() -> None:
    shown = " ".join(invoke("train", "--help").stdout.split())
    for names in (models.names(), catalog.SETS, RUNGS):
        assert [name for name in names if name not in shown] == []


def test_version() -> None:
    assert invoke("--version").stdout == f"convloom {convloom.__version__}\n"
    assert invoke("version").stdout.startswith(f"convloom {convloom.__version__}\n")
    document = json.loads(invoke("version", "--json").stdout)
    assert document["convloom"] == convloom.__version__
    assert {"python", "numpy", "system", "machine"} <= set(document)


def test_wrong_usage() -> None:
    assert "Did you mean 'train'?" in refused(2, "trian")
    assert "--nope" in refused(2, "--nope")
    assert "convloom version --help" in refused(2, "version", "more")


def test_help_loads_nothing_of_weight() -> None:
    code = (
        "import sys; from convloom.cli.main import app\n"
        "print(*sorted({'numpy', 'rich', 'PIL', 'safetensors'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("\n", "")


def test_a_bug_is_one_line_that_shows_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def available(data_dir: object) -> None:
        raise KeyError("surprise")

    monkeypatch.setattr(convloom.data, "available", available)
    monkeypatch.delenv("CONVLOOM_TRACEBACK", raising=False)
    message = refused(1, "data", "list")
    assert "bug in convloom (KeyError: 'surprise')" in message
    assert "--traceback" in message
    for result in (invoke("data", "list", "--traceback"), invoke("--traceback", "data", "list")):
        assert result.exit_code == 1
        assert result.stderr.startswith("Traceback")
        assert result.stderr.splitlines()[-1] == message
    monkeypatch.setenv("CONVLOOM_TRACEBACK", "1")
    assert invoke("data", "list").stderr.startswith("Traceback")


def test_a_library_error_has_its_traceback_when_asked(tmp_path: Path) -> None:
    done = spawn("resume", "none", "--traceback", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback")
    assert done.stderr.splitlines()[-1] == "convloom: error: none: no such file or directory"


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        command("data", "list"),
        env=environment(),
        cwd=tmp_path,
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PATIENCE,
    )
    os.close(writer)
    assert done.stderr == ""
    assert done.returncode == 1


def test_an_old_encoding_is_no_error(tmp_path: Path) -> None:
    done = spawn("data", "list", "digits", cwd=tmp_path, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "1?8?8" in done.stdout


def on_a_terminal(*given: object, cwd: Path, **changes: str) -> tuple[int, str]:
    """Exit code and output of a process whose output is a terminal of 80 columns."""
    ours, theirs = pty.openpty()
    running = subprocess.Popen(
        command(*given),
        cwd=cwd,
        env=environment(COLUMNS="80", **changes),
        stdin=subprocess.DEVNULL,
        stdout=theirs,
        stderr=theirs,
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the last writer has closed the terminal
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return running.wait(PATIENCE), shown.decode()


def test_a_narrow_terminal_gets_a_shorter_line() -> None:
    figures = ["loss 0.1234", "accuracy 98.1 %", " 4028 images/s", "59.9 s left"]
    for width in range(20, 140):
        console = Console(width=width, file=io.StringIO(), legacy_windows=False)
        console.print(bar("epoch 1/5", 0.5, figures, width), end="")
        (line,) = console.file.getvalue().splitlines()
        assert len(line.rstrip()) <= width - 2
        assert line.startswith("epoch 1/5")
        assert ("59.9 s left" in line) == (width >= 76)


WORDS = words("train lenet --data digits --epochs 2 --batch-size 1")
COLOUR = re.compile(r"\x1b\[[0-9;]*[39][0-9][0-9;]*m")


def test_a_terminal_gets_a_live_line(tmp_path: Path) -> None:
    code, shown = on_a_terminal(*WORDS, cwd=tmp_path)
    assert code == 0, shown
    assert re.search(r"epoch 1/2 .*loss \d\.\d{4} .*accuracy .* images/s .* left", shown)
    assert COLOUR.search(shown)
    assert shown.count("    1/2 ") == 1
    assert "test accuracy" in shown


def test_no_color_and_dumb_terminals_are_honoured(tmp_path: Path) -> None:
    code, shown = on_a_terminal(*WORDS, "--epochs", "1", cwd=tmp_path, NO_COLOR="1")
    assert code == 0, shown
    assert "left" in shown
    assert not COLOUR.search(shown)
    code, shown = on_a_terminal(*WORDS, "--epochs", "1", cwd=tmp_path, TERM="dumb")
    assert code == 0, shown
    assert "\x1b" not in shown
    assert "1/1" in shown


@pytest.mark.parametrize("closed", (">&-", "2>&-", ">&- 2>&-"))
def test_closed_streams_are_no_error(tmp_path: Path, closed: str) -> None:
    """A shell's ``>&-``, a daemon: Python then has None in place of the stream."""
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *command("plan", "lenet", "--json")],
        env=environment(CONVLOOM_CACHE=str(tmp_path)),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    if closed == "2>&-":
        assert json.loads(done.stdout)["backend"]


def test_an_old_locale_reads_our_own_files(tmp_path: Path) -> None:
    """Sources are UTF-8 whatever the locale is."""
    settings = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    given = "train lenet --data digits --epochs 1 --quiet --out run"
    done = spawn(*given.split(), cwd=tmp_path, CONVLOOM_CACHE=str(tmp_path / "cache"), **settings)
    assert done.returncode == 0, done.stderr
