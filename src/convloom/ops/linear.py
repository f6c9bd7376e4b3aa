"""The fully connected layer and its two gradients: y = x w^T + b.

Source: torch.nn.Linear's documentation. The bias gradient is ``BiasGrad`` of conv2d.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.conv2d import BiasGrad


@dataclass(frozen=True)
class Linear(Op):
    """Inputs x (N,I), w (O,I) and optionally b (O,); output y (N,O)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, w = inputs[:2]
        if len(x.shape) != 2:
            raise ShapeError(
                f"Linear needs an input of shape (N, features), it got {x.shape}; put a Flatten "
                "before it"
            )
        out, width = w.shape
        if x.shape[1] != width:
            raise ShapeError(
                f"Linear expects {width} input features, the input has {x.shape[1]} "
                f"(shape {x.shape}); make it Linear({x.shape[1]}, {out})"
            )
        if len(inputs) > 2 and inputs[2].shape != (out,):
            raise ShapeError(f"the bias has shape {inputs[2].shape}, {out} outputs need ({out},)")
        return (TensorSpec((x.shape[0], out), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y = inputs[0] @ inputs[1].T
        return (y + inputs[2] if len(inputs) > 2 else y,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        x, w = scope.node.inputs[:2]
        dy = scope.grads[0]
        assert dy is not None
        grads: list[str | None] = [None] * len(scope.node.inputs)
        if scope.wanted[0]:
            (grads[0],) = scope.add(LinearDgrad(), dy, w)
        if scope.wanted[1]:
            (grads[1],) = scope.add(LinearWgrad(), x, dy)
        if len(grads) > 2 and scope.wanted[2]:
            (grads[2],) = scope.add(BiasGrad(), dy)
        return grads

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        bias = outputs[0].size if len(inputs) > 2 else 0
        return 2 * inputs[0].size * outputs[0].shape[1] + bias


@dataclass(frozen=True)
class LinearDgrad(Op):
    """Gradient of the input. Inputs dy (N,O), w (O,I); output dx (N,I)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, w = inputs
        if dy.shape[1:] != w.shape[:1]:
            raise ShapeError(f"the gradient {dy.shape} does not fit the weight {w.shape}")
        return (TensorSpec((dy.shape[0], w.shape[1]), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, w = inputs
        return (dy @ w,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 2 * inputs[0].size * outputs[0].shape[1]


@dataclass(frozen=True)
class LinearWgrad(Op):
    """Gradient of the weight. Inputs x (N,I), dy (N,O); output dw (O,I)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, dy = inputs
        if x.shape[:1] != dy.shape[:1]:
            raise ShapeError(f"the gradient {dy.shape} does not fit the input {x.shape}")
        return (TensorSpec((dy.shape[1], x.shape[1]), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, dy = inputs
        return (dy.T @ x,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 2 * inputs[0].shape[0] * outputs[0].size
