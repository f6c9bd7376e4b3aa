"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import CHUNK, Builder, Specs, ceil_div
from convloom.backends.selecting import Learning, learning
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 parameters; gradients and states must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    found = learning(node, specs)
    if found is None:
        return None
    sizes = [specs[one.w].size for one in found]
    each = (_arguments(op, one, size) for one, size in zip(found, sizes, strict=True))
    lists = zip(*each, strict=True)  # the kernel takes all w, then all g, …
    arguments = (Tensor(node.inputs[0]), *(argument for group in lists for argument in group))
    build = Builder(specs)
    items = sum(ceil_div(size, CHUNK) for size in sizes)
    adaptive = int(bool(op.adaptive))
    constants = {"COUNT": op.count, "CHUNK": CHUNK, "ADAPTIVE": adaptive, "EVERY": op.every}
    build.add("velocity_sgd", constants, arguments, items)
    for one, limits in zip(found, op.limits, strict=True):
        for limit in limits:
            filters = specs[one.w].shape[0]
            facts = (specs[one.w].size // filters, limit.low, limit.high)
            constants = {"CENTRED": int(limit.centred), "SUMMING": int(op.summing)}
            last = (Tensor(node.inputs[0]), op.slots - 1)
            build.add("limit_filters", constants, (Tensor(one.new_w), *facts, *last), filters)
    return build.selection("velocity_sgd")


def _arguments(op: VelocitySGD, one: Learning, size: int) -> tuple[Argument, ...]:
    """What the kernel takes of one parameter; what it has not is 0."""
    tensors = (Tensor(name) for name in (one.w, one.g, one.v, one.new_w, one.new_v))
    divisors = Tensor(one.divisors) if one.divisors else 0
    means: Sequence[Argument] = [Tensor(name) for name in (*one.means, *one.new_means)] or [0] * 4
    more: Sequence[Argument] = (*means, one.floor) if op.adaptive else ()
    sums = (Tensor(name) for name in one.sums)
    return (*tensors, divisors, one.row, size, *sums, *more)
