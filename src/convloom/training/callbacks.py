"""How others watch training: displays, inspection and communicators attach here by protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from convloom.training.history import EpochRow, History
from convloom.training.protocols import Progress, StepResult, StepResults

if TYPE_CHECKING:
    from convloom.training.trainer import Trainer


@dataclass(frozen=True)
class Moment:
    """What a callback is told.

    Attributes:
        trainer: who trains; ``trainer.engine`` reads tensors, ``trainer.stop()`` ends the run.
        progress: epoch, batch and step, after the event.
        lr: the learning rate of the last step.
        history: all rows so far.
        result: the last step's loss and right answers (``on_step``, ``on_steps``).
        row: the epoch that ended (``on_epoch``).
        seconds: since this process began to train.
    """

    trainer: Trainer
    progress: Progress
    lr: float
    history: History
    result: StepResult | None = None
    row: EpochRow | None = None
    seconds: float = 0.0


class Callback:
    """Base of watchers; every method does nothing unless overridden.

    An object with the same methods will do as well. What a callback raises ends the training.
    ``on_end`` is called however training ends, with everything that ``on_start`` was called on.

    A watcher that may lag can have ``on_steps(moment, results)`` in place of ``on_step``: it is
    told of as many steps at once as ended together (``StepResults``), and ``moment`` is that of the
    last of them. Steps of a few microseconds leave no time for a call each.

    Attributes:
        may_lag: whether ``on_step`` may be told of a step after later ones have begun, in order
            and without a gap. A GPU then never waits for the host. Only a watcher that looks at no
            more than the moment's own figures can allow it: ``trainer.engine`` would show it
            tensors of a later step.
    """

    may_lag: ClassVar[bool] = False

    def on_start(self, moment: Moment) -> None:
        """Before the first step; ``progress`` is past 0 in a resumed run."""

    def on_step(self, moment: Moment) -> None:
        """After each step."""

    def on_validation(self, moment: Moment, done: int, total: int) -> None:
        """After each batch of a validation, or several that ended together: ``done`` of ``total``
        samples."""

    def on_epoch(self, moment: Moment) -> None:
        """After each epoch and its validation, before checkpoints are saved."""

    def on_checkpoint(self, moment: Moment, path: str) -> None:
        """After a checkpoint was written."""

    def on_end(self, moment: Moment) -> None:
        """After the last epoch, or when training stopped early or failed."""


def call_steps(callbacks: Iterable[Callback], moment: Moment, results: StepResults) -> None:
    """Tell each callback of steps that ended together, by ``on_steps``; of one by ``on_step``."""
    for callback in callbacks:
        several = getattr(callback, "on_steps", None)
        if several is not None:
            several(moment, results)
        else:
            call((callback,), "on_step", moment)


def one_by_one(callbacks: Iterable[Callback]) -> bool:
    """Whether a callback must be told of every step by a call of its own."""
    return any(
        _has_on_step(callback) and not hasattr(callback, "on_steps") for callback in callbacks
    )


def _has_on_step(callback: Callback) -> bool:
    method = getattr(callback, "on_step", None)
    return method is not None and getattr(method, "__func__", method) is not Callback.on_step


def call(callbacks: Iterable[Callback], event: str, moment: Moment, *details: object) -> None:
    """Tell each callback in turn; objects that lack the method are passed by."""
    for callback in callbacks:
        method = getattr(callback, event, None)
        if method is not None:
            method(moment, *details)


def watches_steps(callbacks: Iterable[Callback]) -> bool:
    """Whether a callback must be told of each step before the next one begins."""
    return any(
        not getattr(callback, "may_lag", False)
        and (_has_on_step(callback) or hasattr(callback, "on_steps"))
        for callback in callbacks
    )
