"""Kernels that move elements: Concat, Slice, Figures, and reshapes that reorder memory."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes, same_order
from convloom.ir import NHWC, ROW_MAJOR, Node, Selection, TensorSpec
from convloom.ops import Slice

#: Elements an item copies, about.
_CHUNK = 16384


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32, all tensors row-major or all NHWC; reshapes also between the two."""
    if set(dtypes(node, specs)) != {"float32"}:
        return None
    if node.op.name in ("Flatten", "Unflatten"):
        return _reorder(node, specs)
    tensors = [specs[name] for name in (*node.inputs, *node.outputs)]
    last = tensors[-1].layout
    if last.order is not None and not same_order(last, NHWC):
        return None
    build = Builder(specs)
    if node.op.name == "Concat":
        return _concat(build, node)
    return _figures(build, node) if node.op.name == "Figures" else _slice(build, node)


def _figures(build: Builder, node: Node) -> Selection | None:
    at = 0
    for name in node.inputs:
        source = build.input(name, ROW_MAJOR)
        if source is None:
            return None
        size = build.specs[name].size
        _copy(build, source, Tensor(node.outputs[0], 4 * at), size, size, size, 1)
        at += size
    return build.selection("copy_rows")


def _concat(build: Builder, node: Node) -> Selection | None:
    (output,) = node.outputs
    whole, at = build.specs[output], 0
    for name in node.inputs:
        source = build.input(name, whole.layout)
        if source is None:
            return None
        width, rows = _row(build.specs[name].with_layout(whole.layout))
        target = Tensor(output, 4 * at)
        _copy(build, source, target, width, width, _row(whole)[0], rows)
        at += width
    return build.selection("copy_rows")


def _slice(build: Builder, node: Node) -> Selection | None:
    op = cast(Slice, node.op)
    part, whole = build.specs[node.outputs[0]], build.specs[node.inputs[0]]
    source = build.input(node.inputs[0], part.layout)
    if source is None:
        return None
    row, rows = _row(whole.with_layout(part.layout))
    channel = row // whole.shape[1] if whole.shape[1] else 0
    width = _row(part)[0]
    first = replace(source, offset=source.offset + 4 * op.start * channel)
    _copy(build, first, Tensor(node.outputs[0]), width, row, width, rows)
    return build.selection("copy_rows")


def _row(spec: TensorSpec) -> tuple[int, int]:
    """Elements that lie together for each (image) or (image, pixel), and how many such rows."""
    if spec.layout.order is None:
        return math.prod(spec.shape[1:]), spec.shape[0]
    return spec.shape[1], spec.shape[0] * spec.shape[2] * spec.shape[3]


def _copy(
    build: Builder,
    source: Argument,
    target: Tensor,
    width: int,
    from_row: int,
    to_row: int,
    rows: int,
) -> None:
    step = max(1, _CHUNK // max(width, 1))
    arguments: tuple[Argument, ...] = (source, target, width, from_row, to_row, rows, step)
    build.add("copy_rows", {}, arguments, ceil_div(rows, step) if width else 0)


def _reorder(node: Node, specs: Specs) -> Selection | None:
    """Between the row-major and the NHWC order of one image, or a plain copy."""
    before, after = specs[node.inputs[0]], specs[node.outputs[0]]
    image = before if len(before.shape) == 4 else after
    orders = _channels_last(before, image), _channels_last(after, image)
    if None in orders:
        return None
    build = Builder(specs)
    source, target = Tensor(node.inputs[0]), Tensor(node.outputs[0])
    n = before.shape[0]
    if orders[0] == orders[1]:
        width = math.prod(before.shape[1:])
        _copy(build, source, target, width, width, width, n)
        return build.selection("copy_rows")
    channels, pixels = image.shape[1], image.shape[2] * image.shape[3]
    rows, cols = (pixels, channels) if orders[0] else (channels, pixels)
    build.transpose(source, target, n, rows, cols)
    return build.selection("transpose")


def _channels_last(spec: TensorSpec, image: TensorSpec) -> bool | None:
    """Whether the memory is in the NHWC order of ``image``; None for an order of another kind."""
    layout = spec.layout
    if layout.order is None:
        return False
    if layout.order != NHWC.order or len(image.shape) != 4:
        return None
    if layout.view is None:
        return True if spec.shape == image.shape else None
    return True if layout.view == (-1, *image.shape[1:]) else None
