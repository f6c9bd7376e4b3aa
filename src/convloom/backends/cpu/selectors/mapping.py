"""Kernels of maps that act on rows and columns apart: padding, resizing, sampling."""

from __future__ import annotations

from convloom.backends.cpu.launch import Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, dtypes, same_order
from convloom.backends.mapping import map_constants, map_numbers
from convloom.ir import NHWC, Node, Selection


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 images; row-major inputs are reordered first."""
    x, y = specs[node.inputs[0]], specs[node.outputs[0]]
    if set(dtypes(node, specs)) != {"float32"} or not same_order(y.layout, NHWC):
        return None
    build = Builder(specs)
    source = build.input(node.inputs[0], NHWC)
    if source is None:
        return None
    n, channels, height, width = y.shape
    constants, numbers = {"C": channels, **map_constants(node.op)}, map_numbers(node.op)
    tensors = (source, Tensor(node.outputs[0]))
    if node.op.name.endswith("Grad"):
        arguments = (*tensors, height, width, *x.shape[2:], *numbers[1:])
        build.add("spatial_map_grad", constants, arguments, n * height)
    else:
        arguments = (*tensors, *x.shape[2:], height, width, *numbers)
        build.add("spatial_map", constants, arguments, n * height)
    return build.selection(build.phases[-1].kernel.source)
