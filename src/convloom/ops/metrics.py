"""Metrics that a plan computes beside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import Op


@dataclass(frozen=True)
class TopKCorrect(Op):
    """How many samples have their label first, and among the first min(k, K).

    Inputs logits (N,K) and target, int64 (N,); output int32 (2,). The label's rank is the number
    of other classes whose logit is greater, or equal and earlier, or NaN; it is right at top k if
    its rank is below k. A label whose own logit is NaN is never right.
    """

    differentiable: ClassVar[bool] = False

    k: int = 5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        logits, target = inputs
        if self.k < 1:
            raise ShapeError(f"k must be at least 1, it is {self.k}")
        if len(logits.shape) != 2 or target.shape != logits.shape[:1]:
            raise ShapeError(
                f"accuracy needs logits (N, classes) and labels (N,), it got {logits.shape} and "
                f"{target.shape}"
            )
        return (TensorSpec((2,), "int32"),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        logits, target = inputs
        label = target[:, None]
        classes = np.arange(logits.shape[1])
        own = np.take_along_axis(logits, label, axis=1)
        # Negated comparisons, so that a NaN rival ranks before every number.
        ahead = np.where(classes < label, ~(logits < own), ~(logits <= own))
        rank = (ahead & (classes != label)).sum(axis=1)
        right = ~np.isnan(own[:, 0])
        counts = [(right & (rank < k)).sum() for k in (1, self.k)]
        return (np.array(counts, np.int32),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One comparison a logit."""
        return inputs[0].size
