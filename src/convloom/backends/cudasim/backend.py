"""The backend "cuda-sim": the plans, launches and kernels of "cuda", run without a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from convloom.backends.base import Executable, LayoutPolicy, Storage
from convloom.backends.cuda.input import CudaInput
from convloom.backends.cuda.launch import CudaLaunch
from convloom.backends.cuda.selectors import RUNGS, refusal, select_kernel
from convloom.backends.cudasim.build import Workshop, shared_workshop
from convloom.backends.cudasim.executable import CudaSimExecutable
from convloom.backends.cudasim.gpu import SimulatedGpu, SimulatedSteps
from convloom.backends.cudasim.memory import CudaSimStorage
from convloom.backends.cudasim.modes import Mode, mode_of_environment
from convloom.ir import Node, Plan, Selection, TensorSpec


class CudaSimBackend:
    """Runs plans of CUDA kernels on this machine's cores, slowly, and looks for their faults.

    Args:
        mode: one of modes.MODES.
    """

    name = "cuda-sim"

    def __init__(self, mode: Mode) -> None:
        self.mode = mode
        self._workshop = shared_workshop(mode)

    @property
    def workshop(self) -> Workshop:
        """What compiles and loads the kernels."""
        return self._workshop

    @property
    def rungs(self) -> Sequence[str]:
        """The ladder of the CUDA backend."""
        return RUNGS

    @property
    def layout_policy(self) -> LayoutPolicy:
        """Channels last, as for the GPU."""
        return LayoutPolicy(images="nhwc", filters="krsc", apart=8)

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """What the CUDA backend would run."""
        return select_kernel(node, specs, kernels)

    def refusal(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> str:
        """Why no kernel serves ``node``, in a clause; empty where there is nothing to tell."""
        return refusal(node, specs, kernels)

    def prepare(self, plans: Iterable[Plan]) -> None:
        """Compile the kernels of many plans in one batch, which is faster than plan by plan.

        Raises:
            CompilerError: the compiler refused a kernel.
        """
        launches = [step.selection.launch for plan in plans for step in plan.steps]
        self._workshop.load(
            kernel
            for launch in launches
            if isinstance(launch, CudaLaunch)
            for kernel in launch.kernels
        )

    def storage(self, plan: Plan) -> CudaSimStorage:
        """New persistent memory for this plan, zeroed."""
        return CudaSimStorage(plan, self._workshop.machine)

    def executable(self, plan: Plan, storage: Storage) -> CudaSimExecutable:
        """Compile what is missing and bind the plan to memory.

        Raises:
            ValueError: the plan's persistent tensors are not laid out as in ``storage``.
            CompilerError: the compiler refused a kernel.
        """
        if not isinstance(storage, CudaSimStorage):
            raise ValueError("the simulator needs storage that it made itself")
        return CudaSimExecutable(plan, storage, self._workshop)

    def device_input(self, storage: Storage) -> CudaInput:
        """The ways for batches into simulated memory: those of the GPU."""
        return CudaInput(SimulatedGpu(self._workshop), _steps, storage)


def create() -> CudaSimBackend:
    """The backend, in the mode that ``$CONVLOOM_SIM`` names.

    Raises:
        ConvloomError: there is no such mode.
        DeviceError: there is no compiler for it.
    """
    return CudaSimBackend(mode_of_environment())


def _steps(executable: Executable) -> SimulatedSteps:
    assert isinstance(executable, CudaSimExecutable)
    return SimulatedSteps(executable)
