"""Kernels of convolution, its gradients, and bias gradients.

Every convolution step is a few phases: pack the filters for the register tile; convolve; and for
filter gradients add the chunks' partial sums in order. Constants of a kernel never hold the batch
size; strips and chunks are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from convloom.backends.cpu.launch import Argument, CpuLaunch, Phase, Tensor, Workspace
from convloom.backends.cpu.selectors.conv2d_lanes import lanes_dgrad, lanes_fprop, lanes_wgrad
from convloom.backends.cpu.selectors.conv2d_problem import (
    ABSENT,
    CHUNKS,
    CONFLICT,
    ITEMS,
    LANES,
    PIXELS,
    STAGED_BYTES,
    Problem,
    Tile,
    channels_last,
    filter_tile,
    pixel_tile,
    problem_of,
    residues,
    served,
    specialise,
    strip_count,
)
from convloom.backends.cpu.selectors.conv2d_sparse import (
    SparseTensors,
    sparse_grad,
    sparse_pays,
)
from convloom.backends.selecting import activation_constants, mask_constants
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops.conv2d import BiasGrad, Conv2d, Conv2dDgrad, Conv2dWgrad
from convloom.ops.fused import (
    RELU,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    PooledConv2dGrad,
)

#: Bytes of one item's share of a filter gradient: it stays in the second-level cache.
GRADIENT_BYTES = 640 * 1024
#: Products a dy element up to which copying dy for the filter gradient costs more than it saves.
SHALLOW = 256
#: Channels that a 1x1 convolution sums before it walks the next filters.
DEPTH = 512
#: Most bytes that all partial filter gradients of a step may take.
PARTIAL_BYTES = 8 * 1024 * 1024


def select(node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
    """Serves float32 tensors whose images are NHWC or NCHW and whose filters are KRSC or KCRS."""
    names = (*node.inputs, *node.outputs)
    tensors = [specs[name] for name in names]
    if kernels == "reference" or not all(served(spec) for spec in tensors):
        return None
    index = _index_of(node)
    if any(specs[name].dtype != ("uint8" if name == index else "float32") for name in names):
        return None
    op = node.op
    if isinstance(op, BiasGrad):
        return _bias_grad(node, specs)
    if min((spec.size for spec in tensors), default=1) == 0:
        return _empty(node, specs)
    if isinstance(op, Conv2d | FusedConv2d):
        return _fprop(op, node, specs)
    if isinstance(op, Conv2dDgrad | FusedConv2dDgrad):
        return _dgrad(op, node, specs)
    if isinstance(op, Conv2dWgrad | FusedConv2dWgrad):
        return _wgrad(op, node, specs)
    if isinstance(op, PooledConv2dGrad):
        return _pooled_grad(op, node, specs, kernels)
    return None


def _index_of(node: Node) -> str | None:
    """The tensor of winners' places, where a pool is fused; the only one that is not float32."""
    if isinstance(node.op, PooledConv2dGrad):
        return node.inputs[3]
    if isinstance(node.op, FusedConv2d) and node.op.pool:
        return node.outputs[1]
    return None


