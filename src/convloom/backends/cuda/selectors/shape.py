"""Kernels that move elements: Concat, Slice, Figures, and reshapes that reorder memory."""

from __future__ import annotations

import math
from typing import cast

from convloom.backends.cuda.launch import Tensor
from convloom.backends.cuda.selectors.common import (
    Builder,
    Specs,
    View,
    channels_last,
    dtypes,
    image_order,
    row_major,
)
from convloom.ir import NHWC, Node, Selection, TensorSpec
from convloom.ops import Slice

#: Elements of an image that 32 bits can count.
_INDEXED = 2**31


def _concat(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 tensors, each row-major or NHWC."""
    return _joined(node, specs, "naive") if _served(node, specs) else None


def _slice(node: Node, specs: Specs) -> Selection | None:
    return _cut(node, specs, "naive") if _served(node, specs) else None


def _concat_fours(node: Node, specs: Specs) -> Selection | None:
    """Serves NHWC images whose channels all go in fours."""
    return _joined(node, specs, "tiled") if _fours(node, specs) else None


def _slice_fours(node: Node, specs: Specs) -> Selection | None:
    start = cast(Slice, node.op).start
    return _cut(node, specs, "tiled") if start % 4 == 0 and _fours(node, specs) else None


def _joined(node: Node, specs: Specs, rung: str) -> Selection:
    build, whole = Builder(specs), specs[node.outputs[0]]
    samples, shape = _images(whole)
    target, start = _view(whole), 0
    for name in node.inputs:
        part = _images(specs[name])[1]
        to = Tensor(node.outputs[0], 4 * start * target.channel)
        views = _view(specs[name]), target
        build.copy(Tensor(name), to, samples, part, views, channels_last(whole), rung)
        start += part[0]
    assert start == shape[0]
    return build.selection(rung, "copy_strided")


def _cut(node: Node, specs: Specs, rung: str) -> Selection:
    op = cast(Slice, node.op)
    build, part = Builder(specs), specs[node.outputs[0]]
    samples, shape = _images(part)
    source = _view(specs[node.inputs[0]])
    build.copy(
        Tensor(node.inputs[0], 4 * op.start * source.channel),
        Tensor(node.outputs[0]),
        samples,
        shape,
        (source, _view(part)),
        channels_last(part),
        rung,
    )
    return build.selection(rung, "copy_strided")


def _figures(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major float32."""
    names = (*node.inputs, *node.outputs)
    if set(dtypes(node, specs)) != {"float32"} or not all(row_major(specs[n]) for n in names):
        return None
    build, start = Builder(specs), 0
    for name in node.inputs:
        size = specs[name].size
        views = (View.of((size, 1, 1), False),) * 2
        to = Tensor(node.outputs[0], 4 * start)
        build.copy(Tensor(name), to, 1, (size, 1, 1), views, False)
        start += size
    return build.selection("naive", "copy_strided")


def _fours(node: Node, specs: Specs) -> bool:
    """Whether channels are last everywhere and in fours, and 32 bits count an image's elements."""
    every = [specs[name] for name in (*node.inputs, *node.outputs)]
    return _served(node, specs) and all(
        channels_last(spec)
        and spec.shape[1] % 4 == 0
        and spec.shape[1] * spec.shape[2] * spec.shape[3] < _INDEXED
        for spec in every
    )


def _reshape(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 in the row-major or the NHWC order of one image."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    before, after = specs[node.inputs[0]], specs[node.outputs[0]]
    image = before if len(before.shape) == 4 else after
    orders = _channels_last_of(before, image), _channels_last_of(after, image)
    if orders[0] is None or orders[1] is None:
        return None
    samples, shape = _images(image)
    build = Builder(specs)
    views = View.of(shape, orders[0]), View.of(shape, orders[1])
    build.copy(Tensor(node.inputs[0]), Tensor(node.outputs[0]), samples, shape, views, orders[1])
    return build.selection("naive", "copy_strided")


def _served(node: Node, specs: Specs) -> bool:
    names = (*node.inputs, *node.outputs)
    return set(dtypes(node, specs)) == {"float32"} and all(image_order(specs[n]) for n in names)


def _images(spec: TensorSpec) -> tuple[int, tuple[int, int, int]]:
    """Samples, and (channels, rows, columns) of each; any axes after the third count as columns."""
    shape = (*spec.shape, 1, 1)[: max(4, len(spec.shape))]
    return shape[0], (shape[1], shape[2], math.prod(shape[3:]))


def _view(spec: TensorSpec) -> View:
    return View.of(_images(spec)[1], channels_last(spec))


def _channels_last_of(spec: TensorSpec, image: TensorSpec) -> bool | None:
    """Whether the memory is in the NHWC order of ``image``; None for an order of another kind."""
    layout = spec.layout
    if layout.order is None:
        return False
    if layout.order != NHWC.order or len(image.shape) != 4:
        return None
    if layout.view is None:
        return True if spec.shape == image.shape else None
    return True if layout.view == (-1, *image.shape[1:]) else None


LADDER = {
    ("Concat", "naive"): _concat,
    ("Concat", "tiled"): _concat_fours,
    ("Slice", "naive"): _slice,
    ("Slice", "tiled"): _slice_fours,
    ("Figures", "naive"): _figures,
    ("Flatten", "naive"): _reshape,
    ("Unflatten", "naive"): _reshape,
}
