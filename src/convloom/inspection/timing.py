"""Fair timings: many steps at a time, after a warm-up, in rounds that take turns.

Contenders that run in turn share whatever disturbs the machine, and the median over rounds leaves
out what disturbed one of them.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

#: A round has no more steps than this, whatever its length in seconds.
MOST_STEPS = 4096


class Contender(Protocol):
    """Something whose steps are timed."""

    def run(self, steps: int) -> float:
        """Run so many steps, wait for them, and return the seconds that they took."""
        ...


@dataclass(frozen=True)
class Timing:
    """Seconds a step of one contender, round by round.

    Attributes:
        steps: steps of a round.
        rounds: seconds a step in each round.
    """

    steps: int
    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        """Seconds a step in the middle round."""
        return statistics.median(self.rounds)

    @property
    def fastest(self) -> float:
        """Seconds a step in the fastest round."""
        return min(self.rounds)

    @property
    def slowest(self) -> float:
        """Seconds a step in the slowest round."""
        return max(self.rounds)


def interleaved(
    contenders: Sequence[Contender],
    *,
    rounds: int,
    seconds: float,
    tell: Callable[[int], None] = lambda done: None,
) -> list[Timing]:
    """Time contenders in turn.

    Args:
        rounds: how often each has its turn.
        seconds: about how long a turn lasts; a contender that is slower takes one step.
        tell: called after each round with the number of those done; 0 after the warm-up.
    """
    steps = [warmed_up(contender, seconds) for contender in contenders]
    tell(0)
    times: list[list[float]] = [[] for _ in contenders]
    for done in range(rounds):
        for contender, count, found in zip(contenders, steps, times, strict=True):
            found.append(contender.run(count) / count)
        tell(done + 1)
    return [Timing(count, tuple(found)) for count, found in zip(steps, times, strict=True)]


def warmed_up(contender: Contender, seconds: float) -> int:
    """How many steps take about so long; that many have run once when this returns.

    The length grows step by step, because the first runs also compile, capture and allocate.
    """
    contender.run(1)
    steps = 1
    while True:
        spent = contender.run(steps)
        wanted = max(1, min(MOST_STEPS, int(steps * seconds / max(spent, 1e-9))))
        if wanted <= 2 * steps:
            break
        steps = min(wanted, 8 * steps)
    if wanted != steps:
        contender.run(wanted)
    return wanted


def wall_seconds(work: Callable[[], None]) -> float:
    """How long a call takes by this machine's clock."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
