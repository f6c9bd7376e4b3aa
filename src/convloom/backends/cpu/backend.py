"""The CPU backend: kernels compiled by this machine's C++ compiler, NumPy where there is none."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import cache

from convloom.backends.base import LayoutPolicy, Storage
from convloom.backends.cpu.executable import CpuExecutable
from convloom.backends.cpu.jit import shared_jit
from convloom.backends.cpu.selectors import select_kernel
from convloom.backends.cpu.storage import CpuStorage
from convloom.backends.cpu.toolchain import Compiler, find_compiler
from convloom.ir import Node, Plan, Selection, TensorSpec
from convloom.ops.base import is_fused

#: The ladder, lowest first.
RUNGS = ("reference", "dense", "sparse", "winograd")


class CpuBackend:
    """Runs plans on this machine's cores."""

    name = "cpu"

    def __init__(self, compiler: Compiler | None) -> None:
        self._compiler = compiler
        if compiler is None:
            _warn_no_compiler()

    @property
    def rungs(self) -> Sequence[str]:
        """NumPy; compiled; skipping gradients that are zero; stride 1 by minimal filtering."""
        return RUNGS

    @property
    def layout_policy(self) -> LayoutPolicy:
        """Channels last, so that vectors run along channels."""
        return LayoutPolicy(images="nhwc", filters="krsc")

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """The best kernel for ``node`` that is no higher than ``kernels``; NumPy if there is none.

        A fused op is only worth its kernel: without one the answer is None, and nothing is fused.

        Raises:
            ValueError: ``kernels`` is neither ``auto`` nor a rung.
        """
        if kernels != "auto" and kernels not in RUNGS:
            raise ValueError(f"unknown kernels {kernels!r}; known are auto, {', '.join(RUNGS)}")
        note = ""
        if kernels != "reference" and self._compiler is not None:
            selection = select_kernel(node, specs, kernels)
            if selection is not None:
                return selection
            note = "no compiled kernel serves this op with these shapes and dtypes"
        if is_fused(node.op):
            return None
        return Selection("reference", "reference", None, note=note)

    def storage(self, plan: Plan) -> CpuStorage:
        """New persistent memory for this plan, zeroed."""
        return CpuStorage(plan)

    def executable(self, plan: Plan, storage: Storage) -> CpuExecutable:
        """Compile what is missing and bind the plan to memory.

        Raises:
            ValueError: the plan's persistent tensors are not laid out as in ``storage``.
            CompilerError: the compiler refused a kernel.
        """
        if not isinstance(storage, CpuStorage):
            raise ValueError("the CPU backend needs storage that it made itself")
        jit = shared_jit(self._compiler) if self._compiler is not None else None
        return CpuExecutable(plan, storage, jit)


def create() -> CpuBackend:
    """The backend of this machine."""
    return CpuBackend(find_compiler())


@cache
def _warn_no_compiler() -> None:
    warnings.warn(
        "no C++ compiler was found, so everything runs on NumPy, many times slower; install one "
        "with `pip install convloom[compiler]` or `apt install g++`",
        stacklevel=4,
    )
