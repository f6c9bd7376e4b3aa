"""Choose how each tensor lies in memory. Values do not change, only their order in memory.

A backend's policy says what its kernels want. With NHWC images a Flatten costs nothing when the
Linear layer behind it keeps its weights in the same (H, W, C) order, and so it does wherever that
weight is read by this layer alone. Where it cannot be (dropout between them draws its mask in
logical order; a shared weight), the Flatten becomes a real step that reorders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from convloom.backends.base import LayoutPolicy
from convloom.ir import (
    KRSC,
    NHWC,
    ROW_MAJOR,
    Graph,
    Layout,
    Node,
    Role,
    TensorSpec,
    flattened_nhwc,
)
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    Flatten,
    Linear,
    LinearDgrad,
    LinearWgrad,
    Local2d,
    Local2dDgrad,
    Local2dWgrad,
    Mul,
    ReLU,
    ReLUGrad,
    Unflatten,
    WeightedSum,
)

#: Ops that read and write tensors of one shape element by element, whatever their order in memory.
_ELEMENTWISE = (Activation, ActivationGrad, Add, Mul, ReLU, ReLUGrad, WeightedSum)
#: {op: (operands in activation order, the weight-shaped operand)}; outputs count after inputs.
_LINEAR: Mapping[Any, tuple[int, int]] = {
    Linear: (0, 1),
    LinearDgrad: (2, 1),
    LinearWgrad: (0, 2),
}
_NOTHING: Mapping[str, TensorSpec] = MappingProxyType({})
#: Channels from which on images are reordered before convolutions read them.
_MANY_CHANNELS = 16
#: {op: index of its filter-shaped operand}; outputs count after inputs.
_CONV: Mapping[Any, int] = {
    **{Conv2d: 1, Conv2dDgrad: 1, Conv2dWgrad: 2},
    **{Local2d: 1, Local2dDgrad: 1, Local2dWgrad: 2},
}


def choose_layouts(
    graph: Graph, policy: LayoutPolicy, held: Mapping[str, TensorSpec] = _NOTHING
) -> Graph:
    """The graph with a layout in every spec. Tensors given by the host stay row-major.

    Args:
        held: parameters that lie in memory already, as another graph of the same network chose;
            no Linear weight is ordered otherwise.
    """
    layouts: dict[str, Layout] = {}
    if policy.images == "nhwc":
        graph = _reordered_inputs(graph)
        layouts.update(_image_layouts(graph))
        layouts.update(_flat_layouts(graph, held))
    if policy.filters == "krsc":
        layouts.update(_filter_layouts(graph))
    layouts.update(_follow_parameters(graph, layouts))
    specs = {
        name: spec.with_layout(layouts.get(name, ROW_MAJOR)) for name, spec in graph.specs.items()
    }
    return graph.replacing(specs=specs)


def _reordered_inputs(graph: Graph) -> Graph:
    """Bring images of many channels from the host's order to NHWC once, before all convolutions.

    Kernels read the few channels of a photograph in either order; from about a vector of channels
    on, each convolution would reorder what it reads again. Unflatten to the same shape is the copy.
    """
    reordered: dict[str, str] = {}
    specs, nodes = dict(graph.specs), []
    for node in graph.nodes:
        if type(node.op) in _CONV:
            for name in node.inputs:
                spec = specs[name]
                wide = len(spec.shape) == 4 and spec.shape[1] >= _MANY_CHANNELS
                if wide and graph.role(name) is Role.INPUT and name not in reordered:
                    reordered[name] = f"{name}.nhwc"
                    specs[reordered[name]] = spec
                    copy = Unflatten(spec.shape[1:])
                    nodes.append(Node(copy, (name,), (reordered[name],), node.layer))
        inputs = tuple(reordered.get(name, name) for name in node.inputs)
        nodes.append(replace(node, inputs=inputs))
    return graph.replacing(specs=specs, nodes=tuple(nodes))


def operand(node: Node, index: int) -> str:
    """A node's tensors, inputs first, then outputs."""
    return (*node.inputs, *node.outputs)[index]


def _image_layouts(graph: Graph) -> dict[str, Layout]:
    """NHWC for every rank-4 tensor that the computation makes, filter gradients apart."""
    filters = {operand(node, at) for node, at in _nodes_of(graph, _CONV)}
    return {
        name: NHWC
        for name, spec in graph.specs.items()
        if len(spec.shape) == 4 and graph.role(name) is Role.TRANSIENT and name not in filters
    }


def _filter_layouts(graph: Graph) -> dict[str, Layout]:
    return {operand(node, at): KRSC for node, at in _nodes_of(graph, _CONV)}


