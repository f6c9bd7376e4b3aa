"""Both ways into a GPU's memory (backends/feeding.py), for the GPU and for the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from convloom.backends.base import Executable, Storage
from convloom.backends.cuda.gpu import Gpu
from convloom.backends.cuda.queues import own_sharing
from convloom.backends.cuda.resident import ResidentData, ResidentSteps, Stepper
from convloom.backends.cuda.ring import Ring, StreamedSteps
from convloom.backends.cuda.together import MemberMemory, member_bytes, refusal
from convloom.backends.feeding import Crops, Job, Samples
from convloom.ir import Plan


class CudaInput:
    """Makes what ``DeviceInput`` promises.

    Args:
        stepper: an executable of this device as a list of launches.
        storage: of the plans that are to run.
    """

    def __init__(
        self, gpu: Gpu, stepper: Callable[[Executable], Stepper], storage: Storage
    ) -> None:
        self._gpu = gpu
        self._stepper = stepper
        hyper = storage.layouts.get("hyper")
        self._rates = 0 if hyper is None else hyper.size

    def free_bytes(self) -> int:
        """Memory that can still be taken, more or less."""
        return self._gpu.free_bytes()

    def upload(self, samples: Samples) -> ResidentData:
        """Copy a whole data set to the device.

        Raises:
            ShapeError: arrays that do not fit together.
            OutOfMemoryError: the images do not fit.
        """

        def make() -> ResidentData:
            images, labels = samples.images, samples.labels
            return ResidentData(self._gpu, images, labels, samples.scale, samples.shift)

        sharing = own_sharing()
        return make() if sharing is None else sharing.upload(samples, self._gpu, make)

    def resident(
        self, executable: Executable, data: ResidentData, crops: Crops | None
    ) -> ResidentSteps:
        """Run a plan on what ``upload`` returned."""
        return ResidentSteps(self._stepper(executable), data, crops)

    def ring(self, like: Samples, batch_size: int, costs: int = 0) -> Ring:
        """Places for a few batches on their way."""
        return Ring(self._gpu, like, batch_size, rates=self._rates, costs=costs)

    def streamed(self, executable: Executable, ring: Any) -> StreamedSteps:
        """Run a plan on batches that pass through what ``ring`` returned."""
        return StreamedSteps(self._stepper(executable), ring)

    def refusal(self, plan: Plan, samples: Samples, crops: Crops | None) -> str:
        """Why many networks cannot run a plan together, in a clause; empty where they can."""
        return refusal(plan, samples, crops)

    def member_bytes(self, jobs: Sequence[Job]) -> int:
        """Memory that each of many networks takes that do these jobs together."""
        return member_bytes(jobs)

    def members(self, jobs: Sequence[Job], count: int) -> MemberMemory:
        """Memory for so many networks. Raises OutOfMemoryError where it does not fit."""
        return MemberMemory(self._gpu, jobs, count)
