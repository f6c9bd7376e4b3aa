"""How weights begin: plain dataclasses, and their names as ``init=`` takes them.

Every value is a function of (seed, parameter name, element), so neither the order in which
parameters are drawn nor the rest of the network matters. Fans are PyTorch's: for a weight of
shape (O, I, ...), fan_in = I * (product of the rest), fan_out = O * (product of the rest).

Layers draw ``he`` unless told otherwise: it keeps the variance of activations through any number
of rectified layers, which the 1/sqrt(fan_in) of PyTorch's default (``pytorch``) does not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from convloom import random
from convloom.ir import ConvloomError


@runtime_checkable
class Initialiser(Protocol):
    """Draws the first value of a parameter."""

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        """A float array of ``shape``, a function of seed, name and element alone."""
        ...


class InitError(ConvloomError, ValueError):
    """An ``init=`` that is not known, or whose number cannot be."""


def fans(shape: tuple[int, ...]) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight; a vector counts as one output."""
    if len(shape) < 2:
        return math.prod(shape), math.prod(shape)
    taps = math.prod(shape[2:])
    return shape[1] * taps, shape[0] * taps


@dataclass(frozen=True)
class Constant:
    """Every element is ``value``."""

    value: float = 0.0

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        return np.full(shape, self.value, np.float32)


@dataclass(frozen=True)
class Normal:
    """Normal with mean 0 and a fixed deviation."""

    std: float = 0.01

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        return random.normal(seed, name, shape, std=self.std)


@dataclass(frozen=True)
class Uniform:
    """Uniform between -bound and bound."""

    bound: float

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        return random.uniform(seed, name, shape, low=-self.bound, high=self.bound)


@dataclass(frozen=True)
class HeNormal:
    """Normal with variance 2/fan_in (He et al., arXiv 1502.01852); torch's kaiming_normal_ for
    ReLU.

    Attributes:
        outputs: take fan_out, which keeps the variance of gradients, not of activations.
    """

    outputs: bool = False

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        fan = fans(shape)[int(self.outputs)]
        return random.normal(seed, name, shape, std=math.sqrt(2.0 / max(fan, 1)))


@dataclass(frozen=True)
class HeUniform:
    """Uniform with variance 2 / ((1 + slope^2) fan_in); torch's kaiming_uniform_(a=slope)."""

    slope: float = 0.0

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        bound = math.sqrt(6.0 / ((1.0 + self.slope**2) * max(fans(shape)[0], 1)))
        return random.uniform(seed, name, shape, low=-bound, high=bound)


@dataclass(frozen=True)
class XavierNormal:
    """Normal with variance 2/(fan_in + fan_out) (Glorot and Bengio, AISTATS 2010)."""

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        return random.normal(seed, name, shape, std=math.sqrt(2.0 / max(sum(fans(shape)), 1)))


@dataclass(frozen=True)
class XavierUniform:
    """Uniform with variance 2/(fan_in + fan_out) (Glorot and Bengio, AISTATS 2010)."""

    def draw(self, shape: tuple[int, ...], seed: int, name: str) -> np.ndarray:
        bound = math.sqrt(6.0 / max(sum(fans(shape)), 1))
        return random.uniform(seed, name, shape, low=-bound, high=bound)


#: {name in ``init=``: (weight initialiser, number of numbers it takes at most)}.
_BY_NAME: dict[str, tuple[Callable[..., Initialiser], int]] = {
    "he": (HeNormal, 0),
    "kaiming_normal": (HeNormal, 0),
    "kaiming_normal_fan_out": (lambda: HeNormal(outputs=True), 0),
    "kaiming_uniform": (HeUniform, 1),
    "xavier": (XavierUniform, 0),
    "xavier_uniform": (XavierUniform, 0),
    "xavier_normal": (XavierNormal, 0),
    "normal": (Normal, 1),
    "constant": (Constant, 1),
    "pytorch": (lambda: HeUniform(math.sqrt(5.0)), 0),
}

_FORM = re.compile(r"\s*([a-z_]+)\s*(?:\(\s*(?:std|value|a)?\s*=?\s*([^()\s]+)\s*\))?\s*")


def resolve(init: str | Initialiser, fan_in: int) -> tuple[Initialiser, Initialiser]:
    """What draws the weight and the bias of a layer.

    Args:
        init: an initialiser for the weight (the bias begins at 0), or a name: ``he`` or
            ``kaiming_normal``, ``kaiming_normal_fan_out``, ``kaiming_uniform``, ``xavier`` or
            ``xavier_uniform``, ``xavier_normal``, ``normal(0.01)``, ``constant(0)``; the bias
            begins at 0 with each of them. ``pytorch`` draws weight and bias as torch.nn does, from
            uniform(-1/sqrt(fan_in), 1/sqrt(fan_in)).
        fan_in: of the layer's weight.

    Raises:
        InitError: an unknown name or a number that cannot be; lists what is known.
    """
    if not isinstance(init, str):
        if not isinstance(init, Initialiser) or isinstance(init, type):
            raise InitError(f"init must be a name or an initialiser, it is {init!r}")
        return init, Constant()
    weight = _parsed(init)
    if init.strip() == "pytorch":
        return weight, Uniform(1.0 / math.sqrt(max(fan_in, 1)))
    return weight, Constant()


def _parsed(init: str) -> Initialiser:
    match = _FORM.fullmatch(init)
    make, most = _BY_NAME.get(match[1], (None, 0)) if match else (None, 0)
    if match is None or make is None or (match[2] and not most):
        known = ", ".join(
            name if not most else f"{name}(x)" for name, (_, most) in _BY_NAME.items()
        )
        raise InitError(f"unknown init {init!r}; known are {known}")
    if match[2] is None:
        return make()
    try:
        number = float(match[2])
    except ValueError:
        number = math.nan
    if not math.isfinite(number) or (number < 0 and match[1] != "constant"):
        raise InitError(f"init {init!r}: {match[2]} is no number that {match[1]} can take")
    return make(number)
