"""Kernels for normalisation by batch and by group, on NHWC images and on (N, C) matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor, Workspace
from convloom.backends.cpu.selectors.common import (
    CHUNK,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    same_order,
)
from convloom.backends.selecting import activation_constants
from convloom.ir import KRSC, NHWC, Node, Selection, TensorSpec
from convloom.ops import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInference,
    FoldBatchNorm,
    FusedBatchNorm,
    FusedBatchNormGrad,
    FusedBatchNormInference,
    GroupNorm,
    GroupNormGrad,
    Op,
)

#: Elements of a chunk: they fit the second-level cache, where squares are read again.
_CHUNK = 16384
#: Rows a chunk has at least: its partial sums must be few beside it.
_FEWEST_ROWS = 32
#: Channels an item of batch_norm_finish and batch_norm_grad_finish takes.
_FINISHED = 16


@dataclass(frozen=True)
class _Rows:
    """A tensor as images of rows of channels, each image cut into chunks.

    ``step`` is what statistics advance by from image to image.
    """

    channels: int
    images: int
    rows: int
    step: int

    @property
    def chunks(self) -> int:
        """Chunks of an image."""
        rows = max(_FEWEST_ROWS, _CHUNK // max(self.channels, 1))
        return ceil_div(self.rows, rows)

    @property
    def items(self) -> int:
        """Chunks of all images."""
        return self.images * self.chunks

    @property
    def facts(self) -> tuple[int, int, int]:
        """What every kernel takes: channels, rows and chunks of an image."""
        return self.channels, self.rows, self.chunks

    @property
    def tail(self) -> dict[str, int]:
        """The constant that every kernel of rows takes."""
        return {"TAIL": self.channels % 16}


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32; row-major images are reordered first."""
    op = cast(Op, node.op)
    if isinstance(op, FoldBatchNorm):
        return _fold(node, specs)
    counts = isinstance(op, BatchNorm) and op.track
    floats = [kind for kind in dtypes(node, specs) if not (counts and kind == "int64")]
    if set(floats) != {"float32"}:
        return None
    build = Builder(specs)
    places = {name: _rows_of(build, name) for name in dict.fromkeys(node.inputs)}
    if any(place is None for place in places.values()):
        return None
    made = [specs[name] for name in node.outputs if len(specs[name].shape) > 1]
    if not all(_is_rows(spec) for spec in made):
        return None
    inputs = [cast(Argument, places[name]) for name in node.inputs]
    outputs: list[Argument] = [Tensor(name) for name in node.outputs]
    x = specs[node.inputs[1 if isinstance(op, BatchNormGrad | GroupNormGrad) else 0]]
    if isinstance(op, BatchNorm):
        _batch_norm(build, op, _batch(x), inputs, outputs)
    elif isinstance(op, BatchNormInference):
        _inference(build, op, _batch(x), inputs, outputs[0])
    elif isinstance(op, BatchNormGrad):
        _batch_norm_grad(build, op, _batch(x), inputs, outputs)
    elif isinstance(op, GroupNorm):
        _group_norm(build, op, _samples(x), inputs, outputs)
    else:
        _group_norm_grad(build, cast(GroupNormGrad, op), _samples(x), inputs, outputs)
    return build.selection(op.name.lower().removeprefix("fused"))


def _is_rows(spec: TensorSpec) -> bool:
    return same_order(spec.layout, NHWC) if len(spec.shape) == 4 else spec.layout.order is None


def _rows_of(build: Builder, name: str) -> Argument | None:
    """Where a tensor lies as rows of channels; None for one that cannot."""
    spec = build.specs[name]
    if len(spec.shape) == 4:
        return build.input(name, NHWC)
    if len(spec.shape) > 2 or spec.layout.order is not None:
        return None
    return Tensor(name)


def _batch(x: TensorSpec) -> _Rows:
    return _Rows(x.shape[1], 1, x.shape[0] * math.prod(x.shape[2:]), 0)


def _samples(x: TensorSpec) -> _Rows:
    return _Rows(x.shape[1], x.shape[0], math.prod(x.shape[2:]), x.shape[1])


def _row(build: Builder, rows: _Rows, count: int = 1) -> Workspace:
    return build.workspace(4 * count * rows.channels)


