"""Kernels of biases that stand alone, and of the gradients of unshared ones."""

from __future__ import annotations

import math

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    THREADS,
    Builder,
    Specs,
    View,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    row_major,
)
from convloom.ir import Node, Selection, TensorSpec

#: Elements of an image that 32 bits can count.
_INDEXED = 2**31


def _add_bias(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 of any rank, row-major, and NHWC images; biases are row-major."""
    return _added(node, specs, "naive")


def _add_bias_fours(node: Node, specs: Specs) -> Selection | None:
    """Serves NHWC images with channels in fours."""
    y = specs[node.outputs[0]]
    fours = channels_last(y) and y.shape[1] % 4 == 0 and math.prod(y.shape[1:]) < _INDEXED
    return _added(node, specs, "tiled") if fours else None


def _added(node: Node, specs: Specs, rung: str) -> Selection | None:
    y, bias = specs[node.outputs[0]], specs[node.inputs[1]]
    if set(dtypes(node, specs)) != {"float32"} or not image_order(y) or not row_major(bias):
        return None
    build = Builder(specs)
    x = build.input(node.inputs[0], y.layout)
    if x is None:
        return None
    channels, height, width = _image(y)
    constants = {"C": channels, "H": height, "W": width}
    constants |= {"ROW": int(not channels_last(y)), "UNSHARED": int(len(bias.shape) > 1)}
    arguments: tuple[Argument, ...] = (x, Tensor(node.inputs[1]), Tensor(node.outputs[0]))
    if rung == "naive":
        build.each("add_bias/naive", constants, (*arguments, y.size), y.size)
    else:
        blocks = y.shape[0] * ceil_div(channels * height * width // 4, THREADS)
        build.add("add_bias/tiled", constants, arguments, blocks)
    return build.selection(rung, "add_bias")


def _unshared_grad(node: Node, specs: Specs) -> Selection | None:
    """The samples are partial sums of one another; a sum in NHWC order is then reordered."""
    dy, db = specs[node.inputs[0]], specs[node.outputs[0]]
    if set(dtypes(node, specs)) != {"float32"} or not image_order(dy) or not row_major(db):
        return None
    build, target = Builder(specs), Tensor(node.outputs[0])
    last = channels_last(dy)
    place: Argument = build.workspace(db.nbytes) if last else target
    arguments = (Tensor(node.inputs[0]), place, ABSENT, dy.shape[0])
    build.each("sum_partials/naive", {"FIRST": db.size, "SECOND": 0}, arguments, db.size)
    if last:
        image = _image(dy)
        build.copy(place, target, 1, image, (View.of(image, True), View.of(image, False)), False)
    return build.selection("naive", "sum_partials")


def _image(spec: TensorSpec) -> tuple[int, int, int]:
    """(channels, rows, columns) of a sample; axes beyond the third count as columns."""
    shape = (*spec.shape, 1, 1)
    return shape[1], shape[2], math.prod(shape[3:])


LADDER = {
    ("AddBias", "naive"): _add_bias,
    ("AddBias", "tiled"): _add_bias_fours,
    ("UnsharedBiasGrad", "naive"): _unshared_grad,
}