def _nodes_of(graph: Graph, table: Mapping[Any, int]) -> Iterable[tuple[Node, int]]:
    for node in graph.nodes:
        at = table.get(type(node.op))
        if at is not None:
            yield node, at


class _FlatGroups:
    """Flattened tensors joined by element-wise ops: all of a group share one layout or none."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.leader: dict[str, str] = {}

    def find(self, name: str) -> str:
        while (up := self.leader.get(name, name)) != name:
            name = up
        return name

    def join(self, names: Iterable[str]) -> None:
        first, *rest = (self.find(name) for name in names)
        for other in rest:
            if other != first:
                self.leader[other] = first

    def members(self) -> dict[str, list[str]]:
        groups: dict[str, list[str]] = {}
        for name, spec in self.graph.specs.items():
            if len(spec.shape) == 2:
                groups.setdefault(self.find(name), []).append(name)
        return groups


def _flat_layouts(graph: Graph, held: Mapping[str, TensorSpec]) -> dict[str, Layout]:
    """Layouts of flattened activations, and of the Linear weights that meet them."""
    groups = _FlatGroups(graph)
    for node in graph.nodes:
        if isinstance(node.op, _ELEMENTWISE):
            groups.join((*node.inputs, *node.outputs))
    layouts: dict[str, Layout] = {}
    weights: dict[str, set[Layout]] = {}
    for members in groups.members().values():
        layout = _flat_layout(graph, set(members))
        met = [operand(node, at) for node, (_, at) in _linear_meeting(graph, set(members))]
        if any(name in held and held[name].layout != layout for name in met):
            layout = ROW_MAJOR  # e.g. the network trains with a dropout here that is gone now
        for name in met:
            weights.setdefault(name, set()).add(layout)
        if layout is not ROW_MAJOR:
            layouts.update(dict.fromkeys(members, layout))
    torn = {name for name, wanted in weights.items() if len(wanted) > 1}
    if torn:
        return {}  # a weight shared by two orders: keep everything row-major
    layouts.update({name: wanted.pop() for name, wanted in weights.items()})
    return layouts


def _linear_meeting(graph: Graph, group: set[str]) -> Iterable[tuple[Node, tuple[int, int]]]:
    for node in graph.nodes:
        at = _LINEAR.get(type(node.op))
        if at is not None and operand(node, at[0]) in group:
            yield node, at


def _flat_layout(graph: Graph, group: set[str]) -> Layout:
    """The one flattened NHWC layout that serves every use of the group, or ROW_MAJOR."""
    images = set()
    for node in graph.nodes:
        touched = [i for i, name in enumerate((*node.inputs, *node.outputs)) if name in group]
        if not touched or isinstance(node.op, _ELEMENTWISE):
            continue
        if isinstance(node.op, Flatten | Unflatten):
            other = node.inputs[0] if node.outputs[0] in group else node.outputs[0]
            images.add((graph.specs[other].shape[1:], graph.role(other)))
        elif not (type(node.op) in _LINEAR and touched == [_LINEAR[type(node.op)][0]]):
            return ROW_MAJOR
    if len(images) != 1 or any(graph.role(name) is not Role.TRANSIENT for name in group):
        return ROW_MAJOR
    ((shape, role),) = images
    if len(shape) != 3 or role is not Role.TRANSIENT:
        return ROW_MAJOR
    return flattened_nhwc(*shape)


def _follow_parameters(graph: Graph, layouts: dict[str, Layout]) -> dict[str, Layout]:
    """Gradients and optimiser states lie as their parameter does: one flat kernel updates all."""
    followed: dict[str, Layout] = {}
    for name in graph.named(Role.PARAMETER):
        layout = layouts.get(name, ROW_MAJOR)
        followed[name] = layout
        if grad := graph.gradients.get(name):
            followed[grad] = layout
        for state in graph.named(Role.STATE):
            if state.startswith(f"{name}.") and graph.specs[state].shape == graph.specs[name].shape:
                followed[state] = layout
    for state, value in graph.updates.items():
        followed[value] = followed.get(state, layouts.get(state, ROW_MAJOR))
    return followed


def is_view(graph: Graph, node: Node) -> bool:
    """Whether a Flatten or Unflatten only renames memory: both sides lie in the same order."""
    if not isinstance(node.op, Flatten | Unflatten):
        return False
    before, after = graph.specs[node.inputs[0]], graph.specs[node.outputs[0]]
    if before.layout.order is None and after.layout.order is None:
        return True
    pair = {before.layout.name, after.layout.name}
    return pair == {"nhwc", "nhwc-flat"} or (pair == {"nhwc"} and before.shape == after.shape)
