"""Dropout with counter-based masks, and its gradient.

Element i of the logical (NCHW) order is dropped when word i of the Philox stream (seed, stream,
step) is below p * 2^32: an integer comparison, so every device makes the same mask, in any
layout. Source: torch.nn.Dropout; the generator is in convloom/random.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.control import COUNTER_SPEC
from convloom.random import bits


@dataclass(frozen=True)
class _DropRate:
    """The attribute that dropout and its gradient share: the chance to drop an element."""

    p: float = 0.5

    @property
    def scale(self) -> float:
        """What kept elements are multiplied by, so that the expectation stays; 0 for p = 1."""
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
class Dropout(_DropRate, Op):
    """Inputs x, any shape, and counter, uint64 (2,); outputs y and mask, uint8: 1 where kept.

    y = x * (mask / (1 - p)), so a dropped NaN or Inf gives NaN, as in PyTorch. ``stream`` sets
    one layer's masks apart from another's: a 32-bit number (``convloom.random.stream_id``).
    """

    stream: int = 0

    @property
    def arity_out(self) -> int:
        return 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, counter = inputs
        if not 0.0 <= self.p <= 1.0:
            raise ShapeError(f"dropout's p must be in [0, 1], it is {self.p}")
        if not 0 <= self.stream < 2**32:
            raise ShapeError(f"dropout's stream must be in [0, 2^32), it is {self.stream}")
        if (counter.shape, counter.dtype) != (COUNTER_SPEC.shape, COUNTER_SPEC.dtype):
            raise ShapeError(f"the counter must be {COUNTER_SPEC}, it is {counter}")
        return TensorSpec(x.shape, x.dtype), TensorSpec(x.shape, "uint8")

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, counter = inputs
        words = bits(int(counter[0]), self.stream, int(counter[1]), 0, math.prod(x.shape))
        mask = (words.astype(np.uint64) >= self.threshold).astype(np.uint8).reshape(x.shape)
        return x * self.factor(mask, x.dtype), mask

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return [*scope.add(DropoutGrad(self.p), dy, scope.node.outputs[1]), None]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One multiplication an element; drawing the mask is integer work."""
        return inputs[0].size

    def inference(self) -> Op | None:
        return None


@dataclass(frozen=True)
class DropoutGrad(_DropRate, Op):
    """Inputs dy and the mask, uint8, of one shape; output dx = dy * (mask / (1 - p))."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, mask = inputs
        if dy.shape != mask.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the mask {mask.shape}")
        return (TensorSpec(dy.shape, dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, mask = inputs
        return (dy * self.factor(mask, dy.dtype),)
