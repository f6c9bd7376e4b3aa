"""Against the formulas written out: 2012's schedules of a rate."""

from __future__ import annotations

import math

import pytest

from convloom.convnet.schedules import CONSTANT, RateSchedule, parse_schedule


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_smooth_schedules(p: float) -> None:
    b, f = 0.02, 50.0
    assert CONSTANT.rate(b, p) == b
    assert RateSchedule("linear", f).rate(b, p) == pytest.approx(b * (1 - p) + p * b / f)
    assert RateSchedule("exp", f).rate(b, p) == pytest.approx(b * f**-p)


def test_stairs_take_their_level_at_the_upper_edge() -> None:
    stairs = RateSchedule("dexp", 250.0, steps=4)
    levels = [0.01 * 250 ** (-i / 3) for i in range(4)]
    for p, level in [(0, 0), (0.25, 0), (0.26, 1), (0.5, 1), (0.75, 2), (0.751, 3), (1, 3), (2, 3)]:
        assert stairs.rate(0.01, p) == pytest.approx(levels[level])


def test_half_steps_come_in_the_later_half_of_a_level() -> None:
    stairs = RateSchedule("jdexp", 100.0, steps=3)
    levels = [0.01 * 100 ** (-i / 2) for i in range(3)]
    between = math.sqrt(levels[0] * levels[1])
    assert stairs.rate(0.01, 0.3) == pytest.approx(levels[0])  # the first level has no half step
    assert stairs.rate(0.01, 0.45) == pytest.approx(levels[1])
    assert stairs.rate(0.01, 0.55) == pytest.approx(between)
    assert stairs.rate(0.01, 0.88) == pytest.approx(math.sqrt(levels[1] * levels[2]))
    assert stairs.rate(0.01, 0.95) == pytest.approx(levels[2])


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("default", CONSTANT),
        ("linear[tgtFactor=1000,noiseStdev=0.5]", RateSchedule("linear", 1000, 0.5)),
        ("dexp[tgtFactor=250,noiseStdev=0,numSteps=4]", RateSchedule("dexp", 250, steps=4)),
        ("linear[1000]", RateSchedule("linear", 1000)),
        ("exp[1234567.125]", RateSchedule("exp", 1234567.125)),
        (
            "linear[tgtFactor=0.1234567891,noiseStdev=1e-7]",
            RateSchedule("linear", 0.1234567891, 1e-7),
        ),
        ("linear[1,1]", RateSchedule("linear", 1, 1)),
        ("dexp[10,2]", RateSchedule("dexp", 10, steps=2)),
        ("dexp[250,0,4]", RateSchedule("dexp", 250, steps=4)),
        ("jdexp[1000,4]", RateSchedule("jdexp", 1000, steps=4)),
        ("exp[base=0.01 ; tgtFactor=10]", RateSchedule("exp", 10, base=0.01)),
        ("dexp[base=0.1;tgtFactor=25;numSteps=2]", RateSchedule("dexp", 25, steps=2, base=0.1)),
    ],
)
def test_a_schedule_is_read_in_every_form_that_was_in_use(
    text: str, schedule: RateSchedule
) -> None:
    assert parse_schedule(text) == schedule
    if schedule.base is None:
        assert parse_schedule(str(schedule), strict=True) == schedule


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("step[3]", "must be default or one of"),
        ("exp", "must be default or one of"),
        ("default[1]", "must be default or one of"),
        ("exp[tgtFactor=0]", "positive tgtFactor"),
        ("exp[noiseStdev=1]", "positive tgtFactor"),
        ("exp[tgtFactor=x]", "where a number belongs"),
        ("exp[tgtFactor=2,steps=3]", "no place for 'steps=3'"),
        ("dexp[tgtFactor=2,numSteps=1]", "numSteps of 2 or more"),
        ("linear[1,2,3]", "more than 2 values"),
        ("dexp[tgtFactor=2,4]", "needs names"),
        ("dexp[tgtFactor=2,numSteps=inf]", "has 'inf' where a finite number belongs"),
        ("exp[base=nan;tgtFactor=2]", "has 'nan' where a finite number belongs"),
        ("exp[base=-1;tgtFactor=2]", "needs a base of 0 or more"),
        ("exp[tgtFactor=1_0]", "has '1_0' where a number belongs"),
    ],
)
def test_other_texts_are_refused(text: str, rule: str) -> None:
    with pytest.raises(ValueError, match=rule):
        parse_schedule(text)


def test_the_original_wanted_names() -> None:
    with pytest.raises(ValueError, match="needs names"):
        parse_schedule("dexp[500,4]", strict=True)
