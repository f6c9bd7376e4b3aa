"""Optimisers as frozen descriptions: names, formulas and defaults are PyTorch's.

A description holds no state. Momentum and the like live in the plan's persistent arena beside the
parameters, and the update itself is an op of the plan (``convloom.ops.update``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, fields
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from convloom.ir import ConvloomError
from convloom.ops import update
from convloom.ops.base import Op
from convloom.ops.control import HYPER


class OptimizerError(ConvloomError, ValueError):
    """An optimiser's value that makes no sense; the message names it and what is allowed."""


@dataclass(frozen=True)
class Multipliers:
    """Per parameter, in the order of the names asked for: factors of weight decay and of lr."""

    decay: tuple[float, ...]
    rate: tuple[float, ...]


class Optimizer(ABC):
    """What every optimiser describes; each is a frozen dataclass.

    Class attributes:
        kind: the name that a saved description goes by.
        states: suffixes of the tensors that it keeps for every parameter (``<name>.momentum``).
        momentum_slot: the hyper value that a schedule which cycles momentum changes.
    """

    kind: ClassVar[str]
    states: ClassVar[tuple[str, ...]]
    momentum_slot: ClassVar[str]
    _kinds: ClassVar[dict[str, type[Any]]] = {}

    lr: float
    weight_decay: float
    exclude: tuple[str, ...]

    def __init_subclass__(cls) -> None:
        Optimizer._kinds[cls.kind] = cls  # for from_json

    @property
    def slots(self) -> tuple[str, ...]:
        """What the control tensor ``hyper`` holds, in order: ``ops.control.HYPER`` for most."""
        return HYPER

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers of the network that the op reads, behind everything else."""
        return ()

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        """The states for these parameters, ``<parameter>.<suffix>``, in the order of the op."""
        return tuple(f"{name}.{suffix}" for suffix in self.states for name in names)

    def advice(self, lr: float) -> str:
        """The rate of a step that diverged, and what to do about it."""
        return f"learning rate {lr:.4g}: lower the learning rate, set clip_norm"

    @abstractmethod
    def hyper(
        self, step: int, *, lr: float | None = None, momentum: float | None = None
    ) -> dict[str, float]:
        """The hyper values of one update, by their names in ``slots``.

        Args:
            step: updates made before this one (the plan's counter): 0 for the first.
            lr: the learning rate a schedule gives; the description's own if None.
            momentum: momentum (SGD) or beta1 (AdamW) a schedule gives; the own one if None.
        """

    @abstractmethod
    def op(self, names: Sequence[str], clip: bool = False) -> Op:
        """The update op for these parameters; ``clip`` adds the gradient norm to its inputs."""

    def changes_from(self, saved: Mapping[str, Any]) -> list[str] | None:
        """What differs from a saved description, a line each, where a run may go on nevertheless.

        None where it may not: most optimisers must stay what they were.
        """
        return None

    def differing(self, saved: Mapping[str, Any]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """States that begin only now, and those that end, since a description was saved from which
        ``changes_from`` lets a run go on."""
        return (), ()

    def multipliers(self, names: Sequence[str]) -> Multipliers:
        """Factors for these parameters: weight decay is off where ``exclude`` has a match.

        Raises:
            OptimizerError: a pattern that matches none of the names, most likely a typing error.
        """
        for pattern in self.exclude:
            if names and not any(_matches(name, pattern) for name in names):
                raise OptimizerError(
                    f"{self.kind}: exclude has {pattern!r}, which matches no parameter; "
                    f"the parameters are {', '.join(names)}"
                )
        decay = tuple(
            0.0 if any(_matches(name, pattern) for pattern in self.exclude) else 1.0
            for name in names
        )
        return Multipliers(decay, (1.0,) * len(names))

    def to_json(self) -> dict[str, Any]:
        """The description as plain data; ``from_json`` is its inverse."""
        plain = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(self).items()
        }
        return {"kind": self.kind, **plain}

    def _require(self, name: str, holds: bool, allowed: str) -> None:
        if not holds:
            raise OptimizerError(
                f"{self.kind}: {name} must be {allowed}, it is {getattr(self, name)!r}"
            )

    def _check_shared(self) -> None:
        self._require("lr", _number(self.lr) and self.lr >= 0, "a finite number of at least 0")
        decay = self.weight_decay
        self._require("weight_decay", _number(decay) and decay >= 0, "a finite number, 0 or more")
        patterns = (self.exclude,) if isinstance(self.exclude, str) else tuple(self.exclude)
        object.__setattr__(self, "exclude", patterns)
        self._require(
            "exclude", all(isinstance(p, str) for p in patterns), "name patterns such as '*.bias'"
        )


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent; source: torch.optim.SGD's documentation.

        g = g + weight_decay * p;  v = momentum * v + g;  p = p - lr * (g + momentum * v if nesterov
        else v)

    Args:
        lr: learning rate.
        momentum: 0 means none.
        weight_decay: L2 penalty added to the gradient.
        nesterov: look ahead along the momentum; needs momentum above 0.
        exclude: name patterns (``"*.bias"``) of parameters without weight decay.

    Raises:
        OptimizerError: a value out of its range.
    """

    kind: ClassVar[str] = "SGD"
    states: ClassVar[tuple[str, ...]] = ("momentum",)
    momentum_slot: ClassVar[str] = "momentum"

    lr: float = 0.01
    momentum: float = 0.0
    _: KW_ONLY
    weight_decay: float = 0.0
    nesterov: bool = False
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_shared()
        self._require("momentum", _number(self.momentum) and 0 <= self.momentum < 1, "in [0, 1)")
        self._require("nesterov", isinstance(self.nesterov, bool), "True or False")
        if self.nesterov and self.momentum == 0:
            raise OptimizerError("SGD: nesterov needs a momentum above 0; set momentum=0.9, say")

    def hyper(
        self, step: int, *, lr: float | None = None, momentum: float | None = None
    ) -> dict[str, float]:
        return {
            "lr": self.lr if lr is None else lr,
            "momentum": self.momentum if momentum is None else momentum,
            "weight_decay": self.weight_decay,
        }

    def op(self, names: Sequence[str], clip: bool = False) -> Op:
        factors = self.multipliers(names)
        return update.SGD(nesterov=self.nesterov, decay=factors.decay, rate=factors.rate, clip=clip)


@dataclass(frozen=True)
class AdamW(Optimizer):
    """Adam with decoupled weight decay; source: torch.optim.AdamW's documentation.

        p = p * (1 - lr * weight_decay)
        m = beta1 * m + (1 - beta1) * g;  s = beta2 * s + (1 - beta2) * g²
        p = p - lr * (m / bias1) / (sqrt(s / bias2) + eps),  bias_i = 1 - beta_i ** t

    Args:
        lr: learning rate.
        betas: decay rates of the two averages.
        eps: added to the denominator.
        weight_decay: shrinks parameters by lr * weight_decay each step.
        exclude: name patterns (``"*.bias"``) of parameters without weight decay.

    Raises:
        OptimizerError: a value out of its range.
    """

    kind: ClassVar[str] = "AdamW"
    states: ClassVar[tuple[str, ...]] = ("exp_avg", "exp_avg_sq")
    momentum_slot: ClassVar[str] = "beta1"

    lr: float = 1e-3
    _: KW_ONLY
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2
    exclude: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        self._check_shared()
        betas = tuple(self.betas)
        object.__setattr__(self, "betas", betas)
        sound = len(betas) == 2 and all(_number(beta) and 0 <= beta < 1 for beta in betas)
        self._require("betas", sound, "two numbers in [0, 1)")
        self._require("eps", _number(self.eps) and self.eps > 0, "a finite number above 0")

    def hyper(
        self, step: int, *, lr: float | None = None, momentum: float | None = None
    ) -> dict[str, float]:
        beta1 = self.betas[0] if momentum is None else momentum
        beta2 = self.betas[1]
        return {
            "lr": self.lr if lr is None else lr,
            "weight_decay": self.weight_decay,
            "beta1": beta1,
            "beta2": beta2,
            "eps": self.eps,
            "bias1": 1 - beta1 ** (step + 1),
            "bias2": 1 - beta2 ** (step + 1),
        }

    def op(self, names: Sequence[str], clip: bool = False) -> Op:
        factors = self.multipliers(names)
        return update.AdamW(decay=factors.decay, rate=factors.rate, clip=clip)


def from_json(data: Mapping[str, Any]) -> Optimizer:
    """The optimiser that ``to_json`` described.

    Raises:
        OptimizerError: an unknown kind or value name, as a newer version may have saved.
    """
    kind = Optimizer._kinds.get(str(data.get("kind")))
    if kind is None:
        known = ", ".join(Optimizer._kinds)
        raise OptimizerError(f"unknown optimiser {data.get('kind')!r}; known are {known}")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in data.items()
        if key != "kind"
    }
    if unknown := sorted(set(values) - {field.name for field in fields(kind)}):
        raise OptimizerError(f"{kind.kind} has no value {', '.join(unknown)}")
    made: Optimizer = kind(**values)
    return made


def _number(value: object) -> bool:
    """A finite int or float; bool does not count."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return math.isfinite(value)


def _matches(name: str, pattern: str) -> bool:
    """fnmatch, where ``*.bias`` also takes the ``bias`` of a network that is one layer."""
    return fnmatchcase(name, pattern) or fnmatchcase(f".{name}", pattern)
