"""Rounds that take turns."""

from __future__ import annotations

import pytest

from convloom.inspection.timing import MOST_STEPS, Timing, interleaved, warmed_up


class Clockwork:
    """A contender that takes ``seconds`` a step without taking any time."""

    def __init__(self, seconds: float, log: list[tuple[str, int]], name: str = "") -> None:
        self._seconds = seconds
        self._log = log
        self._name = name

    def run(self, steps: int) -> float:
        self._log.append((self._name, steps))
        return steps * self._seconds


@pytest.mark.parametrize(
    ("each", "wanted"), [(1.0, 1), (0.05, 2), (1e-3, 100), (0.0, MOST_STEPS), (1e-9, MOST_STEPS)]
)
def test_a_round_lasts_as_long_as_asked(each: float, wanted: int) -> None:
    log: list[tuple[str, int]] = []
    assert warmed_up(Clockwork(each, log), 0.1) == wanted
    assert wanted in [steps for _, steps in log], "the timed length has run once before"


def test_contenders_take_turns() -> None:
    log: list[tuple[str, int]] = []
    told: list[int] = []
    both = [Clockwork(0.1, log, "slow"), Clockwork(0.01, log, "fast")]
    slow, fast = interleaved(both, rounds=3, seconds=0.1, tell=told.append)
    assert log[-6:] == [("slow", 1), ("fast", 10)] * 3
    assert told == [0, 1, 2, 3]
    assert slow.rounds == pytest.approx([0.1] * 3)
    assert (fast.steps, fast.median) == (10, pytest.approx(0.01))


def test_figures_of_a_timing() -> None:
    timing = Timing(4, (3.0, 1.0, 2.0))
    assert (timing.fastest, timing.median, timing.slowest) == (1.0, 2.0, 3.0)
