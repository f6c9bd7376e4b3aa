"""The shape zoo: for each kind of op, few shapes that together meet every pair of conditions.

The tables of convolutions and pools are pairwise: every two values of batch, channels, kernel,
stride, padding, dilation and groups (or ceil_mode) that can occur together do occur together in
some row; tests/ops/test_zoo.py checks it. Image sizes differ in height and width and leave tails
for any vector width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convloom.ir import TensorSpec
from convloom.ops import (
    AdaptiveAvgPool2d,
    AdaptiveMaxPool2d,
    AvgPool2d,
    Blur,
    Conv2d,
    Conv2dDgrad,
    Linear,
    Local2d,
    LocalResponseNorm,
    MaxPool2d,
    Mirror,
    Nailbed,
    Op,
    Pad2d,
    Resize2d,
)

Shape = tuple[int, ...]

N = (1, 2, 31, 33)
C = (1, 3, 5, 17)


@dataclass(frozen=True)
class Case:
    """An op and the shapes of its inputs."""

    op: Op
    shapes: tuple[Shape, ...]

    def inputs(self, seed: int = 0, dtype: str = "float64") -> list[np.ndarray]:
        """Standard normal arrays."""
        rng = np.random.default_rng(seed)
        return [rng.standard_normal(shape).astype(dtype) for shape in self.shapes]

    def integers(self, seed: int = 0, dtype: str = "float32") -> list[np.ndarray]:
        """Whole numbers from -3 to 3: sums of their products are exact in any order."""
        rng = np.random.default_rng(seed)
        return [rng.integers(-3, 4, shape).astype(dtype) for shape in self.shapes]

    def specs(self, dtype: str = "float64") -> list[TensorSpec]:
        """What the op's shape rule takes."""
        return [TensorSpec(shape, dtype) for shape in self.shapes]

    def __str__(self) -> str:
        shapes = ",".join("x".join(map(str, shape)) for shape in self.shapes)
        values = "-".join(_short(value) for value in vars(self.op).values())
        return f"{shapes}-{values}" if values else shapes


