"""Kernels for normalisation by batch and by group, on NHWC images and on (N, C) matrices.

``naive`` is a thread an element, or a channel of a chunk of rows; ``tiled`` a thread four
neighbouring channels of several rows. What follows batch normalisation is fused on ``tiled``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor, Workspace
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
    row_major,
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

#: Threads of a block of rows, and rows of a thread below which a chunk is not worth its sums.
_THREADS, _ROWS = 256, 8
#: Blocks that sum, at most: four for each multiprocessor of an H200, all of them at once.
_BLOCKS = 528
#: Rows a chunk of the naive rung takes.
_NAIVE_ROWS = 256


@dataclass(frozen=True)
class _Rows:
    """A tensor as images of rows of channels; ``step`` is what statistics advance by.

    Attributes:
        rung: whose layout of threads cuts the images.
    """

    channels: int
    images: int
    rows: int
    step: int
    rung: str

    @property
    def tile(self) -> dict[str, int]:
        """The constants of a tiled kernel: channels of a thread, threads across."""
        vector = 4 if self.channels % 4 == 0 else 1
        across = 1
        while across < 32 and across * vector < self.channels:
            across *= 2
        return {"VEC": vector, "ACROSS": across}

    @property
    def columns(self) -> int:
        """Blocks across the channels."""
        tile = self.tile
        return ceil_div(self.channels, tile["VEC"] * tile["ACROSS"])

    @property
    def size(self) -> int:
        """Elements."""
        return self.images * self.rows * self.channels

    @property
    def shortest(self) -> int:
        """Chunks of an image, as many as there may be: for kernels that need not add them up."""
        if self.rung == "naive":
            return _even(self.rows, ceil_div(self.rows, _NAIVE_ROWS))
        return _even(self.rows, ceil_div(self.rows, _THREADS // self.tile["ACROSS"] * _ROWS))

    @property
    def chunks(self) -> int:
        """Chunks of an image in kernels that sum."""
        if self.rung == "naive":
            return self.shortest
        most = min(self.shortest, max(1, _BLOCKS // max(1, self.columns * self.images)))
        return _even(self.rows, most)

    @property
    def facts(self) -> tuple[int, int, int]:
        """What kernels that sum take: channels, rows and chunks of an image."""
        return self.channels, self.rows, self.chunks


def _even(rows: int, chunks: int) -> int:
    """Chunks of one length that ``rows`` take, about as many as asked for; none is empty."""
    return ceil_div(rows, ceil_div(rows, chunks)) if chunks else 0


class _Steps:
    """Appends the launches of a step, each by the kernel of one rung."""

    def __init__(self, build: Builder, rows: _Rows) -> None:
        self.build, self.rows, self.rung = build, rows, rows.rung

    def row(self, count: int = 1) -> Workspace:
        """``count`` rows of channels in the workspace."""
        return self.build.workspace(4 * count * self.rows.channels)

    def partials(self) -> Workspace:
        """Two rows of channels for each chunk."""
        return self.row(2 * self.rows.images * self.rows.chunks)

    def summing(self, name: str, flags: dict[str, int], ends: tuple[Argument, ...]) -> None:
        """A kernel that walks chunks and sums; ``ends`` are its arguments."""
        rows = self.rows
        items = rows.images * rows.chunks
        if self.rung == "naive":
            self.build.each(f"{name}/naive", flags, ends, items * rows.channels)
        else:
            self.build.add(f"{name}/tiled", {**rows.tile, **flags}, ends, items * rows.columns)

    def apply(
        self,
        name: str,
        flags: dict[str, int],
        tensors: tuple[Argument, ...],
        naive: tuple[Argument, ...],
        tiled: tuple[Argument, ...],
    ) -> None:
        """A kernel that walks all elements; each rung has arguments of its own behind ``step``."""
        rows = self.rows
        if self.rung == "naive":
            facts = (rows.channels, rows.rows, rows.step, rows.size)
            self.build.each(f"{name}/naive", flags, (*tensors, *facts, *naive), rows.size)
            return
        chunks = rows.shortest
        facts = (rows.channels, rows.rows, chunks, rows.step)
        blocks = rows.images * chunks * rows.columns
        constants = {**rows.tile, **flags}
        self.build.add(f"{name}/tiled", constants, (*tensors, *facts, *tiled), blocks)

    def channels(self, name: str, flags: dict[str, int], arguments: tuple[Argument, ...]) -> None:
        """A kernel that finishes what chunks have summed, channel by channel."""
        if self.rung == "naive":
            self.build.each(f"{name}/naive", flags, arguments, self.rows.channels, 32)
        else:
            blocks = ceil_div(self.rows.channels, 32)
            self.build.add(f"{name}/tiled", flags, arguments, blocks, 1024)

    def groups(
        self, name: str, flags: dict[str, int], arguments: tuple[Argument, ...], groups: int
    ) -> None:
        """A kernel that finishes what chunks have summed, group by group."""
        items = self.rows.images * groups
        if self.rung == "naive":
            self.build.each(f"{name}/naive", flags, arguments, items, 32)
        else:
            self.build.each(f"{name}/tiled", flags, arguments, 32 * items, 128)


def _select(rung: str, node: Node, specs: Specs) -> Selection | None:
    """Serves float32; row-major images are reordered first."""
    op = cast(Op, node.op)
    counts = isinstance(op, BatchNorm) and op.track
    if {kind for kind in dtypes(node, specs) if not (counts and kind == "int64")} != {"float32"}:
        return None
    build = Builder(specs)
    places = [_rows_of(build, name) for name in node.inputs]
    inputs = [place for place in places if place is not None]
    made = [specs[name] for name in node.outputs if len(specs[name].shape) > 1]
    if len(inputs) < len(places) or not all(map(_is_rows, made)):
        return None
    outputs: list[Argument] = [Tensor(name) for name in node.outputs]
    x = specs[node.inputs[1 if isinstance(op, BatchNormGrad | GroupNormGrad) else 0]]
    per_sample = isinstance(op, GroupNorm | GroupNormGrad)
    steps = _Steps(build, _rows(x, per_sample, rung))
    if isinstance(op, BatchNorm):
        _batch_norm(steps, op, inputs, outputs)
    elif isinstance(op, BatchNormInference):
        _inference(steps, op, inputs, outputs[0])
    elif isinstance(op, BatchNormGrad):
        _batch_norm_grad(steps, op, inputs, outputs)
    elif isinstance(op, GroupNorm):
        _group_norm(steps, op, inputs, outputs)
    else:
        _group_norm_grad(steps, cast(GroupNormGrad, op), inputs, outputs)
    return build.selection(rung, op.name.lower().removeprefix("fused"))


def _is_rows(spec: TensorSpec) -> bool:
    return channels_last(spec) if len(spec.shape) == 4 else row_major(spec)


def _rows_of(build: Builder, name: str) -> Argument | None:
    """Where a tensor lies as rows of channels; None for one that cannot."""
    spec = build.specs[name]
    if len(spec.shape) == 4:
        return build.input(name, NHWC)
    return Tensor(name) if len(spec.shape) < 3 and row_major(spec) else None


def _rows(x: TensorSpec, per_sample: bool, rung: str) -> _Rows:
    n, channels, *rest = x.shape
    pixels = math.prod(rest)
    if per_sample:
        return _Rows(channels, n, pixels, channels, rung)
    return _Rows(channels, 1, n * pixels, 0, rung)


def _batch_norm(
    steps: _Steps, op: BatchNorm, inputs: list[Argument], outputs: list[Argument]
) -> None:
    rows = steps.rows
    weights, running = inputs[1 : 1 + 2 * op.affine], inputs[1 + 2 * op.affine :][:3]
    partials, scale = steps.partials(), steps.row()
    count = (running[2], outputs[5]) if op.track else (ABSENT, ABSENT)
    _statistics(steps, inputs[0], partials, count)
    tracked: tuple[Argument, ...] = (*running[:2], *outputs[3:5]) if op.track else (ABSENT,) * 4
    momentum = -1.0 if op.momentum is None else float(op.momentum)
    cumulative = op.momentum is None
    steps.channels(
        "batch_norm_finish",
        {"AFFINE": int(op.affine), "TRACK": int(op.track), "CUMULATIVE": int(cumulative)},
        (
            *(partials, *rows.facts, float(op.eps), scale, *outputs[1:3], *_first(weights)),
            *(*tracked, momentum, count[1]),
        ),
    )
    tail = op if isinstance(op, FusedBatchNorm) else None
    _apply(steps, (inputs[0], outputs[1], scale, outputs[0]), weights, inputs[-1], tail)


def _first(rows: list[Argument]) -> tuple[Argument]:
    """The first, or the address of none."""
    return (rows[0] if rows else ABSENT,)


def _statistics(
    steps: _Steps, x: Argument, partials: Argument, count: tuple[Argument, ...]
) -> None:
    rows = steps.rows
    items = (rows.images * rows.chunks,) if steps.rung == "naive" else ()
    flags = {"COUNT": int(count[0] != ABSENT)}
    steps.summing("norm_statistics", flags, (x, partials, *rows.facts, *items, *count))


def _inference(steps: _Steps, op: BatchNormInference, inputs: list[Argument], y: Argument) -> None:
    weights = inputs[1 : 1 + 2 * op.affine]
    mean, variance = inputs[1 + 2 * op.affine :][:2]
    scale = steps.row()
    channels = steps.rows.channels
    arguments = (variance, scale, channels, float(op.eps), *_first(weights))
    flags = {"AFFINE": int(op.affine)}
    steps.build.each("batch_norm_scale/naive", flags, arguments, channels)
    tail = op if isinstance(op, FusedBatchNormInference) else None
    _apply(steps, (inputs[0], mean, scale, y), weights, inputs[-1], tail)


def _apply(
    steps: _Steps,
    tensors: tuple[Argument, ...],
    weights: list[Argument],
    last: Argument,
    tail: FusedBatchNorm | FusedBatchNormInference | None,
) -> None:
    bias: tuple[Argument, ...] = _first(weights[1:])
    flags = {"AFFINE": int(bool(weights))}
    adds = tail is not None and tail.add
    if steps.rung != "naive":
        flags |= {"ADD": int(adds), **activation_constants(tail)}
    steps.apply("norm_apply", flags, tensors, bias, (*bias, last if adds else ABSENT))


def _batch_norm_grad(
    steps: _Steps, op: BatchNormGrad, inputs: list[Argument], outputs: list[Argument]
) -> None:
    dy, x, mean, invstd = inputs[:4]
    gate = _Gate.of(op, inputs)
    kept = outputs[-1:] if isinstance(op, FusedBatchNormGrad) and op.keep else []
    partials, factors = steps.partials(), steps.row(3)
    _grad_sums(steps, (dy, x, mean, partials), gate, kept)
    rows = outputs[1:3] if op.affine else [ABSENT, ABSENT]
    weight = _first(inputs[4 : 4 + op.affine])
    arguments = (partials, *steps.rows.facts, invstd, factors, *weight, *rows)
    steps.channels("batch_norm_grad_finish", {"AFFINE": int(op.affine)}, arguments)
    if kept:  # what passed already is read instead
        dy, gate = kept[0], _Gate.of(None, [])
    _grad_apply(steps, (dy, x, mean, factors, outputs[0]), gate)


@dataclass(frozen=True)
class _Gate:
    """What device/norm_gate.cuh takes: constants, and arguments behind all others."""

    constants: dict[str, int]
    arguments: tuple[Argument, ...]

    @classmethod
    def of(cls, op: BatchNormGrad | None, inputs: list[Argument]) -> _Gate:
        """The gate of an op with these inputs; an open one unless an activation is fused."""
        fused = op if isinstance(op, FusedBatchNormGrad) else None
        again = fused is not None and fused.again
        affine = fused is not None and again and fused.affine
        constants = {"AGAIN": int(again), "AFFINE": int(affine), **activation_constants(fused)}
        rows = inputs[3:] if again else []
        output = _first([] if again or fused is None else inputs[-1:])
        return cls(constants, (*output, *rows, *(ABSENT,) * (3 - len(rows))))


def _grad_sums(
    steps: _Steps, tensors: tuple[Argument, ...], gate: _Gate, kept: list[Argument]
) -> None:
    rows = steps.rows
    facts = (*rows.facts, rows.step)
    if steps.rung == "naive":
        items = rows.images * rows.chunks
        steps.summing("norm_grad_sums", {}, (*tensors, *facts, items))
        return
    flags = {"KEEP": len(kept), **gate.constants}
    steps.summing("norm_grad_sums", flags, (*tensors, *facts, *_first(kept), *gate.arguments))


def _grad_apply(steps: _Steps, tensors: tuple[Argument, ...], gate: _Gate) -> None:
    flags = {} if steps.rung == "naive" else gate.constants
    steps.apply("norm_grad_apply", flags, tensors, (), gate.arguments)


def _group_norm(
    steps: _Steps, op: GroupNorm, inputs: list[Argument], outputs: list[Argument]
) -> None:
    rows, weights = steps.rows, inputs[1:]
    partials, means, scales = steps.partials(), steps.row(rows.images), steps.row(rows.images)
    _statistics(steps, inputs[0], partials, (ABSENT, ABSENT))
    steps.groups(
        "group_norm_finish",
        {"AFFINE": int(op.affine)},
        (
            *(partials, *rows.facts, op.groups, rows.images, float(op.eps)),
            *(means, scales, *outputs[1:3], *_first(weights)),
        ),
        op.groups,
    )
    _apply(steps, (inputs[0], means, scales, outputs[0]), weights, ABSENT, None)


def _group_norm_grad(
    steps: _Steps, op: GroupNormGrad, inputs: list[Argument], outputs: list[Argument]
) -> None:
    dy, x, mean, invstd, *weight = inputs
    rows, build = steps.rows, steps.build
    partials, means = steps.partials(), steps.row(rows.images)
    factors, parts = steps.row(3 * rows.images), steps.row(2 * max(rows.images, 1))
    size = rows.images * rows.channels
    build.each("group_norm_rows/naive", {}, (mean, means, rows.channels, op.groups, size), size)
    _grad_sums(steps, (dy, x, means, partials), _Gate.of(None, []), [])
    facts = (*rows.facts, op.groups, rows.images)
    arguments = (partials, *facts, invstd, factors, *_first(weight), parts)
    steps.groups("group_norm_grad_finish", {"AFFINE": int(op.affine)}, arguments, op.groups)
    _grad_apply(steps, (dy, x, means, factors, outputs[0]), _Gate.of(None, []))
    if op.affine:
        constants = {"FIRST": rows.channels, "SECOND": rows.channels}
        ends = (parts, *outputs[1:3], rows.images)
        build.each("sum_partials/naive", constants, ends, 2 * rows.channels)


def _fold(node: Node, specs: Specs) -> Selection | None:
    """Filters in KRSC or row-major order, both sides alike."""
    op = cast(FoldBatchNorm, node.op)
    w, folded = specs[node.inputs[0]], specs[node.outputs[0]]
    plain = row_major(w) or same_order(w.layout, KRSC)
    if set(dtypes(node, specs)) != {"float32"} or not plain:
        return None
    if not same_order(w.layout, folded.layout):
        return None
    build = Builder(specs)
    inputs: list[Argument] = [Tensor(name) for name in node.inputs]
    bias, weights = inputs[1 : 1 + op.bias], inputs[1 + op.bias : -2]
    filters, size = w.shape[0], math.prod(w.shape[1:])
    outputs = tuple(Tensor(name) for name in node.outputs)
    constants = {"AFFINE": int(op.affine), "BIAS": int(op.bias)}
    rows = (*_first(weights), *_first(weights[1:]), *_first(bias))
    arguments = (inputs[0], *inputs[-2:], *outputs, filters, size, float(op.eps), *rows)
    build.each("fold_batch_norm/naive", constants, arguments, w.size)
    return build.selection("naive", "fold_batch_norm")


_PLAIN = ("BatchNorm", "BatchNormGrad", "BatchNormInference", "GroupNorm", "GroupNormGrad")
_FUSED = ("FusedBatchNorm", "FusedBatchNormGrad", "FusedBatchNormInference")

LADDER = {
    **{(op, rung): partial(_select, rung) for op in _PLAIN for rung in ("naive", "tiled")},
    **{(op, "tiled"): partial(_select, "tiled") for op in _FUSED},
    ("FoldBatchNorm", "naive"): _fold,
}
