"""What of an image's maps the gradients of a strip fall on (kernels/cuda/onchip/strip.cuh)."""

from __future__ import annotations

from collections.abc import Iterable

from convloom.backends.cuda.onchip.stages import Stages

Rows = tuple[int, int]


def handed_on(stages: Stages, i: int, rank: int, split: int) -> Rows:
    """Rows of the map that convolution i hands on which have a gradient in block ``rank``."""
    height = stages.convs[i].handed_on[0]
    if i + 1 == len(stages.convs):
        return rank * height // split, (rank + 1) * height // split
    if split == 1:
        return 0, height
    following = stages.convs[i + 1]
    begin, end = products(stages, i + 1, rank, split)
    stride, pad = following.stride[0], following.padding[0]
    return max(0, begin * stride - pad), min(height, (end - 1) * stride - pad + following.kernel[0])


def products(stages: Stages, i: int, rank: int, split: int) -> Rows:
    """The same before its pool."""
    if split == 1:
        return 0, stages.convs[i].out[0]
    begin, end = handed_on(stages, i, rank, split)
    return (2 * begin, 2 * end) if stages.convs[i].pool else (begin, end)


def most_handed_on(stages: Stages, i: int, split: int) -> int:
    """The most rows of the map that convolution i hands on which have a gradient in a block."""
    return _most(handed_on(stages, i, rank, split) for rank in range(split))


def most_products(stages: Stages, i: int, split: int) -> int:
    """The same before its pool."""
    return _most(products(stages, i, rank, split) for rank in range(split))


def _most(strips: Iterable[Rows]) -> int:
    return max(end - begin for begin, end in strips)


def refusal(stages: Stages, in_place: tuple[bool, ...], split: int) -> str:
    """Why blocks cannot share an image, in a clause; empty where they can.

    A gradient that lies where an activation lay is not zero around its strip, which the gradient
    of that layer's own input would read.
    """
    if not stages.convs:
        return "it has no convolution"
    if any(in_place[2:]):
        return "gradients take the place of activations"
    if stages.convs[-1].handed_on[0] < split:
        return "its last map has fewer rows"
    return ""
