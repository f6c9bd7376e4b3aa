"""Every error as one line on stderr, and the exit codes that go with it."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import typer
from typer.core import TyperGroup

from convloom.cli.terminal import say

SUCCESS, FAILURE, USAGE, INTERRUPTED = 0, 1, 2, 130

#: typer gives its usage errors no public name of their own; BadParameter is one of them.
_ClickUsageError: type[Exception] = typer.BadParameter.__mro__[1]

_TRACEBACK_FLAG, _TRACEBACK_VARIABLE = "--traceback", "CONVLOOM_TRACEBACK"


class UsageError(Exception):
    """The command line itself is wrong: an unknown name or an impossible value (exit code 2)."""


@contextmanager
def as_usage() -> Iterator[None]:
    """Whatever convloom objects to in the block is the fault of the command line."""
    from convloom.ir.errors import ConvloomError

    try:
        yield
    except ConvloomError as error:
        raise UsageError(str(error)) from error


class OneLineErrors(TyperGroup):
    """The top command: runs the command line and turns whatever is raised into one line.

    ``--traceback`` is taken from anywhere on the command line, so that it can simply be added to
    the end of a command that failed.
    """

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: object,
    ) -> None:
        given = list(sys.argv[1:] if args is None else args)
        own = given[: given.index("--")] if "--" in given else given
        wanted = _TRACEBACK_FLAG in own
        rest = [word for word in own if word != _TRACEBACK_FLAG] + given[len(own) :]

        def call() -> object:
            return super(OneLineErrors, self).main(
                rest, prog_name or "convloom", complete_var, False, windows_expand_args, **extra
            )

        wanted = wanted or os.environ.get(_TRACEBACK_VARIABLE, "0") not in ("", "0")
        sys.exit(exit_code_of(call, tracebacks=wanted))


def exit_code_of(call: Callable[[], object], *, tracebacks: bool = False) -> int:
    """Run ``call``; its exit code, after one line on stderr when it failed.

    A code that ``call`` returns (or raises as typer.Exit or SystemExit) is passed on.
    """
    try:
        result = call()
        sys.stdout.flush()
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else FAILURE
    except BrokenPipeError:
        _close_quietly()
        return FAILURE
    except (Exception, KeyboardInterrupt) as error:
        if tracebacks:
            traceback.print_exception(error)
        message, code = explain(error)
        say(f"error: {message}")
        return code
    return result if isinstance(result, int) else SUCCESS


def explain(error: BaseException) -> tuple[str, int]:
    """The one line that says what went wrong, and the exit code."""
    if isinstance(error, _ClickUsageError):
        return _usage(error), USAGE
    if isinstance(error, UsageError):
        return str(error), USAGE
    from convloom.ir.errors import ConvloomError  # with NumPy behind it: not before it is needed

    if isinstance(error, ConvloomError):
        return str(error), FAILURE
    if isinstance(error, OSError):
        return _system(error), FAILURE
    if isinstance(error, MemoryError):
        return "not enough memory; a smaller --batch-size needs less", FAILURE
    if isinstance(error, (KeyboardInterrupt, typer.Abort)):
        return "interrupted", INTERRUPTED
    return (
        f"this is a bug in convloom ({type(error).__name__}: {error}); "
        f"run the command again with {_TRACEBACK_FLAG} to see where",
        FAILURE,
    )


def _usage(error: Exception) -> str:
    """typer's words, lower-cased, with the command whose help will tell more."""
    text: str = error.format_message() if hasattr(error, "format_message") else str(error)
    possible = getattr(error, "possibilities", None)
    if possible:
        text = f"{getattr(error, 'message', text)}; did you mean {possible[0]}?"
    text = " ".join(text.split()).rstrip(".")
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "convloom"
    return f"{text[:1].lower()}{text[1:]} (see {command} --help)"


def _system(error: OSError) -> str:
    """``runs/a: permission denied``: the file, then the system's words."""
    words = (error.strerror or str(error) or type(error).__name__).lower()
    names = [os.fsdecode(name) for name in (error.filename, error.filename2) if name is not None]
    return f"{' -> '.join(names)}: {words}" if names else words


def _close_quietly() -> None:
    """Nobody reads our output any more: let the interpreter's last flush go nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(nowhere, stream.fileno())
        except (OSError, ValueError):
            continue
