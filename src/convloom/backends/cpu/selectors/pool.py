"""Kernels for pooling and its gradients, on NHWC images."""

from __future__ import annotations

from collections.abc import Callable

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, dtypes, same_order
from convloom.backends.pooling import divisor_constants, maximum_constants, window_constants
from convloom.ir import NHWC, Node, Selection

_Arguments = tuple[Argument, ...]

#: The address of a tensor that is not there.
_ABSENT = 0


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 images; row-major inputs are reordered first."""
    images = [specs[name] for name in node.outputs]
    indices = {"int32"} if "Max" in node.op.name else set()
    if not set(dtypes(node, specs)) <= {"float32"} | indices:
        return None
    if any(not same_order(spec.layout, NHWC) for spec in images):
        return None
    build = Builder(specs)
    inputs = [build.input(name, NHWC) for name in node.inputs]
    arguments = tuple(place for place in inputs if place is not None)
    if len(arguments) < len(inputs):
        return None
    _KERNELS[node.op.name](build, node, arguments, tuple(Tensor(name) for name in node.outputs))
    return build.selection(build.phases[-1].kernel.source)


def _max_pool(build: Builder, node: Node, inputs: _Arguments, outputs: _Arguments) -> None:
    n, _, rows, cols = build.specs[node.outputs[0]].shape
    channels, *size = build.specs[node.inputs[0]].shape[1:]
    index = outputs[1] if len(outputs) > 1 else _ABSENT
    window = window_constants(node.op) | maximum_constants(node.op)
    constants = {"C": channels, **window, "INDEX": int(index != _ABSENT)}
    build.add("max_pool", constants, (*inputs, outputs[0], index, *size, rows, cols), n * rows)


def _max_pool_grad(build: Builder, node: Node, inputs: _Arguments, outputs: _Arguments) -> None:
    n, channels, height, width = build.specs[node.outputs[0]].shape
    rows, cols = build.specs[node.inputs[0]].shape[2:]
    maxima = inputs[2] if len(inputs) > 2 else _ABSENT
    constants = {"C": channels, **window_constants(node.op), "TIES": int(maxima != _ABSENT)}
    tensors = (*inputs[:2], maxima, *outputs)
    build.add("max_pool_grad", constants, (*tensors, height, width, rows, cols), n * height)


def _avg_pool(build: Builder, node: Node, inputs: _Arguments, outputs: _Arguments) -> None:
    n, channels, rows, cols = build.specs[node.outputs[0]].shape
    size = build.specs[node.inputs[0]].shape[2:]
    constants = {"C": channels, **window_constants(node.op), **divisor_constants(node.op)}
    build.add("avg_pool", constants, (*inputs, *outputs, *size, rows, cols), n * rows)


def _avg_pool_grad(build: Builder, node: Node, inputs: _Arguments, outputs: _Arguments) -> None:
    n, channels, height, width = build.specs[node.outputs[0]].shape
    rows, cols = build.specs[node.inputs[0]].shape[2:]
    constants = {"C": channels, **window_constants(node.op), **divisor_constants(node.op)}
    build.add(
        "avg_pool_grad", constants, (*inputs, *outputs, height, width, rows, cols), n * height
    )


_Build = Callable[[Builder, Node, _Arguments, _Arguments], None]
_KERNELS: dict[str, _Build] = {
    "MaxPool2d": _max_pool,
    "MaxPool2dGrad": _max_pool_grad,
    "AvgPool2d": _avg_pool,
    "AvgPool2dGrad": _avg_pool_grad,
    "AdaptiveMaxPool2d": _max_pool,
    "AdaptiveMaxPool2dGrad": _max_pool_grad,
    "AdaptiveAvgPool2d": _avg_pool,
    "AdaptiveAvgPool2dGrad": _avg_pool_grad,
}
