"""Arenas in device memory, and tensors as places in them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

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
        return self.spec.layout.logical(self.memory(), self.spec.shape).copy(order="C")

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


class CudaStorage:
    """The persistent arena of a network: parameters, states and controls.

    Attributes:
        announced: bytes of the largest plan on this storage that a log has spoken of.
    """

    def __init__(self, plan: Plan, gpu: Gpu) -> None:
        self.gpu = gpu
        self.announced = 0
        self.arena: Allocation = gpu.allocate(plan.arenas.get(PERSISTENT, 0))
        self.buffers: Mapping[str, Buffer] = _persistent(plan)
        self._tensors = {
            name: DeviceTensor(name, plan.spec(name), gpu, self.arena.address + buffer.offset)
            for name, buffer in self.buffers.items()
        }

    @property
    def layouts(self) -> Mapping[str, TensorSpec]:
        """Shape, dtype and layout of every tensor held."""
        return {name: tensor.spec for name, tensor in self._tensors.items()}

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor in its logical shape. Raises KeyError for an unknown name."""
        return self._tensor(name).read()

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace a tensor's value. Raises ShapeError when the shape differs."""
        self._tensor(name).write(value)

    def check(self, plan: Plan) -> None:
        """Raises ValueError unless every persistent tensor of ``plan`` lies where it lies here."""
        for name, buffer in _persistent(plan).items():
            mine = self.buffers.get(name)
            if mine is None or mine.offset != buffer.offset:
                raise ValueError(f"the plan keeps {name!r} elsewhere than this storage does")
            if self._tensors[name].spec != plan.spec(name):
                raise ValueError(
                    f"the plan wants {name!r} as {plan.spec(name)}, "
                    f"this storage holds {self._tensors[name].spec}"
                )

    def _tensor(self, name: str) -> DeviceTensor:
        if name not in self._tensors:
            raise KeyError(f"no persistent tensor {name!r}; there are {', '.join(self._tensors)}")
        return self._tensors[name]


def _persistent(plan: Plan) -> dict[str, Buffer]:
    """Tensors that live between runs; new values of updates share their memory and are left out."""
    return {
        name: buffer
        for name, buffer in plan.buffers.items()
        if buffer.arena == PERSISTENT and name in plan.graph.roles
    }
