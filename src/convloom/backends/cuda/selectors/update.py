"""Kernels for the update rules."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import ABSENT, Builder, Specs, ceil_div
from convloom.backends.selecting import alike
from convloom.ir import Node, Selection
from convloom.ops import SGD, AdamW

#: Parameters that a fused launch takes, and elements that a block of it takes.
_AT_ONCE, _CHUNK = 8, 1024


def _each_parameter(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 parameters; gradients and states must lie as their parameter does."""
    op = cast(SGD | AdamW, node.op)
    groups = _groups(node)
    if not alike(groups, specs):
        return None
    build, source = Builder(specs), op.name.lower()
    for i in range(op.count):
        mine = [group[i] for group in groups]
        size = specs[mine[0]].size
        facts = (size, float(op.rate[i]), float(op.decay[i]))
        arguments = (*_controls(node), *(Tensor(name) for name in mine), *facts)
        build.each(f"{source}/naive", _constants(op), arguments, size)
    return build.selection("naive", source)


def _eight_parameters(node: Node, specs: Specs) -> Selection | None:
    """As the naive rung, with one launch for every eight parameters."""
    op = cast(SGD | AdamW, node.op)
    groups = _groups(node)
    if not alike(groups, specs):
        return None
    build, source = Builder(specs), op.name.lower()
    for first in range(0, op.count, _AT_ONCE):
        taken = range(first, min(first + _AT_ONCE, op.count))
        arguments: list[Argument] = list(_controls(node))
        for i in taken:
            mine = [group[i] for group in groups]
            facts = (specs[mine[0]].size, float(op.rate[i]), float(op.decay[i]))
            arguments += [*(Tensor(name) for name in mine), *facts]
        arguments += (_AT_ONCE - len(taken)) * [*(ABSENT for _ in groups), 0, 0.0, 0.0]
        constants = _constants(op) | {"COUNT": len(taken), "CHUNK": _CHUNK}
        blocks = sum(ceil_div(specs[groups[0][i]].size, _CHUNK) for i in taken)
        build.add(f"{source}/fused", constants, tuple(arguments), blocks)
    return build.selection("fused", source)


def _groups(node: Node) -> list[tuple[str, ...]]:
    """Parameters, gradients, each state, then new parameters and each new state."""
    op = cast(SGD | AdamW, node.op)
    step = op.count or 1
    inputs, outputs = node.inputs[op.first :], node.outputs
    return [
        *(inputs[i : i + step] for i in range(0, len(inputs), step)),
        *(outputs[i : i + step] for i in range(0, len(outputs), step)),
    ]


def _controls(node: Node) -> tuple[Argument, Argument]:
    """The hyper vector, and the norm where gradients are clipped by it."""
    clipped = cast(SGD | AdamW, node.op).clip
    return Tensor(node.inputs[0]), Tensor(node.inputs[1]) if clipped else ABSENT


def _constants(op: SGD | AdamW) -> dict[str, int]:
    constants = {"CLIP": int(op.clip)}
    return constants | {"NESTEROV": int(op.nesterov)} if isinstance(op, SGD) else constants


LADDER = {
    ("SGD", "naive"): _each_parameter,
    ("AdamW", "naive"): _each_parameter,
    ("SGD", "fused"): _eight_parameters,
    ("AdamW", "fused"): _eight_parameters,
}
