"""What every operation is: attributes, shape rule, NumPy reference, gradient rule.

An op is a frozen dataclass. Its attributes never hold the batch size, so one op, and one kernel
specialised to it, serves every batch. To add an op, write one file in this folder; CONTRIBUTING.md
shows how in ten lines.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from convloom.ir import GraphBuilder, Node, TensorSpec

_REGISTRY: dict[str, type[Op]] = {}

#: Decorates references that let NaN and Inf pass as hardware does, without NumPy's warnings.
quiet = np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore")


@dataclass(frozen=True)
class GradientScope:
    """What a gradient rule may use: the forward node, its output gradients, and a builder.

    Attributes:
        builder: where the backward ops are added.
        node: the forward node; its input and output tensors may be read by backward ops.
        grads: for each output of the node, the tensor of its gradient, or None if unused.
        wanted: for each input, whether anyone needs its gradient.
    """

    builder: GraphBuilder
    node: Node
    grads: tuple[str | None, ...]
    wanted: tuple[bool, ...]

    def add(self, op: Op, *inputs: str) -> tuple[str, ...]:
        """Add a backward op, attributed to the forward op's layer."""
        stem = f"{self.node.layer}.{op.name.lower()}" if self.node.layer else op.name.lower()
        names = [f"{stem}{i or ''}" for i in range(op.arity_out)]
        return self.builder.add(op, inputs, layer=self.node.layer, names=names)

    def spec(self, tensor: str) -> TensorSpec:
        """The spec of a tensor of the graph."""
        return self.builder.spec(tensor)


@dataclass(frozen=True)
class Op(ABC):
    """Base class of all operations.

    Class attributes:
        differentiable: False for ops through which no gradient flows (metrics, updates).
        gradient_note: what a person should know of the gradient; plans show it.
    """

    differentiable: ClassVar[bool] = True
    gradient_note: ClassVar[str] = ""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _REGISTRY[cls.__name__] = cls

    @property
    def name(self) -> str:
        """The op's name in tables, messages and saved networks: its class name."""
        return type(self).__name__

    @property
    def arity_in(self) -> int | None:
        """How many inputs an op takes that may stand for one that takes more; None is all."""
        return None

    @property
    def arity_out(self) -> int:
        """Number of outputs."""
        return 1

    @property
    def inplace(self) -> Mapping[int, int]:
        """{output index: input index} for outputs that overwrite an input: its new value."""
        return {}

    @abstractmethod
    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        """Output specs for input specs. Raises ShapeError, with sizes and remedy, if impossible."""

    @abstractmethod
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        """The op in plain NumPy, in the float dtype of its inputs: the oracle of every test.

        Never changes its inputs; logical (NCHW) shapes in and out.
        """

    def check_training(self, *inputs: TensorSpec) -> None:
        """Raises ShapeError where inputs of these shapes can be predicted but not trained on."""
        return None

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        """Add the backward ops; returns for each input the tensor of its gradient, or None."""
        raise TypeError(f"{self.name} has no gradient; it cannot stand between loss and weights")

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Floating-point operations (a multiply-add counts two). Default: one an output element."""
        return sum(spec.size for spec in outputs)

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Bytes that must move: by default every input is read, every output written, once."""
        return sum(spec.nbytes for spec in (*inputs, *outputs))

    def without_updates(self) -> Op:
        """The op that makes the same but overwrites nothing; itself unless overridden.

        It reads the first ``arity_in`` inputs and makes the first ``arity_out`` outputs.
        """
        return self

    def inference(self) -> Op | None:
        """The op that stands for this one when a network only predicts.

        Itself unless overridden; None means the op passes its first input through (dropout). It
        reads the first ``arity_in`` inputs, makes the first ``arity_out`` outputs, updates nothing.
        """
        return self

    def __str__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)}" for f in fields(self))
        return f"{self.name}({shown})"


def is_fused(op: object) -> bool:
    """Whether an op is one that only the fusion pass makes, for a backend that has its kernel."""
    return type(op).__module__.rpartition(".")[2].startswith("fused")


def to_json(op: Op) -> dict[str, Any]:
    """An op as plain data: ``{"op": name, attribute: value, …}``."""
    return {"op": op.name, **{f.name: _plain(getattr(op, f.name)) for f in fields(op)}}


def from_json(data: Mapping[str, Any]) -> Op:
    """The op that ``to_json`` described. Raises ValueError for an unknown op or attribute."""
    attributes = {key: _frozen(value) for key, value in data.items() if key != "op"}
    kind = _REGISTRY.get(str(data.get("op")))
    if kind is None:
        raise ValueError(f"unknown operation {data.get('op')!r}; was it saved by a newer convloom?")
    known = {f.name for f in fields(kind)}
    if unknown := sorted(set(attributes) - known):
        raise ValueError(f"operation {kind.__name__} has no attribute {', '.join(unknown)}")
    return kind(**attributes)


def _plain(value: Any) -> Any:
    """An attribute as plain data; ops of ops (chains) become what ``to_json`` makes of them."""
    if isinstance(value, tuple):
        return tuple(_plain(item) for item in value)
    return to_json(value) if isinstance(value, Op) else value


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value
