"""The loop behind ``Trainer.fit``: steps, epochs, validation, and when to save.

All that a resume needs is in ``Loop.record()``: where the run stands, the sums of the unfinished
epoch and the history. Everything else is a function of seed, epoch, batch and step.
"""

from __future__ import annotations

import math
import shlex
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.ir import ConvloomError
from convloom.training import checkpoint
from convloom.training.callbacks import Moment, call, call_steps, one_by_one, watches_steps
from convloom.training.checkpoint import Checkpoint, ResumeError
from convloom.training.config import CONFIG_NAME
from convloom.training.edits import edits
from convloom.training.feeding import (
    PREFETCH,
    Course,
    Feed,
    batch_sizes,
    finished,
    make_feed,
    nbytes,
)
from convloom.training.history import EpochRow, History, StepRow, score
from convloom.training.interrupt import StopRequest, TrainingInterrupted
from convloom.training.metrics import Evaluation, Totals
from convloom.training.protocols import Batches, Dataset, Progress, StepResult, StepResults
from convloom.training.saving import Spacing
from convloom.training.schedules import Span

if TYPE_CHECKING:
    from convloom.training.trainer import Trainer


class NonFiniteError(ConvloomError, ArithmeticError):
    """A loss or a weight became NaN or infinite; the message names the step and what may help.

    Attributes:
        step: the step, counted from 1.
    """

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step


class Rates:
    """The rates of the steps of an epoch, made one by one while the epoch before it runs.

    Args:
        begun: where training stands when the epoch begins.
    """

    def __init__(self, trainer: Trainer, begun: Progress) -> None:
        self._begun, self._schedule = begun, trainer.schedule
        self._lrs: list[float] = []
        self._hyper: list[dict[str, float]] = []
        self._count = begun.batches - begun.batch
        self._made = _rates_of(trainer, begun)

    def advance(self, count: int) -> None:
        """Make those of the next steps, of as many as there are."""
        first = len(self._lrs)
        for step in range(first, min(first + count, self._count)):
            lr, hyper = self._made(step)
            self._lrs.append(lr)
            self._hyper.append(hyper)

    def hold(self, trainer: Trainer, begun: Progress) -> bool:
        """Whether they are those of the epoch that begins: nobody has changed the trainer since."""
        ends, now = (0, len(self._lrs) - 1) if self._lrs else (), _rates_of(trainer, begun)
        same = all(now(step) == (self._lrs[step], self._hyper[step]) for step in ends)
        return same and (begun, trainer.schedule) == (self._begun, self._schedule)

    def all(self) -> tuple[list[float], list[dict[str, float]]]:
        """Learning rates, and all hyper values, of the epoch's steps."""
        self.advance(self._count)
        return self._lrs, self._hyper


def _rates_of(trainer: Trainer, begun: Progress) -> Callable[[int], tuple[float, dict[str, float]]]:
    """A function that gives learning rate and hyper values of the i-th step after ``begun``."""
    span = Span(begun.total_steps, begun.batches)
    schedule, optimizer, base = (
        trainer.schedule.rates,
        trainer.optimizer.hyper,
        trainer.optimizer.lr,
    )
    done, step = begun.done_steps, begun.step

    def made(i: int) -> tuple[float, dict[str, float]]:
        rates = schedule(done + i, span, base)
        return rates.lr, optimizer(step + i, lr=rates.lr, momentum=rates.momentum)

    return made


def batches_of(trainer: Trainer, train: Dataset) -> Batches:
    """The batches that a trainer learns from."""
    files: dict[str, Any] = {"files": trainer.batch_files} if trainer.batch_files else {}
    return train.batches(
        trainer.batch_size,
        seed=trainer.seed,
        shuffle=trainer.shuffle,
        augment=trainer.augment,
        prefetch=PREFETCH,
        **files,
    )


def finite_steps(results: StepResults) -> int:
    """How many steps come before the first whose loss or a cost is not finite."""
    if math.isfinite(sum(results.losses)) and not any(results.costs):
        return len(results)
    for i, result in enumerate(results):
        if not all(map(math.isfinite, (result.loss, *result.costs.values()))):
            return i
    return len(results)


def _good_first(results: StepResults) -> Iterator[StepResults]:
    """All steps at once; but those before one that is not finite apart, as watchers are told of
    them before that one ends training."""
    good, count = finite_steps(results), len(results)
    if 0 < good < count:
        yield results.part(0, good)
    yield results if good in (0, count) else results.part(good, count)


