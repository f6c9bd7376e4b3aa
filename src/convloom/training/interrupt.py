"""Ctrl-C that ends training in good order: the first asks, the second stops at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class TrainingInterrupted(KeyboardInterrupt):
    """Training was asked to stop and did, after a whole step; the message says how to resume.

    It is a KeyboardInterrupt, so that a script that does not expect it stops as usual.

    Attributes:
        signal: the signal that asked (``signal.SIGINT`` or ``SIGTERM``); None if code did.
        checkpoint: the file that holds the state; None if nothing was saved.
    """

    def __init__(self, message: str, signal: int | None, checkpoint: str | None) -> None:
        super().__init__(message)
        self.signal = signal
        self.checkpoint = checkpoint


class StopRequest:
    """Watches for SIGINT and SIGTERM while a block runs.

    The first signal only sets ``asked``; any further one restores the previous handlers and raises
    KeyboardInterrupt where the program is. Handlers are set only in the main thread (Python allows
    it nowhere else) and only where no one ignores the signal, and are restored at the end.
    """

    def __init__(self) -> None:
        self.asked: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in _SIGNALS:
                # None: set by C code that we could not restore. SIG_IGN: nohup, say.
                if signal.getsignal(number) not in (None, signal.SIG_IGN):
                    self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        self._restore()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.asked is not None:
            self._restore()
            raise KeyboardInterrupt
        self.asked = number

    def _restore(self) -> None:
        while self._previous:
            number, handler = self._previous.popitem()
            signal.signal(number, handler)
