"""Biases that stand alone: one a channel, or one a channel and pixel (unshared, cuda-convnet).

A convolution takes its shared bias as an input; these serve layers whose kernels do not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.conv2d import BiasGrad


@dataclass(frozen=True)
class AddBias(Op):
    """Inputs x (N,K,...) and b, (K,) or unshared (K,...); output x + b for every sample."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, b = inputs
        if len(x.shape) < 2 or b.shape not in (x.shape[1:2], x.shape[1:]):
            raise ShapeError(
                f"a bias of shape {b.shape} does not fit {x.shape}; it must have shape "
                f"{x.shape[1:2]}, or {x.shape[1:]} if it is unshared"
            )
        return (TensorSpec(x.shape, x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, b = inputs
        return (x + b.reshape(*b.shape, *(1,) * (x.ndim - 1 - b.ndim)),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        if not scope.wanted[1]:
            return [dy, None]
        shared = len(scope.spec(scope.node.inputs[1]).shape) == 1
        return [dy, *scope.add(BiasGrad() if shared else UnsharedBiasGrad(), dy)]


@dataclass(frozen=True)
class UnsharedBiasGrad(Op):
    """Input dy (N,K,...); output db (K,...), the sum over samples."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape[1:], inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (inputs[0].sum(axis=0),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size
