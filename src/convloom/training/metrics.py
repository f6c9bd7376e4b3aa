"""Sums over batches from which exact means are made, whatever sizes the batches have."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NotRequired, TypedDict

import numpy as np

from convloom.training.protocols import StepResult, StepResults


class Evaluation(TypedDict):
    """Figures over a whole data set: mean loss, shares of right answers, number of samples.

    ``costs`` is there for a loss of several: the mean of each number that it reports, by name.
    """

    loss: float
    accuracy: float
    top5: float
    n: int
    costs: NotRequired[dict[str, float]]


@dataclass
class Totals:
    """Running sums, each sample counted once; a batch's mean loss is weighted by its samples.

    With 10 samples, batch 4 and the last two wrong the accuracy is 0.8; a mean of the three
    batches' accuracies would say 0.667.

    Attributes:
        costs: {name: (sum, samples)}; a run whose parameter file was edited in mid-epoch has
            numbers that it did not report from the start.
    """

    loss: float = 0.0
    correct: int = 0
    correct5: int = 0
    n: int = 0
    costs: dict[str, tuple[float, int]] = field(default_factory=dict)

    def add(self, result: StepResult) -> None:
        """Count one batch."""
        self.add_all(StepResults.of(result))

    def add_all(self, results: StepResults) -> None:
        """Count batches, with the bits of one after the other."""
        loss, n = self.loss, results.n
        for mean in results.losses:
            loss += mean * n
        self.loss = loss
        self.correct += sum(results.correct)
        self.correct5 += sum(results.correct5)
        self.n += n * len(results)
        for costs in results.costs:
            for name, mean in costs.items():
                total, count = self.costs.get(name, (0.0, 0))
                self.costs[name] = total + mean * n, count + n

    def means(self) -> Evaluation:
        """Sums divided by the number of samples; NaN when there were none."""
        if self.n == 0:
            return Evaluation(loss=math.nan, accuracy=math.nan, top5=math.nan, n=0)
        means = Evaluation(
            loss=self.loss / self.n,
            accuracy=self.correct / self.n,
            top5=self.correct5 / self.n,
            n=self.n,
        )
        if self.costs:
            means["costs"] = {name: total / n for name, (total, n) in self.costs.items()}
        return means

    def to_json(self) -> dict[str, Any]:
        """The sums as plain data, for a checkpoint in mid-epoch."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Totals:
        """The sums that ``to_json`` gave."""
        costs = {name: (float(sum_), int(n)) for name, (sum_, n) in data.get("costs", {}).items()}
        return cls(
            float(data["loss"]), int(data["correct"]), int(data["correct5"]), int(data["n"]), costs
        )


def measured(probabilities: np.ndarray, labels: np.ndarray) -> StepResult:
    """What one batch gave, of its probabilities (n, classes) and labels (n,).

    A label is right where fewer than k probabilities come before it: greater ones, and equal ones
    of earlier classes. A probability of 0 counts as the smallest that float32 holds.
    """
    own = probabilities[np.arange(len(labels)), labels]
    earlier = np.arange(probabilities.shape[1]) < labels[:, None]
    before = (probabilities > own[:, None]) | ((probabilities == own[:, None]) & earlier)
    rank = before.sum(axis=1)
    tiny = float(np.finfo(np.float32).tiny)
    loss = float(-np.log(np.maximum(own.astype(np.float64), tiny)).mean())
    return StepResult(loss, int((rank < 1).sum()), int((rank < 5).sum()), len(labels))
