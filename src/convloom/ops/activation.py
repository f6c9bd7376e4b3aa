"""The rectifier and its gradient. NaN passes through both, as in torch.relu."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op


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
        if dy.shape != y.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the activation {y.shape}")
        return (TensorSpec(dy.shape, dy.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, y = inputs
        return (np.where(y <= 0, dy.dtype.type(0), dy),)
