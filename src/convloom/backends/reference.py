"""Device ``reference``: a plan run by the ops' own NumPy, in the tensors' own dtypes.

The oracle that other backends are compared with. It keeps every tensor as a logical array of its
own; the plan's offsets and layouts mean nothing to it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convloom.backends.base import LayoutPolicy, Storage
from convloom.backends.values import checked
from convloom.ir import Node, Plan, Role, Selection, TensorSpec
from convloom.ops.base import is_fused
from convloom.ops.chain import Chain
from convloom.ops.precision import FP32

_PERSISTENT = (Role.PARAMETER, Role.STATE, Role.CONTROL)


class ReferenceStorage:
    """Parameters, states and controls, each an array."""

    def __init__(self, plan: Plan) -> None:
        self.layouts: Mapping[str, TensorSpec] = _persistent(plan)
        self.values = {n: np.zeros(s.shape, s.dtype) for n, s in self.layouts.items()}

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor. Raises KeyError for an unknown name."""
        if name not in self.values:
            raise KeyError(f"no persistent tensor {name!r}; there are {', '.join(self.values)}")
        return self.values[name].copy()

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace a tensor's value. Raises ShapeError when the shape differs."""
        old = self.read(name)
        spec = TensorSpec(old.shape, str(old.dtype))
        self.values[name] = checked(name, value, spec).astype(old.dtype)

    def check(self, plan: Plan) -> None:
        """Raises ValueError unless every persistent tensor of ``plan`` is held here, alike."""
        for name, spec in _persistent(plan).items():
            mine = self.values.get(name)
            if mine is None or (mine.shape, str(mine.dtype)) != (spec.shape, spec.dtype):
                raise ValueError(f"the plan keeps {name!r} as {spec}, this storage does not")


class ReferenceExecutable:
    """Runs a plan one op at a time."""

    def __init__(self, plan: Plan, storage: ReferenceStorage) -> None:
        storage.check(plan)
        self.plan = plan
        self.storage = storage
        self._values = {
            name: np.zeros(plan.spec(name).shape, plan.spec(name).dtype)
            for name in plan.graph.named(Role.INPUT)
        }
        self._readable = plan.graph.kept() | frozenset(plan.graph.roles)

    def run(self) -> None:
        """Run every node once, then move new values into their states."""
        self._run(watched=False)

    def run_watched(self) -> str | None:
        """Run step by step; returns the title of the first step that made a NaN or Inf.

        The run stops there and no state changes.
        """
        return self._run(watched=True)

    def read(self, name: str) -> np.ndarray:
        """A copy of a kept tensor.

        Raises:
            KeyError: the tensor is not kept, or nothing has run yet.
        """
        value = self._value(name) if name in self._readable else None
        if value is None:
            known = ", ".join(sorted(n for n in self._readable if self._value(n) is not None))
            raise KeyError(f"{name!r} cannot be read; these can: {known}")
        return value.copy()

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace an input, parameter, state or control.

        Raises:
            KeyError: the tensor is none of these.
            ShapeError: the shape differs, or the dtype cannot be converted.
        """
        if name in self.storage.values:
            self.storage.write(name, value)
        elif self.plan.graph.role(name) is Role.INPUT:
            spec = self.plan.spec(name)
            self._values[name] = checked(name, value, spec).astype(spec.dtype)
        else:
            known = ", ".join(self.plan.graph.roles)
            raise KeyError(f"{name!r} cannot be written; these can: {known}")

    def _value(self, name: str) -> np.ndarray | None:
        name = self._state_of(name)
        return self.storage.values.get(name, self._values.get(name))

    def _state_of(self, name: str) -> str:
        """The state that holds a new value after the run; any other name as it is."""
        updated = {value: state for state, value in self.plan.graph.updates.items()}
        return updated.get(name, name)

    def _run(self, watched: bool) -> str | None:
        graph = self.plan.graph
        values = {**self.storage.values, **self._values}
        for node in graph.nodes:
            # Overflow and NaN are values here, as in every compiled kernel.
            with np.errstate(all="ignore"):
                made = node.op.reference(*(values[name] for name in node.inputs))
            values.update(zip(node.outputs, made, strict=True))
            if watched and any(m.dtype.kind == "f" and not np.isfinite(m).all() for m in made):
                return node.title
        for state, value in graph.updates.items():
            self.storage.values[state] = values[value]
        self._values.update({n: values[n] for n in graph.kept() if n in values})
        return None


class ReferenceBackend:
    """Runs any graph on NumPy."""

    name = "reference"

    @property
    def rungs(self) -> Sequence[str]:
        """The layers' references; chains of layers, whose references round to any precision."""
        return ("reference", "onchip")

    @property
    def layout_policy(self) -> LayoutPolicy:
        """Logical order throughout."""
        return LayoutPolicy()

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        """NumPy runs every plain op; fused ops would only hide what runs, so there are none.

        Chains would too, and run where they are asked for, or where only they have the precision.
        """
        if isinstance(node.op, Chain):
            needed = kernels == "auto" and node.op.precision != FP32
            wanted = kernels == "onchip" or needed
            return Selection("onchip", "reference", None) if wanted else None
        if is_fused(node.op):
            return None
        return Selection("reference", "reference", None)

    def refusal(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> str:
        """Nothing: layers one by one are what this device is for."""
        return ""

    def storage(self, plan: Plan) -> ReferenceStorage:
        """New persistent memory for this plan, zeroed."""
        return ReferenceStorage(plan)

    def executable(self, plan: Plan, storage: Storage) -> ReferenceExecutable:
        """Bind the plan to memory.

        Raises:
            ValueError: the plan's persistent tensors are not those of ``storage``.
        """
        if not isinstance(storage, ReferenceStorage):
            raise ValueError("the reference backend needs storage that it made itself")
        return ReferenceExecutable(plan, storage)


def create() -> ReferenceBackend:
    """The backend."""
    return ReferenceBackend()


def _persistent(plan: Plan) -> dict[str, TensorSpec]:
    roles = plan.graph.roles
    return {name: plan.spec(name) for name, role in roles.items() if role in _PERSISTENT}
