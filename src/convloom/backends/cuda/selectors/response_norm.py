"""Kernels for local response normalisation, over channels and within a map, on NHWC images.

``naive`` is a thread an element; ``tiled`` a warp a pixel, whose channels lie in shared memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import (
    THREADS,
    Builder,
    Specs,
    ceil_div,
    channels_last,
    dtypes,
)
from convloom.ir import NHWC, Node, Selection
from convloom.ops import (
    ContrastNorm2d,
    ContrastNorm2dGrad,
    FusedLocalResponseNormGrad,
    LocalResponseNormGrad,
    ResponseNorm2dGrad,
)

#: Blocks of the tiled rung, at most, and pixels of a block at a time.
_BLOCKS, _WARPS = 2048, 8
#: Bytes of shared memory that a block may take.
_SHARED = 40_000

_Phases = Callable[[Builder, Any, tuple[Argument, ...], tuple[int, ...]], str | None]


def _images(rung: str, phases: _Phases, node: Node, specs: Specs) -> Selection | None:
    """Serves float32 NHWC images; row-major inputs are reordered first."""
    (output,) = node.outputs
    spec = specs[output]
    if set(dtypes(node, specs)) != {"float32"} or not channels_last(spec):
        return None
    build = Builder(specs)
    places = [build.input(name, NHWC) for name in node.inputs]
    inputs = tuple(place for place in places if place is not None)
    if len(inputs) < len(places):
        return None
    kernel = phases(build, node.op, (*inputs, Tensor(output)), spec.shape)
    return None if kernel is None else build.selection(rung, kernel)


def _numbers(op: Any, cells: int) -> tuple[float, float, float]:
    """k, alpha / cells and beta."""
    return float(op.k), op.alpha / cells, float(op.beta)


def _over_channels(op: Any) -> tuple[str, tuple[float, ...]]:
    """The kernel, and the numbers it takes."""
    numbers = _numbers(op, op.size)
    if isinstance(op, LocalResponseNormGrad):
        return "local_response_norm_grad", (*numbers, 2 * op.alpha * op.beta / op.size)
    return "local_response_norm", numbers


def _naive(
    build: Builder, op: Any, tensors: tuple[Argument, ...], shape: tuple[int, ...]
) -> str | None:
    name, numbers = _over_channels(op)
    n, channels, height, width = shape
    size = n * channels * height * width
    constants = {"LOW": op.low, "HIGH": op.high, "BLOCK": op.size if op.blocked else 0}
    build.each(f"{name}/naive", constants, (*tensors, channels, size, *numbers), size)
    return name


def _tiled(
    build: Builder, op: Any, tensors: tuple[Argument, ...], shape: tuple[int, ...]
) -> str | None:
    """Windows around each channel, of few enough channels."""
    name, numbers = _over_channels(op)
    n, channels, height, width = shape
    lines = 2 if isinstance(op, LocalResponseNormGrad) else 1
    if op.blocked or 4 * lines * _WARPS * (channels + op.size) > _SHARED:
        return None
    pixels = n * height * width
    quarters = 3 if op.beta == 0.75 else 0
    constants = {"C": channels, "LOW": op.low, "HIGH": op.high, "QUARTERS": quarters}
    if lines == 2:
        constants["RELU"] = int(isinstance(op, FusedLocalResponseNormGrad))
    blocks = min(ceil_div(pixels, _WARPS), _BLOCKS)
    build.add(f"{name}/tiled", constants, (*tensors, pixels, *numbers), blocks, THREADS)
    return name


def _within_a_map(
    build: Builder, op: Any, tensors: tuple[Argument, ...], shape: tuple[int, ...]
) -> str | None:
    n, channels, height, width = shape
    constants, size = {"LOW": op.low, "HIGH": op.high}, n * channels * height * width
    facts = (channels, height, width, size)
    x, to = tensors[-2:]
    squared = x
    if isinstance(op, ContrastNorm2d | ContrastNorm2dGrad):
        squared = build.workspace(4 * size)
        build.each("contrast/naive", constants, (x, squared, *facts), size)
    numbers = _numbers(op, op.size**2)
    if not isinstance(op, ResponseNorm2dGrad | ContrastNorm2dGrad):
        arguments: tuple[Argument, ...] = (x, squared, to, *facts, *numbers)
        build.each("response_norm2d/naive", constants, arguments, size)
        return "response_norm2d"
    parts = build.workspace(4 * size)
    arguments = (tensors[0], x, squared, to, parts, *facts, *numbers)
    build.each("response_norm2d_parts/naive", constants, arguments, size)
    factor = 2 * op.alpha * op.beta / op.size**2
    arguments = (squared, parts, to, *facts, factor)
    build.each("response_norm2d_gather/naive", constants, arguments, size)
    return "response_norm2d_gather"


_CHANNELS = ("LocalResponseNorm", "LocalResponseNormGrad")
_MAPS = ("ResponseNorm2d", "ResponseNorm2dGrad", "ContrastNorm2d", "ContrastNorm2dGrad")

LADDER = {
    **{(op, "naive"): partial(_images, "naive", _naive) for op in _CHANNELS},
    **{(op, "tiled"): partial(_images, "tiled", _tiled) for op in _CHANNELS},
    ("FusedLocalResponseNormGrad", "tiled"): partial(_images, "tiled", _tiled),
    **{(op, "naive"): partial(_images, "naive", _within_a_map) for op in _MAPS},
}
