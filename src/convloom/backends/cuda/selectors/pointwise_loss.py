"""Kernels for losses that compare each element with its target, and for class numbers as rows."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    row_major,
)
from convloom.backends.selecting import loss_number
from convloom.ir import Node, Selection
from convloom.ops import OneHot, PointwiseLoss, PointwiseLossGrad

#: Elements that one thread of the naive rung adds up.
_EACH = 32
#: Of the warp rung: threads of a block, elements of a thread that one block makes alone, and most
#: blocks, beyond which blocks go round again.
_THREADS, _ROUNDS, _MOST_BLOCKS = 512, 16, 1024


def _naive(node: Node, specs: Specs) -> Selection | None:
    """Serves float32; a target in another order than the output is reordered first."""
    op, build = cast(PointwiseLoss, node.op), Builder(specs)
    compared = _compared(build, node, node.inputs[0])
    if compared is None:
        return None
    x, made = specs[node.inputs[0]], Tensor(node.outputs[0])
    partials = ceil_div(x.size, _EACH)
    partial = build.workspace(8 * max(partials, 1))
    constants = {"KIND": loss_number(op.kind), "EACH": _EACH}
    facts = (x.size, float(op.a))
    build.each("pointwise_loss/naive", constants, (*compared, partial, *facts), partials)
    mean = (partial, made, partials, op.divisor(x.shape))
    build.add("mean_of_partials/naive", {}, mean, blocks=1, threads=32)
    return build.selection("naive", "pointwise_loss")


def _warp(node: Node, specs: Specs) -> Selection | None:
    """Few elements take one launch, many take two."""
    op, build = cast(PointwiseLoss, node.op), Builder(specs)
    compared = _compared(build, node, node.inputs[0])
    if compared is None:
        return None
    x, made = specs[node.inputs[0]], Tensor(node.outputs[0])
    rounds = ceil_div(x.size, _THREADS)
    blocks = 1 if rounds <= _ROUNDS else min(rounds, _MOST_BLOCKS)
    partial = build.workspace(8 * blocks) if blocks > 1 else ABSENT
    divisor = op.divisor(x.shape)
    constants = {"KIND": loss_number(op.kind), "THREADS": _THREADS}
    facts = (x.size, float(op.a), divisor)
    build.add(
        "pointwise_loss/warp", constants, (*compared, partial, made, *facts), blocks, _THREADS
    )
    if blocks > 1:
        mean = (partial, made, blocks, divisor)
        build.add("mean_of_partials/warp", {"THREADS": _THREADS}, mean, 1, _THREADS)
    return build.selection("warp", "pointwise_loss")


def _naive_gradient(node: Node, specs: Specs) -> Selection | None:
    return _gradient(node, specs, "naive", 1)


def _tiled_gradient(node: Node, specs: Specs) -> Selection | None:
    return _gradient(node, specs, "tiled", 4)


def _gradient(node: Node, specs: Specs, rung: str, each: int) -> Selection | None:
    op, build = cast(PointwiseLossGrad, node.op), Builder(specs)
    compared = _compared(build, node, node.outputs[0])
    if compared is None:
        return None
    x = specs[node.outputs[0]]
    places = (*compared, Tensor(node.inputs[-1]), Tensor(node.outputs[0]))
    facts = (x.size, float(op.a), float(max(op.divisor(x.shape), 1)))
    constants = {"KIND": loss_number(op.kind)}
    source = f"pointwise_loss_grad/{rung}"
    build.each(source, constants, (*places, *facts), ceil_div(x.size, each))
    return build.selection(rung, "pointwise_loss_grad")


def _compared(build: Builder, node: Node, like: str) -> tuple[Argument, Argument] | None:
    """The output and its target, in the order of ``like``; the output twice without a target."""
    if set(dtypes(node, build.specs)) != {"float32"}:
        return None
    names = node.inputs[:-1] if isinstance(node.op, PointwiseLossGrad) else node.inputs
    places = [build.input(name, build.specs[like].layout) for name in names]
    first, last = places[0], places[-1]
    return None if first is None or last is None else (first, last)


def _one_hot(node: Node, specs: Specs) -> Selection | None:
    op, rows = cast(OneHot, node.op), specs[node.outputs[0]]
    if not row_major(rows):
        return None
    build = Builder(specs)
    arguments = (Tensor(node.inputs[0]), Tensor(node.outputs[0]), rows.size, op.classes)
    build.each("one_hot/naive", {}, arguments, rows.size)
    return build.selection("naive", "one_hot")


LADDER = {
    ("PointwiseLoss", "naive"): _naive,
    ("PointwiseLoss", "warp"): _warp,
    ("PointwiseLossGrad", "naive"): _naive_gradient,
    ("PointwiseLossGrad", "tiled"): _tiled_gradient,
    ("OneHot", "naive"): _one_hot,
}
