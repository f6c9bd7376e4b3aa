"""Launches of convolutions by minimal filtering (kernels/cuda/device/winograd.cuh)."""

from __future__ import annotations

from collections.abc import Mapping

from convloom.backends.cuda.launch import Argument
from convloom.backends.cuda.selectors.common import ABSENT, Builder, ceil_div
from convloom.backends.cuda.selectors.config import chosen
from convloom.backends.cuda.selectors.tiles import (
    WINOGRAD_EACH,
    output_windows,
    plain_3x3,
    winograd_tile,
)

#: Windows that a kernel can number.
_MOST_WINDOWS = 2**32 - 2**16

Sizes = Mapping[str, int]


def choose_forward(
    build: Builder, sizes: Sizes, arguments: tuple[Argument, ...], samples: int
) -> bool:
    """Replace the launch appended last, which does the same, if there are windows enough.

    Returns whether it was replaced.

    Args:
        sizes: the constants of device/conv.cuh, BIAS, POOL and those of the activation.
        arguments: x, w, bias, y and index; what is not there is 0.
    """
    source, depth, filters = "conv2d_fprop/winograd", sizes["C"], sizes["K"]
    windows = output_windows(sizes)
    return _choose(build, source, sizes, arguments, depth, filters, samples, windows)


def choose_dgrad(
    build: Builder, sizes: Sizes, arguments: tuple[Argument, ...], samples: int
) -> bool:
    """As ``choose_forward``, of an input gradient.

    Args:
        sizes: the constants of device/conv.cuh, POOL and those of the mask.
        arguments: dy, w, index, a and dx; what is not there is 0.
    """
    windows = ceil_div(sizes["H"], 2) * ceil_div(sizes["W"], 2)
    source, depth, channels = "conv2d_dgrad/winograd", sizes["K"], sizes["C"]
    return _choose(build, source, sizes, arguments, depth, channels, samples, windows)


def serves(sizes: Sizes, depth: int, filters: int) -> bool:
    """Whether minimal filtering serves a convolution, or its input gradient.

    So it does for 3x3 filters, stride 1, one group, padding below 3, all tensors channels last, and
    blocks that are full.

    Args:
        sizes: the constants of device/conv.cuh.
        depth: channels of a sum: C, or K of the gradient.
        filters: how many are summed: K, or C of the gradient.
    """
    narrow = max(sizes["PH"], sizes["PW"]) <= 2
    return plain_3x3(sizes) and narrow and winograd_tile(depth, filters) is not None


def _choose(
    build: Builder,
    source: str,
    sizes: Sizes,
    arguments: tuple[Argument, ...],
    depth: int,
    filters: int,
    samples: int,
    windows: int,
) -> bool:
    """See above; ``windows`` are those of a sample, the second of ``arguments`` is w."""
    tile, windows = winograd_tile(depth, filters), samples * windows
    if tile is None or not windows or not serves(sizes, depth, filters):
        return False
    parts, groups = filters // tile.filters, ceil_div(windows, tile.windows)
    taken = groups * parts >= chosen().winograd and windows <= _MOST_WINDOWS
    channels = tile.chunk * tile.chunks
    u = build.workspace(4 * 16 * channels * filters) if taken else ABSENT
    image, w, *others = arguments
    own = {"C": sizes["C"], "K": sizes["K"], "FILTERS": tile.filters, "CHUNK": tile.chunk}
    own["DGRAD"] = int(source.startswith("conv2d_dgrad"))
    build.each("winograd_filters/naive", own, (w, u), channels * filters)
    each = max(min(groups * parts // chosen().winograd, WINOGRAD_EACH), 1)
    given = (image, w, u, *others, each, samples)
    blocks = ceil_div(groups, each) * parts
    build.add(source, {**sizes, "FILTERS": tile.filters}, given, blocks, shared=tile.shared)
    build.choose(last=taken, launches=2)
    return taken