def epoch_row(
    at: Progress,
    lr: float,
    means: Evaluation,
    figures: Evaluation | None,
    trained: float,
    seconds: float,
) -> EpochRow:
    """The row of the epoch that ends.

    Args:
        means: of training, over the epoch; ``figures`` those of the validation behind it.
        trained: seconds that training took; ``seconds`` includes the validation.
    """
    return EpochRow(
        epoch=at.epoch + 1,
        step=at.step,
        lr=lr,
        loss=means["loss"],
        accuracy=means["accuracy"],
        val_loss=None if figures is None else figures["loss"],
        val_accuracy=None if figures is None else figures["accuracy"],
        seconds=seconds,
        images_per_second=means["n"] / max(trained, 1e-9),
        costs=means.get("costs", {}),
        val_costs={} if figures is None else figures.get("costs", {}),
    )


def non_finite(what: str, at: Progress, advice: str, saved: str = "") -> NonFiniteError:
    """The error of a training that cannot go on; ``saved``: the checkpoint before, if any."""
    kept = f"; {saved} holds the last good weights" if saved else ""
    return NonFiniteError(
        f"{what} at {at.describe()}, {advice}, or check the images for NaN{kept}",
        at.step,
    )


class Loop:
    """One call of ``fit``.

    Attributes:
        progress: where it stands.
        history: rows so far.
        stop: the watch over Ctrl-C; ``stop_wanted`` is the same wish from code.
    """

    _progress: Progress
    _since: int  # steps since then

    def __init__(
        self, trainer: Trainer, train: Dataset, validation: Dataset | None, epochs: int
    ) -> None:
        self.trainer = trainer
        self.train = train
        self.validation = validation
        self.batches = batches_of(trainer, train)
        self.history = trainer.history.copy()
        self.progress = Progress(
            epoch=trainer.epochs_done,
            step=trainer.steps_done,
            first_epoch=trainer.epochs_done,
            first_step=trainer.steps_done,
            epochs=epochs,
            batches=len(self.batches),
        )
        self.stop = StopRequest()
        self.stop_wanted = False
        self._feed: Feed
        self._ahead: Rates | None = None
        self._lr = trainer.optimizer.lr
        self._epoch = Totals()
        self._window = Totals()
        self._seconds = 0.0
        self._saved = ""
        self._spacing = Spacing()
        self._best: Checkpoint | None = None  # of the best epoch, until it is written
        self._began = time.perf_counter()

    @property
    def progress(self) -> Progress:
        """Where training stands; steps are only counted until somebody asks."""
        if self._since:
            at = self._progress
            self._progress = replace(at, batch=at.batch + self._since, step=at.step + self._since)
            self._since = 0
        return self._progress

    @progress.setter
    def progress(self, at: Progress) -> None:
        self._progress, self._since = at, 0

    def run(self) -> None:
        """Train until all epochs are done, someone asks to stop, or something fails."""
        if self.trainer.out is not None:
            checkpoint.make_folder(self.trainer.out)
        self._feed = self._made_feed()
        self._began = time.perf_counter()
        self._tell("on_start")
        try:
            self._prepare()
            while not self.progress.finished:
                self._train_epoch()
                self._finish_epoch()
                # A stop that came during the last epoch's end has nothing left to stop.
                if self._stop_asked() and not self.progress.finished:
                    self._interrupt()
        except Exception:
            self._write_best()
            raise
        finally:
            self._tell("on_end")

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint. Raises ResumeError where it is not of this very run."""
        engine = self.trainer.engine
        shape = self.trainer.shape_of(self.train)
        found = edits(self.trainer, saved, self._settings, shape)
        checkpoint.require_same(
            replace(saved, state=found.state), found.settings, found.network, engine.state()
        )
        for change in found.changes:
            warnings.warn(f"{saved.path}: {change}", stacklevel=3)
        edited = bool(found.changes)
        if reason := checkpoint.plan_differences(saved, self._made_by, edited=edited):
            warnings.warn(
                f"{saved.path}: {reason}, so the weights will not be the same bits as without "
                "the stop",
                stacklevel=3,
            )
        record = saved.record
        progress = Progress(**record["progress"])
        asked = self.progress.epochs
        if progress.epoch - progress.first_epoch + (progress.batch > 0) > asked:
            raise ResumeError(
                f"{saved.path} is in epoch {progress.epoch - progress.first_epoch + 1} already, "
                f"and {asked} epochs were asked for in all; ask for more"
            )
        engine.load_state(found.state)
        self.progress = replace(progress, epochs=asked)
        self.history = History.from_json(record["history"])
        self._epoch = Totals.from_json(record["totals"])
        self._window = Totals.from_json(record["window"])
        self._seconds, self._lr = float(record["seconds"]), float(record["lr"])
        self._saved = str(saved.path)

    def record(self) -> dict[str, Any]:
        """What ``restore`` needs beside the engine's state, as plain data."""
        return {
            "progress": asdict(self.progress),
            "history": self.history.to_json(),
            "totals": self._epoch.to_json(),
            "window": self._window.to_json(),
            "seconds": self._seconds,
            "lr": self._lr,
        }

    # One epoch.

    def _made_feed(self) -> Feed:
        trainer, validation = self.trainer, self.validation
        spare = 0 if validation is None else nbytes(validation.batches(trainer.batch_size))
        return make_feed(
            trainer.engine,
            self.batches,
            trainer.input,
            kind="train",
            data=self.train.name,
            spare=spare,
        )

    def _prepare(self) -> None:
        """Have everything compiled before the clock of an epoch runs."""
        size = self.trainer.batch_size
        sizes = batch_sizes(self.batches, len(self.train), size)
        self._feed.prepare("train", sizes, self.progress.epoch)
        if self.validation is not None:
            self.trainer.prepare_evaluation(self.validation, size)
        self._ahead = Rates(self.trainer, self.progress)
        self._ahead.all()

    def _train_epoch(self) -> None:
        """The rest of the current epoch's batches."""
        before, began = self._seconds, time.perf_counter()
        every, begun, told = self.trainer.checkpoint_every, self.progress, self.trainer.callbacks
        alone = one_by_one(told)
        rates, course = self._course()
        ahead = self._ahead.advance if self._ahead is not None else lambda count: None

        def look_at_the_clock() -> None:
            self._seconds = before + time.perf_counter() - began

        step = begun.step
        with finished(self._feed.train(begun.epoch, begun.batch, course)) as parts:
            for part in parts:
                for results in map(StepResults.of, part) if alone else _good_first(part):
                    lrs = rates[step - begun.step : step - begun.step + len(results)]
                    self._count(results, lrs, step)
                    step += len(results)
                    if told:
                        look_at_the_clock()
                        self._tell_steps(results)
                ahead(len(part))
                if every and step % every == 0 and not self._stop_asked():
                    look_at_the_clock()
                    self._save()
        look_at_the_clock()
        # Those on their way when someone asked to stop have been reported too.
        if self._stop_asked():
            self._interrupt()

    def _course(self) -> tuple[list[float], Course]:
        """The learning rate of each step left in the epoch, and all that a feed must know."""
        trainer, begun = self.trainer, self.progress
        every, watched = trainer.checkpoint_every, watches_steps(trainer.callbacks)
        rates = self._ahead
        if rates is None or not rates.hold(trainer, begun):
            rates = Rates(trainer, begun)
        lrs, hyper = rates.all()

        def settled(step: int) -> bool:
            return watched or (every > 0 and (begun.step + step + 1) % every == 0)

        another = begun.epoch + 1 - begun.first_epoch < begun.epochs
        left = begun.batches - begun.batch
        following = replace(begun, epoch=begun.epoch + 1, batch=0, step=begun.step + left)
        self._ahead = Rates(trainer, following) if another else None
        return lrs, Course(hyper, settled, self._stop_asked, another)

    def _count(self, results: StepResults, lrs: Sequence[float], step: int) -> None:
        """Count steps behind number ``step``, as many at once as come before a row of the log; all
        are finite, or the first is not."""
        self._check(results[0], lrs[0])
        every, begin = self.trainer.log_every, 0
        while begin < len(results):
            end = len(results)
            if every:
                end = min(end, begin + every - (step + begin) % every)
            part = results.part(begin, end)
            self._since += len(part)
            self._lr = lrs[end - 1]
            self._epoch.add_all(part)
            self._window.add_all(part)
            if every and (step + end) % every == 0:
                self._log()
            begin = end

    def _check(self, result: StepResult, lr: float) -> None:
        """Raises NonFiniteError for a step that is not finite; it counts as the last."""
        found = {"loss": result.loss} | {f"cost {n}": v for n, v in result.costs.items()}
        for name, value in found.items():
            if not math.isfinite(value):
                self._since += 1
                self._lr = lr
                raise self._non_finite(f"the {name} is {value}")

    def _log(self) -> None:
        """A row of the history for the steps since the last one."""
        means = self._window.means()
        at = self.progress.step, self.progress.epoch + 1, self._lr
        costs = means.get("costs", {})
        self.history.steps.append(StepRow(*at, means["loss"], means["accuracy"], costs))
        self._window = Totals()

    def _finish_epoch(self) -> None:
        """Validate, add the epoch's row, and save if that is due."""
        began = time.perf_counter()
        figures = self._validate()
        seconds = self._seconds + time.perf_counter() - began
        means = self._epoch.means()
        row = epoch_row(self.progress, self._lr, means, figures, self._seconds, seconds)
        best = self.history.best()
        self.history.epochs.append(row)
        self.progress = replace(self.progress, epoch=self.progress.epoch + 1, batch=0)
        self._epoch = Totals()
        self._seconds = 0.0
        self._tell("on_epoch", row=row)
        if best is None or score(row) > score(best):
            self._keep_best()
        # Who asked to stop will be given a checkpoint anyway.
        if self.progress.finished or (self._spacing.due() and not self._stop_asked()):
            self._save()

    def _validate(self) -> Evaluation | None:
        """Figures over the validation set; a stop in the middle saves, and a resume starts over."""
        if self.validation is None:
            return None
        total = len(self.validation)

        def after_batch(done: int) -> None:
            self._tell("on_validation", details=(done, total))
            if self._stop_asked():
                self._interrupt()

        return self.trainer.evaluate_with(self.validation, self.trainer.batch_size, after_batch)

    # Saving and stopping. What identifies a run costs a hash of its data: made when first saved.

    @cached_property
    def _settings(self) -> dict[str, Any]:
        return checkpoint.describe(self.trainer, self.train, self.validation)

    @cached_property
    def _made_by(self) -> dict[str, Any]:
        return checkpoint.made_by(self.trainer)

    @cached_property
    def _network(self) -> str:
        return checkpoint.network_text(self.trainer.model, self.trainer.shape_of(self.train))

    def _keep_best(self) -> None:
        """Copy the weights of the epoch that just ended, for the next checkpoint to write."""
        out, engine = self.trainer.out, self.trainer.engine
        if out is None:
            return
        held = self._settings, self.record(), self._made_by, self._network
        names = [name for name, _ in self.trainer.model.named_variables()]
        weights = self._finite(engine.state(names))
        self._best = Checkpoint(out / checkpoint.BEST, weights, *held)

    def _save(self) -> None:
        """Write a checkpoint, and the best epoch's; nothing if there is no run folder."""
        out = self.trainer.out
        if out is None:
            return
        # Before the clock runs: what the first one takes says nothing of the next.
        held = self._settings, self.record(), self._made_by, self._network
        with self._spacing.writing():
            state = self._finite(self.trainer.engine.state())
            # The best first: killed in between, a resume makes its epoch again and saves both.
            self._write_best()
            self._write(Checkpoint(out / checkpoint.LAST, state, *held))
        self._saved = str(out / checkpoint.LAST)

    def _write_best(self) -> None:
        """Write the weights of the best epoch, unless that is done."""
        best, self._best = self._best, None
        if best is not None:
            self._write(best)

    def _write(self, saved: Checkpoint) -> None:
        checkpoint.save(saved)
        self._tell("on_checkpoint", details=(str(saved.path),))

    def _finite(self, state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What may be saved. Raises NonFiniteError where it holds NaN or Inf."""
        for tensor, value in state.items():
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise self._non_finite(f"{tensor} has become NaN or infinite")
        return state

    def _stop_asked(self) -> bool:
        return self.stop_wanted or self.stop.asked is not None

    def _interrupt(self) -> None:
        """Save, and raise TrainingInterrupted with the way to resume."""
        out = self.trainer.out
        if out is None:
            saved = "nothing was saved because the Trainer has no out= folder; "
            saved += "the model holds the weights of this step"
        else:
            self._save()
            saved = f"saved {out / checkpoint.LAST}; resume with "
            if (out / CONFIG_NAME).is_file():
                saved += f"convloom resume {shlex.quote(str(out))}"
            else:
                saved += f"fit(…, epochs={self.progress.epochs}, resume=True)"
        raise TrainingInterrupted(
            f"stopped after {self.progress.describe()}; {saved}",
            self.stop.asked,
            None if out is None else self._saved,
        )

    def _non_finite(self, what: str) -> NonFiniteError:
        advice = self.trainer.optimizer.advice(self._lr)
        return non_finite(what, self.progress, advice, self._saved)

    def _tell(
        self, event: str, *, row: EpochRow | None = None, details: tuple[object, ...] = ()
    ) -> None:
        if self.trainer.callbacks:
            call(self.trainer.callbacks, event, self._moment(row=row), *details)

    def _tell_steps(self, results: StepResults) -> None:
        call_steps(self.trainer.callbacks, self._moment(result=results[-1]), results)

    def _moment(self, *, result: StepResult | None = None, row: EpochRow | None = None) -> Moment:
        return Moment(
            trainer=self.trainer,
            progress=self.progress,
            lr=self._lr,
            history=self.history,
            result=result,
            row=row,
            seconds=time.perf_counter() - self._began,
        )
