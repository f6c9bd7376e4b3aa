"""Kernels that only add: the gradient of a bias and the norm of all gradients."""

from __future__ import annotations

import math

from convloom.backends.cuda.launch import Tensor, Workspace
from convloom.backends.cuda.selectors.common import (
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    image_order,
    tensors,
)
from convloom.ir import Node, Selection

#: Elements that one thread of the naive norm adds.
_CHUNK = 256


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
    build.each("bias_grad/naive", constants, (*tensors(node), dy.shape[0]), dy.shape[1], threads=64)
    return build.selection("naive", "bias_grad")


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
    ("GradientNorm", "naive"): _norm,
}