def _alike(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two tensors of one rank lie in the same order."""
    return a.layout.order == b.layout.order


def _empty(node: Node, specs: Mapping[str, TensorSpec]) -> Selection:
    """An empty batch: outputs that are not empty are sums of nothing."""
    phases = tuple(
        Phase(specialise("fill_zero"), (Tensor(name), specs[name].size), items=1)
        for name in node.outputs
        if specs[name].size
    )
    return Selection("dense", "fill_zero", CpuLaunch(phases))


# Forward ------------------------------------------------------------------------------------


def _fprop(
    op: Conv2d | FusedConv2d, node: Node, specs: Mapping[str, TensorSpec]
) -> Selection | None:
    x, w = node.inputs[:2]
    bias = Tensor(node.inputs[2]) if len(node.inputs) > 2 else ABSENT
    pool = isinstance(op, FusedConv2d) and op.pool == 2
    y = node.outputs[0]
    problem = problem_of(op, specs[x], specs[w], specs[y]).canonical()
    outputs = (Tensor(y), Tensor(node.outputs[1]) if pool else ABSENT)
    epilogue = {"BIAS": int(bias != ABSENT), **activation_constants(op)}
    if problem.many_groups:
        # Unfused, the pool runs on the fast kernel's output; the dense one would waste lanes.
        return (
            None if pool else lanes_fprop(problem, Tensor(x), Tensor(w), bias, outputs[0], epilogue)
        )
    if problem.pointwise and not pool:
        epilogue = {**epilogue, "MASK": 0}
        return _pointwise(problem, False, Tensor(x), Tensor(w), bias, outputs[0], epilogue)
    return _strip_fprop(problem, Tensor(x), Tensor(w), bias, outputs, epilogue, pool)


def _strip_fprop(
    problem: Problem,
    x: Argument,
    w: Argument,
    bias: Argument,
    outputs: tuple[Argument, Argument],
    epilogue: Mapping[str, int],
    pool: bool,
) -> Selection:
    p, q = problem.out
    tile = pixel_tile(p - p % 2 * pool, q - q % 2 * pool, problem.kg, problem.depth, pool, True)
    staged = problem.padded or problem.planar_x
    (uh, _), (dh, _), (_, pw) = (
        problem.geometry.stride,
        problem.geometry.dilation,
        problem.geometry.padding,
    )
    row = (problem.w + 2 * pw) * problem.channels * 4
    scale = 2 if pool else 1
    units = p // scale
    strips = strip_count(problem, units, tile.rows // scale, row * uh * scale)
    rows = (math.ceil(units / strips) * scale - 1) * uh + (problem.r - 1) * dh + 1
    kernel = specialise(
        "conv2d_fprop",
        problem.constants,
        epilogue,
        _tile_constants(tile),
        POOL=int(pool),
        STAGED=int(staged),
    )
    pack, nbytes = packing(problem, tile.block, flip=False, w=w, to=Workspace())
    main = Phase(
        kernel,
        (x, Workspace(), bias, *outputs, problem.h, problem.w, strips),
        items=problem.n * strips,
        scratch=rows * row if staged else 0,
    )
    return Selection("dense", "conv2d_fprop", CpuLaunch((pack, main)), nbytes)


def _tile_constants(tile: Tile) -> dict[str, int]:
    return {"KB": tile.block, "ROWS": tile.rows, "PC": tile.cols}


def packing(
    problem: Problem, block: int, flip: bool, w: Argument, to: Argument
) -> tuple[Phase, int]:
    """The phase that packs filters in blocks of ``block`` outputs, and the bytes it fills."""
    strides = problem.w_strides
    outputs, inputs = (problem.c, problem.kg) if flip else (problem.kg, problem.c)
    blocks = problem.groups * -(-outputs // block)
    constants = problem.constants if flip else {"UH": 1, "UW": 1, "DH": 1, "DW": 1}
    kernel = specialise(
        "conv2d_pack",
        {name: constants[name] for name in ("UH", "UW", "DH", "DW")},
        {"OUT_STEP": strides["C" if flip else "K"], "IN_STEP": strides["K" if flip else "C"]},
        {"ROW_STEP": strides["R"], "COL_STEP": strides["S"]},
        {"GROUP_STEP": problem.kg * strides["K"], "R": problem.r, "S": problem.s},
        {"G": problem.groups, "OUT": outputs, "IN": inputs, "KB": block, "FLIP": int(flip)},
    )
    taps = problem.r * problem.s
    return Phase(kernel, (w, to), items=blocks * taps), blocks * taps * inputs * block * 4


def _pointwise(
    problem: Problem,
    flip: bool,
    x: Argument,
    w: Argument,
    bias: Argument,
    y: Argument,
    epilogue: Mapping[str, int],
    mask: Argument = ABSENT,
) -> Selection:
    """A 1x1 convolution (or with ``flip`` its input gradient) over all pixels."""
    inputs, outputs = (problem.k, problem.c) if flip else (problem.c, problem.k)
    # A long row: the tile must not depend on the batch.
    tile = pixel_tile(1, 10_000, outputs, inputs, False, False)
    pixels = problem.n * problem.h * problem.w
    whole = outputs % tile.block == 0  # else sums cannot wait in y between blocks
    block = min(inputs, DEPTH) if whole else inputs
    staged = whole and inputs % CONFLICT == 0
    chunk = tile.cols * max(1, min(16, STAGED_BYTES // (4 * block) // tile.cols))
    kernel = specialise(
        "conv2d_pointwise",
        epilogue,
        {"KB": tile.block, "PC": tile.cols, "C": inputs, "K": outputs},
        {"CHUNK": chunk, "BLOCK": block, "STAGED": int(staged)},
    )
    pack, nbytes = packing(problem, tile.block, flip, w, Workspace())
    main = Phase(
        kernel,
        (x, Workspace(), bias, mask, y, pixels),
        items=math.ceil(pixels / chunk),
        scratch=chunk * (block + LANES) * 4 if staged else 0,
    )
    return Selection("dense", "conv2d_pointwise", CpuLaunch((pack, main)), nbytes)


# Input gradient -----------------------------------------------------------------------------


def _dgrad(
    op: Conv2dDgrad | FusedConv2dDgrad, node: Node, specs: Mapping[str, TensorSpec]
) -> Selection | None:
    dy, w = node.inputs[:2]
    mask = Tensor(node.inputs[2]) if len(node.inputs) > 2 else ABSENT
    (dx,) = node.outputs
    if mask != ABSENT and not _alike(specs[node.inputs[2]], specs[dx]):
        return None
    problem = problem_of(op, specs[dx], specs[w], specs[dy]).canonical()
    masks = mask_constants(op)
    if problem.many_groups:
        return lanes_dgrad(problem, Tensor(dy), Tensor(w), mask, Tensor(dx), masks)
    if problem.pointwise:
        epilogue = {"BIAS": 0, "ACT": 0, **masks}
        return _pointwise(problem, True, Tensor(dy), Tensor(w), ABSENT, Tensor(dx), epilogue, mask)
    tensors = (Tensor(dy), ABSENT, Tensor(w), mask, Tensor(dx))
    phases, nbytes = _dgrad_phases(problem, *tensors, masks, 0)
    return Selection("dense", "conv2d_dgrad", CpuLaunch(phases), nbytes)


def _dgrad_phases(
    problem: Problem,
    dy: Argument,
    index: Argument,
    w: Argument,
    mask: Argument,
    dx: Argument,
    masks: Mapping[str, int],
    workspace: int,
) -> tuple[tuple[Phase, ...], int]:
    """Pack and main phase, and the workspace they need from offset ``workspace`` on."""
    (uh, uw), (dh, dw), (ph, pw) = (
        problem.geometry.stride,
        problem.geometry.dilation,
        problem.geometry.padding,
    )
    row_reach = residues(problem.r, uh, ph, dh)
    col_reach = residues(problem.s, uw, pw, dw)
    depth = max(1, problem.kg * problem.r * problem.s // (uh * uw))
    one = (uh, uw) == (1, 1)
    tile = pixel_tile(problem.h, max(1, problem.w // uw), problem.c, depth, False, one)
    units = math.ceil(problem.h / uh)
    cols = math.ceil(problem.w / uw) + col_reach.high - col_reach.low
    row = cols * problem.k * 4
    strips = strip_count(problem, units, tile.rows, row)
    rows = math.ceil(units / strips) + row_reach.high - row_reach.low
    kernel = specialise(
        "conv2d_dgrad",
        problem.constants,
        _tile_constants(tile),
        masks,
        POOL=int(index != ABSENT),
    )
    place = Workspace(workspace)
    pack, nbytes = packing(problem, tile.block, flip=True, w=w, to=place)
    main = Phase(
        kernel,
        (dy, place, mask, dx, index, problem.h, problem.w, strips),
        items=problem.n * strips,
        scratch=rows * row,
    )
    return (pack, main), nbytes


# Filter gradient ----------------------------------------------------------------------------


def _wgrad(
    op: Conv2dWgrad | FusedConv2dWgrad, node: Node, specs: Mapping[str, TensorSpec]
) -> Selection | None:
    x, dy = node.inputs
    dw = node.outputs[0]
    db = Tensor(node.outputs[1]) if len(node.outputs) > 1 else ABSENT
    problem = problem_of(op, specs[x], specs[dw], specs[dy]).canonical()
    if problem.many_groups:
        return lanes_wgrad(problem, Tensor(x), Tensor(dy), Tensor(dw), db)
    phases, nbytes = _wgrad_phases(problem, Tensor(x), Tensor(dy), ABSENT, Tensor(dw), db)
    return Selection("dense", "conv2d_wgrad", CpuLaunch(phases), nbytes)


def _wgrad_phases(
    problem: Problem, x: Argument, dy: Argument, index: Argument, dw: Argument, db: Argument
) -> tuple[tuple[Phase, ...], int]:
    """Main and reduce phase, and the workspace they need."""
    p, q = problem.out
    (uh, uw), (dh, _) = problem.geometry.stride, problem.geometry.dilation
    most_chunks = max(1, min(CHUNKS, PARTIAL_BYTES // (4 * problem.filter_size)))
    pieces = 1 if problem.adjacent else problem.s
    slice_, split = _share(problem, most_chunks)
    length = slice_ * problem.s // pieces
    tile = filter_tile(problem.r, length, pieces, min(split, problem.kg), PIXELS)
    split = -(-split // tile.block) * tile.block
    run = -(-length // tile.cols) * tile.cols
    blocks = -(-problem.kg // tile.block)
    partial = problem.groups * (problem.c // slice_) * blocks * tile.block
    partial *= problem.r * pieces * run

    span = (problem.r - 1) * dh + 1
    cols = (q - 1) * uw + (problem.s - 1) * problem.geometry.dilation[1] + 1
    rows = _wgrad_rows(problem, cols * slice_, tile.block, span)
    strips = math.ceil(p / rows)
    rows = math.ceil(p / strips)
    chunks = min(most_chunks, problem.n * strips)
    in_place = (
        index == ABSENT
        and not problem.planar_y
        and problem.kg % tile.block == 0
        and (problem.k == tile.block or problem.depth <= SHALLOW)
    )
    constants = {
        **problem.constants,
        **{"CS": slice_, "KS": split, "KB": tile.block, "A": tile.cols, "RT": tile.rows},
        "BIAS": int(db != ABSENT),
    }
    main = Phase(
        specialise("conv2d_wgrad", constants, POOL=int(index != ABSENT), STAGED=int(not in_place)),
        (
            *(x, dy, index, Workspace(), Workspace(chunks * partial * 4)),
            *(problem.n, problem.h, problem.w, chunks, strips),
        ),
        items=chunks * problem.groups * (problem.c // slice_) * -(-problem.kg // split),
        scratch=4 * (((rows - 1) * uh + span) * cols * slice_ + tile.cols + 16)
        + (0 if in_place else 4 * rows * q * -(-split // tile.block) * tile.block),
    )
    strides = problem.w_strides
    reduce = Phase(
        specialise(
            "conv2d_wgrad_reduce",
            {name: constants[name] for name in _LAYOUT},
            {"OUT_STEP": strides["K"], "IN_STEP": strides["C"], "ROW_STEP": strides["R"]},
            {"COL_STEP": strides["S"], "GROUP_STEP": problem.kg * strides["K"]},
        ),
        (Workspace(), Workspace(chunks * partial * 4), dw, db, chunks),
        items=problem.groups * (problem.c // slice_) * blocks * problem.r
        + (problem.groups if db != ABSENT else 0),
    )
    bias = problem.groups * blocks * tile.block
    return (main, reduce), chunks * (partial + bias) * 4


#: The constants that fix how partial filter gradients lie (kernels/cpu/conv2d_wgrad.h).
_LAYOUT = ("C", "G", "K", "R", "S", "DW", "CS", "KB", "A", "BIAS")


def _share(problem: Problem, chunks: int) -> tuple[int, int]:
    """Channels and filters of an item: the share that copies least of x and dy.

    An item's gradient must fit the cache, and items should be enough for all cores. x is staged
    once for every share of the filters, dy once for every share of the channels.
    """
    uh, uw = problem.geometry.stride
    best, least = (problem.c, problem.kg), math.inf
    for slices in _divisors(problem.c):
        for splits in range(1, -(-problem.kg // 64) + 1):
            channels = problem.c // slices
            filters = -(-problem.kg // splits // 32) * 32
            nbytes = 4 * channels * filters * problem.r * problem.s
            items = chunks * problem.groups * slices * splits
            # Cycles of one output pixel: multiply-adds, and a cycle for each element copied.
            steps = problem.depth * filters * -(-problem.kg // filters) / LANES
            cost = steps + uh * uw * problem.c * splits + problem.kg * slices
            # Shares that are too large or too few are possible, but never preferred.
            cost *= max(1.0, nbytes / GRADIENT_BYTES)
            cost *= max(1.0, 24 / (channels * problem.s))
            if nbytes > GRADIENT_BYTES // 8:
                cost *= max(1.0, ITEMS / items)
            if cost < least:
                best, least = (channels, filters), cost
    return best


def _divisors(size: int) -> list[int]:
    """1 and what divides ``size`` into parts of at least 16."""
    return [1, *(d for d in range(2, size // 16 + 1) if size % d == 0)]


def _wgrad_rows(problem: Problem, row: int, block: int, span: int) -> int:
    """Output rows of a strip: dy fits in L1, unless most staged rows would be staged twice."""
    p, q = problem.out
    uh = problem.geometry.stride[0]
    rows = max(1, PIXELS // q)
    while (
        rows < p
        and (rows - 1) * uh + span > 1.5 * rows * uh
        and (rows * uh + span) * row * 4 < STAGED_BYTES
        and rows * q * block * 4 < STAGED_BYTES // 4
    ):
        rows += 1
    return min(rows, p)


def _pooled_grad(
    op: PooledConv2dGrad, node: Node, specs: Mapping[str, TensorSpec], kernels: str
) -> Selection | None:
    x, w, dyp, index = node.inputs
    dw, dx = node.outputs[0], node.outputs[-1]
    alike = ((dw, w), (index, dyp), *(((dx, x),) if op.needs_dx else ()))
    problem = problem_of(op, specs[x], specs[w], specs[dyp])
    if problem.many_groups or not all(_alike(specs[a], specs[b]) for a, b in alike):
        return None
    tensors = SparseTensors(
        *(Tensor(x), Tensor(w), Tensor(dyp), Tensor(index), Tensor(dw)),
        db=Tensor(node.outputs[1]) if op.has_bias else ABSENT,
        dx=Tensor(dx) if op.needs_dx else ABSENT,
        masked=op.mask == RELU,
    )
    if kernels != "dense" and sparse_pays(problem, op.needs_dx):
        return sparse_grad(problem, tensors)
    return _dense_pooled_grad(problem, tensors)


def _dense_pooled_grad(problem: Problem, t: SparseTensors) -> Selection:
    """The dense gradients; each expands the pooled gradient while it stages it."""
    phases, nbytes = _wgrad_phases(problem, t.x, t.dyp, t.index, t.dw, t.db)
    if t.dx != ABSENT:
        mask = t.x if t.masked else ABSENT
        masks = {"MASK": int(t.masked)}
        more, own = _dgrad_phases(problem, t.dyp, t.index, t.w, mask, t.dx, masks, 0)
        phases, nbytes = (*phases, *more), max(nbytes, own)
    return Selection("dense", "conv2d_wgrad", CpuLaunch(phases), nbytes)


def _bias_grad(node: Node, specs: Mapping[str, TensorSpec]) -> Selection:
    dy = specs[node.inputs[0]]
    channels = dy.shape[1]
    inner = math.prod(dy.shape[2:])
    planar = inner > 1 and not (len(dy.shape) == 4 and channels_last(dy.layout))
    positions = dy.shape[0] * (1 if planar else inner)
    chunks = max(1, min(CHUNKS, positions))
    partial = Phase(
        specialise("bias_grad", K=channels, PLANAR=int(planar)),
        (Tensor(node.inputs[0]), Workspace(), positions, chunks, inner),
        items=chunks,
    )
    size = 1024
    total = Phase(
        specialise("sum_partials", CHUNK=size),
        (Workspace(), Tensor(node.outputs[0]), channels, chunks),
        items=math.ceil(channels / size),
    )
    return Selection("dense", "bias_grad", CpuLaunch((partial, total)), chunks * channels * 4)
