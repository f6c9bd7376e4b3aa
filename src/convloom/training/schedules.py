"""Learning rate schedules: pure functions of the step, so that a resume needs no state.

A schedule is written as text where a file or a command line gives it:

    constant
    step:every=10,gamma=0.1          step:milestones=30/60/80
    cosine                           cosine:final=1e-4
    one-cycle:max=0.03,pct=0.3       one-cycle:base-momentum=0.85,max-momentum=0.95
    cosine:final=0,warmup=2          (a warm-up goes in front of any)

Durations (``every``, ``milestones``, ``warmup``) are epochs, and may be fractions of one; ``500
steps`` counts steps and ``5%`` is a share of the whole training.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from convloom.ir import ConvloomError

#: A length of training: a number of epochs, or text such as ``500 steps``, ``5%``, ``2 epochs``.
Duration = float | str

_DURATION = re.compile(r"\s*([0-9.eE+-]+)\s*(steps?|epochs?|%|)\s*")


class ScheduleError(ConvloomError, ValueError):
    """A schedule that cannot be read or makes no sense; the message names the part."""


@dataclass(frozen=True)
class Span:
    """What a schedule stretches over: steps of the whole training, steps of one epoch."""

    steps: int
    epoch_steps: int


@dataclass(frozen=True)
class Rates:
    """What holds for one step. ``momentum`` is None where the optimiser's own value stays."""

    lr: float
    momentum: float | None = None


class Schedule(ABC):
    """Learning rate, and if it likes momentum, as a pure function of the step.

    Class attributes:
        kind: the name that its text form begins with.
    """

    kind: ClassVar[str]

    @abstractmethod
    def rates(self, step: int, span: Span, lr: float) -> Rates:
        """The rates of a step.

        Args:
            step: steps made before, from 0 to ``span.steps - 1``; later steps keep the last rate.
            lr: the optimiser's own learning rate, which most schedules start from.
        """

    def __str__(self) -> str:
        parts = [
            f"{_text_key(field.name)}={_text_value(getattr(self, field.name))}"
            for field in fields(self)  # type: ignore[arg-type]  # every schedule is a dataclass
            if getattr(self, field.name) != field.default
        ]
        return f"{self.kind}:{','.join(parts)}" if parts else self.kind


@dataclass(frozen=True)
class Constant(Schedule):
    """The optimiser's learning rate throughout."""

    kind: ClassVar[str] = "constant"

    def rates(self, step: int, span: Span, lr: float) -> Rates:
        return Rates(lr)


@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiply by ``gamma`` at each milestone, or every so often.

    Args:
        every: distance between two decays. Either this or ``milestones``.
        milestones: when to decay.
        gamma: the factor.
    """

    kind: ClassVar[str] = "step"

    every: Duration | None = None
    milestones: tuple[Duration, ...] = ()
    gamma: float = 0.1

    def __post_init__(self) -> None:
        if (self.every is None) == (not self.milestones):
            raise ScheduleError("schedule step: give either every=… or milestones=…")
        object.__setattr__(self, "milestones", tuple(self.milestones))
        if self.every is not None:
            _check_duration("step", "every", self.every, positive=True)
        for milestone in self.milestones:
            _check_duration("step", "milestones", milestone)
        _check_number("step", "gamma", self.gamma, above=0)

    def rates(self, step: int, span: Span, lr: float) -> Rates:
        if self.every is not None:
            passed = int(step // max(1.0, _steps(self.every, span)))
        else:
            passed = sum(step >= _steps(milestone, span) for milestone in self.milestones)
        return Rates(lr * self.gamma**passed)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine from the learning rate down to ``final``.

    Source: Loshchilov and Hutter, "SGDR" (arXiv 1608.03983), equation 5 without restarts; the same
    values as torch.optim.lr_scheduler.CosineAnnealingLR with T_max = all steps.
    """

    kind: ClassVar[str] = "cosine"

    final: float = 0.0

    def __post_init__(self) -> None:
        _check_number("cosine", "final", self.final, least=0)

    def rates(self, step: int, span: Span, lr: float) -> Rates:
        return Rates(_anneal(lr, self.final, min(step, span.steps) / max(1, span.steps)))


