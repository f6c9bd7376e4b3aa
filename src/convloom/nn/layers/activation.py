"""Activations. ``inplace`` changes nothing: a plan shares memory wherever it can."""

from __future__ import annotations

from convloom.ir import ShapeError
from convloom.nn import functional
from convloom.nn.arguments import gelu_kind, number
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor
from convloom.ops import Activation as _Op


class Activation(Layer):
    """Any function of the family in ``ops/activation.py``, by its kind and parameters.

    What PyTorch has no layer for: cuda-convnet's ``tanh[a,b]`` is ``Activation("tanh", a, b)``.
    """

    def __init__(self, kind: str, a: float = 0.0, b: float = 0.0) -> None:
        super().__init__()
        with named(f"Activation({kind!r}, {a}, {b})"):
            self.function = _Op(kind, number(a, "a"), number(b, "b"))
            assert self.function.function  # raises where there is no such function

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        op = self.function
        return functional.activation(x, op.kind, op.a, op.b)

    def extra_repr(self) -> str:
        op = self.function
        return f"{op.kind!r}, {op.a}, {op.b}"


class _Inplace(Layer):
    """An activation without parameters but ``inplace``."""

    def __init__(self, inplace: bool = False) -> None:
        super().__init__()
        self.inplace = bool(inplace)

    def extra_repr(self) -> str:
        return "inplace=True" if self.inplace else ""


class ReLU(_Inplace):
    """max(x, 0), element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.relu(x)


class ReLU6(_Inplace):
    """min(max(x, 0), 6), element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.relu6(x)


class SiLU(_Inplace):
    """x / (1 + exp(-x)), element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.silu(x)


class Hardswish(_Inplace):
    """x * min(max(x + 3, 0), 6) / 6, element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.hardswish(x)


class Hardtanh(Layer):
    """min(max(x, min_val), max_val), element by element."""

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        with named(f"Hardtanh({min_val}, {max_val})"):
            self.min_val, self.max_val = number(min_val, "min_val"), number(max_val, "max_val")
            if self.min_val >= self.max_val:
                raise ShapeError("max_val must be greater than min_val")
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.hardtanh(x, self.min_val, self.max_val)

    def extra_repr(self) -> str:
        return f"min_val={self.min_val}, max_val={self.max_val}"


class LeakyReLU(Layer):
    """x where x > 0, else negative_slope * x, element by element."""

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        super().__init__()
        with named(f"LeakyReLU({negative_slope})"):
            self.negative_slope = number(negative_slope, "negative_slope")
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.leaky_relu(x, self.negative_slope)

    def extra_repr(self) -> str:
        return f"negative_slope={self.negative_slope}"


class ELU(Layer):
    """x where x > 0, else alpha * (exp(x) - 1), element by element."""

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        super().__init__()
        with named(f"ELU({alpha})"):
            self.alpha = number(alpha, "alpha")
        self.inplace = bool(inplace)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.elu(x, self.alpha)

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


class GELU(Layer):
    """x times the normal law's Phi(x); ``approximate="tanh"`` takes the formula with tanh."""

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        with named(f"GELU({approximate!r})"):
            assert gelu_kind(approximate)  # raises where there is none
        self.approximate = approximate

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class Tanh(Layer):
    """The hyperbolic tangent, element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.tanh(x)


class Sigmoid(Layer):
    """1 / (1 + exp(-x)), element by element."""

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.sigmoid(x)


class Softplus(Layer):
    """log(1 + exp(beta * x)) / beta, or x where beta * x > threshold, element by element."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        super().__init__()
        with named(f"Softplus({beta}, {threshold})"):
            self.beta, self.threshold = number(beta, "beta"), number(threshold, "threshold")
            if self.beta == 0:
                raise ShapeError("beta must not be 0")

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        return f"beta={self.beta}, threshold={self.threshold}"
