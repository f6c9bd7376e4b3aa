"""What the Trainer asks of others: an engine that runs steps, a data set, and watchers.

Only plain data crosses these borders, so the Trainer knows no kernels, no file formats and no
displays; anything that has these methods will do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from convloom.backends import Executable
from convloom.backends.feeding import DeviceInput
from convloom.ir import Plan


@dataclass(frozen=True)
class StepResult:
    """What one batch gave: the mean loss over its ``n`` samples, and how many were right.

    ``correct5`` counts samples whose label is among the five largest logits. ``costs`` has the
    means that a loss of several reports by name (``LossSum.figures``).
    """

    loss: float
    correct: int
    correct5: int
    n: int
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepResults:
    """What consecutive batches of ``n`` samples each gave, step by step, as ``StepResult`` has it.

    Attributes:
        costs: a mapping for each step.
    """

    losses: Sequence[float]
    correct: Sequence[int]
    correct5: Sequence[int]
    n: int
    costs: Sequence[Mapping[str, float]]

    @classmethod
    def of(cls, result: StepResult) -> StepResults:
        """Those of one step."""
        counts = [result.correct], [result.correct5]
        return cls([result.loss], *counts, result.n, [result.costs])

    def __len__(self) -> int:
        return len(self.losses)

    def __getitem__(self, i: int) -> StepResult:
        return StepResult(self.losses[i], self.correct[i], self.correct5[i], self.n, self.costs[i])

    def __iter__(self) -> Iterator[StepResult]:
        return map(self.__getitem__, range(len(self)))

    def part(self, begin: int, end: int) -> StepResults:
        """Those of some of the steps."""
        own = slice(begin, end)
        return StepResults(
            self.losses[own], self.correct[own], self.correct5[own], self.n, self.costs[own]
        )


class Engine(Protocol):
    """A network bound to a device, with its loss and optimiser; any batch size runs."""

    @property
    def device(self) -> str: ...

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        """Forward, backward and update of one batch, with the hyper values set last."""
        ...

    def evaluate_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        """Loss and right answers of one batch; nothing is updated, dropout is off."""
        ...

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Logits (n, classes) of normalised float32 images (n, C, H, W)."""
        ...

    def set_hyper(self, **values: float) -> None:
        """Set rates by the names of the optimizer's ``slots``; they hold until set again."""
        ...

    def state(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of everything that lives between steps: parameters, optimiser states, counter; or
        of what ``names`` has of it."""
        ...

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace everything that ``state`` names."""
        ...

    def pull_weights(self) -> None:
        """Take over the model's present weights, wherever they live."""
        ...

    def hold_weights(self) -> None:
        """Become the home of the model's weights, with the values they have here."""
        ...

    def plan(self, batch_size: int) -> Plan:
        """The training step's plan for a batch size."""
        ...

    def prepare(self, kind: str, batch_size: int) -> None:
        """Compile and bind what steps for class numbers run; ``kind`` as ``train`` or ``evaluate``.

        Steps of this size then wait for no compiler.
        """
        ...


@runtime_checkable
class DeviceEngine(Engine, Protocol):
    """An engine that can run steps without the host waiting for each of them."""

    @property
    def steps_done(self) -> int:
        """Updates so far, those that were asked for included."""
        ...

    @property
    def lock(self) -> AbstractContextManager[None]:
        """To be held while steps are asked for, because several threads may ask."""
        ...

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of what a step reports as ``costs``, in their order."""
        ...

    def device_input(self) -> DeviceInput | None:
        """The ways into the device's memory; None where that is the host's own."""
        ...

    def executable(self, kind: str, batch_size: int) -> Executable:
        """What runs steps for class numbers; ``kind`` is ``train`` or ``evaluate``."""
        ...

    def ran(self, executable: Executable, updates: int) -> None:
        """Take note of steps that were asked for; ``read`` reads the last one's tensors."""
        ...

    def hyper_rows(self, values: Sequence[Mapping[str, float]]) -> np.ndarray:
        """``hyper`` as ``set_hyper`` would leave it each time, float64 (n, slots)."""
        ...

    def begin_steps(self) -> None:
        """Have the device know the seed, before steps that the host does not make."""
        ...

    def check_labels(self, labels: np.ndarray) -> None:
        """Raises ConvloomError for class numbers that the network does not have."""
        ...


@dataclass(frozen=True)
class Progress:
    """How far a training run has come; what a checkpoint stores and callbacks see.

    Attributes:
        epoch: epochs finished since the network was made; also the key of the next order.
        batch: batches finished in the current epoch.
        step: updates made since the network was made.
        first_epoch: ``epoch`` when the current ``fit`` began (0 unless ``fit`` is called again).
        first_step: ``step`` when the current ``fit`` began; schedules count from here.
        epochs: epochs that the current ``fit`` runs.
        batches: batches an epoch has.
    """

    epoch: int = 0
    batch: int = 0
    step: int = 0
    first_epoch: int = 0
    first_step: int = 0
    epochs: int = 0
    batches: int = 0

    @property
    def total_steps(self) -> int:
        """Steps that the current ``fit`` makes in all."""
        return self.epochs * self.batches

    @property
    def done_steps(self) -> int:
        """Steps that the current ``fit`` has made."""
        return self.step - self.first_step

    @property
    def finished(self) -> bool:
        """Whether all epochs of the current ``fit`` are done."""
        return self.epoch - self.first_epoch >= self.epochs

    def describe(self) -> str:
        """``step 1043 (epoch 2 of 5, batch 105 of 938)``: the last step that was made."""
        epoch, batch = self.epoch - self.first_epoch + 1, self.batch
        if batch == 0 and epoch > 1:  # an epoch has just ended
            epoch, batch = epoch - 1, self.batches
        place = f"epoch {epoch} of {self.epochs}, batch {batch} of {self.batches}"
        return f"step {self.step} ({place})"


class Batch(Protocol):
    """Some samples: float32 images (n, C, H, W) and labels (n,)."""

    @property
    def images(self) -> np.ndarray: ...

    @property
    def labels(self) -> np.ndarray: ...


class Batches(Protocol):
    """The batches of a data set, epoch by epoch."""

    def __len__(self) -> int:
        """Batches in an epoch."""
        ...

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """The batches of an epoch from ``start_batch`` on: a function of the numbers alone."""
        ...


@runtime_checkable
class DeviceBatches(Batches, Protocol):
    """Batches of a data set in memory, as far as a device needs to know them to make its own."""

    @property
    def batch_size(self) -> int: ...

    @property
    def images(self) -> np.ndarray:
        """(N, C, H, W) uint8, or float32 that is taken as it is."""
        ...

    @property
    def labels(self) -> np.ndarray:
        """(N,) int64."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Samples of each batch of an epoch, in order; each is at most ``batch_size``."""
        ...

    @property
    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Scale of each channel, shift of each channel or pixel (``convloom.normalise``); empty
        for float32 images."""
        ...

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of a batch's images."""
        ...

    @property
    def crops(self) -> tuple[int, bool, int | None, bool] | None:
        """Pixels of padding of random crops, whether it mirrors, the side of the crop (None: the
        images' own), and whether every sample has shifts of its own; None: no augmentation."""
        ...

    def order(self, epoch: int) -> np.ndarray:
        """The samples' indices in an epoch's order, int64; batches are consecutive parts of it."""
        ...

    def draws(self, epoch: int) -> np.ndarray | None:
        """Row, column and flip of each sample's crop, uint8 or uint16 (N, 3); None without
        augmentation."""
        ...

    def shifts(self, epoch: int) -> np.ndarray | None:
        """The shift of each sample's normalisation, float32 (N, C), if each has its own."""
        ...

    def raw(self, epoch: int, start_batch: int = 0) -> Iterator[Batch]:
        """What ``epoch`` gives, but for the normalisation."""
        ...


class Dataset(Protocol):
    """A data set as the Trainer needs it; what ``cl.data.load`` returns is one.

    ``mean`` and ``std`` are per channel, of pixels / 255; empty where images are taken as given.
    A ``mean_image``, as ArrayDataset has it, need not be there. ``digest`` is equal for equal data.
    """

    def __len__(self) -> int: ...

    @property
    def name(self) -> str: ...

    @property
    def digest(self) -> str: ...

    @property
    def shape(self) -> tuple[int, int, int]: ...

    @property
    def classes(self) -> Sequence[str]: ...

    @property
    def mean(self) -> Sequence[float]: ...

    @property
    def std(self) -> Sequence[float]: ...

    def batches(
        self,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool | str = False,
        augment: Any = None,
        prefetch: int = 0,
    ) -> Batches:
        """Every sample once an epoch, normalised; the short last batch is not dropped.

        A Trainer that has batch files passes them as ``files``.
        """
        ...
