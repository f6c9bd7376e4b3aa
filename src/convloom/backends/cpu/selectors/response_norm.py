"""Kernels for local response normalisation, over channels and within a map, on NHWC images."""

from __future__ import annotations

from typing import Any

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes, same_order
from convloom.ir import NHWC, Node, Selection
from convloom.ops import (
    ContrastNorm2d,
    ContrastNorm2dGrad,
    FusedLocalResponseNormGrad,
    LocalResponseNorm,
    LocalResponseNormGrad,
    ResponseNorm2dGrad,
)

#: Elements an item takes, about.
_CHUNK = 16384
#: Floats around a row in scratch memory, at most: both windows' reach, and tails of vectors.
_AROUND = 128


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves float32 images; row-major inputs are reordered first."""
    (output,) = node.outputs
    spec = specs[output]
    if set(dtypes(node, specs)) != {"float32"} or len(spec.shape) != 4:
        return None
    if not same_order(spec.layout, NHWC):
        return None
    build = Builder(specs)
    places = [build.input(name, NHWC) for name in node.inputs]
    inputs = tuple(place for place in places if place is not None)
    if len(inputs) < len(places):
        return None
    across = isinstance(node.op, LocalResponseNorm | LocalResponseNormGrad)
    phases = _across_channels if across else _within_a_map
    phases(build, node.op, (*inputs, Tensor(output)), spec.shape)
    return build.selection(build.phases[-1].kernel.source)


def _numbers(op: Any, cells: int) -> tuple[float, float, float]:
    """k, alpha / cells and beta."""
    return float(op.k), op.alpha / cells, float(op.beta)


def _across_channels(
    build: Builder, op: Any, tensors: tuple[Argument, ...], shape: tuple[int, ...]
) -> None:
    n, channels, height, width = shape
    rows = n * height * width
    take = max(1, _CHUNK // max(channels, 1))
    constants = {"LOW": op.low, "HIGH": op.high, "BLOCK": op.size if op.blocked else 0}
    if op.blocked:
        constants.update(LOW=0, HIGH=0)
    numbers: tuple[float, ...] = _numbers(op, op.size)
    source, lines = "local_response_norm", 1
    if isinstance(op, LocalResponseNormGrad):
        source, lines = "local_response_norm_grad", 2
        constants["RELU"] = int(isinstance(op, FusedLocalResponseNormGrad))
        numbers = (*numbers, 2 * op.alpha * op.beta / op.size)
    scratch = 4 * lines * (channels + 2 * op.size + _AROUND)
    arguments = (*tensors, channels, rows, take, *numbers)
    build.add(source, constants, arguments, ceil_div(rows, take), scratch)


def _within_a_map(
    build: Builder, op: Any, tensors: tuple[Argument, ...], shape: tuple[int, ...]
) -> None:
    n, channels, height, width = shape
    constants, items = {"LOW": op.low, "HIGH": op.high}, n * height
    facts = (channels, height, width)
    x, nbytes = tensors[-2], 4 * n * channels * height * width
    squared = x
    if isinstance(op, ContrastNorm2d | ContrastNorm2dGrad):
        squared = build.workspace(nbytes)
        build.add("contrast", constants, (x, squared, *facts), items)
    numbers = _numbers(op, op.size**2)
    if not isinstance(op, ResponseNorm2dGrad | ContrastNorm2dGrad):
        build.add("response_norm2d", constants, (x, squared, tensors[-1], *facts, *numbers), items)
        return
    parts, dx = build.workspace(nbytes), tensors[-1]
    first: tuple[Argument, ...] = (tensors[0], x, squared, dx, parts, *facts, *numbers)
    build.add("response_norm2d_parts", constants, first, items)
    factor = 2 * op.alpha * op.beta / op.size**2
    build.add("response_norm2d_gather", constants, (squared, parts, dx, *facts, factor), items)
