"""Kernels of biases that stand alone, and of the gradients of unshared ones."""

from __future__ import annotations

import math

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import (
    CHUNK,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.ir import NHWC, Node, Selection, TensorSpec


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32, images row-major or NHWC; biases are row-major."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    if node.op.name == "UnsharedBiasGrad":
        return _unshared_grad(node, specs)
    return _add_bias(node, specs)


def _add_bias(node: Node, specs: Specs) -> Selection | None:
    y, bias = specs[node.outputs[0]], specs[node.inputs[1]]
    last, build = same_order(y.layout, NHWC), Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None or not (last or y.layout.order is None) or bias.layout.order is not None:
        return None
    inner = math.prod(y.shape[2:])
    add: Argument = Tensor(node.inputs[1])
    shared = len(bias.shape) == 1
    planar = shared and not last and inner > 1
    if shared:
        width = inner if planar else y.shape[1]
    else:
        width = bias.size
        add = _reordered(build, add, bias, y, last)
    rows = y.size // width if width else 0
    step = max(1, CHUNK // max(width, 1))
    arguments = (x, add, Tensor(node.outputs[0]), rows, width, step, y.shape[1])
    build.add("add_bias", {"PLANAR": int(planar)}, arguments, ceil_div(rows, step))
    return build.selection("add_bias")


def _reordered(
    build: Builder, bias: Argument, spec: TensorSpec, image: TensorSpec, last: bool
) -> Argument:
    """The bias of every pixel in the order of the image, copied there if need be."""
    if not last:
        return bias
    place = build.workspace(spec.nbytes)
    build.transpose(bias, place, 1, image.shape[1], math.prod(image.shape[2:]))
    return place


def _unshared_grad(node: Node, specs: Specs) -> Selection | None:
    dy, db = specs[node.inputs[0]], specs[node.outputs[0]]
    last, build = same_order(dy.layout, NHWC), Builder(specs)
    if not (last or dy.layout.order is None) or db.layout.order is not None:
        return None
    target = Tensor(node.outputs[0])
    if dy.shape[0] == 0:
        build.add("fill_zero", {}, (target, db.size), items=1)
        return build.selection("fill_zero")
    place: Argument = build.workspace(db.nbytes) if last else target
    arguments = (Tensor(node.inputs[0]), place, db.size, dy.shape[0])
    chunk = 1024
    build.add("sum_partials", {"CHUNK": chunk}, arguments, ceil_div(db.size, chunk))
    if last:
        build.transpose(place, target, 1, math.prod(dy.shape[2:]), dy.shape[1])
    return build.selection("sum_partials")
