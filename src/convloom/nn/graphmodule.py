"""A network that is a graph: what ``convloom.load`` gives back, without the class it came from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from convloom.nn.module import Module
from convloom.nn.parameter import Buffer, Parameter
from convloom.nn.tensor import SymbolicTensor
from convloom.ops import Op


@dataclass(frozen=True)
class SavedNode:
    """An op of a saved graph, the tensors it reads and makes, and the layer that asked for it."""

    op: Op
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    layer: str


class GraphModule(Module):
    """Replays a saved graph at any batch size, with the parameters' own names.

    Args:
        nodes: in order; they read ``input``, ``counter``, parameters, buffers and earlier outputs,
            and one of them makes ``output``.
        variables: {name: parameter or buffer}; two names may share one.
        further: tensors that are outputs behind ``output``.
    """

    def __init__(
        self,
        nodes: Sequence[SavedNode],
        variables: Mapping[str, Parameter | Buffer],
        further: Sequence[str] = (),
    ) -> None:
        super().__init__()
        self.nodes = tuple(nodes)
        self.further = tuple(further)
        for name, variable in variables.items():  # names with dots, which only a graph may have
            register: dict[str, Any] = (
                self._parameters if isinstance(variable, Parameter) else self._buffers
            )
            register[name] = variable

    @property
    def extra(self) -> dict[str, Any]:
        """What was given to ``save(extra=…)``; it is saved again."""
        return dict(self.__dict__.get("_extra", {}))

    @extra.setter
    def extra(self, value: Mapping[str, Any]) -> None:
        self.__dict__["_extra"] = dict(value)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        tracer = x.tracer
        names = {"input": x.name}
        for node in self.nodes:
            inputs = [self._tensor(x, names, name) for name in node.inputs]
            made = tracer.replay(node.op, inputs, node.layer, node.outputs)
            names.update(zip(node.outputs, made, strict=True))
        for name in self.further:
            tracer.also(SymbolicTensor(tracer, names[name]))
        return SymbolicTensor(tracer, names["output"])

    def _tensor(self, x: SymbolicTensor, names: Mapping[str, str], name: str) -> str:
        if name in names:
            return names[name]
        if name == "counter":
            return x.tracer.counter()
        variable = self._parameters.get(name) or self._buffers.get(name)
        if variable is None:
            x.tracer.fail(f"the saved graph reads {name!r}, which nothing makes")
        return x.tracer.variable(variable)

    def extra_repr(self) -> str:
        return f"{len(self.nodes)} nodes, {sum(p.numel() for p in self.parameters())} parameters"
