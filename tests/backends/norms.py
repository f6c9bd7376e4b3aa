"""Ops of normalisation with inputs for them, as tests of every backend's kernels take them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from convloom.ops import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInference,
    ContrastNorm2d,
    ContrastNorm2dGrad,
    FoldBatchNorm,
    FusedBatchNorm,
    FusedBatchNormGrad,
    FusedBatchNormInference,
    FusedLocalResponseNormGrad,
    GroupNorm,
    GroupNormGrad,
    LocalResponseNorm,
    LocalResponseNormGrad,
    Op,
    ResponseNorm2d,
    ResponseNorm2dGrad,
)
from tests.zoo import GROUP_NORM, MAP_NORM, NORM, RESPONSE_NORM, Shape


@dataclass(frozen=True)
class Trial:
    """An op and its inputs, float32."""

    op: Op
    inputs: tuple[np.ndarray, ...]

    def __str__(self) -> str:
        shape = "x".join(map(str, self.inputs[0].shape))
        return f"{self.op}-{shape}"


class _Draw:
    def __init__(self, shape: Shape) -> None:
        self.rng = np.random.default_rng(sum(shape))
        self.shape = shape
        self.channels = shape[1]

    def image(self) -> np.ndarray:
        return (2 * self.rng.standard_normal(self.shape) + 1).astype(np.float32)

    def row(self, count: int | tuple[int, ...] = 0, low: float = -2) -> np.ndarray:
        return self.rng.uniform(low, 2, count or self.channels).astype(np.float32)

    def running(self) -> tuple[np.ndarray, ...]:
        return self.row(), self.row(low=0.5), np.array(4)


def batch_norms(shape: Shape, affine: bool, momentum: float | None = 0.1) -> list[Trial]:
    """Forward, backward and inference, plain and fused."""
    draw = _Draw(shape)
    weights = (draw.row(), draw.row()) if affine else ()
    x, z, dy, running = draw.image(), draw.image(), draw.image(), draw.running()
    statistics = (draw.row(), draw.row(low=0.5))
    backward = (dy, x, *statistics, *weights[:1])
    relu: dict[str, Any] = {"activation": "relu"}
    clamp: dict[str, Any] = {"activation": "clamp", "a": -0.5, "b": 0.75}
    return [
        Trial(BatchNorm(1e-3, momentum, affine), (x, *weights, *running)),
        Trial(BatchNorm(affine=affine, track=False), (x, *weights)),
        Trial(FusedBatchNorm(affine=affine, **relu), (x, *weights, *running)),
        Trial(FusedBatchNorm(affine=affine, **clamp), (x, *weights, *running)),
        Trial(FusedBatchNorm(affine=affine, add=True, **relu), (x, *weights, *running, z)),
        Trial(FusedBatchNorm(affine=affine, add=True, track=False), (x, *weights, z)),
        Trial(BatchNormInference(1e-3, affine), (x, *weights, *running[:2])),
        Trial(FusedBatchNormInference(affine=affine, **relu), (x, *weights, *running[:2])),
        Trial(
            FusedBatchNormInference(affine=affine, add=True, **clamp),
            (x, *weights, *running[:2], z),
        ),
        Trial(BatchNormGrad(affine), backward),
        Trial(FusedBatchNormGrad(affine, **relu), (*backward, z)),
        Trial(FusedBatchNormGrad(affine, **clamp), (*backward, z)),
        Trial(FusedBatchNormGrad(affine, **relu, keep=True), (*backward, z)),
        Trial(FusedBatchNormGrad(affine, **relu, again=True), (*backward, *weights[1:])),
        Trial(FusedBatchNormGrad(affine, **clamp, again=True), (*backward, *weights[1:])),
    ]


def group_norms(shape: Shape, groups: int, affine: bool) -> list[Trial]:
    """Forward and backward."""
    draw = _Draw(shape)
    weights = (draw.row(), draw.row()) if affine else ()
    count = (shape[0], groups)
    statistics = (draw.row(count), draw.row(count, low=0.5))
    x = draw.image()
    return [
        Trial(GroupNorm(groups, affine, 1e-3), (x, *weights)),
        Trial(GroupNormGrad(groups, affine), (draw.image(), x, *statistics, *weights[:1])),
    ]


def response_norms(shape: Shape, op: LocalResponseNorm) -> list[Trial]:
    """Forward and backward over channels."""
    draw = _Draw(shape)
    numbers = (op.size, op.alpha, op.beta, op.k, op.blocked)
    x, dy = draw.image(), draw.image()
    return [
        Trial(op, (x,)),
        Trial(LocalResponseNormGrad(*numbers), (dy, x)),
        Trial(FusedLocalResponseNormGrad(*numbers), (dy, x)),
    ]


def map_norms(shape: Shape, size: int) -> list[Trial]:
    """Forward and backward within a map, plain and of contrast."""
    draw = _Draw(shape)
    x, dy, numbers = draw.image(), draw.image(), (size, 0.5, 0.75, 1.5)
    return [
        Trial(ResponseNorm2d(*numbers), (x,)),
        Trial(ResponseNorm2dGrad(*numbers), (dy, x)),
        Trial(ContrastNorm2d(*numbers), (x,)),
        Trial(ContrastNorm2dGrad(*numbers), (dy, x)),
    ]


def folds() -> list[Trial]:
    """Filters that take up the normalisation behind them."""
    made = []
    for filters, rest in ((1, (3, 1, 1)), (5, (17, 3, 2)), (17, (1, 5, 5))):
        draw = _Draw((1, filters))
        w = draw.row((filters, *rest))
        for bias, affine in ((True, True), (False, False)):
            rows = [draw.row() for _ in range(bias + 2 * affine)]
            op = FoldBatchNorm(1e-3, affine, bias)
            made.append(Trial(op, (w, *rows, *draw.running()[:2])))
    return made


def samples() -> list[Trial]:
    """A few that between them take every kernel."""
    over_channels = LocalResponseNorm(5)
    return [
        *batch_norms((4, 64, 9, 8), affine=True),
        *batch_norms((4, 7, 9, 8), affine=False, momentum=None)[::4],
        *group_norms((4, 64, 9, 8), 4, affine=True),
        *group_norms((4, 7, 9, 8), 7, affine=False),
        *response_norms((4, 96, 9, 8), over_channels),
        *map_norms((4, 64, 9, 8), 5),
        *folds()[:1],
    ]


def every() -> list[Trial]:
    """All of them, over the shape zoo."""
    momenta = (0.1, None)
    return [
        *(
            trial
            for i, shape in enumerate(NORM)
            for trial in batch_norms(shape, affine=i % 3 > 0, momentum=momenta[i % 2])
            if shape != (1, 3, 1, 1) or isinstance(trial.op, BatchNormInference)
        ),
        *(
            trial
            for i, (shape, groups) in enumerate(GROUP_NORM)
            for trial in group_norms(shape, groups, affine=i % 3 > 0)
        ),
        *(trial for shape, op in RESPONSE_NORM for trial in response_norms(shape, op)),
        *(trial for shape, size in MAP_NORM for trial in map_norms(shape, size)),
        *folds(),
    ]
