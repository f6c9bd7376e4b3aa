"""Arenas, and tensors as views of them."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convloom.backends.values import checked
from convloom.ir import PERSISTENT, Buffer, Plan, TensorSpec

ALIGNMENT = 64


def allocate(nbytes: int) -> np.ndarray:
    """``nbytes`` zero bytes at a 64-byte aligned address."""
    raw = np.zeros(nbytes + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return raw[skip : skip + nbytes]


class TensorMemory:
    """One tensor's bytes inside an arena, read and written in its logical shape."""

    def __init__(self, name: str, spec: TensorSpec, arena: np.ndarray, offset: int) -> None:
        self.name = name
        self.spec = spec
        self.flat = arena[offset : offset + spec.nbytes].view(spec.dtype)
        stored = spec.layout.logical(self.flat, spec.shape)
        # Some layouts have no logical view (they split axes); those are copied in and out.
        self._view = stored if spec.size == 0 or np.shares_memory(stored, self.flat) else None

    @property
    def address(self) -> int:
        """Address of the first byte."""
        return int(self.flat.ctypes.data)

    def logical(self) -> np.ndarray:
        """The tensor in its logical shape: a view where the layout has one, else a copy."""
        if self._view is not None:
            return self._view
        return self.spec.layout.logical(self.flat, self.spec.shape)

    def read(self) -> np.ndarray:
        """A row-major copy in the logical shape."""
        return self.logical().copy(order="C")

    def write(self, value: np.ndarray) -> None:
        """Store a logical array.

        Raises:
            ShapeError: the shape differs, or the dtype cannot be converted (float to integer).
        """
        value = checked(self.name, value, self.spec)
        if self._view is not None:
            self._view[...] = value
        else:
            self.flat[...] = self.spec.layout.store(value).reshape(-1)


class CpuStorage:
    """The persistent arena of a network: parameters, states and controls."""

    def __init__(self, plan: Plan) -> None:
        self.arena = allocate(plan.arenas.get(PERSISTENT, 0))
        self.buffers: Mapping[str, Buffer] = _persistent(plan)
        self._tensors = {
            name: TensorMemory(name, plan.spec(name), self.arena, buffer.offset)
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

    def _tensor(self, name: str) -> TensorMemory:
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
