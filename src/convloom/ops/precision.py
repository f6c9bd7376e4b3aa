"""Narrower float formats: what the operands of a product are rounded to before it.

``fp32`` leaves them alone. ``tf32`` keeps 10 explicit bits of the significand, ``bf16`` 7; both
keep float32's exponent, so nothing overflows that did not before, save by rounding up to infinity.
Rounding is to nearest; ties of bf16 go to even, those of tf32 away from zero, since that is the
rounding that all GPUs with tf32 have an instruction for. NaN stays NaN. Products are accumulated in
float32.
Sources: NVIDIA, "A100 tensor core GPU architecture" (2020), and PTX ISA, cvt.rna.tf32, for tf32;
Wang and Kanwar, "BFloat16" (2019); IEEE 754-2019, sections 4.3.1 and 4.3.2, for the rounding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ConvloomError, ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet

FP32, TF32, BF16 = "fp32", "tf32", "bf16"
#: {precision: low bits of a float32 that it drops}.
_DROPPED = {FP32: 0, TF32: 13, BF16: 16}
PRECISIONS = tuple(_DROPPED)


def check_precision(precision: object) -> str:
    """The precision as given. Raises ConvloomError for one that is not known."""
    if not isinstance(precision, str) or precision not in PRECISIONS:
        known = ", ".join(PRECISIONS)
        raise ConvloomError(f"precision={precision!r} is not known; choose one of {known}")
    return precision


@quiet
def rounded(values: np.ndarray, precision: str) -> np.ndarray:
    """``values`` rounded to a precision, in their own dtype; ``fp32`` returns them as they are.

    Float64 values are rounded to float32 first.
    """
    dropped = _DROPPED[precision]
    if not dropped:
        return values
    single = np.ascontiguousarray(values, np.float32)
    bits = single.view(np.uint32)
    nearest = bits + np.uint32(1 << (dropped - 1))  # ties away from zero
    if precision == BF16:
        nearest -= (~bits >> np.uint32(dropped)) & np.uint32(1)  # ties to even
    kept = (nearest & np.uint32(0xFFFFFFFF << dropped & 0xFFFFFFFF)).view(np.float32)
    return np.where(np.isnan(single), single, kept).reshape(values.shape).astype(values.dtype)


@dataclass(frozen=True)
class _Rounding(Op):
    """The attribute of both ops, and what they have in common."""

    precision: str

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.precision not in PRECISIONS:
            raise ShapeError(f"precision must be one of {PRECISIONS}, it is {self.precision!r}")
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)


@dataclass(frozen=True)
class Round(_Rounding):
    """Input x, any shape; output x rounded. Gradients pass as they are."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (rounded(inputs[0], self.precision).copy(),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        return scope.grads


@dataclass(frozen=True)
class RoundGradient(_Rounding):
    """Input x, any shape; output x as it is. Gradients that pass are rounded."""

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (inputs[0].copy(),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        return scope.add(Round(self.precision), dy)
