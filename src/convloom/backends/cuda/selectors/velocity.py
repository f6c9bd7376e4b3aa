"""Kernels for cuda-convnet's update rule, and the limits on filters behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import ABSENT, Builder, Specs
from convloom.backends.selecting import Learning, learning
from convloom.ir import Node, Selection
from convloom.ops import VelocitySGD


def _each_parameter(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 parameters; gradients and states must lie as their parameter does."""
    op = cast(VelocitySGD, node.op)
    found = learning(node, specs)
    if found is None:
        return None
    build, hyper = Builder(specs), Tensor(node.inputs[0])
    for i, one in enumerate(found):
        spec = specs[one.w]
        summing = {"SUMMING": int(op.summing)}
        kind = {"DIVIDED": int(one.divisors is not None), "ADAPTIVE": int(bool(one.means))}
        arguments = (hyper, i, op.count, *_arguments(one, spec.size))
        build.each("velocity_sgd/naive", {**kind, **summing}, (*arguments, op.every), spec.size)
        filters = spec.shape[0] if spec.shape else 1
        for limit in op.limits[i]:
            facts = (filters, spec.size // filters, limit.low, limit.high)
            constants = {"CENTRED": int(limit.centred), **summing}
            last = (hyper, op.slots - 1)
            build.each(
                "limit_filters/naive", constants, (Tensor(one.new_w), *facts, *last), filters
            )
    return build.selection("naive", "velocity_sgd")


def _arguments(one: Learning, size: int) -> tuple[Argument, ...]:
    """What the kernel takes of a parameter behind its rates."""
    tensors = (Tensor(name) for name in (one.w, one.g, one.v, one.new_w, one.new_v))
    divisors = Tensor(one.divisors) if one.divisors else ABSENT
    means: Sequence[Argument] = [Tensor(name) for name in (*one.means, *one.new_means)] or [
        ABSENT
    ] * 4
    sums: Sequence[Argument] = [Tensor(name) for name in one.sums] or [ABSENT] * 2
    return (*tensors, size, divisors, one.row, *means, one.floor, *sums)


LADDER = {("VelocitySGD", "naive"): _each_parameter}
