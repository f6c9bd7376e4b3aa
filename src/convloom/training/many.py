"""Many small networks: one network trained with other rates and seeds, compared and averaged.

Members differ in what a compiled step reads from memory (rates, seed, schedule), never in what is
compiled into it, so all of them share plans and kernels. Each is trained as ``Trainer`` trains it
alone, and has the same bits. A GPU is too large for one small network: there several are trained at
a time, each in a thread with a stream of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from statistics import fmean, pstdev
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.backends import get_backend, resolve_device
from convloom.backends.feeding import beside
from convloom.ir import ConvloomError, Graph
from convloom.training import prediction
from convloom.training.arguments import check_optimizer
from convloom.training.engine import Engine, Plans
from convloom.training.history import EpochRow, History, finite, score
from convloom.training.optim import Optimizer
from convloom.training.protocols import Dataset
from convloom.training.trainer import Trainer

if TYPE_CHECKING:
    from convloom.nn import Module

#: What a member may set beside its optimiser's rates.
_OWN = ("seed", "schedule")
#: Images that an ensemble predicts at a time.
_AT_A_TIME = 16_384
#: What only the whole may set; files and watchers of single members would meet in one place.
_NOT_HERE = ("out", "callbacks", "checkpoint_every")


class ManyError(ConvloomError, ValueError):
    """Members that cannot be trained together; the message names the setting."""


@dataclass(frozen=True)
class Member:
    """One trained network.

    Attributes:
        config: what sets it apart: its rates, seed and schedule, as they were given.
        model: the network, with its weights.
        history: what happened in its training.
    """

    config: Mapping[str, Any]
    model: Module
    history: History

    @property
    def last(self) -> EpochRow:
        """The last epoch."""
        return self.history[-1]

    def describe(self) -> str:
        """``lr=0.01 seed=3``."""
        return " ".join(f"{key}={_shown(value)}" for key, value in self.config.items()) or "–"


@dataclass(frozen=True)
class Group:
    """Members that differ in their seeds alone.

    Attributes:
        config: what they have in common.
        count: how many they are.
        mean, spread: of the last epochs' validation accuracies (training, where nothing was
            validated): mean and standard deviation.
    """

    config: Mapping[str, Any]
    count: int
    mean: float
    spread: float


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
        """The members, best last epoch first; those that are equal in the order they came."""
        return tuple(sorted(self.members, key=lambda member: score(member.last), reverse=True))

    @property
    def best(self) -> Member:
        """The member whose last epoch has the best validation accuracy, then the lowest loss.

        Where nothing was validated, the lowest training loss counts.
        """
        return self.ranked[0]

    def predict(self, images: np.ndarray, *, batch_size: int = 256) -> np.ndarray:
        """The mean of all members' class probabilities, float32 (N, classes).

        Args:
            images: as ``Trainer.predict`` takes them.
        """
        images = np.asarray(images)
        images = images[None] if images.ndim == 3 else images
        total = np.zeros((len(images), self._engine_with(self.members[0].model).classes))
        for member in self.members:
            ready = prediction.normalised(member.model, images)
            engine = self._engine_with(member.model)
            for start in range(0, len(ready), batch_size):
                logits = engine.predict(ready[start : start + batch_size])
                total[start : start + batch_size] += prediction.softmax(logits)
        return (total / len(self.members)).astype(np.float32)

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
        made = [
            Group(dict(common), len(group), fmean(values), pstdev(values))
            for common, group in found.items()
            for values in [[_accuracy(member.last) for member in group]]
        ]
        return tuple(sorted(made, key=lambda group: group.mean, reverse=True))

    def to_json(self) -> dict[str, Any]:
        """Members in order, with their last epochs, and the groups, as plain data."""
        data = {
            "members": [
                {"config": dict(member.config), **_figures(member.last)} for member in self.members
            ],
            "best": self.members.index(self.best),
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


def train_many(
    configs: Sequence[Mapping[str, Any]],
    train: Dataset,
    *,
    model: Callable[[], Module],
    optimizer: Optimizer,
    loss: Any,
    epochs: int,
    validation: Dataset | None = None,
    **settings: Any,
) -> Ensemble:
    """Train one network many times, each time with other rates and another seed.

    Each member has the bits that ``Trainer(...).fit(train, epochs, validation)`` alone gives it.
    On a GPU several are trained at a time; ``model`` is then called in threads.

    Args:
        configs: for each member what it changes: ``seed``, ``schedule``, and rates of the
            optimiser (``lr``, ``momentum``, ``weight_decay``, ``betas``, ``eps``).
        model: makes a new network; called once for each member.
        optimizer: whose rates the members change.
        validation: evaluated after each epoch; decides which member is best.
        settings: for all members, as ``Trainer`` takes them (``batch_size``, ``device`` …).

    Raises:
        ManyError: no member, or a setting that a member cannot have of its own.
        TrainingInterrupted: Ctrl-C; ``each_member`` gives those that are done by then.
    """
    members = each_member(
        configs,
        train,
        model=model,
        optimizer=optimizer,
        loss=loss,
        epochs=epochs,
        validation=validation,
        **settings,
    )
    where = {key: settings[key] for key in ("device", "precision") if key in settings}
    return Ensemble([*members], **where)


def each_member(
    configs: Sequence[Mapping[str, Any]],
    train: Dataset,
    *,
    model: Callable[[], Module],
    optimizer: Optimizer,
    loss: Any,
    epochs: int,
    validation: Dataset | None = None,
    **settings: Any,
) -> Iterator[Member]:
    """``train_many``, giving each member as soon as it is trained. All are checked first."""
    check_optimizer(optimizer)
    if refused := sorted(set(settings) & set(_NOT_HERE)):
        raise ManyError(f"{refused[0]} is for one Trainer, not for many members at once")
    plans = [_settings_of(config, optimizer, settings) for config in configs]
    if not plans:
        raise ManyError("configs is empty; give one mapping for each member, {} for no change")

    running: set[Trainer] = set()
    made = {"engine": partial(Engine, plans=Plans())}

    def one(config: Mapping[str, Any], rule: Optimizer, own: dict[str, Any]) -> Member:
        network = model()
        trainer = Trainer(network, rule, loss, **{**made, **own})
        running.add(trainer)
        try:
            history = trainer.fit(train, epochs, validation)
        finally:
            running.discard(trainer)
        return Member(dict(config), network, history)

    jobs = [
        partial(one, config, rule, own) for config, (rule, own) in zip(configs, plans, strict=True)
    ]
    return _trained(jobs, settings.get("device", "auto"), running)


def _trained(
    jobs: Sequence[Callable[[], Member]], device: str, running: set[Trainer]
) -> Iterator[Member]:
    """Do the jobs, on a GPU several at a time, and give what they return in order."""
    count, begin = beside(get_backend(resolve_device(device)))
    if min(count, len(jobs)) == 1:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(count, "convloom-member", initializer=begin) as threads:
        futures = [threads.submit(job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for trainer in tuple(running):
                trainer.stop()
            raise


def _settings_of(
    config: Mapping[str, Any], optimizer: Optimizer, shared: Mapping[str, Any]
) -> tuple[Optimizer, dict[str, Any]]:
    """A member's optimiser and Trainer settings. Raises ManyError for what it cannot change."""
    own = {key: value for key, value in config.items() if key in _OWN}
    rates = {key: value for key, value in config.items() if key not in _OWN}
    known = {field.name for field in fields(optimizer)}  # type: ignore[arg-type]
    for key in rates:
        if key not in known:
            allowed = ", ".join([*_OWN, *sorted(known)])
            raise ManyError(f"a member cannot set {key!r}; it can set {allowed}")
    rule = replace(optimizer, **rates)  # type: ignore[type-var]
    if rule.op(()) != optimizer.op(()) or rule.exclude != optimizer.exclude:
        raise ManyError(
            f"{', '.join(rates)}: members share their kernels, so they can change rates but not "
            f"the rule; {optimizer.kind}'s own form is compiled"
        )
    return rule, {**shared, **own}


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
