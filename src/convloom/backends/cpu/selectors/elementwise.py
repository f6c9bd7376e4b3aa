"""Kernels for ops that treat every element alike: activations, sums, and gradients."""

from __future__ import annotations

from convloom.backends.cpu.launch import Tensor, Workspace
from convloom.backends.cpu.selectors.common import (
    CHUNK,
    Builder,
    Specs,
    ceil_div,
    dtypes,
)
from convloom.backends.selecting import activation_number
from convloom.ir import Node, Selection
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    FusedSum,
    WeightedSum,
)

_SOURCES = {"ReLU": "relu", "ReLUGrad": "relu_grad", "Mul": "product"}


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32; inputs in another order than the output are reordered first."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    (output,) = node.outputs
    build = Builder(specs)
    places = [build.input(name, specs[output].layout) for name in node.inputs]
    inputs = [place for place in places if place is not None]
    if len(inputs) < len(places):
        return None
    if isinstance(node.op, Activation | ActivationGrad):
        return _activation(node.op, build, inputs, Tensor(output))
    if isinstance(node.op, Add | WeightedSum | FusedSum):
        return _sum(node.op, build, inputs, Tensor(output))
    size, source = specs[output].size, _SOURCES[node.op.name]
    arguments = (*inputs, Tensor(output), size)
    build.add(source, {"CHUNK": CHUNK}, arguments, ceil_div(size, CHUNK))
    return build.selection(source)


def _activation(
    op: Activation | ActivationGrad, build: Builder, inputs: list[Tensor | Workspace], to: Tensor
) -> Selection:
    """A gradient that reads nothing but dy is given it twice."""
    backward = isinstance(op, ActivationGrad)
    source = "activation_grad" if backward else "activation"
    read = (inputs[0], inputs[-1]) if backward else (inputs[0],)
    size = build.specs[to.name].size
    constants = {"CHUNK": CHUNK, "KIND": activation_number(op.kind)}
    arguments = (*read, to, size, float(op.a), float(op.b))
    build.add(source, constants, arguments, ceil_div(size, CHUNK))
    return build.selection(source)


def _sum(
    op: Add | WeightedSum | FusedSum, build: Builder, inputs: list[Tensor | Workspace], to: Tensor
) -> Selection:
    """Any number of inputs, in one pass."""
    coefficients = getattr(op, "coefficients", (1.0,) * len(inputs))
    constants = {
        "CHUNK": CHUNK,
        "COUNT": len(inputs),
        "SCALED": int(set(coefficients) != {1.0}),
        "RELU": int(isinstance(op, FusedSum)),
    }
    size = build.specs[to.name].size
    arguments = (*inputs, to, size, *map(float, coefficients))
    build.add("weighted_sum", constants, arguments, ceil_div(size, CHUNK))
    return build.selection("weighted_sum")
