"""How batches reach a device with memory of its own, without the host waiting for each step.

A data set lies in the device's memory as a whole, and the first kernel of each step gathers its
batch (*resident*); or each batch is copied there while the steps before it run (*streamed*). Either
way the kernel normalises, so both give the bits of a batch that the host made.

A backend whose device has such memory offers ``device_input``; the others run each batch from the
host's own memory, where nothing need be moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from convloom.backends.base import Backend, Executable, Storage
from convloom.ir import Plan


@dataclass(frozen=True)
class Crops:
    """Random crops of padded images, as data/augment.py makes them.

    Attributes:
        padding: pixels on each side; 0 leaves the image in place and only flips.
        reflect: the padding mirrors the image; else it is black.
        size: side of the crop; None keeps the image's own height and width.
        noise: every sample has a shift of its own for each channel; with a shift for every pixel
            it is added to what that gives.
    """

    padding: int
    reflect: bool = False
    size: int | None = None
    noise: bool = False

    def shape(self, image: tuple[int, int, int]) -> tuple[int, int, int]:
        """(C, H, W) of what becomes of images (C, H, W)."""
        channels, height, width = image
        return channels, self.size or height, self.size or width


@dataclass(frozen=True, eq=False)
class Samples:
    """A data set, or what its batches have in common.

    Attributes:
        images: (samples, C, H, W), uint8 pixels, or float32 that the network takes as it is.
        labels: (samples,) int64; their range is the caller's to check.
        scale, shift: float32, one each channel, as ``normalise.coefficients`` gives them; the shift
            may also have one for every pixel of the network's input, (C, H, W); empty for float32
            images.
    """

    images: np.ndarray
    labels: np.ndarray
    scale: np.ndarray
    shift: np.ndarray


@dataclass(frozen=True, eq=False)
class Results:
    """What some consecutive steps reported.

    Attributes:
        losses: (steps,) float32, mean loss of each batch.
        corrects: (steps, 2) int32, samples whose label came first, and among the first five.
        costs: (steps, M) float32, what the plan's ``costs`` holds; M is 0 for plans without.
    """

    losses: np.ndarray
    corrects: np.ndarray
    costs: np.ndarray


@dataclass(frozen=True)
class Asked:
    """Steps that the device has been asked for.

    Attributes:
        steps: how many.
        results: waits until they are done, and reports.
    """

    steps: int
    results: Callable[[], Results]


class ResidentRunner(Protocol):
    """Steps of one plan on batches of a data set in the device's memory."""

    @property
    def left(self) -> int:
        """Steps begun with ``begin`` that have not been asked for."""
        ...

    def prepare(self, steps: int, runs: Iterable[int] = ()) -> None:
        """Make all that this many steps need, so that none of them waits for it.

        Args:
            runs: how many of them come at a time, without steps of other plans in between; empty
                where they all do.
        """
        ...

    def begin(
        self,
        order: np.ndarray,
        rates: np.ndarray | None,
        *,
        first_step: int = 0,
        draws: np.ndarray | None = None,
        shifts: np.ndarray | None = None,
    ) -> None:
        """Say what the next steps are; none of those begun before may be left.

        Args:
            order: (steps, batch size) indices of samples.
            rates: (steps, values) float64, the hyper values of each step; None for a plan that
                updates nothing.
            first_step: number of the first step, as ``counter`` has it; the seed in ``counter``
                stays what it is.
            draws: (samples, 3) uint8, or uint16, row, column and flip of every sample, if there are
                crops.
            shifts: (samples, C) float32, the shift of every sample's normalisation, if there is
                noise.
        """
        ...

    def ask(self, most: int, step: int | None = None) -> Asked:
        """Ask for up to ``most`` of the steps left, as many as run without the host.

        Args:
            step: number of the first of them, where steps of other plans came in between.
        """
        ...


class StreamRunner(Protocol):
    """Steps of one plan on batches that come from the host."""

    def ask(
        self, images: np.ndarray, labels: np.ndarray, rates: np.ndarray | None, step: int
    ) -> Asked:
        """Ask for one step; the arrays may change as soon as this returns.

        Args:
            rates: (values,) float64; None for a plan that updates nothing.
            step: its number, as ``counter`` has it.
        """
        ...