def distinct(shape: Shape, seed: int = 0, dtype: str = "float64") -> np.ndarray:
    """Values of both signs in random order, no two closer than 1/64 and none closer to 0.

    So a small step changes no maximum and no sign, and float32 holds every value exactly.
    """
    size = int(np.prod(shape))
    values = (np.arange(size) - size // 2 + 0.5) / 32
    return np.random.default_rng(seed).permutation(values).reshape(shape).astype(dtype)


def _short(value: object) -> str:
    if isinstance(value, tuple):
        return "x".join(_short(item) for item in value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _pair(value: int | tuple[int, int]) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else value


WHOLE = "whole"  # the kernel is as large as the input

# n, c, k, size, kernel, stride, padding, dilation, grouped, bias. ``k`` filters, or where grouped
# (a group for each channel) k mod 3 + 1 filters a group.
_CONV_ROWS = (
    (31, 3, 16, (9, 6), (3, 3), (4, 1), (2, 1), 1, False, False),
    (2, 17, 1, (7, 13), (5, 4), 2, 1, 2, True, True),
    (33, 5, 5, (7, 13), (2, 3), 3, 0, 1, True, True),
    (31, 1, 1, (5, 7), (2, 3), 1, 0, 2, False, True),
    (1, 5, 5, (9, 6), WHOLE, 1, 1, 1, False, False),
    (33, 17, 1, (5, 7), (1, 1), 1, (2, 1), 1, False, False),
    (2, 3, 5, (5, 7), (5, 4), 3, (2, 1), 2, False, True),
    (1, 5, 16, (7, 13), (5, 4), (4, 1), (2, 1), 2, True, True),
    (2, 1, 16, (9, 6), WHOLE, 2, 0, 1, False, True),
    (31, 3, 16, (7, 13), (1, 1), 3, 1, 1, True, False),
    (33, 1, 1, (5, 7), (3, 3), 2, 1, 2, False, False),
    (1, 17, 16, (7, 13), (3, 3), 3, 0, 2, False, False),
    (1, 3, 16, (9, 6), (2, 3), 2, (2, 1), 2, False, True),
    (2, 1, 5, (5, 7), (1, 1), (4, 1), 0, 1, False, True),
    (2, 5, 1, (9, 6), (3, 3), 1, 1, 2, True, False),
    (33, 3, 1, (5, 7), WHOLE, (4, 1), 1, 1, True, False),
    (33, 3, 1, (5, 7), (5, 4), 1, 0, 1, True, False),
    (31, 5, 5, (7, 13), WHOLE, 2, (2, 1), 1, False, True),
    (2, 17, 16, (9, 6), (2, 3), (4, 1), 1, 1, False, False),
    (1, 1, 1, (5, 7), WHOLE, 3, (2, 1), 1, False, True),
    (1, 5, 5, (9, 6), (1, 1), 2, 1, 1, False, False),
    (31, 17, 5, (9, 6), (5, 4), 3, (2, 1), 1, False, False),
    (33, 17, 16, (5, 7), WHOLE, 1, 1, 1, True, True),
    (31, 1, 1, (7, 13), (5, 4), 1, (2, 1), 1, False, False),
)

# n, c, size, kernel, stride, padding, dilation, ceil_mode.
_POOL_ROWS = (
    (2, 1, (13, 8), (2, 2), 3, 0, 1, False),
    (1, 5, (9, 6), (3, 3), 3, 1, 2, True),
    (31, 3, (5, 7), (3, 2), (4, 1), 0, 2, True),
    (1, 17, (5, 7), WHOLE, 2, 1, 1, False),
    (33, 3, (5, 7), (1, 1), 1, 0, 1, True),
    (33, 1, (5, 7), (2, 2), 2, 1, 2, True),
    (2, 5, (9, 6), (3, 2), 1, 1, 1, False),
    (31, 17, (13, 8), (3, 3), (4, 1), 1, 1, False),
    (2, 17, (5, 7), (3, 3), 2, 0, 2, True),
    (33, 5, (5, 7), WHOLE, (4, 1), 0, 1, False),
    (1, 3, (13, 8), (2, 2), 1, 0, 1, False),
    (33, 17, (9, 6), (3, 2), 3, 0, 2, False),
    (1, 1, (9, 6), (1, 1), (4, 1), 0, 1, False),
    (31, 1, (9, 6), WHOLE, 1, 1, 1, True),
    (31, 5, (13, 8), (1, 1), 3, 0, 1, True),
    (2, 3, (9, 6), WHOLE, 3, 1, 1, True),
    (31, 5, (13, 8), (2, 2), 2, 0, 2, False),
    (33, 1, (13, 8), (3, 3), 1, 0, 2, True),
    (2, 17, (9, 6), (2, 2), (4, 1), 1, 1, True),
    (1, 1, (13, 8), (3, 2), 2, 0, 1, True),
    (2, 17, (9, 6), (1, 1), 2, 0, 1, True),
    (1, 3, (9, 6), (3, 3), 2, 0, 1, True),
    (2, 17, (13, 8), WHOLE, 1, 0, 1, True),
)


def _conv(n, c, k, size, kernel, stride, padding, dilation, grouped, bias):  # type: ignore[no-untyped-def]
    kernel = size if kernel == WHOLE else kernel
    groups = c if grouped else 1
    filters = groups * (k % 3 + 1) if grouped else k
    op = Conv2d(_pair(stride), _pair(padding), _pair(dilation), groups)
    shapes = ((n, c, *size), (filters, c // groups, *kernel))
    return Case(op, (*shapes, (filters,)) if bias else shapes)


def _max_pool(n, c, size, kernel, stride, padding, dilation, ceil_mode):  # type: ignore[no-untyped-def]
    kernel = size if kernel == WHOLE else kernel
    op = MaxPool2d(kernel, _pair(stride), _pair(padding), _pair(dilation), ceil_mode)
    return Case(op, ((n, c, *size),))


def _avg_pool(row, count_include_pad):  # type: ignore[no-untyped-def]
    n, c, size, kernel, stride, padding, _, ceil_mode = row
    kernel = size if kernel == WHOLE else kernel
    op = AvgPool2d(kernel, _pair(stride), _pair(padding), ceil_mode, count_include_pad)
    return Case(op, ((n, c, *size),))


#: Convolutions; the last has AlexNet's first filter and groups of several channels.
CONV: tuple[Case, ...] = (
    *(_conv(*row) for row in _CONV_ROWS),
    Case(Conv2d((4, 4), (2, 2), (1, 1), 2), ((2, 6, 23, 18), (10, 3, 11, 11), (10,))),
)

#: Padding, resizing and sampling: sides of all kinds, growing and shrinking, one pixel, channels
#: below, at and beyond a vector, and in fours.
AXIS_MAPS: tuple[Case, ...] = tuple(
    Case(op, ((n, c, *size),))
    for n, c, size, op in (
        (31, 1, (5, 7), Pad2d((1, 2, 0, 3))),
        (2, 17, (5, 4), Pad2d((-1, 2, 1, -2), value=1.5)),
        (1, 4, (1, 1), Pad2d((0, 1, 2, 0), value=-2.0)),
        (2, 3, (4, 5), Pad2d((4, 3, 2, 3), "reflect")),
        (3, 8, (3, 2), Pad2d((1, 0, 2, 2), "reflect")),
        (2, 5, (3, 4), Pad2d((5, 1, 0, 4), "replicate")),
        (2, 4, (1, 3), Pad2d((1, 2, 3, 1), "replicate")),
        (2, 3, (4, 5), Resize2d((8, 10))),
        (33, 1, (7, 5), Resize2d((3, 8))),
        (2, 12, (3, 4), Resize2d((7, 3))),
        (2, 3, (4, 5), Resize2d((8, 10), "bilinear")),
        (1, 17, (7, 5), Resize2d((3, 11), "bilinear")),
        (2, 4, (9, 1), Resize2d((2, 3), "bilinear")),
        (1, 5, (3, 2), Resize2d((11, 14), "bilinear")),
        (2, 3, (4, 5), Resize2d((7, 9), "bilinear", True)),
        (2, 8, (6, 1), Resize2d((1, 4), "bilinear", True)),
        (1, 3, (8, 7), Nailbed(4)),
        (2, 16, (5, 9), Nailbed(2)),
        (2, 3, (7, 7), Nailbed(1)),
        (2, 3, (4, 5), Mirror()),
        (3, 20, (2, 6), Mirror()),
        (2, 3, (11, 4), Blur(9, 4.0)),
        (1, 4, (5, 6), Blur(3, 0.7)),
        (2, 1, (3, 2), Blur(5, 1.0)),
    )
)

#: Locally connected layers (images, filters): strides, padding, dilation, groups, channels and
#: filters below, at and beyond a vector, an output of one pixel.
LOCAL: tuple[Case, ...] = tuple(
    Case(
        Local2d(stride, padding, dilation, groups),
        ((n, c, *size), (pixels * k, c // groups, *kernel)),
    )
    for n, c, size, k, kernel, stride, padding, dilation, groups, pixels in (
        (1, 1, (2, 3), 1, (2, 3), (1, 1), (0, 0), (1, 1), 1, 1),
        (31, 3, (4, 5), 5, (3, 3), (1, 1), (1, 1), (1, 1), 1, 20),
        (2, 17, (5, 4), 33, (3, 2), (2, 1), (1, 0), (1, 1), 1, 9),
        (33, 4, (5, 6), 6, (2, 2), (2, 2), (0, 0), (1, 2), 2, 4),
        (3, 8, (4, 3), 16, (3, 3), (1, 1), (1, 1), (1, 1), 1, 12),
        (5, 32, (3, 3), 32, (1, 1), (2, 2), (0, 0), (1, 1), 2, 4),
    )
)

#: Transposed convolutions (images, filters): strides with every output padding, dilation, groups,
#: padding beyond the kernel's reach, one pixel.
CONV_TRANSPOSE: tuple[Case, ...] = tuple(
    Case(
        Conv2dDgrad(stride, padding, dilation, groups, size),
        ((n, c, *images), (c, k // groups, *kernel)),
    )
    for n, c, images, k, kernel, stride, padding, dilation, groups, size in (
        (1, 1, (1, 1), 1, (1, 1), (1, 1), (0, 0), (1, 1), 1, (1, 1)),
        (2, 3, (5, 4), 5, (3, 3), (1, 1), (1, 1), (1, 1), 1, (5, 4)),
        (31, 5, (3, 4), 3, (2, 2), (2, 2), (0, 0), (1, 1), 1, (6, 8)),
        (2, 17, (4, 3), 8, (3, 3), (2, 2), (1, 1), (1, 1), 1, (8, 5)),
        (1, 4, (3, 5), 6, (4, 4), (2, 2), (1, 1), (1, 1), 2, (6, 10)),
        (3, 6, (4, 3), 6, (3, 2), (3, 1), (0, 1), (1, 2), 6, (14, 3)),
        (2, 8, (3, 3), 16, (3, 3), (2, 2), (2, 2), (2, 2), 4, (6, 5)),
    )
)

MAX_POOL: tuple[Case, ...] = tuple(_max_pool(*row) for row in _POOL_ROWS)

AVG_POOL: tuple[Case, ...] = tuple(
    _avg_pool(row, count_include_pad=i % 3 > 0) for i, row in enumerate(_POOL_ROWS)
)

#: Pools whose channels go four at a time, with a divisor of their own, or over many cells.
FOURS_POOL: tuple[Case, ...] = (
    Case(MaxPool2d((3, 3), (2, 2)), ((2, 8, 13, 9),)),
    Case(MaxPool2d((3, 3), (2, 2), (1, 1)), ((1, 64, 8, 9),)),
    Case(MaxPool2d((2, 2), (2, 2)), ((3, 20, 6, 7),)),
    Case(MaxPool2d((2, 3), (1, 2), (1, 1), (3, 2)), ((2, 4, 9, 11),)),
    Case(MaxPool2d((9, 9), (2, 1)), ((1, 4, 12, 11),)),
    Case(AvgPool2d((3, 3), (2, 2), (1, 1)), ((2, 8, 7, 9),)),
    Case(AvgPool2d((2, 2), (2, 2), ceil_mode=True), ((3, 20, 5, 7),)),
    Case(AvgPool2d((3, 2), (2, 3), (1, 1), True, False), ((2, 4, 8, 9),)),
    Case(AvgPool2d((3, 3), (3, 3), divisor_override=-5), ((2, 68, 6, 6),)),
    Case(AvgPool2d((7, 7), (7, 7)), ((3, 68, 7, 7),)),
    Case(AvgPool2d((6, 7), (2, 1), (2, 3), True, False), ((2, 33, 9, 8),)),
)

#: cuda-convnet's pools: a start before, at and behind the first pixel, windows that overhang, and
#: greatest magnitudes.
CLIPPED_POOL: tuple[Case, ...] = tuple(
    Case(op, ((n, c, 7, 6),))
    for n, c, start in ((1, 3, 0), (2, 4, -1), (3, 17, 2), (2, 8, -2))
    for op in (
        MaxPool2d((3, 3), (2, 2), (-start, -start), outputs=(3, 2), ties="all"),
        MaxPool2d((3, 2), (2, 1), (-start, 0), outputs=(3, 6)),
        MaxPool2d(
            (2, 3),
            (2, 2),
            (0, -start),
            outputs=(3, 2),
            ties=("all", "first")[start % 2],
            magnitude=True,
        ),
        AvgPool2d((3, 3), (2, 2), (-start, -start), False, False, outputs=(3, 2)),
    )
)

#: Adaptive pools: windows that divide the image, that overlap, that are larger than an image of
#: one cell, that repeat cells, and a global one.
ADAPTIVE_POOL: tuple[Case, ...] = tuple(
    Case(kind(output), ((n, c, *size),))
    for n, c, size, output in (
        (1, 3, (7, 5), (3, 2)),
        (2, 17, (8, 6), (4, 3)),
        (3, 4, (3, 2), (5, 7)),
        (2, 8, (1, 9), (1, 4)),
        (31, 1, (13, 11), (1, 1)),
        (2, 36, (9, 8), (1, 1)),
    )
    for kind in (AdaptiveAvgPool2d, AdaptiveMaxPool2d)
)

#: Every pair of batch, inputs and outputs, as a Latin square; every second one has a bias.
LINEAR: tuple[Case, ...] = tuple(
    Case(Linear(), ((n, i), (o, i), (o,))[: 2 + (a + b // 2) % 2])
    for a, n in enumerate(N)
    for b, i in enumerate((1, 3, 17, 40))
    for o in ((1, 5, 10, 33)[(a + b) % 4],)
)

#: Shapes for ops that work element by element.
ELEMENTWISE: tuple[Shape, ...] = (
    *(
        (n, c, *((5, 7), (9, 6), (1, 1))[(a + b) % 3])
        for a, n in enumerate(N)
        for b, c in enumerate(C)
    ),
    *((n, 10) for n in N),
)

#: (samples, classes) for losses and metrics.
CLASSES: tuple[tuple[int, int], ...] = tuple((n, k) for n in N for k in (1, 2, 10, 17, 100))

#: Inputs (N, C, ...) of normalisations; (1, 3, 1, 1) has one value a channel.
NORM: tuple[Shape, ...] = (
    (1, 1, 5, 7),
    (2, 3, 9, 6),
    (31, 5, 1, 1),
    (1, 17, 9, 6),
    (33, 17, 5, 7),
    (1, 3, 1, 1),
    (2, 40, 3, 5),
    (2, 64, 13, 11),
    (33, 10),
    (5, 17),
)

#: (input, groups) of group normalisations.
GROUP_NORM: tuple[tuple[Shape, int], ...] = (
    ((1, 1, 5, 7), 1),
    ((2, 3, 9, 6), 3),
    ((2, 3, 9, 6), 1),
    ((31, 6, 1, 1), 2),
    ((1, 34, 5, 7), 17),
    ((3, 40, 3, 5), 2),
    ((2, 64, 13, 11), 4),
    ((33, 12), 3),
)

#: (input, op) of normalisations over channels.
RESPONSE_NORM: tuple[tuple[Shape, LocalResponseNorm], ...] = (
    ((1, 1, 5, 7), LocalResponseNorm(5, 1e-2)),
    ((2, 3, 9, 6), LocalResponseNorm(2, 0.5)),
    ((31, 5, 1, 1), LocalResponseNorm(5, 0.5, 0.5, 2.0)),
    ((2, 17, 9, 6), LocalResponseNorm(4, 0.5, 1.0)),
    ((1, 17, 3, 4), LocalResponseNorm(9, 2.0, 0.75, 0.25)),
    ((2, 3, 5, 7), LocalResponseNorm(11, 0.5, 0.6)),
    ((2, 96, 5, 5), LocalResponseNorm(5, 1e-4, 0.75, 2.0)),
    ((33, 10, 1, 1), LocalResponseNorm(3, 1.0)),
    ((2, 8, 5, 3), LocalResponseNorm(4, 0.5, blocked=True)),
    ((2, 17, 5, 3), LocalResponseNorm(5, 0.5, 0.6, blocked=True)),
    ((2, 7, 3, 3), LocalResponseNorm(1, 0.5)),
)

#: (input, window) of normalisations within a map.
MAP_NORM: tuple[tuple[Shape, int], ...] = (
    ((1, 1, 5, 7), 3),
    ((2, 3, 9, 6), 4),
    ((31, 5, 1, 1), 3),
    ((1, 17, 9, 6), 5),
    ((2, 40, 3, 5), 9),
    ((2, 3, 4, 4), 1),
)
