"""Errors as one line: what each kind says, and its exit code."""

from __future__ import annotations

import errno

import pytest
import typer

from convloom import ConvloomError
from convloom.cli.errors import UsageError, exit_code_of, explain


def test_explain_convloom_error():
    assert explain(ConvloomError("layer 'a' is odd")) == ("layer 'a' is odd", 1)


def test_explain_system_error():
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "runs/a")
    assert explain(missing) == ("runs/a: no such file or directory", 1)
    full = OSError(errno.ENOSPC, "No space left on device")
    assert explain(full) == ("no space left on device", 1)
    assert explain(OSError("odd")) == ("odd", 1)


def test_explain_usage_error():
    assert explain(UsageError("unknown schedule 'x'")) == ("unknown schedule 'x'", 2)
    message, code = explain(typer.BadParameter("not a number", param_hint="--lr"))
    assert code == 2
    assert "--lr: not a number" in message


def test_explain_bug():
    message, code = explain(KeyError("weight"))
    assert code == 1
    assert "bug" in message
    assert "KeyError: 'weight'" in message
    assert "--traceback" in message


@pytest.mark.parametrize(
    ("raised", "code"),
    [
        (SystemExit(3), 3),
        (SystemExit("words"), 1),
        (ConvloomError("a\nb"), 1),
        (KeyboardInterrupt(), 130),
    ],
)
def test_exit_code_of(raised, code, capfd):
    def call():
        raise raised

    assert exit_code_of(call) == code
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == (0 if isinstance(raised, SystemExit) else 1)


def test_exit_code_of_success():
    assert exit_code_of(lambda: None) == 0
    assert exit_code_of(lambda: 130) == 130


def test_traceback_comes_before_the_line(capfd):
    def call():
        raise KeyError("x")

    assert exit_code_of(call, tracebacks=True) == 1
    err = capfd.readouterr().err
    assert err.startswith("Traceback")
    assert err.splitlines()[-1].startswith("convloom: error: this is a bug")
