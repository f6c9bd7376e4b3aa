"""What the fusion pass makes of runs of plain ops. Every reference composes the plain ones.

These ops are added after differentiation, so none has a gradient rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.activation import Activation, ActivationGrad, ReLU, ReLUGrad
from convloom.ops.arithmetic import WeightedSum
from convloom.ops.base import Op
from convloom.ops.conv2d import BiasGrad, Conv2d, Conv2dDgrad, Conv2dWgrad, ConvGeometry
from convloom.ops.geometry import Pair
from convloom.ops.linear import Linear, LinearDgrad, LinearWgrad
from convloom.ops.pool import MaxPool2d

#: What may follow a fused layer, and what may mask the gradient that leaves one.
NONE, RELU = "none", "relu"
#: Further activations that may follow a layer: kinds of ``Activation`` that cost next to nothing.
EPILOGUES = ("leaky_relu", "clamp", "hardswish")
#: Those whose slope is told by their output, so that they may mask a gradient.
MASKS = ("leaky_relu", "clamp")

_POOL = MaxPool2d((2, 2), (2, 2))


@dataclass(frozen=True)
class Activated:
    """What follows a fused layer: "none", "relu", or one of ``EPILOGUES`` with its parameters."""

    activation: str = NONE
    a: float = 0.0
    b: float = 0.0

    def check_activation(self) -> None:
        """Raises ShapeError for an activation that no fused layer has."""
        if self.activation not in (NONE, RELU, *EPILOGUES):
            known = ", ".join(map(repr, (NONE, RELU, *EPILOGUES)))
            raise ShapeError(f"activation must be one of {known}, it is {self.activation!r}")

    def activated(self, y: np.ndarray) -> np.ndarray:
        """The activation's result."""
        if self.activation == NONE:
            return y
        rectifier = self.activation == RELU
        op = ReLU() if rectifier else Activation(self.activation, self.a, self.b)
        return op.reference(y)[0]


@dataclass(frozen=True)
class FusedConv2d(Activated, ConvGeometry, Op):
    """Convolution, bias, activation and 2x2 max-pooling of stride 2.

    Inputs x (N,C,H,W), w (K,C/G,R,S) and optionally b (K,). Outputs y (N,K,P,Q) if ``pool`` is
    0; if it is 2, the pooled y (N,K,P//2,Q//2) and index, uint8: the winner's 2*dy + dx in its
    window, with ``MaxPool2d``'s rules for ties and NaN. Of activations, only ReLU goes with a pool.
    """

    pool: int = 0

    @property
    def arity_out(self) -> int:
        return 2 if self.pool else 1

    @property
    def conv(self) -> Conv2d:
        """The convolution alone."""
        return Conv2d(*_geometry(self))

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_activation()
        if self.pool not in (0, 2):
            raise ShapeError(f"a fused pool must be 0 or 2, it is {self.pool}")
        if self.pool and self.activation in EPILOGUES:
            raise ShapeError(f"a fused pool follows 'none' or 'relu', not {self.activation!r}")
        (y,) = self.conv.infer(*inputs)
        if not self.pool:
            return (y,)
        pooled, index = _POOL.infer(y)
        return pooled, TensorSpec(index.shape, "uint8")

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y = self.activated(self.conv.reference(*inputs)[0])
        if not self.pool:
            return (y,)
        pooled, position = _POOL.reference(y)
        row, col = np.divmod(position, y.shape[3])
        return pooled, (2 * (row % 2) + col % 2).astype(np.uint8)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        whole = self.conv.infer(*inputs)
        work = self.conv.flops(inputs, whole)
        if self.activation != NONE:
            work += whole[0].size
        return work + (4 * outputs[0].size if self.pool else 0)


