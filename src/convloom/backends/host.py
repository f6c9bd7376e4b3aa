"""Plans in this machine's own memory: what every backend shares whose kernels run here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from convloom.backends.values import checked
from convloom.ir import PERSISTENT, Buffer, Plan, Role, Step, TensorSpec


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


class HostStorage:
    """The persistent arena of a network: parameters, states and controls.

    Args:
        allocate: gives zeroed, 64-byte aligned memory of a number of bytes.
    """

    def __init__(self, plan: Plan, allocate: Callable[[int], np.ndarray]) -> None:
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


class HostExecutable:
    """The memory of a plan, and what can be read and written. Subclasses run the steps."""

    def __init__(
        self, plan: Plan, storage: HostStorage, allocate: Callable[[int], np.ndarray]
    ) -> None:
        storage.check(plan)
        self._plan = plan
        self._arenas = {
            name: storage.arena if name == PERSISTENT else allocate(nbytes)
            for name, nbytes in plan.arenas.items()
        }
        self._tensors = {
            name: self._bind(name) for name in plan.buffers if name in plan.graph.specs
        }
        self._readable = plan.graph.kept() | frozenset(plan.graph.roles)

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._plan

    def run(self) -> None:
        """Run every step once."""
        for index in range(len(self._plan.steps)):
            self.run_step(index)

    def run_step(self, index: int) -> None:
        """Run one step alone, for profiles and watched runs; its inputs must have been made."""
        raise NotImplementedError

    def run_watched(self) -> str | None:
        """Run step by step; returns the title of the first step that made a NaN or Inf.

        The run stops there, so that an update never carries the fault into the parameters.
        """
        for index, step in enumerate(self._plan.steps):
            self.run_step(index)
            if not self._finite(step):
                return step.node.title
        return None

    def read(self, name: str) -> np.ndarray:
        """A copy of a kept tensor, in its logical shape.

        Raises:
            KeyError: the tensor does not exist, or its memory is reused within the run.
        """
        if name not in self._readable or name not in self._tensors:
            reason = (
                "is not kept after a run, its memory is reused"
                if name in self._plan.graph.specs
                else "is not a tensor of this plan"
            )
            known = ", ".join(sorted(self._readable & self._tensors.keys()))
            raise KeyError(f"{name!r} {reason}; these can be read: {known}")
        return self._tensors[name].read()

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace an input, parameter, state or control.

        Raises:
            KeyError: the tensor is none of these.
            ShapeError: the shape differs, or the dtype cannot be converted.
        """
        if self._plan.graph.role(name) is Role.TRANSIENT or name not in self._tensors:
            known = ", ".join(n for n in self._plan.graph.roles if n in self._tensors)
            raise KeyError(f"{name!r} cannot be written; these can: {known}")
        self._tensors[name].write(value)

    def address(self, name: str) -> int:
        """Where a tensor lies; 0 for one that this plan does not have."""
        tensor = self._tensors.get(name)
        return 0 if tensor is None else tensor.address

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

    def _bind(self, name: str) -> TensorMemory:
        buffer = self._plan.buffers[name]
        return TensorMemory(name, self._plan.spec(name), self._arenas[buffer.arena], buffer.offset)

    def _finite(self, step: Step) -> bool:
        outputs = (self._tensors.get(name) for name in step.node.outputs)
        return all(tensor is None or _is_finite(tensor.flat) for tensor in outputs)


def _persistent(plan: Plan) -> dict[str, Buffer]:
    """Tensors that live between runs; new values of updates share their memory and are left out."""
    return {
        name: buffer
        for name, buffer in plan.buffers.items()
        if buffer.arena == PERSISTENT and name in plan.graph.roles
    }


def _is_finite(values: np.ndarray) -> bool:
    return values.dtype.kind != "f" or bool(np.isfinite(values).all())
