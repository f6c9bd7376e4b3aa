"""Where a command's words go: results on stdout, the rest on stderr when stdout is for a script."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

#: How a cost's error of class numbers is called.
_ERROR = re.compile(r"\.top([0-9]+)_error$")


@dataclass(frozen=True)
class Output:
    """How a command speaks.

    Attributes:
        as_json: stdout carries one JSON document and nothing else.
        quiet: only results and errors are printed.
        began: when the command did, on the clock ``time.perf_counter``.
    """

    as_json: bool = False
    quiet: bool = False
    began: float = field(default_factory=time.perf_counter, repr=False, compare=False)
    _results: TextIO = field(default_factory=lambda: sys.stdout, repr=False, compare=False)

    @property
    def stream(self) -> TextIO:
        """The stream that a person reads."""
        return sys.stderr if self.as_json else sys.stdout

    @property
    def live(self) -> bool:
        """Whether a display that redraws itself makes sense here."""
        return not self.quiet and is_terminal(self.stream)

    @contextlib.contextmanager
    def alone_on_stdout(self) -> Iterator[None]:
        """With --json, what a person's own network prints goes to stderr."""
        with contextlib.redirect_stdout(sys.stderr) if self.as_json else contextlib.nullcontext():
            yield

    def note(self, text: str = "") -> None:
        """Something to know on the way; dropped by --quiet."""
        if not self.quiet:
            print(text, file=self.stream, flush=True)

    def remark(self, text: str) -> None:
        """Something about the input that may surprise, on stderr; dropped by --quiet."""
        if not self.quiet:
            say(f"note: {text}")

    def result(self, document: Any, text: str) -> None:
        """What the command was run for: a JSON document or words."""
        if self.as_json:
            text = json.dumps(plain(document), indent=2, ensure_ascii=False, allow_nan=False)
            print(text, file=self._results)
        elif text:
            print(text)


def is_terminal(stream: TextIO) -> bool:
    """Whether ``stream`` is a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def plain(value: Any) -> Any:
    """``value`` as JSON has it: NumPy numbers as numbers, NaN and infinities as null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, left: Sequence[int] = ()) -> str:
    """Columns of text, right-aligned except those named in ``left``."""
    widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.ljust(width) if i in left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(cells, widths, strict=True))
        )
        return "  ".join(padded).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


def duration(seconds: float) -> str:
    """``75.2`` as ``1:15``, ``3.14`` as ``3.1 s``, ``0.123`` as ``0.12 s``."""
    if seconds < 0.995:
        return f"{seconds:.2f} s"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def percent(share: float) -> str:
    """``0.9876`` as ``98.76 %``."""
    return f"{100 * share:.2f} %"


def costs_in_words(costs: Mapping[str, float]) -> str:
    """``logprob 2.3026, top-1 error 90.10 %, top-5 error 52.00 %; sqdiff 0.1234``; "" for none."""
    parts: list[str] = []
    for name, value in costs.items():
        error = _ERROR.search(name)
        if error is None:
            parts.append(f"{'; ' if parts else ''}{name} {value:.4f}")
        else:
            parts.append(f", top-{error[1]} error {percent(value)}")
    return "".join(parts)


def replace_closed_streams() -> None:
    """Where a shell closed stdout or stderr (``>&-``) Python has None: print into nothing."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_WRONLY), "w"))


def tolerate_any_encoding() -> None:
    """Print a replacement for what the terminal's encoding lacks (``×``), rather than fail."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")


def speak_in_lines() -> None:
    """Show what the library logs and warns of as single lines on stderr."""
    import logging
    import warnings

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        say(f"warning: {message}")

    class Lines(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            say(record.getMessage())

    warnings.showwarning = show
    logger = logging.getLogger("convloom")
    logger.addHandler(Lines())
    logger.setLevel(logging.INFO)
    logger.propagate = False


def say(message: str) -> None:
    """Print ``convloom: message`` on stderr, in one line whatever the message holds."""
    with contextlib.suppress(BrokenPipeError):
        print(f"convloom: {' '.join(message.split())}", file=sys.stderr, flush=True)


def dims(shape: Sequence[int]) -> str:
    """``(3, 32, 32)`` as ``3×32×32``."""
    return "×".join(map(str, shape))


def rate(per_second: float) -> str:
    """``26104.2`` as ``26.1k``, ``312.4`` as ``312``."""
    if per_second >= 999_500:
        return f"{per_second / 1e6:.2f}M"
    if per_second >= 9_995:
        return f"{per_second / 1e3:.1f}k"
    return f"{per_second:.0f}" if per_second >= 10 else f"{per_second:.2g}"