class _Masked(Op):
    """What masks the gradient that leaves a layer: "none", "relu", or one of ``MASKS``.

    Subclasses have the attributes ``mask``, and ``a`` and ``b``, the activation's parameters.
    """

    mask: str
    a: float
    b: float

    def check_mask(self, dx: TensorSpec, rest: Sequence[TensorSpec]) -> None:
        """Raises ShapeError for a mask that there is not, or inputs ``rest`` that do not fit it."""
        if self.mask not in (NONE, RELU, *MASKS) or (self.mask in MASKS and self.rule.reads != "y"):
            known = ", ".join(map(repr, (NONE, RELU, *MASKS)))
            raise ShapeError(f"mask must be one of {known}, it is {self.mask!r}")
        wanted = int(self.mask != NONE)
        if len(rest) != wanted:
            raise ShapeError(f"mask {self.mask!r} takes {wanted} mask inputs, it got {len(rest)}")
        if rest and rest[0].shape != dx.shape:
            raise ShapeError(f"the mask {rest[0].shape} does not fit the gradient {dx.shape}")

    @property
    def rule(self) -> ActivationGrad:
        """The gradient of the activation, where it is not the rectifier."""
        return ActivationGrad(self.mask, self.a, self.b)

    def masked(self, dx: np.ndarray, rest: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """The gradient behind the mask."""
        if self.mask == NONE:
            return (dx,)
        op = ReLUGrad() if self.mask == RELU else self.rule
        return op.reference(dx, *rest)


@dataclass(frozen=True)
class FusedConv2dDgrad(ConvGeometry, _Masked):
    """Gradient of a convolution's input, masked by the activation that made that input.

    Inputs dy (N,K,P,Q), w (K,C/G,R,S) and, if there is a ``mask``, the convolution's input
    (N,C,*size), which was the activation's output; output dx (N,C,*size). For "relu" it is 0 where
    that input is not above 0.
    """

    size: Pair = (0, 0)
    mask: str = NONE
    a: float = 0.0
    b: float = 0.0

    @property
    def dgrad(self) -> Conv2dDgrad:
        """The gradient alone."""
        return Conv2dDgrad(*_geometry(self), size=self.size)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (dx,) = self.dgrad.infer(*inputs[:2])
        self.check_mask(dx, inputs[2:])
        return (dx,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (dx,) = self.dgrad.reference(*inputs[:2])
        return self.masked(dx, inputs[2:])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        masked = outputs[0].size if self.mask != NONE else 0
        return self.dgrad.flops(inputs[:2], outputs) + masked


@dataclass(frozen=True)
class FusedConv2dWgrad(ConvGeometry, Op):
    """Gradients of filters and bias. Inputs x (N,C,H,W), dy (N,K,P,Q); outputs dw, db (K,)."""

    kernel: Pair = (1, 1)

    @property
    def arity_out(self) -> int:
        return 2

    @property
    def wgrad(self) -> Conv2dWgrad:
        """The filters' gradient alone."""
        return Conv2dWgrad(*_geometry(self), kernel=self.kernel)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (*self.wgrad.infer(*inputs), *BiasGrad().infer(inputs[1]))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*self.wgrad.reference(*inputs), *BiasGrad().reference(inputs[1]))

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return self.wgrad.flops(inputs, outputs[:1]) + inputs[1].size


@dataclass(frozen=True)
class PooledConv2dGrad(ConvGeometry, Op):
    """All gradients of a convolution that 2x2 pooling followed, from the pooled map's gradient.

    At most one in four output gradients is not zero, which a kernel can use. Inputs x
    (N,C,*size), w (K,C/G,*kernel), dyp (N,K,P//2,Q//2) and index, uint8, of ``FusedConv2d``;
    outputs dw, then db (K,) if ``has_bias``, then dx if ``needs_dx``, which is 0 where x <= 0 if
    ``mask`` is "relu". The gradient of the convolution's own rectifier is already in dyp.
    """

    size: Pair = (0, 0)
    kernel: Pair = (1, 1)
    mask: str = NONE
    needs_dx: bool = True
    has_bias: bool = True

    @property
    def arity_out(self) -> int:
        return 1 + self.has_bias + self.needs_dx

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, w, dyp, index = inputs
        _check_choice("mask", self.mask)
        if (x.shape[2:], w.shape[2:]) != (self.size, self.kernel):
            raise ShapeError(
                f"an input of {x.shape[2:]} and filters of {w.shape[2:]} are not the "
                f"{self.size} and {self.kernel} this op is made for"
            )
        y = self._unpooled(x, w)
        (pooled, _) = _POOL.infer(y)
        if dyp.shape != pooled.shape or index.shape != pooled.shape:
            raise ShapeError(
                f"the gradient {dyp.shape} and indices {index.shape} of a pooled map must have "
                f"shape {pooled.shape}"
            )
        made = [TensorSpec(w.shape, w.dtype)]
        if self.has_bias:
            made.append(TensorSpec(w.shape[:1], w.dtype))
        if self.needs_dx:
            made.append(TensorSpec(x.shape, x.dtype))
        return tuple(made)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, w, dyp, index = inputs
        p, q = self.window(self.kernel).output(self.size)
        dy = np.zeros((*dyp.shape[:2], p, q), dyp.dtype)
        for tap in range(4):
            cells = dy[:, :, tap // 2 :: 2, tap % 2 :: 2]
            cells = cells[:, :, : dyp.shape[2], : dyp.shape[3]]
            cells[...] = np.where(index == tap, dyp, dyp.dtype.type(0))
        made = Conv2dWgrad(*_geometry(self), kernel=self.kernel).reference(x, dy)
        if self.has_bias:
            made += BiasGrad().reference(dyp)
        if self.needs_dx:
            dgrad = FusedConv2dDgrad(*_geometry(self), size=self.size, mask=self.mask)
            made += dgrad.reference(dy, w, *((x,) if self.mask == RELU else ()))
        return made

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Of the gradients that can be other than zero: one a pooling window."""
        x, w, dyp, _ = inputs
        taps = 2 * dyp.size * w.shape[1] * w.shape[2] * w.shape[3]
        masked = x.size if self.needs_dx and self.mask == RELU else 0
        return taps * (1 + self.needs_dx) + (dyp.size if self.has_bias else 0) + masked

    def _unpooled(self, x: TensorSpec, w: TensorSpec) -> TensorSpec:
        return Conv2d(*_geometry(self)).infer(x, w)[0]


@dataclass(frozen=True)
class FusedLinear(Activated, Op):
    """Inputs x (N,I), w (O,I) and optionally b (O,); output y (N,O), activated."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_activation()
        return Linear().infer(*inputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (self.activated(Linear().reference(*inputs)[0]),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        activated = outputs[0].size if self.activation != NONE else 0
        return Linear().flops(inputs, outputs) + activated


@dataclass(frozen=True)
class FusedLinearDgrad(_Masked):
    """Inputs dy (N,O), w (O,I) and, if there is a ``mask``, the layer's input (N,I); output dx.

    The input was the activation's output; for "relu" dx (N,I) is 0 where it is not above 0.
    """

    mask: str = NONE
    a: float = 0.0
    b: float = 0.0

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        (dx,) = LinearDgrad().infer(*inputs[:2])
        self.check_mask(dx, inputs[2:])
        return (dx,)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (dx,) = LinearDgrad().reference(*inputs[:2])
        return self.masked(dx, inputs[2:])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        masked = outputs[0].size if self.mask != NONE else 0
        return LinearDgrad().flops(inputs[:2], outputs) + masked


@dataclass(frozen=True)
class FusedLinearWgrad(Op):
    """Gradients of weight and bias. Inputs x (N,I), dy (N,O); outputs dw (O,I), db (O,)."""

    @property
    def arity_out(self) -> int:
        return 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (*LinearWgrad().infer(*inputs), *BiasGrad().infer(inputs[1]))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (*LinearWgrad().reference(*inputs), *BiasGrad().reference(inputs[1]))

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return LinearWgrad().flops(inputs, outputs[:1]) + inputs[1].size


@dataclass(frozen=True)
class FusedSum(Op):
    """Inputs x_i of one shape; output the sum of coefficients[i] * x_i, rectified."""

    coefficients: tuple[float, ...]

    @property
    def sum(self) -> WeightedSum:
        """The sum alone."""
        return WeightedSum(self.coefficients)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return self.sum.infer(*inputs)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return ReLU().reference(*self.sum.reference(*inputs))

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return self.sum.flops(inputs, outputs) + outputs[0].size


def _geometry(conv: ConvGeometry) -> tuple[Pair, Pair, Pair, int]:
    return conv.stride, conv.padding, conv.dilation, conv.groups


def _check_choice(what: str, value: str) -> None:
    if value not in (NONE, RELU):
        raise ShapeError(f"{what} must be {NONE!r} or {RELU!r}, it is {value!r}")
