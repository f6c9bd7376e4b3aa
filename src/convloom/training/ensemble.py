"""Trained networks beside each other: their table, the best of them, their averaged prediction."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.ir import ConvloomError, Graph
from convloom.training import prediction
from convloom.training.engine import Engine
from convloom.training.history import EpochRow, History, finite, score
from convloom.training.loop import NonFiniteError
from convloom.training.protocols import Dataset

if TYPE_CHECKING:
    from convloom.nn import Module

#: Images that an ensemble predicts at a time.
_AT_A_TIME = 16_384


class ManyError(ConvloomError, ValueError):
    """Members that cannot be trained together; the message names the setting."""


@dataclass(frozen=True)
class Member:
    """One trained network.

    Attributes:
        config: what sets it apart: its rates, seed and schedule, as they were given.
        model: the network, with its weights.
        history: what happened in its training. Of members that trained at the same time, seconds
            are those of all together.
        error: of a member that diverged: its loss was not finite, which ended its training.
    """

    config: Mapping[str, Any]
    model: Module
    history: History
    error: NonFiniteError | None = None

    @property
    def last(self) -> EpochRow:
        """The last epoch; of a member that diverged, the one that did not end, with NaN."""
        if self.error is None:
            return self.history[-1]
        nan = math.nan
        return EpochRow(len(self.history) + 1, self.error.step, nan, nan, nan, nan, nan, nan, nan)

    def describe(self) -> str:
        """``lr=0.01 seed=3``, and whether it diverged."""
        own = " ".join(f"{key}={_shown(value)}" for key, value in self.config.items()) or "–"
        return own if self.error is None else f"{own} (diverged at step {self.error.step})"


@dataclass(frozen=True)
class Group:
    """Members that differ in their seeds alone.

    Attributes:
        config: what they have in common.
        count: how many they are.
        mean, spread: of the last epochs' validation accuracies (training, where nothing was
            validated): mean and standard deviation, of those that did not diverge; NaN where all
            did.
        diverged: how many did.
    """

    config: Mapping[str, Any]
    count: int
    mean: float
    spread: float
    diverged: int = 0


class Ensemble:
    """Trained members. ``print(ensemble)`` is a table, the best first.

    Args:
        members: in the order in which they were asked for.
        device, precision: where and how ``predict`` computes.
    """

    def __init__(
        self, members: Sequence[Member], device: str = "auto", precision: str = "fp32"
    ) -> None:
        if not members:
            raise ManyError("an ensemble needs at least one member")
        self.members = tuple(members)
        self._device = device
        self._precision = precision
        self._engines: list[tuple[Graph, Engine]] = []

    @property
    def ranked(self) -> tuple[Member, ...]:
        """The members, best last epoch first; those that are equal in the order they came, those
        that diverged last."""
        return tuple(sorted(self.members, key=lambda member: score(member.last), reverse=True))

    @property
    def best(self) -> Member:
        """The member whose last epoch has the best validation accuracy, then the lowest loss.

        Where nothing was validated, the lowest training loss counts.

        Raises:
            ManyError: all members diverged.
        """
        return max(self.sound, key=lambda member: score(member.last))

    @property
    def sound(self) -> tuple[Member, ...]:
        """The members that did not diverge. Raises ManyError where all did."""
        if self._lost:
            raise ManyError(f"all {len(self)} members diverged; the first: {self.members[0].error}")
        return tuple(member for member in self.members if member.error is None)

    @property
    def _lost(self) -> bool:
        return all(member.error is not None for member in self.members)

    def predict(self, images: np.ndarray, *, batch_size: int = 256) -> np.ndarray:
        """The mean of all members' class probabilities, float32 (N, classes).

        Members that diverged do not count.

        Args:
            images: as ``Trainer.predict`` takes them.

        Raises:
            ManyError: all members diverged.
        """
        sound = self.sound
        images = np.asarray(images)
        images = images[None] if images.ndim == 3 else images
        total = np.zeros((len(images), self._engine_with(sound[0].model).classes))
        for member in sound:
            ready = prediction.normalised(member.model, images)
            engine = self._engine_with(member.model)
            for start in range(0, len(ready), batch_size):
                logits = engine.predict(ready[start : start + batch_size])
                total[start : start + batch_size] += prediction.softmax(logits)
        return (total / len(sound)).astype(np.float32)

    def _engine_with(self, model: Module) -> Engine:
        """An engine that holds a member's weights; members of one network share one."""
        shape = model.input_shape
        if shape is None or len(shape) != 3:
            raise ManyError("a member does not know the shape of its images; train it first")
        graph = model.trace(shape, 1)
        engine = next((engine for known, engine in self._engines if known == graph), None)
        if engine is None:
            engine = Engine(
                model,
                input_shape=(shape[0], shape[1], shape[2]),
                device=self._device,
                precision=self._precision,
            )
            self._engines.append((graph, engine))
        for name, value in model.state_dict().items():
            engine.write(name, value)
        return engine

    def evaluate(self, dataset: Dataset, *, batch_size: int = 256) -> dict[str, float]:
        """``{"loss", "accuracy", "n"}`` of the averaged prediction over every sample.

        Raises:
            ManyError: an empty data set.
        """
        right, loss, count = 0, 0.0, 0
        # Each member's weights are loaded once for many batches.
        for batch in dataset.batches(_AT_A_TIME).epoch(0):
            labels = np.asarray(batch.labels)
            made = self.predict(batch.images, batch_size=batch_size)
            own = made[np.arange(len(labels)), labels].astype(np.float64)
            right += int((made.argmax(axis=1) == labels).sum())
            # The smallest float32 stands for a probability of 0, so that the mean stays finite.
            loss -= float(np.log(np.maximum(own, np.finfo(np.float32).tiny)).sum())
            count += len(labels)
        if not count:
            raise ManyError(f"the data set {dataset.name} has no samples")
        return {"loss": loss / count, "accuracy": right / count, "n": count}

    def groups(self) -> tuple[Group, ...]:
        """The members by what they have in common but for the seed, best mean first."""
        found: dict[tuple[Any, ...], list[Member]] = {}
        for member in self.members:
            found.setdefault(tuple(_without_seed(member.config).items()), []).append(member)
        made = [_group(common, members) for common, members in found.items()]
        return tuple(sorted(made, key=lambda one: _or_less(one.mean), reverse=True))

    def to_json(self) -> dict[str, Any]:
        """Members in order, with their last epochs, and the groups, as plain data."""
        data = {
            "members": [
                {
                    "config": dict(member.config),
                    **_figures(member.last),
                    **({} if member.error is None else {"error": str(member.error)}),
                }
                for member in self.members
            ],
            "best": None if self._lost else self.members.index(self.best),
            "groups": [{**vars(group), "config": dict(group.config)} for group in self.groups()],
        }
        plain: dict[str, Any] = finite(data)
        return plain

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        return iter(self.members)

    def __str__(self) -> str:
        rows = [
            (member.describe(), *(_cell(value) for value in _figures(member.last).values()))
            for member in self.ranked
        ]
        header = ("member", "loss", "accuracy", "val loss", "val accuracy", "seconds")
        widths = [max(len(row[i]) for row in (header, *rows)) for i in range(len(header))]
        return "\n".join(
            "  ".join(
                cell.ljust(width) if i == 0 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            ).rstrip()
            for row in (header, tuple("-" * width for width in widths), *rows)
        )


def _group(common: tuple[Any, ...], members: Sequence[Member]) -> Group:
    values = [_accuracy(member.last) for member in members if member.error is None]
    mean, spread = (fmean(values), pstdev(values)) if values else (math.nan, math.nan)
    return Group(dict(common), len(members), mean, spread, len(members) - len(values))


def _or_less(mean: float) -> float:
    """A mean that can be compared: that of no member is less than any."""
    return -1.0 if math.isnan(mean) else mean


def _without_seed(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key != "seed"}


def _figures(row: EpochRow) -> dict[str, float | None]:
    names = ("loss", "accuracy", "val_loss", "val_accuracy", "seconds")
    return {name: getattr(row, name) for name in names}


def _accuracy(row: EpochRow) -> float:
    return row.accuracy if row.val_accuracy is None else row.val_accuracy


def _cell(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.4f}"


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
