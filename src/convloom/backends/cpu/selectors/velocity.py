"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import CHUNK, Builder, Specs, ceil_div
from convloom.backends.selecting import velocity_groups
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 parameters; gradients and velocities must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    groups = velocity_groups(node, specs)
    if groups is None:
        return None
    sizes = [specs[name].size for name in groups[0]]
    divisors: list[Argument] = [0] * op.count
    rows = [0] * op.count
    for i, place in op.divisors.items():
        divisors[i] = Tensor(node.inputs[place])
        rows[i] = sizes[i] // specs[groups[0][i]].shape[0]
    arguments: tuple[Argument, ...] = (
        *(Tensor(node.inputs[0]), *(Tensor(name) for group in groups for name in group)),
        *(*divisors, *rows, *sizes),
    )
    build = Builder(specs)
    items = sum(ceil_div(size, CHUNK) for size in sizes)
    build.add("velocity_sgd", {"COUNT": op.count, "CHUNK": CHUNK}, arguments, items)
    for name, limits in zip(node.outputs, op.limits, strict=False):
        for limit in limits:
            filters = specs[name].shape[0]
            facts = (specs[name].size // filters, limit.low, limit.high)
            constants = {"CENTRED": int(limit.centred)}
            build.add("limit_filters", constants, (Tensor(name), *facts), filters)
    return build.selection("velocity_sgd")
