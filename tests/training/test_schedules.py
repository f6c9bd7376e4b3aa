"""Schedules: values against PyTorch's, text form and its errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from convloom.training.schedules import (
    Constant,
    Cosine,
    OneCycle,
    Schedule,
    ScheduleError,
    Span,
    StepDecay,
    WarmUp,
    as_schedule,
    parse_schedule,
)

torch = pytest.importorskip("torch")


def rates(schedule: Schedule, span: Span, lr: float) -> list[float]:
    return [schedule.rates(step, span, lr).lr for step in range(span.steps)]


def torch_rates(lr: float, steps: int, make: Any, **optimizer: Any) -> list[tuple[float, Any]]:
    parameter = torch.nn.Parameter(torch.zeros(1))
    sgd = torch.optim.SGD([parameter], lr=lr, **optimizer)
    scheduler = make(sgd)
    found = []
    for _ in range(steps):
        found.append((sgd.param_groups[0]["lr"], sgd.param_groups[0]["momentum"]))
        sgd.step()
        scheduler.step()
    return found


@pytest.mark.parametrize(
    ("steps", "pct", "div", "final_div"),
    [(50, 0.3, 25.0, 1e4), (101, 0.25, 10.0, 100.0), (10, 0.3, 25.0, 1e4), (7, 1.0, 25.0, 1e4)],
)
def test_one_cycle_is_pytorchs(steps: int, pct: float, div: float, final_div: float) -> None:
    # torch's scheduler may not be stepped past its end, so the last value is read before that.
    theirs = torch_rates(
        0.1,
        steps - 1,
        lambda sgd: torch.optim.lr_scheduler.OneCycleLR(
            sgd,
            max_lr=0.03,
            total_steps=steps,
            pct_start=pct,
            div_factor=div,
            final_div_factor=final_div,
            base_momentum=0.85,
            max_momentum=0.95,
        ),
        momentum=0.9,
    )
    ours = OneCycle(0.03, pct, div, final_div, base_momentum=0.85, max_momentum=0.95)
    for step, (lr, momentum) in enumerate(theirs):
        found = ours.rates(step, Span(steps, 5), 0.1)
        assert found.lr == pytest.approx(lr, rel=1e-12)
        assert found.momentum == pytest.approx(momentum, rel=1e-12)


def test_one_cycle_reaches_its_corners() -> None:
    schedule, span = OneCycle(), Span(1000, 100)
    values = rates(schedule, span, 0.5)
    assert values[0] == pytest.approx(0.5 / 25)
    assert max(values) == values[299] == pytest.approx(0.5)
    assert values[-1] == pytest.approx(0.5 / 25 / 1e4)
    assert schedule.rates(0, span, 0.5).momentum is None


@given(steps=st.integers(1, 40), pct=st.floats(0, 1))
def test_one_cycle_stays_in_bounds_however_short(steps: int, pct: float) -> None:
    for value in rates(OneCycle(1.0, pct), Span(steps, 3), 0.1):
        assert 0 < value <= 1.0


def test_cosine_is_pytorchs() -> None:
    theirs = torch_rates(
        0.2, 40, lambda sgd: torch.optim.lr_scheduler.CosineAnnealingLR(sgd, 40, eta_min=0.01)
    )
    ours = rates(Cosine(final=0.01), Span(40, 10), 0.2)
    assert ours == pytest.approx([lr for lr, _ in theirs], rel=1e-9)
    assert Cosine(0.01).rates(40, Span(40, 10), 0.2).lr == pytest.approx(0.01)


def test_step_decay_counts_epochs_steps_or_shares() -> None:
    span = Span(steps=100, epoch_steps=10)
    by_epoch = rates(StepDecay(every=3, gamma=0.5), span, 1.0)
    assert by_epoch[29] == 1.0
    assert by_epoch[30] == 0.5
    assert by_epoch[60] == 0.25
    assert rates(StepDecay(every="30 steps", gamma=0.5), span, 1.0) == by_epoch
    assert rates(StepDecay(every="30%", gamma=0.5), span, 1.0) == by_epoch
    some = rates(StepDecay(milestones=(2, "45 steps", "80%")), span, 1.0)
    assert [some[i] for i in (19, 20, 44, 45, 79, 80)] == pytest.approx(
        [1.0, 0.1, 0.1, 0.01, 0.01, 0.001]
    )


def test_step_decay_is_pytorchs() -> None:
    theirs = torch_rates(
        0.2, 40, lambda sgd: torch.optim.lr_scheduler.MultiStepLR(sgd, [10, 25], gamma=0.3)
    )
    ours = StepDecay(milestones=("10 steps", "25 steps"), gamma=0.3)
    assert rates(ours, Span(40, 7), 0.2) == pytest.approx([lr for lr, _ in theirs], rel=1e-9)


def test_warm_up_goes_in_front() -> None:
    span = Span(steps=20, epoch_steps=4)
    values = rates(WarmUp(Constant(), 1.0), span, 0.8)
    assert values[:4] == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert values[4:] == [0.8] * 16
    values = rates(WarmUp(Cosine(), "5 steps", start=0.5), span, 1.0)
    assert values[:5] == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])
    assert values[5:] == rates(Cosine(), Span(15, 4), 1.0)


def test_a_warm_up_longer_than_the_training_only_rises() -> None:
    values = rates(WarmUp(Constant(), 10.0), Span(8, 2), 1.0)
    assert values == pytest.approx([(i + 1) / 8 for i in range(8)])


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("constant", Constant()),
        ("one-cycle", OneCycle()),
        ("onecycle", OneCycle()),
        ("one-cycle:max=0.03,pct=0.3", OneCycle(max=0.03, pct=0.3)),
        (" One-Cycle : max = 0.03 , final-div=100", OneCycle(max=0.03, final_div=100)),
        ("step:every=10,gamma=0.1", StepDecay(every=10.0, gamma=0.1)),
        ("step:milestones=30/60/80%", StepDecay(milestones=(30.0, 60.0, "80%"))),
        ("step:every=500 steps", StepDecay(every="500 steps")),
        ("cosine", Cosine()),
        ("cosine:final=1e-4", Cosine(final=1e-4)),
        ("cosine:final=1e-4,warmup=2", WarmUp(Cosine(final=1e-4), 2.0)),
        ("constant:warmup=5%,warmup-start=0.1", WarmUp(Constant(), "5%", 0.1)),
    ],
)
def test_text_forms(text: str, schedule: Schedule) -> None:
    assert parse_schedule(text) == schedule
    assert parse_schedule(str(schedule)) == schedule


@given(value=st.floats(1e-6, 10), pct=st.floats(0, 1))
def test_text_forms_keep_every_bit(value: float, pct: float) -> None:
    schedule = OneCycle(max=value, pct=pct)
    assert parse_schedule(str(schedule)) == schedule


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("cosin", r"unknown schedule 'cosin'.*known are constant, step, cosine, one-cycle"),
        ("", r"unknown schedule ''"),
        ("one-cycle:maximum=1", r"one-cycle has no part 'maximum'.*max, pct, div, final-div"),
        ("one-cycle:max", r"'max' is not of the form name=value"),
        ("one-cycle:max=", r"'max=' is not of the form name=value"),
        ("one-cycle:max=high", r"max needs a number, not 'high'"),
        ("one-cycle:max=-1", r"max must be a number above 0, it is -1"),
        ("one-cycle:max=nan", r"max must be a number above 0, it is nan"),
        ("one-cycle:pct=1.5", r"pct must be a number at least 0 and at most 1, it is 1\.5"),
        ("one-cycle:base-momentum=0.8", r"base-momentum and max-momentum go together"),
        ("one-cycle:max=1,max=2", r"max is given twice"),
        ("step", r"give either every=… or milestones=…"),
        ("step:every=1,milestones=3", r"give either"),
        ("step:every=0", r"every needs a number of epochs"),
        ("step:every=ten", r"every needs a number of epochs.*not 'ten'"),
        ("step:every=3 weeks", r"every needs a number of epochs"),
        ("step:every=1,gamma=0", r"gamma must be a number above 0"),
        ("cosine:final=-1", r"final must be a number at least 0"),
        ("cosine:warmup=x", r"warmup needs a number of epochs"),
        ("cosine:warmup-start=0.1", r"warmup-start needs a warmup=… as well"),
    ],
)
def test_errors_name_the_part(text: str, named: str) -> None:
    with pytest.raises(ScheduleError, match=named):
        parse_schedule(text)


def test_whatever_a_caller_may_give() -> None:
    assert as_schedule(None) == Constant()
    assert as_schedule("cosine") == Cosine()
    assert as_schedule(Cosine()) == Cosine()
