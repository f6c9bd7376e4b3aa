"""Memory of the CPU backend."""

from __future__ import annotations

import numpy as np

from convloom.backends.host import HostStorage, TensorMemory
from convloom.ir import Plan

__all__ = ["ALIGNMENT", "CpuStorage", "TensorMemory", "allocate"]

ALIGNMENT = 64


def allocate(nbytes: int) -> np.ndarray:
    """``nbytes`` zero bytes at a 64-byte aligned address."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


class CpuStorage(HostStorage):
    """The persistent arena of a network: parameters, states and controls."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan, allocate)