@dataclass(frozen=True, eq=False)
class Job:
    """Steps that many networks of one kind make together on one data set.

    Attributes:
        plan: of one network's training or evaluation step.
        data: what ``DeviceInput.upload`` returned.
        crops: how its images are augmented, or None.
        steps: most steps that ``begin`` is told of at a time.
    """

    plan: Plan
    data: Any
    crops: Crops | None
    steps: int


class MemberRunner(Protocol):
    """Steps of one job, for all members at once."""

    @property
    def left(self) -> int:
        """Steps begun with ``begin`` that have not been asked for."""
        ...

    def prepare(self, runs: Iterable[int]) -> None:
        """Make all that steps need which come so many at a time."""
        ...

    def begin(
        self,
        orders: Sequence[np.ndarray],
        rates: Sequence[np.ndarray] | None,
        *,
        first_step: int = 0,
        draws: Sequence[np.ndarray] | None = None,
        left_off: Sequence[bool] = (),
    ) -> None:
        """Say what the next steps are; arguments are those of ``ResidentRunner.begin``, for each
        member. Nothing is done for those that have ``left_off``."""
        ...

    def ask(self, most: int, step: int | None = None) -> Asked:
        """As ``ResidentRunner.ask``; results have an axis for the members behind that of the
        steps."""
        ...


class Members(Protocol):
    """Memory for many networks, and what runs them together."""

    def storage(self, member: int, plan: Plan) -> Storage:
        """A member's persistent tensors, laid out as in ``plan``."""
        ...

    def runner(self, job: int) -> MemberRunner:
        """What runs a job for all members."""
        ...


class DeviceInput(Protocol):
    """Both ways into one device's memory. What it makes holds that memory as long as it lives."""

    def free_bytes(self) -> int:
        """Memory that can still be taken, more or less."""
        ...

    def upload(self, samples: Samples) -> Any:
        """Copy a whole data set to the device. Raises DeviceError where it does not fit."""
        ...

    def resident(self, executable: Executable, data: Any, crops: Crops | None) -> ResidentRunner:
        """Run a plan, of a training or an evaluation step, on what ``upload`` returned."""
        ...

    def ring(self, like: Samples, batch_size: int, costs: int = 0) -> Any:
        """Places for a few batches on their way, each as ``like`` but of up to this size.

        Args:
            costs: how many numbers the plans' ``costs`` hold.
        """
        ...

    def streamed(self, executable: Executable, ring: Any) -> StreamRunner:
        """Run a plan on batches that pass through what ``ring`` returned."""
        ...

    def refusal(self, plan: Plan, samples: Samples, crops: Crops | None) -> str:
        """Why many networks cannot run a plan together, in a clause; empty where they can."""
        ...

    def member_bytes(self, jobs: Sequence[Job]) -> int:
        """Memory that each of many networks takes that do these jobs together."""
        ...

    def members(self, jobs: Sequence[Job], count: int) -> Members:
        """Memory for so many networks. Raises DeviceError where it does not fit."""
        ...


def device_input(backend: Backend, storage: Storage) -> DeviceInput | None:
    """The ways into the memory of a backend's device; None where that is the host's own."""
    make: Callable[[Storage], DeviceInput] | None = getattr(backend, "device_input", None)
    return None if make is None else make(storage)


def has_device_input(backend: Backend) -> bool:
    """Whether the backend's device has memory of its own."""
    return hasattr(backend, "device_input")


def beside(backend: Backend) -> tuple[int, Callable[[], None]]:
    """How many trainings of small networks a device runs beside each other, each in a thread.

    Returns:
        (1, …) for a device that one training fills; else their number, and what each thread must
        call first.

    Raises:
        DeviceError: the device cannot be used.
    """
    make: Callable[[], tuple[int, Callable[[], None]]] | None = getattr(backend, "beside", None)
    return (1, lambda: None) if make is None else make()
