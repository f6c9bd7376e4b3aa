"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import ABSENT, Builder, Specs
from convloom.backends.selecting import velocity_groups
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def _each_parameter(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 parameters; gradients and velocities must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    groups = velocity_groups(node, specs)
    if groups is None:
        return None
    build, hyper = Builder(specs), Tensor(node.inputs[0])
    for i, mine in enumerate(zip(*groups, strict=True)):
        first, divided = specs[mine[0]], i in op.divisors
        filters = first.shape[0] if first.shape else 1
        divisors: Argument = Tensor(node.inputs[op.divisors[i]]) if divided else ABSENT
        own = (Tensor(name) for name in mine)
        rows = (divisors, first.size // max(filters, 1))
        arguments: tuple[Argument, ...] = (hyper, i, op.count, *own, first.size, *rows)
        build.each("velocity_sgd/naive", {"DIVIDED": int(divided)}, arguments, first.size)
        for limit in op.limits[i]:
            facts = (filters, first.size // filters, limit.low, limit.high)
            constants, new = {"CENTRED": int(limit.centred)}, Tensor(node.outputs[i])
            build.each("limit_filters/naive", constants, (new, *facts), filters)
    return build.selection("naive", "velocity_sgd")


LADDER = {("VelocitySGD", "naive"): _each_parameter}
