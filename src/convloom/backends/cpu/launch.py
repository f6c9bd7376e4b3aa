"""What the CPU executor runs: phases, each a kernel called once for every item, in parallel.

A step is one or more phases (pack the filters; convolve; reduce partial sums) with a barrier
between them. Items of a phase run on any thread in any order, so an item must be the same work,
with the same rounding, whoever takes it: this is what keeps the bits independent of the thread
count. The C side of this contract is kernels/cpu/abi.h.
"""

from __future__ import annotations

from dataclasses import dataclass

from convloom.backends.launch import Argument, Tensor, Workspace

__all__ = ["Argument", "CpuLaunch", "Phase", "Specialisation", "Tensor", "Workspace"]


@dataclass(frozen=True)
class Specialisation:
    """A kernel file with its compile-time constants: one compiled function.

    ``source`` is a stem under kernels/cpu (``conv2d_fprop``). The file defines
    ``template <class P> void conv2d_fprop(const Arg*, long item, Worker*)``; ``constants`` become
    ``static constexpr long`` members of P.
    """

    source: str
    constants: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Phase:
    """One parallel loop: ``for item in range(items): kernel(arguments, item)``.

    ``scratch`` is the private memory each thread needs, in bytes (its content is undefined at
    the start of an item).
    """

    kernel: Specialisation
    arguments: tuple[Argument, ...]
    items: int
    scratch: int = 0


@dataclass(frozen=True)
class CpuLaunch:
    """All phases of a step, in order."""

    phases: tuple[Phase, ...]
