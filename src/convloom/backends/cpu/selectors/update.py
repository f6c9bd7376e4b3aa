"""Kernels for the update rules and the gradient norm: one phase walks all parameters."""

from __future__ import annotations

from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import CHUNK, Builder, Specs, ceil_div
from convloom.backends.selecting import alike
from convloom.ir import Node, Selection
from convloom.ops import SGD, AdamW, GradientNorm


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 parameters; gradients and states must lie as their parameter does."""
    if isinstance(node.op, GradientNorm):
        return _norm(node, specs)
    op = cast(SGD | AdamW, node.op)
    count = op.count
    inputs, outputs = node.inputs[op.first :], node.outputs
    groups = [inputs[i : i + count] for i in range(0, len(inputs), count or 1)]
    made = [outputs[i : i + count] for i in range(0, len(outputs), count or 1)]
    if not groups or not alike([*groups, *made], specs):
        return None
    sizes = [specs[name].size for name in groups[0]]
    arguments: tuple[Argument, ...] = (
        *(Tensor(name) for name in node.inputs[: op.first]),
        *(Tensor(name) for group in (*groups, *made) for name in group),
        *sizes,
        *(float(rate) for rate in op.rate),
        *(float(decay) for decay in op.decay),
    )
    constants = {"COUNT": count, "CHUNK": CHUNK, "CLIP": int(op.clip)}
    if isinstance(op, SGD):
        constants["NESTEROV"] = int(op.nesterov)
    build = Builder(specs)
    source = "sgd" if isinstance(op, SGD) else "adamw"
    build.add(source, constants, arguments, _items(sizes))
    return build.selection(source)


def _norm(node: Node, specs: Specs) -> Selection | None:
    if any(specs[name].dtype != "float32" for name in node.inputs):
        return None
    sizes = [specs[name].size for name in node.inputs]
    items = _items(sizes)
    build = Builder(specs)
    partial = build.workspace(8 * max(items, 1))
    arguments: tuple[Argument, ...] = (partial, *(Tensor(name) for name in node.inputs), *sizes)
    build.add("gradient_norm", {"COUNT": len(sizes), "CHUNK": CHUNK}, arguments, items)
    build.add("gradient_norm_root", {}, (partial, Tensor(node.outputs[0]), items), 1)
    return build.selection("gradient_norm")


def _items(sizes: list[int]) -> int:
    return sum(ceil_div(size, CHUNK) for size in sizes)
