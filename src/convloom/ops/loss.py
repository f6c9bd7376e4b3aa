"""Softmax cross-entropy, its gradient, and the check of targets that a host makes before a run.

    loss = -1/N sum over n,k of t[n,k] * log softmax(logits)[n,k]

where t is the target distribution: one-hot of a class index, or probabilities as given, smoothed
to (1 - e) t + e/K. Source: torch.nn.CrossEntropyLoss's documentation (reduction "mean"); Szegedy
et al., "Rethinking the Inception architecture" (arXiv 1512.00567), for label smoothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ConvloomError, ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet

#: The kinds of target: class indices (N,) int64, or probabilities (N, K) in the logits' dtype.
INDEX, PROBABILITY = "index", "probability"


class TargetError(ConvloomError, ValueError):
    """A target that does not fit the number of classes; names the sample."""


def check_targets(target: np.ndarray, classes: int) -> None:
    """Check targets before anything runs with them.

    Args:
        target: class indices (N,), any integer dtype, or probabilities (N, classes).
        classes: number of classes.

    Raises:
        TargetError: a label outside [0, classes), naming the first such sample; or an array that
            is neither of the two forms.
    """
    if np.issubdtype(target.dtype, np.integer):
        if target.ndim != 1:
            raise TargetError(f"class indices must have shape (N,), they have {target.shape}")
        wrong = np.flatnonzero((target < 0) | (target >= classes))
        if len(wrong):
            more = f" ({len(wrong)} such samples)" if len(wrong) > 1 else ""
            raise TargetError(
                f"sample {wrong[0]} has label {target[wrong[0]]}{more}; labels must be "
                f"between 0 and {classes - 1} for {classes} classes"
            )
    elif not np.issubdtype(target.dtype, np.floating):
        raise TargetError(
            f"targets must be integer labels or float probabilities, they are {target.dtype}"
        )
    elif target.ndim != 2 or target.shape[1] != classes:
        raise TargetError(
            f"probabilities must have shape (N, {classes}), they have {target.shape}; class "
            "indices must be integers"
        )


@dataclass(frozen=True)
class _CrossEntropy:
    """Attributes that the loss and its gradient share."""

    label_smoothing: float = 0.0
    target: str = INDEX

    def check(self, logits: TensorSpec, target: TensorSpec) -> None:
        """Raises ShapeError unless the attributes are in range and the target fits."""
        if not 0.0 <= self.label_smoothing <= 1.0:
            raise ShapeError(f"label_smoothing must be in [0, 1], it is {self.label_smoothing}")
        if self.target not in (INDEX, PROBABILITY):
            raise ShapeError(f"target must be {INDEX!r} or {PROBABILITY!r}, it is {self.target!r}")
        if len(logits.shape) != 2 or logits.shape[1] < 1:
            raise ShapeError(
                f"cross-entropy needs logits of shape (N, classes), it got {logits.shape}; "
                "put a Flatten or a Linear before it"
            )
        indexed = self.target == INDEX
        shape = logits.shape[:1] if indexed else logits.shape
        dtype = "int64" if indexed else logits.dtype
        if (target.shape, target.dtype) != (shape, dtype):
            raise ShapeError(
                f"for logits of shape {logits.shape} the target ({self.target}) must be {dtype} "
                f"of shape {shape}, it is {target.dtype} of shape {target.shape}"
            )

    def smoothed(self, target: np.ndarray, classes: int, dtype: np.dtype) -> np.ndarray:
        """The target distribution (N, K)."""
        if self.target == INDEX:
            distribution = np.zeros((len(target), classes), dtype)
            distribution[np.arange(len(target)), target] = 1.0
        else:
            distribution = target.astype(dtype)
        if self.label_smoothing:
            distribution *= 1.0 - self.label_smoothing
            distribution += self.label_smoothing / classes
        return distribution


@dataclass(frozen=True)
class SoftmaxCrossEntropy(_CrossEntropy, Op):
    """Mean cross-entropy of logits.

    Inputs logits (N,K) and target, int64 (N,) or probabilities (N,K); outputs loss (), the mean
    over N in the logits' dtype, computed in float64, and the softmax probabilities (N,K). The
    mean over no samples is NaN, as in PyTorch.
    """

    @property
    def arity_out(self) -> int:
        return 2

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        logits, target = inputs
        self.check(logits, target)
        return TensorSpec((), logits.dtype), TensorSpec(logits.shape, logits.dtype)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """Raises TargetError for a label out of range."""
        logits, target = inputs
        n, classes = logits.shape
        check_targets(target, classes)
        wide = np.promote_types(logits.dtype, np.float64)
        shifted = logits.astype(wide)
        shifted -= shifted.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        log_probability = shifted - log_sum
        total = self._total(log_probability, target)
        loss = np.divide(total, n, dtype=wide).astype(logits.dtype)
        return np.asarray(loss), np.exp(log_probability).astype(logits.dtype)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dloss, dprobability = scope.grads
        if dprobability is not None:
            raise TypeError("the probabilities of SoftmaxCrossEntropy have no gradient")
        if dloss is None or not scope.wanted[0]:
            return [None, None]
        rule = SoftmaxCrossEntropyGrad(self.label_smoothing, self.target)
        probability, target = scope.node.outputs[1], scope.node.inputs[1]
        return [*scope.add(rule, probability, target, dloss), None]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Each logit: a comparison, a subtraction, an exponential, an addition, a division."""
        return 5 * inputs[0].size

    def _total(self, log_probability: np.ndarray, target: np.ndarray) -> np.floating:
        """The loss summed over the samples."""
        classes = log_probability.shape[1]
        if self.target == INDEX and not self.label_smoothing:
            # Gathered, so that a log-probability of -inf elsewhere does not become 0 * -inf.
            weighted = log_probability[np.arange(len(target)), target]
        else:
            weighted = log_probability * self.smoothed(target, classes, log_probability.dtype)
        total: np.floating = -np.sum(weighted)
        return total


@dataclass(frozen=True)
class SoftmaxCrossEntropyGrad(_CrossEntropy, Op):
    """Gradient of the logits: (probability * sum(t) - t) * dloss / N.

    Inputs probability (N,K), target as the loss had it, dloss (); output dlogits (N,K).
    """

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        probability, target, _ = inputs
        self.check(probability, target)
        return (TensorSpec(probability.shape, probability.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        probability, target, dloss = inputs
        n, classes = probability.shape
        distribution = self.smoothed(target, classes, probability.dtype)
        share = distribution.sum(axis=1, keepdims=True) if self.target == PROBABILITY else 1
        scale = dloss / max(n, 1)
        return (((probability * share - distribution) * scale).astype(probability.dtype),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return (4 if self.target == PROBABILITY else 2) * outputs[0].size
