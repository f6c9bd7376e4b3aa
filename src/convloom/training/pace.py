"""How many steps may be on their way to a device before the first of them is reported.

A device should never wait for the host, and who asks training to stop should not wait long for the
device: so the steps on their way are those of a fraction of a second.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from convloom.backends import DeviceError
from convloom.backends.feeding import Asked, Results
from convloom.training.protocols import StepResults

#: Seconds of work that may be asked for before its first step is reported.
_PATIENCE = 0.2
#: Graphs that share that time, so that one is always ready when the one before it ends.
_GRAPHS = 4
#: Steps that are asked for at once, however short they are.
_MOST = 64


@dataclass(frozen=True)
class Part:
    """Steps of ``size`` images each that were asked for; ``settled``: nothing may follow yet."""

    asked: Asked
    size: int
    settled: bool


class Pace:
    """Reports steps in order, and finds how many may be asked for before they are.

    Args:
        figures: names of what steps report as costs.

    Attributes:
        most: steps that may be asked for at once.
    """

    def __init__(self, figures: Sequence[str] = ()) -> None:
        self.most = 1
        self._room = 1
        self._figures = tuple(figures)

    def reported(self, parts: Generator[Part, None, None], ahead: int) -> Iterator[StepResults]:
        """The results of each part's steps; ``parts`` are asked for by being taken."""
        with contextlib.closing(self.chunks(parts, ahead)) as chunks:
            for results, size in chunks:
                yield self._steps(results, size)

    def chunks(
        self, parts: Generator[Part, None, None], ahead: int
    ) -> Generator[tuple[Results, int], None, None]:
        """The results of each part, and how many images its steps have."""
        waiting: deque[Part] = deque()
        began = time.perf_counter()
        try:
            for part in parts:
                waiting.append(part)
                while waiting and (part.settled or self._enough(waiting, ahead)):
                    results = waiting[0].asked.results()
                    now = time.perf_counter()
                    self._learn((now - began) / waiting[0].asked.steps)
                    began = now
                    yield results, waiting.popleft().size
            while waiting:
                yield waiting[0].asked.results(), waiting.popleft().size
        finally:
            # Whoever leaves early must find nothing on its way.
            for part in waiting:
                with contextlib.suppress(DeviceError):
                    part.asked.results()
            parts.close()

    def _enough(self, waiting: Sequence[Part], ahead: int) -> bool:
        steps = sum(part.asked.steps for part in waiting)
        return len(waiting) >= ahead or (len(waiting) > 1 and steps > self._room)

    def _learn(self, seconds: float) -> None:
        """A step, with the host's own work on its report, took this long."""
        self._room = max(1, int(_PATIENCE / max(seconds, 1e-9)))
        self.most = max(1, min(_MOST, self._room // _GRAPHS))

    def _steps(self, results: Results, size: int) -> StepResults:
        first, five = results.corrects.T.tolist()
        costs = [dict(zip(self._figures, row, strict=True)) for row in results.costs.tolist()]
        return StepResults(results.losses.tolist(), first, five, size, costs)
