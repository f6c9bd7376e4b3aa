"""What the CUDA executors run: phases, each one kernel launch. On a GPU and in the simulator alike.

A step is one or more phases on one stream (products of tiles; then their sum in fixed order).
Nothing here needs a driver: plans for a GPU can be made, printed and compiled without one.
"""

from __future__ import annotations

from dataclasses import dataclass

from convloom.backends.launch import Argument, Tensor, Workspace
from convloom.ir import Step

__all__ = [
    "Argument",
    "Constant",
    "CudaLaunch",
    "Fed",
    "Phase",
    "Specialisation",
    "Tensor",
    "Together",
    "Workspace",
    "launch_of",
    "members",
]

#: A compile-time constant: an integer, or several under one name.
Constant = int | tuple[int, ...]


@dataclass(frozen=True)
class Specialisation:
    """A kernel with its compile-time constants: one compiled function.

    ``source`` is a path under kernels/cuda without its suffix (``conv2d_fprop/naive``). The file
    defines ``template <class P> __global__ void NAME(...)`` with NAME the path with ``/`` as ``_``
    (``conv2d_fprop_naive``); ``constants`` become ``static constexpr long long`` members of P,
    tuples arrays of them (which must not be empty).
    """

    source: str
    constants: tuple[tuple[str, Constant], ...] = ()

    @property
    def name(self) -> str:
        """The name of the kernel template."""
        return self.source.replace("/", "_")

    @property
    def cluster(self) -> int:
        """Blocks of a cluster: what the kernel is told by a constant of that name, else 1."""
        return self._number("CLUSTER", 1)

    @property
    def chained(self) -> bool:
        """Whether it may begin while a kernel before it still runs, for whose end it waits itself
        (kernels/cuda/device/chained.cuh)."""
        return self._number("CHAINED", 0) != 0

    def _number(self, name: str, otherwise: int) -> int:
        value = dict(self.constants).get(name, otherwise)
        assert isinstance(value, int)
        return value


def members(specialisation: Specialisation) -> str:
    """The constants as C++ members of the struct that a kernel is specialised by."""
    lines = []
    for name, value in specialisation.constants:
        if isinstance(value, tuple):
            values = ", ".join(f"{one}LL" for one in value)
            lines.append(f"    static constexpr long long {name}[] = {{{values}}};\n")
        else:
            lines.append(f"    static constexpr long long {name} = {value}LL;\n")
    return "".join(lines)


@dataclass(frozen=True)
class Fed:
    """An argument of a phase that makes its own batch: an address or number the feeder knows."""

    name: str


@dataclass(frozen=True)
class Phase:
    """One kernel launch with a one-dimensional grid and block.

    Attributes:
        arguments: integers are ``long long`` in the kernel, floats ``float``; 0 is also a null
            pointer.
        blocks: grid size, 1 to 2^31 - 1; 0 launches nothing.
        threads: block size, a multiple of 32.
        shared: bytes of dynamic shared memory.
    """

    kernel: Specialisation
    arguments: tuple[Argument | Fed, ...]
    blocks: int
    threads: int
    shared: int = 0


@dataclass(frozen=True)
class Together:
    """What runs a step for many networks of one kind at once (together.py).

    Addresses are those of the first network. ``blocks`` of a phase are those of one network, and
    whoever feeds says into how many they are put together, if the phase asks for ``parts``.

    Attributes:
        prologue: comes before the first of steps that follow each other, as that of a launch.
        phases: of each step; they take their batches from a data set, as ``CudaLaunch.fed``.
    """

    prologue: tuple[Phase, ...]
    phases: tuple[Phase, ...]


@dataclass(frozen=True)
class CudaLaunch:
    """All phases of a step, in order, on one stream.

    Attributes:
        prologue: what must run before the first of runs that follow each other with nobody else
            changing persistent memory between them: what it makes from parameters in a workspace
            that is ``lasting``, the phases keep up to date themselves.
        fed: what runs in place of the phases where the batch lies in a data set on the device, and
            this step is all of its plan (fed.py); empty where it cannot.
        together: likewise for many networks at once; None where they cannot run so.
        others: what runs in place of some phases on batches of another size: compiled with them,
            so that another batch size compiles nothing, and never launched.
    """

    phases: tuple[Phase, ...]
    prologue: tuple[Phase, ...] = ()
    fed: tuple[Phase, ...] = ()
    together: Together | None = None
    others: tuple[Phase, ...] = ()

    @property
    def kernels(self) -> tuple[Specialisation, ...]:
        """What must be compiled to run it on a batch of any size."""
        return tuple(phase.kernel for phase in (*self.prologue, *self.phases, *self.others))


def launch_of(step: Step) -> CudaLaunch:
    """What runs a step. Raises ValueError where that is no CUDA kernel."""
    launch = step.selection.launch
    if not isinstance(launch, CudaLaunch):
        raise ValueError(f"the plan has no CUDA kernel for {step.node.title}")
    return launch
