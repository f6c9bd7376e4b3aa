"""The CUDA backend: kernels of this package, compiled by NVRTC, run as one graph a step.

Making, printing and compiling plans needs no GPU; memory and execution do, and ``storage`` and
``executable`` say what is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from convloom.backends.base import Executable, LayoutPolicy, Storage
from convloom.backends.cuda.device import Chip, chip
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Gpu, open_gpu
from convloom.backends.cuda.input import CudaInput
from convloom.backends.cuda.queues import AT_ONCE, Sharing, begin, own_gpu
from convloom.backends.cuda.selectors import RUNGS, refusal, select_kernel
from convloom.backends.cuda.storage import CudaStorage
from convloom.ir import Node, Plan, Selection, TensorSpec


class CudaBackend:
    """Runs plans on an NVIDIA GPU.

    Args:
        gpu: the device, or None for the first one that this process may use.
        capability: plans are for a GPU of this compute capability, not for the one that is here.
    """

    name = "cuda"

    def __init__(self, gpu: Gpu | None = None, capability: tuple[int, int] | None = None) -> None:
        self._gpu = gpu
        self._capability = capability

    @property
    def _chip(self) -> Chip:
        """What plans are for.

        A thread whose work runs beside that of others has not the whole GPU, which clusters of
        blocks that share images would take.
        """
        whole = chip(self._capability)
        return whole if own_gpu() is None else replace(whole, clusters=False)

    @property
    def rungs(self) -> Sequence[str]:
        """The ladder; each rung adds one idea, and ``selectors`` says which."""
        return RUNGS

    @property
    def layout_policy(self) -> LayoutPolicy:
        """Channels last, as on the CPU: neighbouring threads take neighbouring channels.

        Memory is used again late, because a graph runs steps side by side that share no bytes.
        """
        return LayoutPolicy(images="nhwc", filters="krsc", apart=8)

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """The best kernel for ``node`` that is no higher than ``kernels``; None if there is none.

        Raises:
            ValueError: ``kernels`` is neither ``auto`` nor a rung.
        """
        return select_kernel(node, specs, kernels, self._chip)

    def refusal(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> str:
        """Why no kernel serves ``node``, in a clause; empty where there is nothing to tell."""
        return refusal(node, specs, kernels, self._chip)

    def storage(self, plan: Plan) -> CudaStorage:
        """New persistent memory for this plan, zeroed.

        Raises:
            DeviceError: no GPU can be used; says what is missing.
        """
        return CudaStorage(plan, self._gpu or own_gpu() or open_gpu())

    def executable(self, plan: Plan, storage: Storage) -> CudaExecutable:
        """Compile what is missing and bind the plan to memory.

        Raises:
            ValueError: the plan's persistent tensors are not laid out as in ``storage``.
            KernelError: NVRTC refused a kernel.
            OutOfMemoryError: the plan is too large for the GPU's memory.
        """
        if not isinstance(storage, CudaStorage):
            raise ValueError("the CUDA backend needs storage that it made itself")
        return CudaExecutable(plan, storage)

    def beside(self) -> tuple[int, Callable[[], None]]:
        """How many threads keep the GPU busy, and what makes a thread's work run beside others'.

        Raises:
            DeviceError: no GPU can be used; says what is missing.
        """
        open_gpu()
        return AT_ONCE, partial(begin, Sharing())

    def device_input(self, storage: Storage) -> CudaInput:
        """The ways for batches into the memory of the GPU that ``storage`` is on."""
        if not isinstance(storage, CudaStorage):
            raise ValueError("the CUDA backend needs storage that it made itself")
        return CudaInput(storage.gpu, _own, storage)


def _own(executable: Executable) -> CudaExecutable:
    assert isinstance(executable, CudaExecutable)
    return executable