@dataclass(frozen=True)
class OneCycle(Schedule):
    """Up to a maximum and down to almost nothing, each on half a cosine.

    Source: Smith and Topin, "Super-Convergence" (arXiv 1708.07120); values and names as in
    torch.optim.lr_scheduler.OneCycleLR with two phases and cosine annealing.

    Args:
        max: the highest rate; the optimiser's learning rate if None.
        pct: share of the steps that go up.
        div: the first rate is max / div.
        final_div: the last rate is the first / final_div.
        base_momentum: momentum at the highest rate. Momentum is cycled if both are given.
        max_momentum: momentum at the first and last step.
    """

    kind: ClassVar[str] = "one-cycle"

    max: float | None = None
    pct: float = 0.3
    div: float = 25.0
    final_div: float = 1e4
    base_momentum: float | None = None
    max_momentum: float | None = None

    def __post_init__(self) -> None:
        if self.max is not None:
            _check_number("one-cycle", "max", self.max, above=0)
        _check_number("one-cycle", "pct", self.pct, least=0, most=1)
        _check_number("one-cycle", "div", self.div, above=0)
        _check_number("one-cycle", "final_div", self.final_div, above=0)
        if (self.base_momentum is None) != (self.max_momentum is None):
            raise ScheduleError(
                "schedule one-cycle: base-momentum and max-momentum go together; give both"
            )
        for name in ("base_momentum", "max_momentum"):
            if getattr(self, name) is not None:
                _check_number("one-cycle", name, getattr(self, name), least=0, below=1)

    def rates(self, step: int, span: Span, lr: float) -> Rates:
        highest = lr if self.max is None else self.max
        first = highest / self.div
        rate = self._walk(step, span, first, highest, first / self.final_div)
        if self.base_momentum is None or self.max_momentum is None:
            return Rates(rate)
        low, high = self.base_momentum, self.max_momentum
        return Rates(rate, self._walk(step, span, high, low, high))

    def _walk(self, step: int, span: Span, start: float, turn: float, end: float) -> float:
        """From start to turn and on to end; the turn comes at step pct * steps - 1."""
        last = span.steps - 1
        peak = min(float(last), self.pct * span.steps - 1)
        step = min(step, last)
        if peak > 0 and step <= peak:
            return _anneal(start, turn, step / peak)
        peak = max(0.0, peak)
        return turn if last <= peak else _anneal(turn, end, (step - peak) / (last - peak))


@dataclass(frozen=True)
class WarmUp(Schedule):
    """A straight line from ``start`` times the first rate, in front of another schedule.

    ``after`` then runs over the remaining steps, as in torch's SequentialLR, so its own milestones
    count from the end of the warm-up.

    Args:
        after: the schedule that follows.
        length: how long the line is.
        start: share of the first rate to begin with.
    """

    kind: ClassVar[str] = "warm-up"

    after: Schedule
    length: Duration = 1.0
    start: float = 0.0

    def __post_init__(self) -> None:
        _check_duration(self.after.kind, "warmup", self.length)
        _check_number(self.after.kind, "warmup-start", self.start, least=0, most=1)

    def rates(self, step: int, span: Span, lr: float) -> Rates:
        length = min(span.steps, round(_steps(self.length, span)))
        rest = Span(max(1, span.steps - length), span.epoch_steps)
        if step >= length:
            return self.after.rates(step - length, rest, lr)
        first = self.after.rates(0, rest, lr)
        # Step 0 is a step too: with start = 0 it has the rate first / length, never zero.
        share = self.start + (1 - self.start) * (step + 1) / length
        return Rates(first.lr * share, first.momentum)

    def __str__(self) -> str:
        inner = str(self.after)
        parts = f"warmup={_text_value(self.length)}"
        if self.start:
            parts += f",warmup-start={_text_value(self.start)}"
        return f"{inner}{',' if ':' in inner else ':'}{parts}"


_KINDS: dict[str, type[Schedule]] = {
    kind.kind: kind for kind in (Constant, StepDecay, Cosine, OneCycle)
}
_ALIASES = {"onecycle": "one-cycle", "one_cycle": "one-cycle"}
_TUPLES = {"milestones"}
_DURATIONS = {"every", "milestones"}


