"""All gradients of a convolution behind a 2x2 max-pool, by lists of non-zero gradients.

The rung ``sparse``: kernels/cpu/conv2d_sparse.cpp.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Workspace
from convloom.backends.cpu.selectors.conv2d_problem import (
    ABSENT,
    CHUNKS,
    LANES,
    Problem,
    specialise,
)
from convloom.ir import Selection

#: Vectors of a filter gradient that a tile keeps in registers: alone, and beside the filter.
_MOST, _MOST_WITH_FILTER = 24, 14
#: Bytes of input that the lists of one strip reach over.
_STRIP_BYTES = 30 * 1024
#: Most scratch of a thread; larger images go the dense way, in strips.
_SCRATCH_BYTES = 8 * 1024 * 1024
_PARTIAL_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True)
class SparseTensors:
    """Where the step's tensors are; ``dx``, ``db`` and ``mask`` may be absent."""

    x: Argument
    w: Argument
    dyp: Argument
    index: Argument
    dw: Argument
    db: Argument
    dx: Argument
    masked: bool


def sparse_pays(problem: Problem, needs_dx: bool) -> bool:
    """Whether lists cost less than the dense kernels, and their scratch is moderate."""
    vectors = problem.r * _pieces(problem) * math.ceil(_run(problem, problem.c) / LANES)
    sparse = 0.25 * (1 + 2 * needs_dx) * (vectors + 2)
    lanes = math.ceil(problem.kg / LANES) * LANES / problem.kg
    dense = (1 + needs_dx) * problem.depth / LANES * lanes
    return sparse < dense and _scratch(problem, _slice(problem), 1) <= _SCRATCH_BYTES


def sparse_grad(problem: Problem, tensors: SparseTensors) -> Selection:
    """Pack the filters, all gradients image by image, and add the partial filter gradients."""
    needs_dx = tensors.dx != ABSENT
    channels = _slice(problem)
    run, pieces = _run(problem, channels), _pieces(problem)
    tile, height = _tile(problem.r, math.ceil(run / LANES), needs_dx)
    parts = problem.groups * (problem.c // channels)
    filters = parts * problem.kg
    size = filters * problem.r * pieces * -(-run // tile) * tile
    direct = (
        not (problem.padded or problem.planar_x)
        and channels == problem.channels
        and run % tile == 0
        and problem.h * problem.w * problem.channels % LANES == 0
    )
    rows = problem.out[0] // 2
    strip = 2 * problem.geometry.stride[0] * problem.w * channels * 4
    strips = max(1, min(rows, round(rows * strip / _STRIP_BYTES)))
    chunks = max(1, min(CHUNKS, problem.n, _PARTIAL_BYTES // (4 * size)))
    constants = {
        **problem.constants,
        **{"CS": channels, "TILE": tile, "RT": height, "BIAS": int(tensors.db != ABSENT)},
    }
    layout = {name: constants[name] for name in ("C", "G", "K", "R", "S", "DW", "CS", "TILE")}
    strides = problem.w_strides
    steps = {
        **{"OUT_STEP": strides["K"], "IN_STEP": strides["C"]},
        **{"ROW_STEP": strides["R"], "COL_STEP": strides["S"]},
        "GROUP_STEP": problem.kg * strides["K"],
    }
    packed, bias = Workspace(4 * chunks * size), Workspace(4 * (chunks + needs_dx) * size)
    pack = Phase(
        specialise("conv2d_sparse_pack", layout, steps), (tensors.w, packed), items=filters
    )
    main = Phase(
        specialise(
            "conv2d_sparse",
            constants,
            DIRECT=int(direct),
            MASK=int(tensors.masked),
            NEEDS_DX=int(needs_dx),
        ),
        (
            *(tensors.x, packed, tensors.dyp, tensors.index, Workspace(), bias, tensors.dx),
            *(problem.n, problem.h, problem.w, chunks, strips),
        ),
        items=chunks * parts,
        scratch=_scratch(problem, channels, strips),
    )
    reduce = Phase(
        specialise("conv2d_sparse_reduce", layout, steps, BIAS=constants["BIAS"]),
        (Workspace(), bias, tensors.dw, tensors.db, chunks),
        items=filters + constants["BIAS"],
    )
    phases = (pack, main, reduce) if needs_dx else (main, reduce)
    nbytes = 4 * ((chunks + needs_dx) * size + chunks * problem.k)
    return Selection("sparse", "conv2d_sparse", CpuLaunch(phases), nbytes)


def _slice(problem: Problem) -> int:
    """Channels of an item: halved while above 128, so that a strip stays in cache."""
    channels = problem.c
    while channels > 128 and channels % 2 == 0:
        channels //= 2
    return channels


def _run(problem: Problem, channels: int) -> int:
    return channels * (problem.s if problem.adjacent else 1)


def _pieces(problem: Problem) -> int:
    return 1 if problem.adjacent else problem.s


def _tile(rows: int, vectors: int, needs_dx: bool) -> tuple[int, int]:
    """Floats of a tile, and rows of taps: the whole filter if registers hold it."""
    most = _MOST_WITH_FILTER if needs_dx else _MOST
    if rows * vectors <= most:
        return vectors * LANES, rows
    tiles = math.ceil(vectors / most)
    return math.ceil(vectors / tiles) * LANES, 1


def _scratch(problem: Problem, channels: int, strips: int) -> int:
    """Bytes of staged input, collected input gradient, and lists (kernels: conv2d_sparse)."""
    (ph, pw), (p, q) = problem.geometry.padding, problem.out
    image = (problem.h + 2 * ph) * (problem.w + 2 * pw) * channels
    tile = _MOST * LANES
    capacity = math.ceil((math.ceil(p // 2 / strips) * (q // 2) + 1) / LANES) * LANES
    return 4 * (2 * (image + tile + LANES) + problem.kg * (2 * capacity + 2))
