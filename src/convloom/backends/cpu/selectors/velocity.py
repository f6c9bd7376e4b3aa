"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import CHUNK, Builder, Specs, ceil_div
from convloom.backends.selecting import alike, rows_together
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 parameters; gradients and velocities must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    names = (*node.inputs[1:], *node.outputs)
    groups = [names[i : i + op.count] for i in range(0, len(names), op.count or 1)]
    limits = dict(zip(node.outputs, op.limits, strict=False))
    together = all(rows_together(specs[name]) for name, limit in limits.items() if limit)
    if not together or not alike(groups, specs):
        return None
    sizes = [specs[name].size for name in groups[0]]
    arguments: tuple[Argument, ...] = (
        Tensor(node.inputs[0]),
        *(Tensor(name) for group in groups for name in group),
        *sizes,
    )
    build = Builder(specs)
    items = sum(ceil_div(size, CHUNK) for size in sizes)
    build.add("velocity_sgd", {"COUNT": op.count, "CHUNK": CHUNK}, arguments, items)
    for name, limit in limits.items():
        if limit is not None:
            filters = specs[name].shape[0]
            facts = (specs[name].size // filters, limit.low, limit.high)
            constants = {"CENTRED": int(limit.centred)}
            build.add("limit_filters", constants, (Tensor(name), *facts), filters)
    return build.selection("velocity_sgd")
