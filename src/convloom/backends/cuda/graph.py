"""Repeating a piece of work without the host: graphs of one, two, four … repetitions.

Launching a graph costs the host several microseconds, a kernel inside it one microsecond of the
device, so short steps are unrolled: one graph holds many of them. Whatever differs from step to
step must lie in device memory or depend on the place of the step within the graph alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from convloom.backends.cuda.gpu import Gpu

#: A graph holds no more launches than this, unless one repetition has more.
LAUNCHES = 1024
#: A graph holds no more repetitions than this, so that the host hears of results soon enough.
REPETITIONS = 64


class Replay:
    """Work that is repeated; a graph of each length is captured when it is first needed.

    Args:
        calls: the launches of one repetition, each a function that asks for one.
        prologue: launches that come once, before the first repetition of each graph.
        later: the launches of repetitions that have so many before them in their graph, where these
            are not those of the first one.
    """

    def __init__(
        self,
        gpu: Gpu,
        calls: Sequence[Callable[[], None]],
        prologue: Sequence[Callable[[], None]] = (),
        later: Callable[[int], Sequence[Callable[[], None]]] | None = None,
    ) -> None:
        self._gpu = gpu
        self._later = later
        self._calls = tuple(calls)
        self._prologue = tuple(prologue)
        self.longest = _power_of_two(min(REPETITIONS, LAUNCHES // max(1, len(self._calls))))
        self._graphs: dict[int, Callable[[], None]] = {}

    def lengths(self, count: int) -> Iterator[int]:
        """Graph lengths, all powers of two, that make ``count`` repetitions."""
        while count > 0:
            length = min(self.longest, _power_of_two(count))
            yield length
            count -= length

    def launch(self, length: int) -> None:
        """Ask for the graph of this many repetitions; does not wait."""
        self._graph(length)()

    def prepare(self, count: int) -> None:
        """Capture the graphs that any ``run`` of at most so many launches."""
        length = min(self.longest, _power_of_two(count))
        while length > 0:
            self._graph(length)
            length //= 2

    def run(self, count: int) -> None:
        """Ask for ``count`` repetitions; does not wait."""
        for length in self.lengths(count):
            self.launch(length)

    def _graph(self, length: int) -> Callable[[], None]:
        if length not in self._graphs:
            self._graphs[length] = self._gpu.capture(lambda: self._ask(length))
        return self._graphs[length]

    def _ask(self, length: int) -> None:
        for call in self._prologue:
            call()
        for place in range(length):
            calls = self._later(place) if self._later and place else self._calls
            for call in calls:
                call()

    def forget(self) -> None:
        """Drop all graphs: something that they hold has changed."""
        self._graphs.clear()


def _power_of_two(number: int) -> int:
    """The largest power of two that is at most ``number``; 1 for anything less."""
    return 1 << max(0, number.bit_length() - 1) if number > 0 else 1
