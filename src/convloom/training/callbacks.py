"""How others watch training: displays, inspection and communicators attach here by protocol."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from convloom.training.history import EpochRow, History
from convloom.training.protocols import Progress, StepResult

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
        result: the last step's loss and right answers (``on_step``).
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
        """After each batch of a validation: ``done`` of ``total`` samples."""

    def on_epoch(self, moment: Moment) -> None:
        """After each epoch and its validation, before checkpoints are saved."""

    def on_checkpoint(self, moment: Moment, path: str) -> None:
        """After a checkpoint was written."""

    def on_end(self, moment: Moment) -> None:
        """After the last epoch, or when training stopped early or failed."""


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
        and getattr(type(callback), "on_step", None) is not Callback.on_step
        and hasattr(callback, "on_step")
        for callback in callbacks
    )
