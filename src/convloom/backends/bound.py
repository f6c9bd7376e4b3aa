"""Tensors at their places, whatever memory that is: what can be read and written by name."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Generic, Protocol, TypeVar

import numpy as np

from convloom.ir import PERSISTENT, Buffer, Plan, Role, TensorSpec


class BoundTensor(Protocol):
    """One tensor's bytes at an address, read and written in its logical shape."""

    @property
    def spec(self) -> TensorSpec: ...

    @property
    def address(self) -> int: ...

    def read(self) -> np.ndarray:
        """A row-major copy in the logical shape."""
        ...

    def write(self, value: np.ndarray) -> None:
        """Store a logical array."""
        ...

    def finite(self) -> bool:
        """Whether it holds neither NaN nor Inf."""
        ...


_Tensor = TypeVar("_Tensor", bound=BoundTensor)


class BoundStorage(Generic[_Tensor]):
    """The persistent arena of a network: parameters, states and controls.

    Args:
        bind: makes the tensor of a name at its place.
    """

    def __init__(self, plan: Plan, bind: Callable[[str, Buffer], _Tensor]) -> None:
        self.buffers: Mapping[str, Buffer] = _persistent(plan)
        self._tensors = {name: bind(name, buffer) for name, buffer in self.buffers.items()}

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

    def _tensor(self, name: str) -> _Tensor:
        if name not in self._tensors:
            raise KeyError(f"no persistent tensor {name!r}; there are {', '.join(self._tensors)}")
        return self._tensors[name]


class BoundExecutable(ABC, Generic[_Tensor]):
    """A plan whose tensors have their places. Subclasses run the steps.

    Args:
        bind: makes the tensor of a name at its place.
    """

    def __init__(self, plan: Plan, bind: Callable[[str, Buffer], _Tensor]) -> None:
        self._plan = plan
        self._tensors = {
            name: bind(name, buffer)
            for name, buffer in plan.buffers.items()
            if name in plan.graph.specs
        }
        self._kept = frozenset(name for name in self._tensors if _lasts(plan, name))
        #: Inputs that hold what was written: a run may put other tensors in their place.
        self._written: set[str] = set()

    @property
    def plan(self) -> Plan:
        """The plan that runs."""
        return self._plan

    @abstractmethod
    def run_step(self, index: int) -> None:
        """Run one step alone, for profiles and watched runs; its inputs must have been made."""

    def run_watched(self) -> str | None:
        """Run step by step; returns the title of the first step that made a NaN or Inf.

        The run stops there, so that an update never carries the fault into the parameters, and the
        network's own states (a running mean) are what they were.
        """
        before = {name: self._tensors[name].read() for name in _made_on_the_way(self._plan)}
        for index, step in enumerate(self._plan.steps):
            self.run_step(index)
            made = (self._tensors.get(name) for name in step.node.outputs)
            if not all(tensor is None or tensor.finite() for tensor in made):
                for name, value in before.items():
                    self._tensors[name].write(value)
                return step.node.title
        return None

    def read(self, name: str) -> np.ndarray:
        """A copy of a kept tensor, in its logical shape, after all runs asked for.

        Raises:
            KeyError: the tensor does not exist, or its memory is reused within the run.
        """
        if name not in self._kept and name not in self._written:
            reason = (
                "is not kept after a run, its memory is reused"
                if name in self._plan.graph.specs
                else "is not a tensor of this plan"
            )
            known = ", ".join(sorted(self._kept | self._written))
            raise KeyError(
                f"{name!r} {reason}; these can be read: {known}; "
                f"cl.compile(..., watch=[{name!r}]) keeps what a network makes on its way"
            )
        return self._tensors[name].read()

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace an input, parameter, state or control.

        Raises:
            KeyError: the tensor is none of these.
            ShapeError: the shape differs, or the dtype cannot be converted.
        """
        role = self._plan.graph.role(name)
        if role is Role.TRANSIENT or name not in self._tensors:
            known = ", ".join(n for n in self._plan.graph.roles if n in self._tensors)
            raise KeyError(f"{name!r} cannot be written; these can: {known}")
        self._tensors[name].write(value)
        if role is Role.INPUT:
            self._written.add(name)

    def address(self, name: str) -> int:
        """Where a tensor lies; 0 for one that this plan does not have."""
        tensor = self._tensors.get(name)
        return 0 if tensor is None else tensor.address


def _made_on_the_way(plan: Plan) -> list[str]:
    """States that ops of the network itself replace, long before the update of its parameters."""
    makers = plan.graph.producers()
    return [
        state
        for state, new in plan.graph.updates.items()
        if getattr(plan.graph.nodes[makers[new]].op, "differentiable", False)
    ]


def _persistent(plan: Plan) -> dict[str, Buffer]:
    """Tensors that live between runs; new values of updates share their memory and are left out."""
    return {
        name: buffer
        for name, buffer in plan.buffers.items()
        if buffer.arena == PERSISTENT and name in plan.graph.roles
    }


def _lasts(plan: Plan, name: str) -> bool:
    """Whether a tensor is there after a run. An input is, unless later steps use its memory."""
    if plan.graph.role(name) is Role.INPUT:
        return plan.buffers[name].last >= len(plan.steps) - 1
    return name in plan.graph.roles or name in plan.graph.kept()
