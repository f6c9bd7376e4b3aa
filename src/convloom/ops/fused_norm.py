"""Normalisations with what stands beside them: sum, activation, its mask; only backends run these.

Like the forms in fused.py: the fusion pass makes them where a backend has a kernel for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.activation import ActivationGrad, ReLUGrad
from convloom.ops.base import quiet
from convloom.ops.batch_norm import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInference,
    check_count,
    per_channel,
    scaled,
)
from convloom.ops.fused import NONE, RELU, Activated
from convloom.ops.response_norm import LocalResponseNormGrad


@dataclass(frozen=True)
class _Tail(Activated):
    """What follows the normalisation: ``add`` a last input z, then the activation."""

    add: bool = False

    def norm_inputs(self, inputs: Sequence[TensorSpec]) -> Sequence[TensorSpec]:
        """The inputs without z. Raises ShapeError if z does not fit."""
        self.check_activation()
        if self.add and inputs[-1].shape != inputs[0].shape:
            raise ShapeError(
                f"a tensor of shape {inputs[-1].shape} cannot be added to {inputs[0].shape}"
            )
        return inputs[:-1] if self.add else inputs

    @quiet
    def apply(self, y: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
        """The sum and the activation."""
        return self.activated(y + inputs[-1] if self.add else y)

    @property
    def work(self) -> int:
        """Operations an element."""
        return self.add + (self.activation != NONE)


@dataclass(frozen=True)
class FusedBatchNorm(_Tail, BatchNorm):
    """As ``BatchNorm``, then + z (the last input) if ``add``, then the activation."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return super().infer(*self.norm_inputs(inputs))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        y, *rest = super().reference(*(inputs[:-1] if self.add else inputs))
        return self.apply(y, inputs), *rest

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + self.work * inputs[0].size


@dataclass(frozen=True)
class FusedBatchNormInference(_Tail, BatchNormInference):
    """As ``BatchNormInference``, then + z (the last input) if ``add``, then the activation."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return super().infer(*self.norm_inputs(inputs))

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        (y,) = super().reference(*(inputs[:-1] if self.add else inputs))
        return (self.apply(y, inputs),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + self.work * inputs[0].size


@dataclass(frozen=True)
class FusedBatchNormGrad(Activated, BatchNormGrad):
    """As ``BatchNormGrad``, of what passes the activation behind the normalisation.

    The activation is one whose gradient is taken from its output y. Either y is the last input, or
    with ``again`` y is computed again from x, and the norm's bias is the last input if ``affine``.
    With ``keep`` the last output is what passed, which others read as well: what was added before
    the activation.
    """

    keep: bool = False
    again: bool = False

    @property
    def arity_out(self) -> int:
        return super().arity_out + self.keep

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        self.check_activation()
        count = 4 + self.affine
        check_count(self, inputs, count + (self.affine if self.again else 1))
        made = super().infer(*inputs[:count])
        if not self.again and inputs[-1].shape != inputs[0].shape:
            raise ShapeError(f"the gradient {inputs[0].shape} does not fit {inputs[-1].shape}")
        return (*made, TensorSpec(inputs[0].shape, inputs[0].dtype)) if self.keep else made

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, rest = inputs[0], inputs[1 : 4 + self.affine]
        passed = self._passed(dy, self._again(*inputs[1:]) if self.again else inputs[-1])
        made = super().reference(passed, *rest)
        return (*made, passed) if self.keep else made

    @quiet
    def _again(
        self, x: np.ndarray, mean: np.ndarray, invstd: np.ndarray, *rows: np.ndarray
    ) -> np.ndarray:
        h = (x - per_channel(mean, x)) * per_channel(invstd, x)
        return self.activated(scaled(h, rows))

    def _passed(self, dy: np.ndarray, y: np.ndarray) -> np.ndarray:
        if self.activation == RELU:
            return ReLUGrad().reference(dy, y)[0]
        return ActivationGrad(self.activation, self.a, self.b).reference(dy, y)[0]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return super().flops(inputs, outputs) + (3 if self.again else 1) * inputs[0].size


@dataclass(frozen=True)
class FusedLocalResponseNormGrad(LocalResponseNormGrad):
    """As ``LocalResponseNormGrad``, masked by the rectifier whose output is the input x.

    dx is 0 where x <= 0.
    """

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return ReLUGrad().reference(*super().reference(*inputs), inputs[1])


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
