"""Schedules of a rate over the share of training that is done.

Specified in the parameter files of the 2012 code: ``linear[tgtFactor=F,noiseStdev=S]``,
``exp[…]``, ``dexp[tgtFactor=F,noiseStdev=S,numSteps=K]`` and ``jdexp[…]``. Later files carry the
base in front (``dexp[base=0.01;tgtFactor=250;numSteps=4]``), earlier ones give bare numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from convloom.convnet.values import plain_float, split_list

_NAMES = {
    "linear": ("tgtfactor", "noisestdev"),
    "exp": ("tgtfactor", "noisestdev"),
    "dexp": ("tgtfactor", "noisestdev", "numsteps"),
    "jdexp": ("tgtfactor", "noisestdev", "numsteps"),
}


@dataclass(frozen=True)
class RateSchedule:
    """How a base rate falls while training goes on.

    Attributes:
        kind: ``default`` (constant), ``linear``, ``exp``, ``dexp`` (stairs) or ``jdexp`` (stairs
            with a half step in the later half of each).
        factor: base over final rate.
        noise: standard deviation S of a factor 1 + S |N(0, 1)| on every use.
        steps: number of levels of ``dexp`` and ``jdexp``.
        base: the base rate, where the schedule's text carries it.
    """

    kind: str = "default"
    factor: float = 1.0
    noise: float = 0.0
    steps: int = 1
    base: float | None = None

    def rate(self, base: float, progress: float) -> float:
        """The rate when a share of 0 to 1 of the training is done, without noise."""
        p = min(max(progress, 0.0), 1.0)
        if self.kind == "linear":
            return base * (1 - p) + p * base / self.factor
        if self.kind == "exp":
            return float(base * self.factor**-p)
        if self.kind in ("dexp", "jdexp"):
            return self._level(base, p)
        return base

    def _level(self, base: float, p: float) -> float:
        steps = self.steps
        at = next(i for i in range(steps) if p <= (i + 1) / steps)
        rate = self._stair(base, at)
        if self.kind == "jdexp" and at > 0 and 0.2 < p < 0.9 and p > (at + 0.5) / steps:
            return math.sqrt(rate * self._stair(base, at - 1))
        return rate

    def _stair(self, base: float, at: int) -> float:
        return float(base * self.factor ** (-at / (self.steps - 1)))

    def __str__(self) -> str:
        if self.kind == "default":
            return self.kind
        steps = f",numSteps={self.steps}" if "numsteps" in _NAMES[self.kind] else ""
        factor, noise = (repr(value).removesuffix(".0") for value in (self.factor, self.noise))
        return f"{self.kind}[tgtFactor={factor},noiseStdev={noise}{steps}]"


CONSTANT = RateSchedule()


def parse_schedule(text: str, *, strict: bool = False) -> RateSchedule:
    """A schedule from its text.

    Raises:
        ValueError: the rule that the text breaks.
    """
    head, bracket, rest = text.strip().partition("[")
    kind = head.strip()
    if kind == "default" and not bracket:
        return CONSTANT
    if kind not in _NAMES or not rest.endswith("]"):
        forms = ", ".join(f"{name}[tgtFactor=F,…]" for name in _NAMES)
        raise ValueError(f"must be default or one of {forms}")
    parts = split_list(rest[:-1], ",;")
    if all("=" in part for part in parts):
        given = _named(kind, parts)
    elif strict or any("=" in part for part in parts):
        raise ValueError(f"needs names: {kind}[{_form(kind)}]")
    else:
        given = _positional(kind, parts)
    return _checked(kind, given)


def _named(kind: str, parts: list[str]) -> dict[str, str]:
    given = {}
    for part in parts:
        name, _, value = part.partition("=")
        name = name.strip().lower()
        if name not in (*_NAMES[kind], "base") or name in given:
            raise ValueError(f"has no place for {part.strip()!r}: {kind}[{_form(kind)}]")
        given[name] = value.strip()
    return given


def _positional(kind: str, parts: list[str]) -> dict[str, str]:
    """[F], [F,S]; for stairs [F], [F,K] and [F,S,K]."""
    names = _NAMES[kind]
    if len(parts) > len(names):
        raise ValueError(f"has more than {len(names)} values: {kind}[{_form(kind)}]")
    if len(parts) == 2 and "numsteps" in names:
        names = ("tgtfactor", "numsteps")
    return dict(zip(names, parts, strict=False))


def _checked(kind: str, given: dict[str, str]) -> RateSchedule:
    numbers = {}
    for name, value in given.items():
        try:
            numbers[name] = plain_float(value)
        except ValueError:
            raise ValueError(f"has {value!r} where a number belongs") from None
        if not math.isfinite(numbers[name]):
            raise ValueError(f"has {value!r} where a finite number belongs")
    factor, noise = numbers.get("tgtfactor", 0.0), numbers.get("noisestdev", 0.0)
    steps = numbers.get("numsteps", 2.0)
    if factor <= 0:
        raise ValueError("needs a positive tgtFactor")
    if noise < 0:
        raise ValueError("needs a noiseStdev of 0 or more")
    if numbers.get("base", 0.0) < 0:
        raise ValueError("needs a base of 0 or more")
    if steps != int(steps) or not 2 <= steps <= 1e6:
        raise ValueError("needs a numSteps of 2 or more")
    return replace(
        RateSchedule(kind, factor, noise, base=numbers.get("base")),
        steps=int(steps) if "numsteps" in _NAMES[kind] else 1,
    )


def _form(kind: str) -> str:
    return ",".join(
        {"tgtfactor": "tgtFactor=F", "noisestdev": "noiseStdev=S", "numsteps": "numSteps=K"}[name]
        for name in _NAMES[kind]
    )
