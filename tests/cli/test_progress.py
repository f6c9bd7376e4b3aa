"""Speed and time left, from what has been done so far."""

from __future__ import annotations

import pytest

from convloom.cli.progress import Clock
from convloom.cli.terminal import duration, percent, plain, rate
from convloom.training.callbacks import Moment
from convloom.training.history import History
from convloom.training.protocols import Progress, StepResult, StepResults

ONE = StepResults.of(StepResult(loss=1.0, correct=1, correct5=5, n=10))


def moment(seconds: float, epoch: int, batch: int) -> Moment:
    progress = Progress(epoch=epoch, batch=batch, step=4 * epoch + batch, epochs=3, batches=4)
    return Moment(
        trainer=None,  # type: ignore[arg-type]  # the clock never asks it
        progress=progress,
        lr=0.1,
        history=History(),
        result=ONE[0],
        seconds=seconds,
    )


def test_the_first_step_does_not_count() -> None:
    clock = Clock()
    clock.start(moment(0, 0, 0))
    clock.count(moment(9, 0, 1), ONE)  # compiles
    assert clock.images_per_second == 0
    clock.count(moment(11, 0, 2), ONE)
    assert clock.images_per_second == 5
    assert clock.left(moment(11, 0, 2)) == 10 * 2


def test_validations_to_come_count_as_long_as_the_last_one() -> None:
    clock = Clock()
    clock.start(moment(0, 0, 0))
    for batch in range(1, 5):
        clock.count(moment(batch, 0, batch), ONE)
    clock.count_validation(moment(7, 1, 0))
    clock.start_epoch()
    assert clock.images_per_second == 0
    clock.count(moment(8, 1, 1), ONE)
    assert clock.images_per_second == 10
    assert clock.left(moment(8, 1, 1)) == pytest.approx(7 * 1 + 2 * 3)


def test_figures_in_words() -> None:
    assert [duration(s) for s in (0.123, 3.14, 59.94, 59.96, 75.2, 3723)] == [
        "0.12 s",
        "3.1 s",
        "59.9 s",
        "1:00",
        "1:15",
        "1:02:03",
    ]
    assert [rate(r) for r in (3.14159, 312.4, 9994, 26104, 999600)] == [
        "3.1",
        "312",
        "9994",
        "26.1k",
        "1.00M",
    ]
    assert percent(0.98765) == "98.77 %"


def test_json_has_no_nan() -> None:
    assert plain({"a": [float("nan"), 1.5, float("inf")], 2: (True, None)}) == {
        "a": [None, 1.5, None],
        "2": [True, None],
    }
