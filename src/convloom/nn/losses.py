"""Losses: plain descriptions, from which the ops of a step are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convloom.ir import ShapeError
from convloom.nn.arguments import ArgumentError
from convloom.ops import SoftmaxCrossEntropy


@dataclass(frozen=True)
class CrossEntropyLoss:
    """Mean softmax cross-entropy of logits (N, K), as torch.nn.CrossEntropyLoss.

    Targets are class numbers (N,) or probabilities (N, K). Class weights, ``ignore_index`` and
    other reductions than ``mean`` are not supported.

    Args:
        label_smoothing: share e of the target spread over all classes, (1 - e) t + e / K.

    Raises:
        ShapeError: a label_smoothing outside [0, 1].
        ArgumentError: an option of PyTorch that convloom does not have.
    """

    weight: Any = None
    size_average: Any = None
    ignore_index: int = -100
    reduce: Any = None
    reduction: str = "mean"
    label_smoothing: float = 0.0

    def __post_init__(self) -> None:
        for name, default in (
            ("weight", None),
            ("size_average", None),
            ("ignore_index", -100),
            ("reduce", None),
            ("reduction", "mean"),
        ):
            value = getattr(self, name)
            if type(value) is not type(default) or value != default:
                raise ArgumentError(
                    f"CrossEntropyLoss: {name}={value!r} is not supported, only {default!r} is"
                )
        smoothing = self.label_smoothing
        if isinstance(smoothing, bool) or not isinstance(smoothing, (int, float)):
            raise ShapeError(
                f"CrossEntropyLoss: label_smoothing must be a number, not {smoothing!r}"
            )
        if not 0.0 <= smoothing <= 1.0:
            raise ShapeError(
                f"CrossEntropyLoss: label_smoothing must be in [0, 1], it is {smoothing}"
            )

    def op(self, target: str = "index") -> SoftmaxCrossEntropy:
        """The op for targets of a kind: ``index`` (class numbers) or ``probability``."""
        return SoftmaxCrossEntropy(float(self.label_smoothing), target)

    def __repr__(self) -> str:
        return f"CrossEntropyLoss(label_smoothing={self.label_smoothing})"