def _batch_norm(
    build: Builder, op: BatchNorm, rows: _Rows, inputs: list[Argument], outputs: list[Argument]
) -> None:
    weights, running = inputs[1 : 1 + 2 * op.affine], inputs[1 + 2 * op.affine :][:3]
    partials, scale = _row(build, rows, 2 * rows.items), _row(build, rows)
    count = (running[2], outputs[5]) if op.track else ()
    constants = {**rows.tail, "COUNT": int(op.track)}
    build.add("norm_statistics", constants, (inputs[0], partials, *rows.facts, *count), rows.items)
    tracked: tuple[Argument, ...] = ()
    if op.track:
        share = -1.0 if op.momentum is None else float(op.momentum)
        tracked = (*running[:2], *outputs[3:5], share, outputs[5])
    build.add(
        "batch_norm_finish",
        {"AFFINE": int(op.affine), "TRACK": int(op.track), "CUMULATIVE": int(op.momentum is None)},
        (partials, *rows.facts, float(op.eps), scale, *outputs[1:3], *weights[:1], *tracked),
        ceil_div(rows.channels, _FINISHED),
    )
    tail = op if isinstance(op, FusedBatchNorm) else None
    _apply(build, rows, (inputs[0], outputs[1], scale, outputs[0]), weights[1:], inputs[-1], tail)


def _inference(
    build: Builder, op: BatchNormInference, rows: _Rows, inputs: list[Argument], y: Argument
) -> None:
    weights = inputs[1 : 1 + 2 * op.affine]
    mean, variance = inputs[1 + 2 * op.affine :][:2]
    scale = _scale(build, op, variance, rows.channels, weights[:1])
    tail = op if isinstance(op, FusedBatchNormInference) else None
    _apply(build, rows, (inputs[0], mean, scale, y), weights[1:], inputs[-1], tail)


def _scale(
    build: Builder,
    op: BatchNormInference,
    variance: Argument,
    channels: int,
    weight: list[Argument],
) -> Workspace:
    """weight / sqrt(variance + eps)."""
    scale = build.workspace(4 * channels)
    arguments = (variance, scale, channels, float(op.eps), *weight)
    build.add("batch_norm_scale", {"AFFINE": int(op.affine)}, arguments, ceil_div(channels, 1024))
    return scale


def _apply(
    build: Builder,
    rows: _Rows,
    tensors: tuple[Argument, ...],
    bias: list[Argument],
    last: Argument,
    tail: FusedBatchNorm | FusedBatchNormInference | None,
) -> None:
    adds = tail is not None and tail.add
    constants = {**rows.tail, "AFFINE": len(bias), "ADD": int(adds), **activation_constants(tail)}
    arguments = (*tensors, *rows.facts, rows.step, *bias, *([last] if adds else []))
    build.add("norm_apply", constants, arguments, rows.items)


def _batch_norm_grad(
    build: Builder, op: BatchNormGrad, rows: _Rows, inputs: list[Argument], outputs: list[Argument]
) -> None:
    dy, x, mean, invstd = inputs[:4]
    gate = _Gate.of(op, inputs)
    kept = outputs[-1:] if isinstance(op, FusedBatchNormGrad) and op.keep else []
    partials, factors = _row(build, rows, 2 * rows.items), _row(build, rows, 3)
    _grad_sums(build, rows, (dy, x, mean, partials), gate, kept)
    build.add(
        "batch_norm_grad_finish",
        {"AFFINE": int(op.affine)},
        (partials, *rows.facts, invstd, factors, *inputs[4 : 4 + op.affine], *outputs[1:3])
        if op.affine
        else (partials, *rows.facts, invstd, factors),
        ceil_div(rows.channels, _FINISHED),
    )
    if kept:  # what passed already is read instead
        dy, gate = kept[0], _Gate.of(None, [])
    _grad_apply(build, rows, (dy, x, mean, factors, outputs[0]), gate)


@dataclass(frozen=True)
class _Gate:
    """What kernels/cpu/norm_gate.h takes: constants, and arguments behind all others."""

    constants: dict[str, int]
    arguments: tuple[Argument, ...]

    @classmethod
    def of(cls, op: BatchNormGrad | None, inputs: list[Argument]) -> _Gate:
        """The gate of an op with these inputs; an open one unless an activation is fused."""
        fused = op if isinstance(op, FusedBatchNormGrad) else None
        again = fused is not None and fused.again
        affine = fused is not None and again and fused.affine
        constants = {"AGAIN": int(again), "AFFINE": int(affine), **activation_constants(fused)}
        arguments = inputs[3:] if again else inputs[-1:] if fused else []
        return cls(constants, tuple(arguments))


