"""When a checkpoint is due, so that writing them takes a small part of the time that training does.

A run saves at every epoch's end, as far as that is cheap: a large network whose epochs are short
would else spend its time on writing files. What has to be saved (the end of a run, a stop, steps
that a person asked for) is not asked here.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

#: Seconds that a checkpoint may take to write and still be written at every epoch's end.
CHEAP = 0.05
#: How many times as long as the last one took goes by before the next one that is not cheap.
SPACING = 10


def _now() -> float:
    return time.perf_counter()


class Spacing:
    """The time between the checkpoints of a run, and what the last one took."""

    def __init__(self) -> None:
        self._took: float | None = None
        self._written = 0.0

    def due(self) -> bool:
        """Whether an epoch's end is to be saved: the first one, a cheap one, or after a while."""
        if self._took is None or self._took <= CHEAP:
            return True
        return _now() - self._written >= SPACING * self._took

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around all that a checkpoint takes; one that fails does not count."""
        began = _now()
        yield
        self._written = _now()
        self._took = self._written - began