def parse_schedule(text: str) -> Schedule:
    """The schedule that ``text`` describes, as ``one-cycle:max=0.03,pct=0.3``.

    Raises:
        ScheduleError: an unknown schedule or part, or a value that cannot be read.
    """
    name, _, rest = text.strip().partition(":")
    name = _ALIASES.get(name.strip().lower(), name.strip().lower())
    kind = _KINDS.get(name)
    if kind is None:
        raise ScheduleError(f"unknown schedule {name!r} in {text!r}; known are {', '.join(_KINDS)}")
    given = _parts(name, rest)
    warm_up = {key: given.pop(key) for key in ("warmup", "warmup_start") if key in given}
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for key in given:
        if key not in known:
            allowed = ", ".join(_text_key(k) for k in (*known, "warmup", "warmup_start"))
            raise ScheduleError(
                f"schedule {name} has no part {_text_key(key)!r}; its parts are {allowed}"
            )
    schedule = kind(**{key: _value(name, key, value) for key, value in given.items()})
    if not warm_up:
        return schedule
    if "warmup" not in warm_up:
        raise ScheduleError(f"schedule {name}: warmup-start needs a warmup=… as well")
    start = _float(name, "warmup-start", warm_up.get("warmup_start", "0"))
    return WarmUp(schedule, _duration_value(warm_up["warmup"]), start)


def as_schedule(schedule: Schedule | str | None) -> Schedule:
    """A schedule from whatever a caller may give; None is Constant."""
    if schedule is None:
        return Constant()
    return parse_schedule(schedule) if isinstance(schedule, str) else schedule


def _parts(name: str, text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        key = key.strip().lower().replace("-", "_")
        if not equals or not value.strip():
            raise ScheduleError(f"schedule {name}: {part!r} is not of the form name=value")
        if key in found:
            raise ScheduleError(f"schedule {name}: {_text_key(key)} is given twice")
        found[key] = value.strip()
    return found


def _value(name: str, key: str, text: str) -> Any:
    if key in _TUPLES:
        return tuple(_duration_value(part.strip()) for part in text.split("/"))
    return _duration_value(text) if key in _DURATIONS else _float(name, key, text)


def _float(name: str, key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ScheduleError(
            f"schedule {name}: {_text_key(key)} needs a number, not {text!r}"
        ) from None


def _duration_value(text: str) -> Duration:
    """A plain number as a number (of epochs), so that text and Python forms compare equal."""
    try:
        return float(text)
    except ValueError:
        return text


def _steps(duration: Duration, span: Span) -> float:
    value, unit = _measure(duration)
    if unit == "steps":
        return value
    return value * span.steps if unit == "%" else value * span.epoch_steps


def _measure(duration: Duration) -> tuple[float, str]:
    """(value, unit); the unit is ``steps``, ``epochs`` or ``%`` (whose value is a fraction)."""
    if not isinstance(duration, str):
        return float(duration), "epochs"
    match = _DURATION.fullmatch(duration)
    if match is None:
        raise ValueError(duration)
    value, unit = float(match[1]), match[2]
    if unit == "%":
        return value / 100, unit
    return value, "steps" if unit.startswith("step") else "epochs"


def _check_duration(name: str, key: str, duration: Duration, *, positive: bool = False) -> None:
    try:
        value, _ = _measure(duration)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value) or value < 0 or (positive and value == 0):
        raise ScheduleError(
            f"schedule {name}: {key} needs a number of epochs, or as '500 steps' or '5%', "
            f"not {duration!r}"
        )


def _check_number(
    name: str,
    key: str,
    value: object,
    *,
    above: float | None = None,
    least: float | None = None,
    below: float | None = None,
    most: float | None = None,
) -> None:
    bounds: tuple[tuple[str, float | None, Callable[[float, float], bool]], ...] = (
        ("above", above, lambda v, b: v > b),
        ("at least", least, lambda v, b: v >= b),
        ("below", below, lambda v, b: v < b),
        ("at most", most, lambda v, b: v <= b),
    )
    sound = (
        isinstance(value, (int, float))
        and not isinstance(value, bool)
        and math.isfinite(value)
        and all(bound is None or holds(value, bound) for _, bound, holds in bounds)
    )
    if not sound:
        allowed = " and ".join(f"{word} {b:g}" for word, b, _ in bounds if b is not None)
        raise ScheduleError(
            f"schedule {name}: {_text_key(key)} must be a number {allowed}, it is {value!r}"
        )


def _anneal(start: float, end: float, share: float) -> float:
    return end + (start - end) / 2 * (1 + math.cos(math.pi * share))


def _text_key(key: str) -> str:
    return key.replace("_", "-")


def _text_value(value: object) -> str:
    if isinstance(value, tuple):
        return "/".join(map(_text_value, value))
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
