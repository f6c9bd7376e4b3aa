"""Group normalisation and its gradient; with a group for each channel it is instance
normalisation.

Source: Wu and He, "Group Normalization", arXiv 1803.08494; torch.nn.GroupNorm and
torch.nn.InstanceNorm2d for names and conventions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.batch_norm import check_channels, check_count, scaled


@dataclass(frozen=True)
class _Groups:
    """What group normalisation and its gradient share: how channels are split."""

    groups: int = 1
    affine: bool = True

    def check(self, x: TensorSpec) -> None:
        """Raises ShapeError unless x's channels can be split."""
        check_channels(x, ())
        if self.groups < 1 or x.shape[1] % self.groups:
            raise ShapeError(
                f"{x.shape[1]} channels cannot be split into {self.groups} groups; the number of "
                "channels must be divisible by num_groups"
            )

    def split(self, x: np.ndarray) -> np.ndarray:
        """x (N,C,...) as (N, groups, values of a group)."""
        size = x.size // max(x.shape[0] * self.groups, 1)
        return x.reshape(x.shape[0], self.groups, size)


@dataclass(frozen=True)
class GroupNorm(_Groups, Op):
    """Each group of channels of each sample to mean 0 and variance 1, then scaled and shifted.

    Inputs x (N,C,...); weight and bias (C,) if ``affine``. Outputs y like x; mean and
    1 / sqrt(biased variance + eps) of each group, (N,groups).
    """

    eps: float = 1e-5

    @property
    def arity_out(self) -> int:
        return 3

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_count(self, inputs, 1 + 2 * self.affine)
        x = inputs[0]
        self.check(x)
        check_channels(x, inputs[1:])
        statistics = TensorSpec((x.shape[0], self.groups), x.dtype)
        return TensorSpec(x.shape, x.dtype), statistics, statistics

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = self.split(inputs[0])
        size = x.dtype.type(x.shape[2])
        mean = x.sum(axis=2) / size
        centred = x - mean[:, :, None]
        variance = np.square(centred).sum(axis=2) / size
        invstd = 1 / np.sqrt(variance + x.dtype.type(self.eps))
        h = (centred * invstd[:, :, None]).reshape(inputs[0].shape)
        return scaled(h, inputs[1:]), mean, invstd

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy, (x, *rest) = scope.grads[0], scope.node.inputs
        assert dy is not None
        op = GroupNormGrad(self.groups, self.affine)
        return scope.add(op, dy, x, *scope.node.outputs[1:3], *rest[:1])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Sum, squares of differences, scale and shift."""
        return 6 * inputs[0].size

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """x is read twice: nothing can be normalised before its group was seen."""
        return super().nbytes(inputs, outputs) + inputs[0].nbytes


@dataclass(frozen=True)
class GroupNormGrad(_Groups, Op):
    """Inputs dy and x (N,C,...), mean and 1/std (N,groups), weight (C,) if ``affine``.

    Outputs dx and, if ``affine``, the gradients of weight and bias. With h = (x - mean) / std and
    g = dy weight, over the m values of a group: dx = (g - mean(g) - h mean(g h)) / std.
    """

    @property
    def arity_out(self) -> int:
        return 3 if self.affine else 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_count(self, inputs, 4 + self.affine)
        dy, x, mean, invstd, *weight = inputs
        self.check(x)
        check_channels(x, weight)
        if dy.shape != x.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the input {x.shape}")
        if not mean.shape == invstd.shape == (x.shape[0], self.groups):
            raise ShapeError(
                f"the statistics {mean.shape} and {invstd.shape} are not those of "
                f"{x.shape[0]} samples of {self.groups} groups"
            )
        row = TensorSpec((x.shape[1],), x.dtype)
        return (TensorSpec(x.shape, x.dtype), *([row, row] if self.affine else []))

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, x, mean, invstd, *weight = inputs
        h = (self.split(x) - mean[:, :, None]) * invstd[:, :, None]
        g = self.split(scaled(dy, (weight[0], np.zeros_like(weight[0]))) if weight else dy)
        size = x.dtype.type(h.shape[2])
        part = (g * h).sum(axis=2, keepdims=True) / size
        inner = g - g.sum(axis=2, keepdims=True) / size - h * part
        dx = (inner * invstd[:, :, None]).reshape(x.shape)
        if not self.affine:
            return (dx,)
        axes = (0, *range(2, x.ndim))
        return dx, (dy * h.reshape(x.shape)).sum(axis=axes), dy.sum(axis=axes)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 10 * inputs[0].size

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """dy and x are read twice: dx needs the sums over a group."""
        return super().nbytes(inputs, outputs) + 2 * inputs[0].nbytes
