"""Arenas that the process of the kernels can map too."""

from __future__ import annotations

import itertools
import mmap
import os
import weakref

import numpy as np

from convloom.backends.cudasim.machine import Extent, Launcher
from convloom.backends.host import HostStorage
from convloom.ir import Plan

_numbers = itertools.count(1)
#: Address of every arena of this process: what machines call it, and its size.
_places: dict[int, tuple[int, int]] = {}


class ArenaMaker:
    """Makes arenas, and tells a machine of them for as long as this object lives."""

    def __init__(self, machine: Launcher) -> None:
        self.machine = machine
        self._made: dict[int, int] = {}

    def allocate(self, nbytes: int) -> np.ndarray:
        """``nbytes`` zero bytes at a page's beginning."""
        descriptor = os.memfd_create("convloom-sim")
        whole = max(1, -(-nbytes // mmap.PAGESIZE)) * mmap.PAGESIZE
        os.ftruncate(descriptor, whole)
        arena = np.frombuffer(mmap.mmap(descriptor, whole), np.uint8)[:nbytes]
        number = next(_numbers)
        address = int(arena.ctypes.data)
        self._made[address] = number
        _places[address] = number, nbytes
        self.machine.map_arena(number, descriptor, whole)
        weakref.finalize(self, _forget, self.machine, number, descriptor, address)
        return arena

    def number(self, arena: np.ndarray) -> int:
        """What the machine calls an arena that was made here."""
        return self._made[int(arena.ctypes.data)]


def rest_of_arena(address: int) -> Extent:
    """The bytes from an address to the end of its arena. Raises KeyError where there is none."""
    for start, (number, nbytes) in _places.items():
        if start <= address < start + nbytes:
            return Extent(number, address - start, start + nbytes - address)
    raise KeyError(f"no arena holds the address {address:#x}")


def _forget(machine: Launcher, number: int, descriptor: int, address: int) -> None:
    machine.unmap_arena(number)
    os.close(descriptor)
    if _places.get(address, (0, 0))[0] == number:
        del _places[address]


class CudaSimStorage(HostStorage):
    """The persistent arena of a network: parameters, states and controls."""

    def __init__(self, plan: Plan, machine: Launcher) -> None:
        self.maker = ArenaMaker(machine)
        super().__init__(plan, self.maker.allocate)