def _grad_sums(
    build: Builder,
    rows: _Rows,
    tensors: tuple[Argument, ...],
    gate: _Gate,
    kept: list[Argument],
) -> None:
    constants = {**rows.tail, "KEEP": len(kept), **gate.constants}
    arguments = (*tensors, *rows.facts, rows.step, *kept, *gate.arguments)
    build.add("norm_grad_sums", constants, arguments, rows.items)


def _grad_apply(build: Builder, rows: _Rows, tensors: tuple[Argument, ...], gate: _Gate) -> None:
    constants = {**rows.tail, **gate.constants}
    arguments = (*tensors, *rows.facts, rows.step, *gate.arguments)
    build.add("norm_grad_apply", constants, arguments, rows.items)


def _group_norm(
    build: Builder, op: GroupNorm, rows: _Rows, inputs: list[Argument], outputs: list[Argument]
) -> None:
    partials = _row(build, rows, 2 * rows.items)
    means, scales = _row(build, rows, rows.images), _row(build, rows, rows.images)
    constants = {**rows.tail, "COUNT": 0}
    build.add("norm_statistics", constants, (inputs[0], partials, *rows.facts), rows.items)
    weights = inputs[1:]
    build.add(
        "group_norm_finish",
        {"AFFINE": int(op.affine)},
        (
            *(partials, *rows.facts, op.groups, float(op.eps)),
            *(means, scales, *outputs[1:3], *weights[:1]),
        ),
        rows.images,
    )
    _apply(build, rows, (inputs[0], means, scales, outputs[0]), weights[1:], inputs[-1], None)


def _group_norm_grad(
    build: Builder, op: GroupNormGrad, rows: _Rows, inputs: list[Argument], outputs: list[Argument]
) -> None:
    dy, x, mean, invstd, *weight = inputs
    partials, means = _row(build, rows, 2 * rows.items), _row(build, rows, rows.images)
    factors = _row(build, rows, 3 * rows.images)
    parts = [_row(build, rows, rows.images) for _ in outputs[1:]]
    build.add("group_norm_rows", {}, (mean, means, rows.channels, op.groups), rows.images)
    _grad_sums(build, rows, (dy, x, means, partials), _Gate.of(None, []), [])
    build.add(
        "group_norm_grad_finish",
        {"AFFINE": int(op.affine)},
        (partials, *rows.facts, op.groups, invstd, factors, *weight, *parts),
        rows.images,
    )
    _grad_apply(build, rows, (dy, x, means, factors, outputs[0]), _Gate.of(None, []))
    for part, gradient in zip(parts, outputs[1:], strict=True):
        if rows.images:
            facts = (part, gradient, rows.channels, rows.images)
            build.add("sum_partials", {"CHUNK": CHUNK}, facts, ceil_div(rows.channels, CHUNK))
        else:
            build.add("fill_zero", {}, (gradient, rows.channels), 1)


def _fold(node: Node, specs: Specs) -> Selection | None:
    """Filters in KRSC or row-major order, both sides alike."""
    op = cast(FoldBatchNorm, node.op)
    w, folded = specs[node.inputs[0]], specs[node.outputs[0]]
    rows = [specs[name].layout.order is None for name in (*node.inputs[1:], node.outputs[1])]
    plain = w.layout.order is None or same_order(w.layout, KRSC)
    alike = same_order(w.layout, folded.layout)
    if set(dtypes(node, specs)) != {"float32"} or not (plain and alike and all(rows)):
        return None
    build = Builder(specs)
    inputs: list[Argument] = [Tensor(name) for name in node.inputs]
    bias, weights = inputs[1 : 1 + op.bias], inputs[1 + op.bias : -2]
    filters, size = w.shape[0], math.prod(w.shape[1:])
    scale = _scale(build, op, inputs[-1], filters, weights[:1])
    outputs = tuple(Tensor(name) for name in node.outputs)
    constants = {"AFFINE": int(op.affine), "BIAS": int(op.bias)}
    arguments = (inputs[0], scale, inputs[-2], *outputs, size, *weights[1:], *bias)
    build.add("fold_batch_norm", constants, arguments, filters)
    return build.selection("fold_batch_norm")
