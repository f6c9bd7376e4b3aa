"""Activations and their gradients: the rectifier, and a family of other functions of one element.

The family: kind, formula with parameters a and b (0 where a kind has none), what the gradient is
taken from (the output y where that suffices, so that x need not be kept), and the name of it in
PyTorch or cuda-convnet:

    leaky_relu  x > 0 ? x : a x                       y (x if a < 0)   LeakyReLU(a)
    clamp       min(max(x, a), b)                     y                Hardtanh(a, b), brelu[b]
    elu         x > 0 ? x : a (exp(x) - 1)            y (x if a < 0)   ELU(a)
    gelu        x Phi(x), Phi of the normal law       x                GELU()
    gelu_tanh   x / (1 + exp(-2 u)),                  x                GELU("tanh")
                u = sqrt(2/pi) (x + 0.044715 x^3)
    silu        x / (1 + exp(-x))                     x                SiLU
    hardswish   x min(max(x + 3, 0), 6) / 6           x                Hardswish
    tanh        a tanh(b x)                           y                Tanh, tanh[a,b]
    sigmoid     1 / (1 + exp(-x))                     y                Sigmoid, logistic
    softplus    a x > b ? x : log(1 + exp(a x)) / a   x                Softplus(a, b), softrelu
    square      x^2                                   x                square
    abs         |x|; its slope at 0 is a              x                abs (a = -1), torch.abs
    sqrt        the square root                       y                sqrt
    linear      a x + b                               neither          linear[a,b]
    drelu       x - a tanh(x / a)                     x                drelu[a]

NaN passes through all of them forward, as in PyTorch. Sources: PyTorch's documentation; Hendrycks
and Gimpel (arXiv 1606.08415) for GELU; Howard et al. (arXiv 1905.02244) for Hardswish;
cuda-convnet's wiki for its neurons.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet


@dataclass(frozen=True)
class ReLU(Op):
    """Input x, any shape; output y = 0 where x <= 0, else x."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return (np.where(x <= 0, x.dtype.type(0), x),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return scope.add(ReLUGrad(), dy, scope.node.outputs[0])


@dataclass(frozen=True)
class ReLUGrad(Op):
    """Inputs dy and the rectifier's output y, of one shape; output dx = 0 where y <= 0, else dy."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, y = inputs
        _check_fit(dy, y)
        return (TensorSpec(dy.shape, dy.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, y = inputs
        return (np.where(y <= 0, dy.dtype.type(0), dy),)


@dataclass(frozen=True)
class _Kind:
    """One function of the family.

    Attributes:
        forward: (x, a, b) -> y.
        backward: (dy, v, a, b) -> dx, where v is what ``reads`` says: ``x``, ``y``, or nothing.
        allowed: whether the function exists for (a, b).
    """

    forward: Callable[[np.ndarray, float, float], np.ndarray]
    backward: Callable[[np.ndarray, np.ndarray, float, float], np.ndarray]
    reads: str = "x"
    allowed: Callable[[float, float], bool] = lambda a, b: True


@dataclass(frozen=True)
class _Parameters:
    """The attributes that an activation and its gradient share; see the head of this file."""

    kind: str
    a: float = 0.0
    b: float = 0.0

    @property
    def reads(self) -> str:
        """What the gradient is taken from beside dy: ``x``, ``y``, or nothing."""
        reads = self.function.reads
        # With a negative slope on the left the output no longer tells the sign of x.
        return "x" if self.kind in ("leaky_relu", "elu") and self.a < 0 else reads

    @property
    def function(self) -> _Kind:
        """The function itself. Raises ShapeError where there is none."""
        kind = KINDS.get(self.kind)
        if kind is None:
            raise ShapeError(f"unknown activation {self.kind!r}; known are {', '.join(KINDS)}")
        finite = math.isfinite(self.a) and not math.isnan(self.b)
        if not finite or not kind.allowed(self.a, self.b):
            raise ShapeError(f"the activation {self.kind} has no parameters {self.a}, {self.b}")
        return kind


@dataclass(frozen=True)
class Activation(_Parameters, Op):
    """Input x, any shape; output y, the function of each element."""

    @property
    def arity_in(self) -> int | None:
        return 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        assert self.function
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return (self.function.forward(x, self.a, self.b).astype(x.dtype, copy=False),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy, node = scope.grads[0], scope.node
        assert dy is not None
        kept = {"x": node.inputs, "y": node.outputs, "": ()}[self.reads]
        return scope.add(ActivationGrad(self.kind, self.a, self.b), dy, *kept)


@dataclass(frozen=True)
class ActivationGrad(_Parameters, Op):
    """Inputs dy and, as ``reads`` says, the activation's x, its y, or nothing more; output dx."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        assert self.function
        wanted = 1 + bool(self.reads)
        if len(inputs) != wanted:
            raise ShapeError(
                f"the gradient of {self.kind} reads {wanted} tensors, it got {len(inputs)}"
            )
        _check_fit(inputs[0], inputs[-1])
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, v = inputs[0], inputs[-1]
        return (self.function.backward(dy, v, self.a, self.b).astype(dy.dtype, copy=False),)


