"""Dropout with counter-based masks, and its gradient.

Element i of the logical (NCHW) order is dropped when word i of the Philox stream (seed, stream,
step) is below p * 2^32: an integer comparison, so every device makes the same mask, in any
layout. ``ChannelDropout`` draws one word for each channel of each sample instead. Sources:
torch.nn.Dropout and Dropout2d; for masks without rescaling cuda-convnet's ``hs`` layer. The
generator is in convloom/random.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.activation import Activation
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.control import check_draw
from convloom.random import bits


@dataclass(frozen=True)
class _DropRate:
    """What dropout and its gradient share.

    ``p`` is the chance to drop an element. With ``rescale`` kept elements are multiplied by
    1 / (1 - p) in training; without it all elements are multiplied by 1 - p in prediction.
    """

    p: float = 0.5
    _: KW_ONLY
    rescale: bool = True

    @property
    def scale(self) -> float:
        """What kept elements are multiplied by; where the expectation stays, 0 for p = 1."""
        if not self.rescale:
            return 1.0
        return 1.0 / (1.0 - self.p) if self.p < 1.0 else 0.0

    @property
    def threshold(self) -> int:
        """Words below it drop their element; from 0 to 2^32, so compare in 64 bits."""
        return round(self.p * 2**32)

    def factor(self, mask: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """``scale`` where the mask is 1, else 0."""
        factor: np.ndarray = mask.astype(dtype) * dtype.type(self.scale)
        return factor


@dataclass(frozen=True)
class _Drop(_DropRate, Op):
    """What both kinds of dropout share.

    ``stream`` sets one layer's masks apart from another's: a 32-bit number
    (``convloom.random.stream_id``).
    """

    stream: int = 0

    @property
    def arity_out(self) -> int:
        return 2

    def check(self, counter: TensorSpec) -> None:
        """Raises ShapeError unless the attributes are in range and the counter is one."""
        if not 0.0 <= self.p <= 1.0:
            raise ShapeError(f"dropout's p must be in [0, 1], it is {self.p}")
        check_draw("dropout", self.stream, counter)

    def mask(self, counter: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
        """The mask of a shape, uint8: 1 where kept."""
        words = bits(int(counter[0]), self.stream, int(counter[1]), 0, math.prod(shape))
        return (words.astype(np.uint64) >= self.threshold).astype(np.uint8).reshape(shape)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One multiplication an element; drawing the mask is integer work."""
        return inputs[0].size

    def inference(self) -> Op | None:
        return None if self.rescale else Activation("linear", 1.0 - self.p)


@dataclass(frozen=True)
class Dropout(_Drop):
    """Inputs x, any shape, and counter, uint64 (2,); outputs y and mask, uint8: 1 where kept.

    y = x * (mask * scale), so a dropped NaN or Inf gives NaN, as in PyTorch.
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, counter = inputs
        self.check(counter)
        return TensorSpec(x.shape, x.dtype), TensorSpec(x.shape, "uint8")

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, counter = inputs
        mask = self.mask(counter, x.shape)
        return x * self.factor(mask, x.dtype), mask

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        rule = DropoutGrad(self.p, rescale=self.rescale)
        return [*scope.add(rule, dy, scope.node.outputs[1]), None]


@dataclass(frozen=True)
class DropoutGrad(_DropRate, Op):
    """Inputs dy and the mask, uint8, of one shape; output dx = dy * (mask * scale)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, mask = inputs
        if dy.shape != mask.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the mask {mask.shape}")
        return (TensorSpec(dy.shape, dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, mask = inputs
        return (dy * self.factor(mask, dy.dtype),)


@dataclass(frozen=True)
class ChannelDropout(_Drop):
    """Inputs x (N, C, ...) and counter, uint64 (2,); outputs y and mask, uint8 (N, C).

    Word n * C + c decides on channel c of sample n: 1 if it is kept. y = x * (mask * scale).
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, counter = inputs
        self.check(counter)
        if len(x.shape) < 3:
            raise ShapeError(
                f"Dropout2d drops channels of images (N, C, H, W), it got {x.shape}; use Dropout"
            )
        return TensorSpec(x.shape, x.dtype), TensorSpec(x.shape[:2], "uint8")

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, counter = inputs
        mask = self.mask(counter, x.shape[:2])
        return x * _spread(self.factor(mask, x.dtype), x.ndim), mask

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        rule = ChannelDropoutGrad(self.p, rescale=self.rescale)
        return [*scope.add(rule, dy, scope.node.outputs[1]), None]


@dataclass(frozen=True)
class ChannelDropoutGrad(_DropRate, Op):
    """Inputs dy (N, C, ...) and the mask, uint8 (N, C); output dx = dy * (mask * scale)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, mask = inputs
        if dy.shape[:2] != mask.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the mask {mask.shape}")
        return (TensorSpec(dy.shape, dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, mask = inputs
        return (dy * _spread(self.factor(mask, dy.dtype), dy.ndim),)


def _spread(channels: np.ndarray, axes: int) -> np.ndarray:
    """(N, C) with further axes of extent 1."""
    return channels.reshape(*channels.shape, *(1,) * (axes - 2))
