"""Runs single kernels of tests/backends/cudasim/kernels in any mode, without plans."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cudasim.build import Workshop, shared_workshop
from convloom.backends.cudasim.machine import Call, Extent, Pointer, Settings
from convloom.backends.cudasim.memory import ArenaMaker
from convloom.backends.cudasim.modes import MODES

#: Every test of this folder compiles, most with sanitizers.
NEEDS_GCC = pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ here")
KERNELS = Path(__file__).parent / "kernels"
DEFAULT = Settings()
_workshops: dict[str, Workshop] = {}


def workshop_of(mode: str) -> Workshop:
    """A workshop for the test kernels that shares compiler and cache with the backend's own."""
    if mode not in _workshops:
        own = shared_workshop(MODES[mode])
        _workshops[mode] = Workshop(own.compiler, own.cache, own.mode, KERNELS)
    return _workshops[mode]


def kernel(source: str, **constants: int) -> Specialisation:
    """A test kernel with constants."""
    return Specialisation(source, tuple(constants.items()))


@dataclass
class Bench:
    """Arrays in one arena, each a page apart from the next, and launches on them."""

    mode: str
    own: Workshop | None = None

    def __post_init__(self) -> None:
        self.workshop = self.own or workshop_of(self.mode)
        self.maker = ArenaMaker(self.workshop.machine)
        self.arena = self.maker.allocate(1 << 20)
        self._end = 0
        self._extents: list[Extent] = []

    def array(self, value: np.ndarray) -> np.ndarray:
        """A copy of ``value`` that kernels may touch."""
        place = slice(self._end, self._end + value.nbytes)
        view = self.arena[place].view(value.dtype).reshape(value.shape)
        view[...] = value
        self._extents.append(Extent(self.maker.number(self.arena), self._end, value.nbytes))
        self._end += -(-max(1, value.nbytes) // 4096) * 4096
        return view

    def launch(
        self,
        wanted: Specialisation,
        *arguments: np.ndarray | int | float,
        blocks: int = 1,
        threads: int = 64,
        shared: int = 0,
        settings: Settings = DEFAULT,
    ) -> str:
        """Run a kernel on arrays made by ``array``; returns what was wrong."""
        function = self.workshop.load([wanted])[wanted]
        number = self.maker.number(self.arena)
        base = int(self.arena.ctypes.data)
        call = Call(
            library=function.library,
            entry=function.entry,
            kernel=wanted.name,
            arguments=tuple(
                Pointer(number, int(a.ctypes.data) - base) if isinstance(a, np.ndarray) else a
                for a in arguments
            ),
            blocks=blocks,
            threads=threads,
            shared=shared,
            arenas=(number,),
            open=tuple(self._extents),
            cluster=wanted.cluster,
        )
        return self.workshop.launch(call, settings)