def _check_fit(dy: TensorSpec, kept: TensorSpec) -> None:
    if dy.shape != kept.shape:
        raise ShapeError(f"the gradient {dy.shape} does not fit the activation {kept.shape}")


def _sigmoid(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = 1 / (1 + np.exp(-x))
    return result


def _normal(x: np.ndarray) -> np.ndarray:
    """The normal law's Phi; NumPy has no erfc, and one element at a time is exact."""
    wide = np.frompyfunc(math.erfc, 1, 1)(-math.sqrt(0.5) * x.astype(np.float64))
    return np.asarray(wide, np.float64).astype(x.dtype) / 2


def _normal_slope(x: np.ndarray) -> np.ndarray:
    """Phi(x) + x phi(x)."""
    result: np.ndarray = _normal(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return result


_GELU = math.sqrt(2 / math.pi)


def _gelu_tanh(x: np.ndarray) -> np.ndarray:
    result: np.ndarray = x * _sigmoid(2 * _GELU * (x + 0.044715 * x**3))
    return result


def _gelu_tanh_slope(x: np.ndarray) -> np.ndarray:
    gate = _sigmoid(2 * _GELU * (x + 0.044715 * x**3))
    inner = 2 * _GELU * (1 + 3 * 0.044715 * x**2)
    result: np.ndarray = gate + x * gate * (1 - gate) * inner
    return result


def _silu_slope(x: np.ndarray) -> np.ndarray:
    gate = _sigmoid(x)
    result: np.ndarray = gate * (1 + x * (1 - gate))
    return result


def _hardswish_slope(x: np.ndarray) -> np.ndarray:
    return np.where(x <= -3, 0, np.where(x >= 3, 1, x / 3 + 0.5))


def _softplus(x: np.ndarray, beta: float, threshold: float) -> np.ndarray:
    z = beta * x
    soft = (np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z)))) / beta
    return np.where(z > threshold, x, soft)


def _elu_grad(dy: np.ndarray, v: np.ndarray, a: float, b: float) -> np.ndarray:
    """From y where a >= 0, else from x."""
    return np.where(v > 0, dy, dy * (v + a if a >= 0 else a * np.exp(v)))


#: {kind: its function}, in the order of the head of this file.
KINDS: Mapping[str, _Kind] = {
    "leaky_relu": _Kind(
        lambda x, a, b: np.where(x > 0, x, a * x),
        lambda dy, v, a, b: np.where(v > 0, dy, dy * a),
        "y",
    ),
    "clamp": _Kind(
        lambda x, a, b: np.where(x < a, a, np.where(x > b, b, x)),
        lambda dy, y, a, b: np.where((y > a) & (y < b), dy, 0),
        "y",
        lambda a, b: a <= b,
    ),
    "elu": _Kind(lambda x, a, b: np.where(x > 0, x, a * np.expm1(x)), _elu_grad, "y"),
    "gelu": _Kind(lambda x, a, b: x * _normal(x), lambda dy, x, a, b: dy * _normal_slope(x)),
    "gelu_tanh": _Kind(lambda x, a, b: _gelu_tanh(x), lambda dy, x, a, b: dy * _gelu_tanh_slope(x)),
    "silu": _Kind(lambda x, a, b: x * _sigmoid(x), lambda dy, x, a, b: dy * _silu_slope(x)),
    "hardswish": _Kind(
        lambda x, a, b: x * np.minimum(np.maximum(x + 3, 0), 6) / 6,
        lambda dy, x, a, b: dy * _hardswish_slope(x),
    ),
    "tanh": _Kind(
        lambda x, a, b: a * np.tanh(b * x),
        lambda dy, y, a, b: dy * (b * (a - y * y / a)),
        "y",
        lambda a, b: a != 0 and math.isfinite(b),
    ),
    "sigmoid": _Kind(lambda x, a, b: _sigmoid(x), lambda dy, y, a, b: dy * (y * (1 - y)), "y"),
    "softplus": _Kind(
        _softplus,
        lambda dy, x, a, b: np.where(a * x > b, dy, dy * _sigmoid(a * x)),
        allowed=lambda a, b: a != 0,
    ),
    "square": _Kind(lambda x, a, b: x * x, lambda dy, x, a, b: dy * (2 * x)),
    "abs": _Kind(
        lambda x, a, b: np.abs(x),
        lambda dy, x, a, b: np.where(x > 0, dy, np.where(x < 0, -dy, dy * a)),
    ),
    "sqrt": _Kind(lambda x, a, b: np.sqrt(x), lambda dy, y, a, b: dy / (2 * y), "y"),
    "linear": _Kind(
        lambda x, a, b: a * x + b,
        lambda dy, v, a, b: dy * a,
        "",
        lambda a, b: math.isfinite(b),
    ),
    "drelu": _Kind(
        lambda x, a, b: x - a * np.tanh(x / a),
        lambda dy, x, a, b: dy * np.tanh(x / a) ** 2,
        allowed=lambda a, b: a != 0,
    ),
}
