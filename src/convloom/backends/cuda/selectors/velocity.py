"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import Builder, Specs
from convloom.backends.selecting import alike, rows_together
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def _each_parameter(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 parameters; gradients and velocities must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    names = (*node.inputs[1:], *node.outputs)
    groups = [names[i : i + op.count] for i in range(0, len(names), op.count or 1)]
    if not alike(groups, specs):
        return None
    build, hyper = Builder(specs), Tensor(node.inputs[0])
    for i, limit in enumerate(op.limits):
        mine = names[i :: op.count]
        first = specs[mine[0]]
        tensors = (Tensor(name) for name in mine)
        arguments: tuple[Argument, ...] = (hyper, i, op.count, *tensors, first.size)
        build.each("velocity_sgd/naive", {}, arguments, first.size)
        if limit is None:
            continue
        if not rows_together(first):
            return None
        filters = first.shape[0]
        facts = (filters, first.size // filters, limit.low, limit.high)
        new = Tensor(node.outputs[i])
        build.each("limit_filters/naive", {"CENTRED": int(limit.centred)}, (new, *facts), filters)
    return build.selection("naive", "velocity_sgd")


LADDER = {("VelocitySGD", "naive"): _each_parameter}
