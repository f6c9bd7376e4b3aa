"""Convolutions of many small groups, depthwise ones among them: kernels/cpu/conv2d_lanes.h."""

from __future__ import annotations

import math
from collections.abc import Mapping

from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Workspace
from convloom.backends.cpu.selectors.conv2d_problem import (
    ABSENT,
    CHUNKS,
    LANES,
    PIXELS,
    Problem,
    Residues,
    residues,
    specialise,
    strip_count,
)
from convloom.ir import Selection

#: Most pixels of a tile, one vector of lanes each.
_WIDEST = 14
#: Most accumulators of a filter gradient's tile.
_MOST = 28


def lanes_fprop(
    problem: Problem,
    x: Argument,
    w: Argument,
    bias: Argument,
    y: Argument,
    epilogue: Mapping[str, int],
) -> Selection:
    """Convolution with bias and activation, as ``epilogue`` says."""
    p, q = problem.out
    uh, span = problem.geometry.stride[0], _span(problem)
    row = (problem.w + 2 * problem.geometry.padding[1]) * _pixel_bytes(problem, flip=False)
    strips = strip_count(problem, p, 1, row * uh)
    staged = (math.ceil(p / strips) - 1) * uh + span
    kernel = specialise(
        "conv2d_lanes_fprop",
        problem.constants,
        _sides(problem, flip=False),
        {**epilogue, "PC": _columns(q)},
    )
    pack, nbytes = _pack(problem, w, flip=False)
    main = Phase(
        kernel,
        (x, Workspace(), bias, y, problem.h, problem.w, strips),
        items=problem.n * strips,
        scratch=staged * row,
    )
    return Selection("dense", "conv2d_lanes_fprop", CpuLaunch((pack, main)), nbytes)


def lanes_dgrad(
    problem: Problem,
    dy: Argument,
    w: Argument,
    mask: Argument,
    dx: Argument,
    masks: Mapping[str, int],
) -> Selection:
    """Input gradient with a mask, as ``masks`` says."""
    (uh, uw), (dh, dw), (ph, pw) = (
        problem.geometry.stride,
        problem.geometry.dilation,
        problem.geometry.padding,
    )
    rows: Residues = residues(problem.r, uh, ph, dh)
    cols: Residues = residues(problem.s, uw, pw, dw)
    width = math.ceil(problem.w / uw) + cols.high - cols.low
    row = width * _pixel_bytes(problem, flip=True)
    units = math.ceil(problem.h / uh)
    strips = strip_count(problem, units, 1, row)
    kernel = specialise(
        "conv2d_lanes_dgrad",
        problem.constants,
        _sides(problem, flip=True),
        {**masks, "PC": _columns(max(1, problem.w // uw))},
    )
    pack, nbytes = _pack(problem, w, flip=True)
    main = Phase(
        kernel,
        (dy, Workspace(), mask, dx, problem.h, problem.w, strips),
        items=problem.n * strips,
        scratch=(math.ceil(units / strips) + rows.high - rows.low) * row,
    )
    return Selection("dense", "conv2d_lanes_dgrad", CpuLaunch((pack, main)), nbytes)


def lanes_wgrad(
    problem: Problem, x: Argument, dy: Argument, dw: Argument, db: Argument
) -> Selection:
    """Filter gradient, and bias gradient unless ``db`` is absent."""
    p, q = problem.out
    uh, span = problem.geometry.stride[0], _span(problem)
    pieces = 1 if problem.adjacent else problem.s
    run = problem.c * problem.s // pieces
    width = min(run, _MOST)
    width = math.ceil(run / math.ceil(run / width))
    height = problem.r if problem.r * width <= _MOST else 1
    lanes = _padded(problem.k)
    partial = problem.r * pieces * math.ceil(run / width) * width * lanes + lanes

    cols = (q - 1) * problem.geometry.stride[1] + (problem.s - 1) * problem.geometry.dilation[1] + 1
    row = cols * _pixel_bytes(problem, flip=False)
    strips = min(p, max(strip_count(problem, p, 1, row * uh), math.ceil(p * q / (8 * PIXELS))))
    rows = math.ceil(p / strips)
    chunks = min(CHUNKS, problem.n * strips)
    tile = {"A": width, "RT": height}
    main = Phase(
        specialise(
            "conv2d_lanes_wgrad",
            problem.constants,
            _sides(problem, flip=False),
            tile,
            BIAS=int(db != ABSENT),
        ),
        (x, dy, Workspace(), problem.n, problem.h, problem.w, chunks, strips),
        items=chunks,
        scratch=((rows - 1) * uh + span) * row
        + 4 * width * lanes
        + (4 * rows * q * problem.k if problem.planar_y else 0),
    )
    strides = problem.w_strides
    reduce = Phase(
        specialise(
            "conv2d_lanes_reduce",
            {name: problem.constants[name] for name in ("G", "R", "S", "DW")},
            _sides(problem, flip=False),
            {"OUT_STEP": strides["K"], "IN_STEP": strides["C"]},
            {"ROW_STEP": strides["R"], "COL_STEP": strides["S"], "A": width},
        ),
        (Workspace(), dw, db, chunks),
        items=problem.r + int(db != ABSENT),
    )
    return Selection("dense", "conv2d_lanes_wgrad", CpuLaunch((main, reduce)), chunks * partial * 4)


def _pack(problem: Problem, w: Argument, flip: bool) -> tuple[Phase, int]:
    """The phase that lays the filters out by lanes, and the bytes it fills."""
    strides = problem.w_strides
    sides = _sides(problem, flip)
    kernel = specialise(
        "conv2d_lanes_pack",
        {name: problem.constants[name] for name in ("G", "R", "S", "UH", "UW", "DH", "DW")},
        sides,
        {"OUT_STEP": strides["C" if flip else "K"], "IN_STEP": strides["K" if flip else "C"]},
        {"ROW_STEP": strides["R"], "COL_STEP": strides["S"]},
        {"GROUP_STEP": problem.kg * strides["K"], "FLIP": int(flip)},
    )
    taps = problem.r * problem.s
    lanes = _padded(problem.groups * sides["OUT"])
    return Phase(kernel, (w, Workspace()), items=taps), taps * sides["IN"] * lanes * 4


def _sides(problem: Problem, flip: bool) -> Mapping[str, int]:
    """Channels of a group on the lanes' side (OUT) and on the reduction's side (IN)."""
    out, in_ = (problem.c, problem.kg) if flip else (problem.kg, problem.c)
    return {"OUT": out, "IN": in_}


def _pixel_bytes(problem: Problem, flip: bool) -> int:
    """Scratch bytes of a staged pixel, and of the plain copy that it is rearranged from."""
    sides = _sides(problem, flip)
    plain = _padded(problem.groups * sides["IN"])
    return 4 * (sides["IN"] * _padded(problem.groups * sides["OUT"]) + plain)


def _padded(lanes: int) -> int:
    return -(-lanes // LANES) * LANES


def _columns(cols: int) -> int:
    """Width of a tile: the row in as few equal tiles as possible."""
    return math.ceil(cols / math.ceil(cols / _WIDEST))


def _span(problem: Problem) -> int:
    """Input rows that one output row reaches over."""
    return (problem.r - 1) * problem.geometry.dilation[0] + 1
