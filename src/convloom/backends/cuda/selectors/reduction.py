"""Kernels that only add: the gradient of a bias and the norm of all gradients."""

from __future__ import annotations

import math

from convloom.backends.cuda.launch import Argument, Tensor, Workspace
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
)
from convloom.backends.cuda.selectors.partial import SampleChunks, sum_partials
from convloom.backends.cuda.selectors.tiles import chunks
from convloom.ir import Node, Selection

#: Elements that one thread of the naive norm adds.
_CHUNK = 256

#: Gradients that a launch of the warp norm takes, elements that a block takes, and its threads.
_AT_ONCE, _BLOCK_CHUNK, _THREADS = 8, 4096, 256


def _bias_grad(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 of any rank, row-major, and NHWC images."""
    dy = specs[node.inputs[0]]
    if set(dtypes(node, specs)) != {"float32"} or not image_order(dy):
        return None
    build = Builder(specs)
    constants = {
        "K": dy.shape[1],
        "INNER": math.prod(dy.shape[2:]),
        "ROW": int(not channels_last(dy)),
    }
    split = SampleChunks(build, node.outputs, dy.shape[0])
    arguments = (Tensor(node.inputs[0]), split.outputs[0], dy.shape[0], split.samples)
    build.each("bias_grad/naive", constants, arguments, dy.shape[1] * split.count, threads=64)
    split.add_up()
    return build.selection("naive", "bias_grad")


def _warp_bias_grad(node: Node, specs: Specs) -> Selection | None:
    """Rows of dy are split into chunks, whose partial sums a second launch adds up."""
    dy = specs[node.inputs[0]]
    if set(dtypes(node, specs)) != {"float32"} or not image_order(dy) or dy.shape[1] == 0:
        return None
    channels, inner = dy.shape[1], math.prod(dy.shape[2:])
    planar = inner > 1 and not channels_last(dy)
    rows = dy.shape[0] * (1 if planar else inner)
    across = 1 if planar else min(32, 1 << (channels - 1).bit_length())
    tiles = ceil_div(channels, across)
    least = max(ceil_div(2048, inner), 8) if planar else 2048 // across
    stride = ceil_div(channels, 4) * 4
    length, count = chunks(rows, tiles, 4 * stride, least)
    build = Builder(specs)
    partial = build.workspace(4 * stride * count)
    target = Tensor(node.outputs[0])
    constants = {"K": channels, "INNER": inner, "ROW": int(planar)}
    arguments = (Tensor(node.inputs[0]), partial if count > 1 else target, rows, length)
    build.add("bias_grad/warp", constants, arguments, tiles * count, _THREADS)
    if count > 1:
        no_filters = {"K": channels, "C": 0, "R": 0, "S": 0, "BIAS": 1, "WROW": 0}
        sum_partials(build, no_filters, partial, ABSENT, target, count)
    return build.selection("warp", "bias_grad")


def _warp_norm(node: Node, specs: Specs) -> Selection | None:
    if any(specs[name].dtype != "float32" for name in node.inputs):
        return None
    sizes = [specs[name].size for name in node.inputs]
    blocks = [ceil_div(size, _BLOCK_CHUNK) for size in sizes]
    build = Builder(specs)
    partial = build.workspace(8 * max(sum(blocks), 1))
    constants = {"CHUNK": _BLOCK_CHUNK, "THREADS": _THREADS}
    start = 0
    for first in range(0, len(sizes), _AT_ONCE):
        taken = range(first, min(first + _AT_ONCE, len(sizes)))
        arguments: list[Argument] = [Workspace(partial.offset + 8 * start)]
        for i in taken:
            arguments += [Tensor(node.inputs[i]), sizes[i]]
        arguments += (_AT_ONCE - len(taken)) * [ABSENT, 0]
        count = sum(blocks[i] for i in taken)
        build.add("gradient_norm/warp", constants, tuple(arguments), count, _THREADS)
        start += count
    total = (partial, Tensor(node.outputs[0]), start)
    build.add("gradient_norm_root/warp", {"THREADS": _THREADS}, total, 1, _THREADS)
    return build.selection("warp", "gradient_norm")


def _norm(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 gradients in any order of memory."""
    if any(specs[name].dtype != "float32" for name in node.inputs):
        return None
    sizes = [specs[name].size for name in node.inputs]
    chunks = [ceil_div(size, _CHUNK) for size in sizes]
    build = Builder(specs)
    partial = build.workspace(8 * max(sum(chunks), 1))
    start = 0
    for name, size, count in zip(node.inputs, sizes, chunks, strict=True):
        place = Workspace(partial.offset + 8 * start)
        constants = {"CHUNK": _CHUNK}
        build.each("gradient_norm/naive", constants, (Tensor(name), place, size), count, threads=64)
        start += count
    total = (partial, Tensor(node.outputs[0]), start)
    build.add("gradient_norm_root/naive", {}, total, blocks=1, threads=32)
    return build.selection("naive", "gradient_norm")


LADDER = {
    ("BiasGrad", "naive"): _bias_grad,
    ("BiasGrad", "warp"): _warp_bias_grad,
    ("GradientNorm", "naive"): _norm,
    ("GradientNorm", "warp"): _warp_norm,
}
