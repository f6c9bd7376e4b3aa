"""The Trainer: a network, an optimiser and a loss that learn from a data set.

    trainer = Trainer(model, optimizer=SGD(lr=0.01, momentum=0.9), loss=CrossEntropyLoss())
    history = trainer.fit(train, epochs=5, validation=test)

The same seed on the same device gives the same bits, whether a run was stopped and resumed or not,
and whatever the number of threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.ir import ConvloomError
from convloom.normalise import middle_of
from convloom.ops.precision import FP32, PRECISIONS
from convloom.training import arguments, checkpoint, prediction
from convloom.training.callbacks import Callback
from convloom.training.engine import Engine as CompiledEngine
from convloom.training.feeding import INPUTS, PREFETCH, Feed, batch_sizes, finished, make_feed
from convloom.training.graphs import training_graph, usual_kind
from convloom.training.history import History
from convloom.training.interrupt import StopRequest
from convloom.training.loop import Loop
from convloom.training.metrics import Evaluation, Totals
from convloom.training.optim import Optimizer
from convloom.training.protocols import Dataset, Engine
from convloom.training.schedules import Schedule, as_schedule

if TYPE_CHECKING:
    from convloom.nn import Module


class TrainerError(ConvloomError, ValueError):
    """Something that cannot be trained or evaluated as asked; the message says what and why."""


class Trainer:
    """Trains, evaluates and predicts with one network.

    Args:
        model: the network. ``fit`` attaches the data set's normalisation, classes and image shape
            to it, so that ``predict`` treats pixels as in training; its ``state_dict()`` always
            reads the newest weights.
        optimizer: ``cl.optim.SGD`` or ``AdamW``.
        loss: ``nn.CrossEntropyLoss()``, say.
        batch_size: images in a step; the last batch of an epoch may be shorter and is used in
            full, with its own mean.
        device: ``auto`` (the GPU where one can be used, else the CPU), ``cpu``, ``cuda``,
            ``cuda-sim`` (the GPU's kernels on this machine, to look into them; slow) or
            ``reference`` (plain NumPy; slow).
        kernels: ``auto``, or the highest rung of the device's ladder to use.
        precision: ``fp32``, ``tf32`` or ``bf16``: what the operands of convolutions and Linear
            layers are rounded to, where the device has such kernels; sums, losses, weights and
            updates stay float32. The log names the layers that compute in fp32 none the less.
        input: how batches reach a GPU. ``resident`` keeps the data set in its memory, ``stream``
            copies each batch while the steps before it run, ``auto`` keeps what fits well and
            streams the rest. All give the same bits; on other devices there is ``auto`` only.
        seed: of initial weights, order, augmentation and dropout.
        schedule: of the learning rate; text as ``"one-cycle:max=0.03"`` will do. None: constant.
        clip_norm: largest norm of all gradients together; None leaves them alone.
        augment: what happens to training images (``cl.data.Augmentation``); None: nothing.
        shuffle: a new order every epoch; False keeps the data set's own; ``"once"`` puts it into
            one random order.
        batch_files: how many images come in each batch file, consecutive in an epoch's order. Each
            file is cut into batches by itself, the last of which may be shorter; empty for one file
            of all.
        callbacks: watchers, told of each step and epoch.
        out: run folder for ``last.safetensors`` and ``best.safetensors``; None saves nothing. They
            are written when ``fit`` ends or is stopped, and at an epoch's end unless that takes
            long: then only when ten times as long has gone by since the last time.
        checkpoint_every: steps between two saves within an epoch, which are always written; 0 saves
            at epochs only.
        log_every: steps between two rows of ``history.steps``; 0 logs none.
        engine: what makes the engine; for tests and for running on several devices.

    Raises:
        TrainerError: a value out of range.
        ScheduleError: a schedule that cannot be read.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Any,
        *,
        batch_size: int = 64,
        device: str = "auto",
        kernels: str = "auto",
        precision: str = FP32,
        input: str = "auto",
        seed: int = 0,
        schedule: Schedule | str | None = None,
        clip_norm: float | None = None,
        augment: Any = None,
        shuffle: bool | str = True,
        batch_files: Sequence[int] = (),
        callbacks: Iterable[Callback] = (),
        out: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 0,
        log_every: int = 50,
        engine: Callable[..., Engine] = CompiledEngine,
    ) -> None:
        arguments.check_model(model)
        arguments.check_loss(loss)
        arguments.check_optimizer(optimizer)
        _require(
            _whole(batch_size, 1), f"batch_size must be a whole number, 1 or more: {batch_size}"
        )
        _require(
            _whole(seed, 0) and seed < 2**64,
            f"seed must be a whole number, 0 or more and below 2^64: {seed}",
        )
        for name, value in (("checkpoint_every", checkpoint_every), ("log_every", log_every)):
            _require(_whole(value, 0), f"{name} must be a whole number, 0 for never: {value}")
        _require(
            clip_norm is None or (np.isfinite(clip_norm) and clip_norm > 0),
            f"clip_norm must be above 0, or None for no clipping: {clip_norm}",
        )
        self.model = model
        self.optimizer = optimizer
        self.loss = loss
        self.batch_size = batch_size
        self.device = device
        self.kernels = kernels
        _require(
            precision in PRECISIONS,
            f"precision must be {' or '.join(map(repr, PRECISIONS))}: {precision!r}",
        )
        self.precision = precision
        _require(input in INPUTS, f"input must be {' or '.join(map(repr, INPUTS))}: {input!r}")
        self.input = input
        self.seed = seed
        self.schedule = as_schedule(schedule)
        self.clip_norm = clip_norm
        self.augment = augment
        self.shuffle = shuffle
        self.batch_files = tuple(int(images) for images in batch_files)
        self.callbacks: list[Callback] = list(callbacks)
        self.out = None if out is None else Path(out)
        self.checkpoint_every = checkpoint_every
        self.log_every = log_every
        self.history = History()
        self.epochs_done = 0
        self.steps_done = 0
        self._make_engine = engine
        self._engine: Engine | None = None
        self._shape: tuple[int, int, int] = (0, 0, 0)
        self._compiled: dict[str, Any] = {}
        self._loop: Loop | None = None
        self._fitting = threading.Lock()
        self._evaluated: tuple[Dataset, int, Feed] | None = None

    @property
    def engine(self) -> Engine:
        """What runs the steps. Raises TrainerError before the first ``fit`` or ``evaluate``."""
        if self._engine is None:
            raise TrainerError("nothing has run yet; fit or evaluate a data set first")
        return self._engine

    def fit(
        self,
        train: Dataset,
        epochs: int,
        validation: Dataset | None = None,
        *,
        resume: bool | str | os.PathLike[str] = False,
    ) -> History:
        """Train for some epochs; afterwards the model holds the last step's weights.

        Called again, it trains on for as many epochs more: momentum and the count of epochs go on,
        the schedule starts anew. Each epoch has an order of its own.

        Ctrl-C (or SIGTERM) finishes the step (on a GPU, those on their way), saves
        ``last.safetensors`` and raises TrainingInterrupted, which says how to resume; a second one
        stops at once. A loss that is not finite ends training at once, and ``last.safetensors`` is
        left alone: it holds the last good weights that were saved.

        Args:
            train: what to learn from.
            epochs: passes over ``train``; when resuming, all of them, the finished ones included.
            validation: evaluated on every sample after each epoch, and picks the best checkpoint.
            resume: True takes ``last.safetensors`` of ``out`` and goes on exactly where it
                stopped, in mid-epoch too; a run folder or a checkpoint file may be given instead.

        Returns:
            One row an epoch, those before a resume included.

        Raises:
            TrainingInterrupted: Ctrl-C, SIGTERM or ``stop()``.
            NonFiniteError: a loss or a weight became NaN or infinite; names the step.
            ResumeError: a checkpoint of another network, data set, seed or other settings.
            CheckpointError: a checkpoint that is missing or damaged.
        """
        _require(_whole(epochs, 1), f"epochs must be a whole number, 1 or more: {epochs}")
        _require(
            self._fitting.acquire(blocking=False),
            "fit is running already; neither a callback nor another thread can call it",
        )
        try:
            return self._fit(train, epochs, validation, resume)
        finally:
            self._fitting.release()

    def _fit(
        self,
        train: Dataset,
        epochs: int,
        validation: Dataset | None,
        resume: bool | str | os.PathLike[str],
    ) -> History:
        self.begin(train, validation)
        loop = Loop(self, train, validation, epochs)
        if resume:
            loop.restore(checkpoint.load(self._resume_path(resume)))
        self.history = loop.history
        self._loop = loop
        try:
            with StopRequest() as loop.stop:
                loop.run()
        finally:
            self._loop = None
            self.epochs_done, self.steps_done = loop.progress.epoch, loop.progress.step
            # A watcher may have given the model's weights another home meanwhile.
            self.engine.hold_weights()
        return self.history

    def begin(self, train: Dataset, validation: Dataset | None) -> None:
        """Prepare to train: check the data, tell the model of it, and make the engine.

        Raises:
            TrainerError: data that cannot be trained on, or not with each other.
        """
        _check_dataset("train", train)
        shape = self.shape_of(train)
        if validation is not None:
            _check_dataset("validation", validation)
            _check_alike(train, shape, validation)
        self._attach(train, shape)
        self._synchronise(shape)

    def stop(self) -> None:
        """Ask a running ``fit`` to end after the current step, as Ctrl-C does."""
        if self._loop is not None:
            self._loop.stop_wanted = True

    def evaluate(self, dataset: Dataset, *, batch_size: int | None = None) -> Evaluation:
        """``{"loss", "accuracy", "top5", "n"}`` over exactly every sample, each counted once.

        A ``LossSum`` adds ``costs``: the mean of every number that it reports, by name.

        Raises:
            TrainerError: an empty data set, or one that is normalised unlike the training set.
        """
        _check_dataset("evaluate", dataset)
        if self.model.normalization is None and self.model.classes is None:
            self._attach(dataset, dataset.shape)
        self._check_normalisation(dataset)
        self._synchronise(dataset.shape)
        return self.evaluate_with(dataset, batch_size or self.batch_size)

    def evaluate_with(
        self,
        dataset: Dataset,
        batch_size: int,
        after_batch: Callable[[int], None] = lambda done: None,
    ) -> Evaluation:
        """``evaluate`` with the engine as it is; ``after_batch`` is told the samples done."""
        totals = Totals()
        with finished(self._evaluation_feed(dataset, batch_size).evaluate()) as results:
            for several in results:
                totals.add_all(several)
                after_batch(totals.n)
        return totals.means()

    def prepare_evaluation(self, dataset: Dataset, batch_size: int) -> None:
        """Compile now what ``evaluate_with`` will run."""
        feed = self._evaluation_feed(dataset, batch_size)
        batches = dataset.batches(batch_size)
        feed.prepare("evaluate", batch_sizes(batches, len(dataset), batch_size))

    def predict(self, images: np.ndarray, *, batch_size: int | None = None) -> np.ndarray:
        """Class probabilities, float32 (N, classes).

        Args:
            images: (N, C, H, W), or (C, H, W) for one; uint8 is normalised as in training, float32
                is taken as given.
        """
        size = batch_size or self.batch_size
        return prediction.predict(
            self.model, images, batch_size=size, device=self.device, precision=self.precision
        )

    # What follows prepares the model and the engine.

    def _evaluation_feed(self, dataset: Dataset, batch_size: int) -> Feed:
        """The feed of a data set; kept, as an evaluation is most often repeated each epoch."""
        kept = self._evaluated
        if kept is not None and kept[0] is dataset and kept[1] == batch_size:
            return kept[2]
        self._evaluated = kept = None  # the memory of the one before is free for the next
        feed = make_feed(
            self.engine,
            dataset.batches(batch_size, prefetch=PREFETCH),
            self.input,
            kind="evaluate",
            data=dataset.name,
        )
        self._evaluated = dataset, batch_size, feed
        return feed

    def shape_of(self, train: Dataset) -> tuple[int, int, int]:
        """(C, H, W) of what the augmentation makes of training images."""
        shaped = getattr(self.augment, "shape", None)
        if shaped is None:
            return train.shape
        channels, height, width = shaped(train.shape)
        return channels, height, width

    def _attach(self, dataset: Dataset, shape: tuple[int, int, int]) -> None:
        """Give the model what ``predict`` and a saved file need to know of its images."""
        self.model.input_shape = shape
        self.model.classes = tuple(dataset.classes)
        mean, std = tuple(dataset.mean), tuple(dataset.std)
        self.model.normalization = (mean, std) if mean else None
        self.model.mean_image = _mean_image(dataset, shape)

    def _synchronise(self, shape: tuple[int, int, int]) -> None:
        """An engine for images of this shape that holds the model's present weights."""
        if self._engine is None:
            self._engine = self._make_engine(
                self.model,
                loss=self.loss,
                optimizer=self.optimizer,
                input_shape=shape,
                device=self.device,
                kernels=self.kernels,
                precision=self.precision,
                seed=self.seed,
                max_norm=self.clip_norm,
            )
            self._shape, self._compiled = shape, self._compiles(shape)
        else:
            self._require_as_compiled(shape)
        # The model is the truth: its weights may have been loaded, or live elsewhere, since.
        self._engine.pull_weights()
        self._engine.hold_weights()

    def _require_as_compiled(self, shape: tuple[int, int, int]) -> None:
        """Raises TrainerError where the engine was made for something else."""
        _require(
            shape == self._shape,
            f"this Trainer works on images of {_dims(self._shape)}, the data set has "
            f"{_dims(shape)}; make a new Trainer for it",
        )
        for name, now in self._compiles(shape).items():
            _require(
                now == self._compiled[name],
                f"{name} changed since this Trainer began, and is compiled into its steps; make "
                "a new Trainer (rates and batch_size may change)",
            )

    def _compiles(self, shape: tuple[int, int, int]) -> dict[str, Any]:
        """What the engine was made of, by what to call it when it has changed."""
        forward = self.model.trace(shape, 2)  # batch norm may not be trained on one image
        clip, output = self.clip_norm is not None, forward.specs[forward.outputs[0]]
        return {
            "the network": forward,
            "the loss or the optimizer's rule": training_graph(
                forward, self.loss, usual_kind(self.loss, output), self.optimizer, clip
            ),
            "device, kernels, precision, seed or clip_norm": (
                self.device,
                self.kernels,
                self.precision,
                self.seed,
                self.clip_norm,
            ),
        }

    def _check_normalisation(self, dataset: Dataset) -> None:
        known = self.model.normalization
        found = (tuple(dataset.mean), tuple(dataset.std)) if len(dataset.mean) else None
        if known is None or found is None:
            return
        if not np.allclose(known, found, rtol=1e-6, atol=1e-9):
            raise TrainerError(_normalised_otherwise(dataset.name, found, known))
        _check_mean_images(dataset.name, _mean_image(dataset, dataset.shape), self.model.mean_image)

    def _resume_path(self, resume: bool | str | os.PathLike[str]) -> Path:
        if isinstance(resume, bool):
            if self.out is None:
                raise TrainerError("resume=True needs the Trainer's out= folder; or name the file")
            return self.out / checkpoint.LAST
        path = Path(resume)
        return path / checkpoint.LAST if path.is_dir() else path


