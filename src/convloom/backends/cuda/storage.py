"""Arenas in device memory, and tensors as places in them."""

from __future__ import annotations

import numpy as np

from convloom.backends.bound import BoundStorage
from convloom.backends.cuda.gpu import Allocation, Gpu
from convloom.backends.values import checked
from convloom.ir import PERSISTENT, Buffer, Plan, TensorSpec


class DeviceTensor:
    """One tensor's bytes on the device, read and written in its logical shape."""

    def __init__(self, name: str, spec: TensorSpec, gpu: Gpu, address: int) -> None:
        self.name = name
        self.spec = spec
        self.address = address
        self._gpu = gpu

    def read(self) -> np.ndarray:
        """A row-major copy in the logical shape, after all work asked for so far."""
        logical = self.spec.layout.logical(self.memory(), self.spec.shape)
        return np.asarray(logical, order="C")

    def memory(self) -> np.ndarray:
        """A flat copy of the elements as they lie in memory."""
        flat = np.empty(self.spec.size, self.spec.dtype)
        self._gpu.download(self.address, flat)
        return flat

    def write(self, value: np.ndarray) -> None:
        """Store a logical array.

        Raises:
            ShapeError: the shape differs, or the dtype cannot be converted (float to integer).
        """
        value = checked(self.name, value, self.spec)
        if value.size:
            cast = value.astype(self.spec.dtype, copy=False)
            self._gpu.upload(self.address, self.spec.layout.store(cast))

    def finite(self) -> bool:
        """Whether it holds neither NaN nor Inf."""
        return np.dtype(self.spec.dtype).kind != "f" or bool(np.isfinite(self.memory()).all())


class CudaStorage(BoundStorage[DeviceTensor]):
    """The persistent arena of a network: parameters, states and controls.

    Args:
        arena: memory for it, zeroed; None allocates it.

    Attributes:
        announced: bytes of the largest plan on this storage that a log has spoken of.
    """

    def __init__(self, plan: Plan, gpu: Gpu, arena: Allocation | None = None) -> None:
        self.gpu = gpu
        self.announced = 0
        self.arena = gpu.allocate(plan.arenas.get(PERSISTENT, 0)) if arena is None else arena
        first = self.arena.address

        def bind(name: str, buffer: Buffer) -> DeviceTensor:
            return DeviceTensor(name, plan.spec(name), gpu, first + buffer.offset)

        super().__init__(plan, bind)
