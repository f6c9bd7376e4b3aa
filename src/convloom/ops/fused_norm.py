"""Batch normalisation with the sum and the rectifier behind it; only backends run these.

Like the forms in fused.py: the fusion pass makes them where a backend has a kernel for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.activation import ReLU, ReLUGrad
from convloom.ops.base import quiet
from convloom.ops.batch_norm import BatchNorm, BatchNormGrad, BatchNormInference


@dataclass(frozen=True)
class _Tail:
    """What follows the normalisation: ``add`` a last input z, then ``relu``."""

    add: bool = False
    relu: bool = False

    def norm_inputs(self, inputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """The inputs without z. Raises ShapeError if z does not fit."""
        if self.add and inputs[-1].shape != inputs[0].shape:
            raise ShapeError(
                f"a tensor of shape {inputs[-1].shape} cannot be added to {inputs[0].shape}"
            )
        return inputs[:-1] if self.add else inputs

    @quiet
    def apply(self, y: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sum and the rectifier."""
        total = y + inputs[-1] if self.add else y
        rectified: np.ndarray = ReLU().reference(total)[0] if self.relu else total
        return rectified


@dataclass(frozen=True)
class FusedBatchNorm(_Tail, BatchNorm):
    """As ``BatchNorm``, then + z (the last input) if ``add``, then ReLU if ``relu``."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return super().infer(*self.norm_inputs(inputs))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y, *rest = super().reference(*(inputs[:-1] if self.add else inputs))
        return self.apply(y, inputs), *rest

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + (self.add + self.relu) * inputs[0].size


@dataclass(frozen=True)
class FusedBatchNormInference(_Tail, BatchNormInference):
    """As ``BatchNormInference``, then + z (the last input) if ``add``, then ReLU if ``relu``."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return super().infer(*self.norm_inputs(inputs))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (y,) = super().reference(*(inputs[:-1] if self.add else inputs))
        return (self.apply(y, inputs),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + (self.add + self.relu) * inputs[0].size


@dataclass(frozen=True)
class FusedBatchNormGrad(BatchNormGrad):
    """As ``BatchNormGrad``, of dy that the rectifier behind it masks.

    The last input is that rectifier's output y. With ``keep`` the last output is the masked dy,
    which others read as well: what was added before the rectifier.
    """

    keep: bool = False

    @property
    def arity_out(self) -> int:
        return super().arity_out + self.keep

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        made = super().infer(*inputs[:-1])
        (masked,) = ReLUGrad().infer(inputs[0], inputs[-1])
        return (*made, masked) if self.keep else made

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (masked,) = ReLUGrad().reference(inputs[0], inputs[-1])
        made = super().reference(masked, *inputs[1:-1])
        return (*made, masked) if self.keep else made

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + inputs[0].size


@dataclass(frozen=True)
class FoldBatchNorm(BatchNormInference):
    """Filters and bias of one convolution that does what a convolution and the norm behind it do.

    Inputs w (K,...); the convolution's bias (K,) if ``bias``; weight and bias of the norm if
    ``affine``; mean and variance; all (K,). Outputs w' = w s and b' = (b - mean) s + bias with
    s = weight / sqrt(variance + eps) (Jacob et al., arXiv 1712.05877, section 3.2).
    """

    bias: bool = False

    @property
    def arity_out(self) -> int:
        return 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        w, *rows = inputs
        expected = 2 + self.bias + 2 * self.affine
        row = TensorSpec(w.shape[:1], w.dtype)
        if len(rows) != expected or any(spec.shape != row.shape for spec in rows):
            raise ShapeError(
                f"{self.name} of filters {w.shape} takes {expected} rows of {row.shape}, it got "
                f"{', '.join(str(spec.shape) for spec in rows)}"
            )
        return TensorSpec(w.shape, w.dtype), row

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        w, *rows = inputs
        mean, variance = rows[-2:]
        scale = 1 / np.sqrt(variance + w.dtype.type(self.eps))
        weight, bias = rows[-4:-2] if self.affine else (np.ones_like(mean), np.zeros_like(mean))
        scale = scale * weight
        shifted = (rows[0] if self.bias else np.zeros_like(mean)) - mean
        return w * scale.reshape(-1, *(1,) * (w.ndim - 1)), shifted * scale + bias

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size
