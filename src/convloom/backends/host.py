"""Plans in this machine's own memory: what every backend shares whose kernels run here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from convloom.backends.bound import BoundExecutable, BoundStorage
from convloom.backends.values import checked
from convloom.ir import PERSISTENT, Buffer, Plan, Role, TensorSpec


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

    def finite(self) -> bool:
        """Whether it holds neither NaN nor Inf."""
        return self.flat.dtype.kind != "f" or bool(np.isfinite(self.flat).all())


class HostStorage(BoundStorage[TensorMemory]):
    """The persistent arena of a network: parameters, states and controls.

    Args:
        allocate: gives zeroed, 64-byte aligned memory of a number of bytes.
    """

    def __init__(self, plan: Plan, allocate: Callable[[int], np.ndarray]) -> None:
        self.arena = arena = allocate(plan.arenas.get(PERSISTENT, 0))

        def bind(name: str, buffer: Buffer) -> TensorMemory:
            return TensorMemory(name, plan.spec(name), arena, buffer.offset)

        super().__init__(plan, bind)


class HostExecutable(BoundExecutable[TensorMemory]):
    """The memory of a plan. Subclasses run the steps."""

    def __init__(
        self, plan: Plan, storage: HostStorage, allocate: Callable[[int], np.ndarray]
    ) -> None:
        storage.check(plan)
        self._arenas = arenas = {
            name: storage.arena if name == PERSISTENT else allocate(nbytes)
            for name, nbytes in plan.arenas.items()
        }

        def bind(name: str, buffer: Buffer) -> TensorMemory:
            return TensorMemory(name, plan.spec(name), arenas[buffer.arena], buffer.offset)

        super().__init__(plan, bind)

    def run(self) -> None:
        """Run every step once."""
        for index in range(len(self._plan.steps)):
            self.run_step(index)

    def poison(self) -> None:
        """Fill every tensor that a run must make with NaN (in integers: -1).

        A run that leaves one of them unmade shows then. Parameters, states, controls and inputs
        stay as they are.
        """
        for name, tensor in self._tensors.items():
            if self._plan.graph.role(name) is Role.TRANSIENT and not self._persistent(name):
                tensor.flat.view(np.uint8)[...] = 0xFF

    def _persistent(self, name: str) -> bool:
        return self._plan.buffers[name].arena == PERSISTENT
