"""Metrics that a plan computes beside the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import Op, quiet


def _check_ranked(k: int, scores: TensorSpec, target: TensorSpec) -> None:
    if k < 1:
        raise ShapeError(f"k must be at least 1, it is {k}")
    if len(scores.shape) != 2 or target.shape != scores.shape[:1]:
        raise ShapeError(
            f"accuracy needs logits (N, classes) and labels (N,), it got {scores.shape} and "
            f"{target.shape}"
        )


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
        _check_ranked(self.k, *inputs)
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


@dataclass(frozen=True)
class TopKError(Op):
    """The shares of samples that are wrong at top 1 and at top k; equal scores share the places.

    Inputs scores (N,K) and target, int64 (N,); output (2,) in the scores' dtype, NaN for no
    samples. Where ``ahead`` classes score more than the label and ``equal`` ones, itself among
    them, as much, the label counts as right by (k - ahead) / equal, from 0 to 1. A NaN ranks before
    every number, and a label whose own score is NaN is wrong. Source: cuda-convnet's
    ``cost.logreg``, which ranks probabilities; logits rank alike.
    """

    differentiable: ClassVar[bool] = False

    k: int = 5

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        _check_ranked(self.k, *inputs)
        return (TensorSpec((2,), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        scores, target = inputs
        own = np.take_along_axis(scores, target[:, None], axis=1)
        equal = (scores == own).sum(axis=1)
        # A negated comparison, so that a NaN rival ranks before every number.
        ahead = (~(scores <= own)).sum(axis=1)
        known = np.maximum(equal, 1)  # a NaN does not even equal itself
        rights = [np.clip((k - ahead) / known, 0.0, 1.0) for k in (1, self.k)]
        wrong = [1.0 - np.where(equal > 0, right, 0.0) for right in rights]
        errors = np.divide(np.sum(wrong, axis=1), len(scores))
        return (errors.astype(scores.dtype),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Two comparisons a score."""
        return 2 * inputs[0].size


@dataclass(frozen=True)
class Figures(Op):
    """Inputs, at least one, of any shapes and one dtype; output (M,): their elements in a row.

    What a step reports beside its loss, as one tensor.
    """

    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if not inputs or len({x.dtype for x in inputs}) > 1:
            kinds = ", ".join(x.dtype for x in inputs) or "none"
            raise ShapeError(f"figures are tensors of one dtype, at least one; these are {kinds}")
        return (TensorSpec((sum(x.size for x in inputs),), inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.concatenate([x.reshape(-1) for x in inputs]),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 0