def _check_dataset(role: str, dataset: Dataset) -> None:
    if not hasattr(dataset, "batches"):
        raise TrainerError(
            f"{role} needs a data set such as cl.data.load(…) or "
            f"cl.data.from_arrays(images, labels) returns, not {type(dataset).__name__}"
        )
    if len(dataset) == 0:
        raise TrainerError(f"{role}: the data set {dataset.name} has no samples")


def _check_alike(train: Dataset, shape: tuple[int, int, int], validation: Dataset) -> None:
    if shape != validation.shape:
        cropped = "" if shape == train.shape else f", cropped to {_dims(shape)}"
        raise TrainerError(
            f"validation has images of {_dims(validation.shape)}, the training set of "
            f"{_dims(train.shape)}{cropped}; they must be the same"
        )
    if len(train.classes) < len(validation.classes):
        raise TrainerError(
            f"validation has {len(validation.classes)} classes, the training set "
            f"{len(train.classes)}"
        )
    ours = (tuple(train.mean), tuple(train.std))
    theirs = (tuple(validation.mean), tuple(validation.std))
    if len(ours[0]) != len(theirs[0]) or not np.allclose(ours, theirs, rtol=1e-6, atol=1e-9):
        raise TrainerError(_normalised_otherwise(validation.name, theirs, ours))
    _check_mean_images(validation.name, _mean_image(validation, shape), _mean_image(train, shape))


def _mean_image(dataset: Dataset, shape: tuple[int, int, int]) -> np.ndarray | None:
    """What is subtracted from a data set's images of a network's input shape (C, H, W)."""
    image: np.ndarray | None = getattr(dataset, "mean_image", None)
    return None if image is None else middle_of(image, shape[1:])


def _check_mean_images(name: str, found: np.ndarray | None, known: np.ndarray | None) -> None:
    if found is None and known is None:
        return
    if found is None or known is None or not np.array_equal(found, known):
        raise TrainerError(
            f"the data set {name} is not normalised by the network's mean image; make it with "
            f"{name}.centred(training set)"
        )


def _normalised_otherwise(name: str, found: Any, known: Any) -> str:
    def shown(pair: Any) -> str:
        return " and std ".join(f"({', '.join(f'{v:.4g}' for v in part)})" for part in pair)

    return (
        f"the data set {name} is normalised by mean {shown(found)}, the network was trained with "
        f"mean {shown(known)}; make the data set with the training set's mean and std"
    )


def _dims(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _whole(value: object, least: int) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        return False
    return int(value) >= least


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise TrainerError(message)
