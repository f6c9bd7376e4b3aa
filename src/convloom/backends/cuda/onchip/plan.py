"""A chain's kernels: constants, shared memory and launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from convloom.backends.cuda.launch import Constant
from convloom.backends.cuda.onchip import strips
from convloom.backends.cuda.onchip.config import PLAIN, Config
from convloom.backends.cuda.onchip.memory import ImageMemory, Regions, image_memory
from convloom.backends.cuda.onchip.operand import BFLOAT16, Operand
from convloom.backends.cuda.onchip.stages import ConvStage, LinearStage, Stages, UnfitError
from convloom.backends.cuda.onchip.tiling import (
    MOST_LASTING,
    Tile,
    dgrad_tile,
    forward_tile,
    wgrad_tile,
)
from convloom.backends.selecting import activation_number, ceil_div
from convloom.ir import Region, Segment
from convloom.ops import Activation, ReLU

#: What a kernel goes on to: logits, the loss, gradients.
LOGITS, LOSS, GRADIENTS = 0, 1, 2
#: Blocks of a launch, one a multiprocessor; more images go round again.
MOST_BLOCKS = 132
#: Of a fragment: bytes of a step (16 products, of tf32 8) by 8 outputs.
_FRAGMENT = 256
#: Of the reducing kernel: elements of slabs and features that a thread's place in its warp stands
#: for, a block's warps, and most elements of a thread and tiles of 16 outputs.
_ELEMENTS, _FEATURES, _WARPS, _MOST_EACH, _ROWS = 32, 32, 8, 4, 4
#: Chunks of images that are on their way to a warp of it.
STAGES = 4


def room_for(n: int, multiprocessors: int) -> int:
    """How many blocks there is room for, for each of n images at a time."""
    return min(MOST_BLOCKS, multiprocessors) // n


@dataclass(frozen=True)
class Reduction:
    """The second kernel, which makes gradients and updates.

    Attributes:
        groups: of a block's warps that have features of a matrix of their own.
        each: elements of slabs that a thread adds up.
        stages: chunks of images on their way to a warp.
        blocks: of the launch; ``shared``: bytes of shared memory of each.
    """

    groups: int
    each: int
    stages: int
    blocks: int
    shared: int

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        return {
            "LINEAR_GROUPS": self.groups,
            "CONV_EACH": self.each,
            "STAGES": self.stages,
        }


@dataclass(frozen=True)
class OnChip:
    """The kernels of a chain. Any property raises UnfitError where it does not fit."""

    stages: Stages
    mode: int
    limit: int
    config: Config = PLAIN
    in_place: bool = False
    operand: Operand = BFLOAT16

    @classmethod
    def best(
        cls,
        stages: Stages,
        mode: int,
        limit: int,
        operand: Operand = BFLOAT16,
        config: Config = PLAIN,
    ) -> OnChip:
        """With gradients in memory of their own, if all that ought to stay there then fits."""
        together = operand.together
        linears = tuple(replace(linear, together=together) for linear in stages.linears)
        alone = replace(config, split=1)
        roomy = cls(replace(stages, linears=linears), mode, limit, alone, operand=operand)
        tight = replace(roomy, in_place=True)
        one = roomy if roomy.fits and roomy.streamed == tight.streamed else tight
        return one.shared_by(config.split)

    def shared_by(self, split: int) -> OnChip:
        """This, with so many blocks for an image, if they can share one."""
        several = replace(self, config=replace(self.config, split=split))
        if split == 1 or self.mode != GRADIENTS or not self.fits:
            return self
        refused = strips.refusal(self.stages, self.memory.in_place, split)
        return self if refused or not several.fits else several

    @property
    def cluster(self) -> int:
        """Blocks of a cluster."""
        return self.config.split if self.config.cluster else 1

    @property
    def fits(self) -> bool:
        """Whether a block has as much shared memory as it needs."""
        try:
            return self.shared > 0
        except UnfitError:
            return False

    @cached_property
    def memory(self) -> ImageMemory:
        """The region of an image."""
        return image_memory(self.stages, self.mode == GRADIENTS, self.in_place, self.operand)

    @cached_property
    def forward_tiles(self) -> list[Tile]:
        """Of each convolution."""
        warps, images = self.config.warps, self.config.images
        return [
            forward_tile(
                conv, self._made(i), i == 0 and self.memory.gather, warps, images, self.operand
            )
            for i, conv in enumerate(self.stages.convs)
        ]

    def _made(self, i: int) -> int:
        """The most rows of the map that convolution i hands on which a block makes."""
        return strips.most_handed_on(self.stages, i, self.cluster)

    @cached_property
    def dgrad_tiles(self) -> list[Tile]:
        """Of each convolution; the first one's is not used."""
        config, tiles = self.config, []
        for i, conv in enumerate(self.stages.convs):
            rows = strips.most_handed_on(self.stages, i - 1, config.split) if i else conv.size[0]
            tiles.append(dgrad_tile(conv, rows, config.warps, config.images))
        return tiles

    @cached_property
    def wgrad_tiles(self) -> list[Tile]:
        """Of each convolution."""
        if self.mode != GRADIENTS:
            return [Tile(1, 1) for _ in self.stages.convs]
        config, tiles = self.config, []
        for i, conv in enumerate(self.stages.convs):
            gather = i == 0 and self.memory.gather
            rows = strips.most_products(self.stages, i, config.split)
            tiles.append(wgrad_tile(conv, gather, rows, config.warps, config.images, self.operand))
        if sum(tile.registers for tile in tiles) > MOST_LASTING:
            raise UnfitError("the gradients of all filters do not fit in a block's registers")
        return tiles

    @cached_property
    def fixed(self) -> Regions:
        """Shared memory of the block: weights as far as they fit, and the layers' sums."""
        regions = Regions()
        for i, conv in enumerate(self.stages.convs):
            regions.take(f"weights {i + 1}", self._fragments(i, conv))
            if i > 0 and self.mode == GRADIENTS:
                regions.take(f"weights {i + 1}, transposed", self._transposed(i, conv))
        most = max(ceil_div(linear.outputs, 8) * 8 for linear in self.stages.linears)
        sums = self.config.warps * self.config.images * most * 4
        own = self.config.images * self.memory.regions.nbytes + ceil_div(sums, 128) * 128
        by_size = sorted(enumerate(self.stages.linears), key=lambda one: one[1].width)
        for j, linear in by_size:
            nbytes = linear.outputs * linear.width * self.operand.nbytes
            if regions.nbytes + own + nbytes <= self.limit:
                regions.take(f"matrix {j + 1}", nbytes)
        regions.take("sums", sums)
        if self.config.early:
            regions.take("biases", 4 * sum(self._biases()))
        return regions

    def _biases(self) -> list[int]:
        """Floats that the bias of each stage takes in shared memory."""
        convs = [conv.filters if conv.bias else 0 for conv in self.stages.convs]
        return convs + [linear.outputs if linear.bias else 0 for linear in self.stages.linears]

    @cached_property
    def shared(self) -> int:
        """Bytes of shared memory of a block. Raises UnfitError if that is too much."""
        image = self.memory.regions.nbytes
        need = max(self.fixed.nbytes + self.config.images * image, self.scratch)
        if need > self.limit:
            raise UnfitError(
                f"an image takes {image / 1024:.0f} KB of shared memory and the weights "
                f"{self.fixed.nbytes / 1024:.0f} KB; a block has {self.limit // 1024} KB"
            )
        return need

    @property
    def scratch(self) -> int:
        """Bytes of shared memory where the filters' gradients of a block are added up, a multiple
        of the 16 that are made good behind them at a time (network.cuh)."""
        sizes = self._sums
        return sum(sizes) if self._apart else max(sizes, default=0)

    @property
    def _apart(self) -> bool:
        """Whether the sums of each convolution have a place of their own there, as they take no
        more shared memory than images and weights do."""
        room = self.fixed.nbytes + self.config.images * self.memory.regions.nbytes
        return sum(self._sums) <= room

    @property
    def _sums(self) -> list[int]:
        """Bytes in which the gradients of each convolution's filters are added up."""
        return [
            ceil_div(4 * (size * tile.split + max(self.config.threads, conv.filters)), 16) * 16
            for conv, size, tile in zip(
                self.stages.convs, self.slabs, self.wgrad_tiles, strict=True
            )
        ]

    @cached_property
    def slabs(self) -> list[int]:
        """Floats that a block writes for each convolution's gradients (conv_wgrad.cuh)."""
        if self.mode != GRADIENTS:
            return [0 for _ in self.stages.convs]
        sizes = []
        for i, (conv, tile) in enumerate(zip(self.stages.convs, self.wgrad_tiles, strict=True)):
            gather = i == 0 and self.memory.gather
            (r, s), groups = conv.kernel, ceil_div(ceil_div(conv.filters, 16), tile.rows)
            columns = (conv.channels * r * s + 8) // 8 if gather else ceil_div(conv.channels, 8)
            rows, taps = (1, 1) if gather else (r, s)
            units = groups * ceil_div(columns, tile.cols) * rows
            size = units * tile.rows * taps * tile.cols * 128
            sizes.append(size + (0 if gather else groups * tile.rows * 16))
        return sizes

    def blocks(self, n: int) -> int:
        """Blocks of the first kernel for n images."""
        split = self.config.split
        return split * min(ceil_div(n, self.config.images), MOST_BLOCKS // split)

    @property
    def streamed(self) -> list[int]:
        """The fully connected layers whose weights do not stay in shared memory."""
        layers = range(len(self.stages.linears))
        return [j for j in layers if f"matrix {j + 1}" not in self.fixed.sizes]

    def copies(self, j: int) -> int:
        """Bytes of the two packed copies of such a layer's weights (weights.cuh)."""
        linear = self.stages.linears[j]
        return self.operand.nbytes * linear.width * (linear.outputs + linear.out)

    @property
    def resident(self) -> int:
        """Bytes of the packed weights that stay in shared memory, at its front."""
        return _starts(self.fixed.sizes)["sums"]

    @property
    def packed(self) -> int:
        """Bytes of all packed weights: those first, then the copies."""
        return self.resident + sum(self.copies(j) for j in self.streamed)

    @property
    def pack_threads(self) -> int:
        """Threads of the kernel that packs: one for 8 bytes of fragments, 16 of matrices."""
        sizes = self.fixed.sizes.items()
        fragments = sum(size // 8 for name, size in sizes if name.startswith("weights"))
        together = self.operand.together
        matrices = sum(linear.width // together * linear.outputs for linear in self.stages.linears)
        backward = sum(
            linear.out // together * linear.width
            for j, linear in enumerate(self.stages.linears)
            if j in self.streamed
        )
        return fragments + matrices + backward

    @property
    def kept(self) -> int:
        """Elements kept of an image, for the gradients of fully connected weights."""
        return sum(linear.width + linear.out for linear in self.stages.linears)

    @property
    def element(self) -> int:
        """Bytes of an element that is kept."""
        return self.operand.nbytes

    @property
    def reduce_rows(self) -> list[int]:
        """Tiles of 16 outputs that a block of the second kernel takes, for each matrix."""
        fitting = [rows for rows in range(1, _ROWS + 1) if self._reduced(rows) <= self.limit]
        most = max(fitting, default=1)
        return [min(linear.out // 16, most) for linear in self.stages.linears]

    def reduction(self, n: int, multiprocessors: int) -> Reduction:
        """The second kernel for n images.

        Each block has a multiprocessor of its own, if there are so many. As these become free one
        by one, the first would take several blocks, and others none: so each asks for too much
        shared memory for two.
        """
        for each in range(1, _MOST_EACH + 1):
            made = self._reduction(n, each)
            if made.blocks <= multiprocessors:
                return replace(made, shared=max(made.shared, self.limit // 2 + 1024))
        return self._reduction(n, 1)

    def _reduction(self, n: int, each: int) -> Reduction:
        if self.mode != GRADIENTS:
            return Reduction(1, 1, 1, 1, 0)
        groups, chunks = self._reduce_groups(n), ceil_div(n, self.operand.depth)
        stages = min(STAGES, max(1, ceil_div(chunks * groups, _WARPS)))
        filters = sum(ceil_div(size, _ELEMENTS * each) for size in self.slabs)
        matrices = sum(
            ceil_div(linear.width, _FEATURES * groups) * ceil_div(linear.out, 16 * rows)
            for linear, rows in zip(self.stages.linears, self.reduce_rows, strict=True)
        )
        needs = (self._reduced(rows, stages) for rows in self.reduce_rows)
        shared = max(_WARPS * 32 * 4 * each, *needs)
        return Reduction(groups, each, stages, filters + matrices + 1, shared)

    def _reduce_groups(self, n: int) -> int:
        """Groups of warps that have features of their own: no more than leave each warp a chunk of
        the images."""
        chunks = ceil_div(n, self.operand.depth)
        return next(groups for groups in (8, 4, 2, 1) if groups == 1 or groups * chunks <= _WARPS)

    def _reduced(self, rows: int, stages: int = STAGES) -> int:
        """What a block of the second kernel needs for so many tiles of outputs."""
        sums = 4 * (rows * 16 + 1) * _FEATURES + 4 * rows * 16
        return _WARPS * max(stages * self._stage(rows), sums)

    def _stage(self, rows: int) -> int:
        """Bytes of a chunk of images on its way to the second kernel (linear_wgrad.cuh)."""
        if self.operand.spaced:
            return self.operand.depth * (4 * _FEATURES + 32 + ceil_div(64 * rows, 128) * 128 + 32)
        return self.operand.depth * (2 * _FEATURES + 16 + 32 * rows + 16)

    def segment(self, titles: tuple[str, ...], n: int) -> Segment:
        """What a plan shows."""
        return Segment(
            titles,
            self.config.images,
            self.blocks(n),
            self.config.threads,
            tuple(Region(name, size) for name, size in self.memory.regions.sizes.items()),
            tuple(Region(name, size) for name, size in self.fixed.sizes.items()),
            self.limit,
            cluster=self.config.split,
            precision=self.precision,
        )

    @property
    def precision(self) -> str:
        """What operands of products are rounded to."""
        return self.operand.precision

    def constants(self, row: bool) -> dict[str, Constant]:
        """What both kernels are specialised by; ``row``: whether the input lies row-major."""
        memory, linears = self.memory, self.stages.linears
        starts = _starts(self.fixed.sizes)
        before = np.cumsum([0, *(linear.width + linear.out for linear in linears)]).tolist()
        packed, end = [], self.resident
        for j in range(len(linears)):
            packed.append(end)
            end += self.copies(j) if j in self.streamed else 0
        matrices = [start for name, start in starts.items() if name.startswith("matrix")]
        return {
            "THREADS": self.config.threads,
            "IMAGES": self.config.images,
            "SPLIT": self.config.split,
            "CLUSTER": 1,
            "MODE": self.mode,
            "EXACT": 0,
            "TF32": int(self.operand.nbytes == 4),
            "CONVS": len(self.stages.convs),
            "LINEARS": len(linears),
            "GATHER": int(memory.gather),
            "XROW": int(row),
            "INPUT_BYTES": memory.input_bytes,
            "IMAGE_AT": self.fixed.nbytes,
            "IMAGE_BYTES": memory.regions.nbytes,
            "MATRICES_AT": min(matrices, default=self.resident),
            "SUMS_AT": self.resident,
            "SCRATCH_AT": 0,
            "APART": int(self._apart),
            "SLAB": max(1, sum(self.slabs)),
            **self._conv_constants(starts),
            **_arrays("LINEAR", [_linear_constants(linear) for linear in linears]),
            "LINEAR_ROWS": tuple(self.reduce_rows),
            "LINEAR_X": memory.features,
            "LINEAR_DY": memory.gradients,
            "LINEAR_FRAGMENTS": tuple(
                starts.get(f"matrix {j + 1}", -1) for j in range(len(linears))
            ),
            "LINEAR_PACKED": tuple(packed),
            "LINEAR_BEFORE": tuple(before[:-1]),
            "EARLY": int(self.config.early),
            "BIAS_AT": self._bias_places(starts),
        }

    def _bias_places(self, starts: Mapping[str, int]) -> tuple[int, ...]:
        """Where each stage's bias lies in shared memory."""
        ends = np.cumsum([starts.get("biases", 0), *(4 * size for size in self._biases())])
        return tuple(ends[:-1].tolist())

    def _conv_constants(self, starts: Mapping[str, int]) -> dict[str, Constant]:
        memory, rows = self.memory, []
        for i, conv in enumerate(self.stages.convs):
            forward, dgrad = self.forward_tiles[i], self.dgrad_tiles[i]
            wgrad = self.wgrad_tiles[i]
            row = _shape_constants(conv)
            for name, place in (("X", memory.x[i]), ("DY", memory.dy[i]), ("Z", memory.z[i])):
                row |= {name: place.base, f"{name}PITCH": place.pitch, f"{name}PLANE": place.plane}
            row |= {"CODE": memory.code[i], "IN_PLACE": int(memory.in_place[i])}
            row |= {"MT": forward.rows, "NT": forward.cols, "DMT": dgrad.rows, "DNT": dgrad.cols}
            row |= {"SCRATCH": sum(self._sums[:i]) if self._apart else 0}
            row |= {"WMT": wgrad.rows, "WNT": wgrad.cols, "WSPLIT": wgrad.split}
            row |= {
                "FRAGMENTS": starts[f"weights {i + 1}"],
                "WEIGHTS": self.fixed.sizes[f"weights {i + 1}"],
                "TRANSPOSED": starts.get(f"weights {i + 1}, transposed", 0),
                "TURNED": self.fixed.sizes.get(f"weights {i + 1}, transposed", 0),
            }
            rows.append(row)
        if not rows:
            rows = [_no_conv(self.stages.linears[0])]
        return _arrays("CONV", rows)

    def _fragments(self, i: int, conv: ConvStage) -> int:
        (r, s), tile = conv.kernel, self.forward_tiles[i]
        if i == 0 and self.memory.gather:
            steps = ceil_div(conv.channels * r * s, self.operand.depth)
        else:
            steps = r * ceil_div(s * ceil_div(conv.channels, self.operand.together), 2)
        return steps * _padded_tiles(conv.filters, tile.cols) * _FRAGMENT

    def _transposed(self, i: int, conv: ConvStage) -> int:
        (r, s), tile = conv.kernel, self.dgrad_tiles[i]
        steps = r * ceil_div(s * ceil_div(conv.filters, self.operand.together), 2)
        return steps * _padded_tiles(conv.channels, tile.cols) * _FRAGMENT


def _padded_tiles(outputs: int, cols: int) -> int:
    return ceil_div(ceil_div(outputs, 8), cols) * cols


def _starts(sizes: Mapping[str, int]) -> dict[str, int]:
    ends = np.cumsum([0, *sizes.values()]).tolist()
    return dict(zip(sizes, ends[:-1], strict=True))


def _arrays(prefix: str, rows: Sequence[Mapping[str, int]]) -> dict[str, Constant]:
    """A constant for each key, with the values of all rows."""
    return {f"{prefix}_{name}": tuple(row[name] for row in rows) for name in rows[0]}


def _shape_constants(conv: ConvStage) -> dict[str, int]:
    return {
        "C": conv.channels,
        "H": conv.size[0],
        "W": conv.size[1],
        "K": conv.filters,
        "R": conv.kernel[0],
        "S": conv.kernel[1],
        "OH": conv.out[0],
        "OW": conv.out[1],
        "UH": conv.stride[0],
        "UW": conv.stride[1],
        "PADH": conv.padding[0],
        "PADW": conv.padding[1],
        "BIAS": int(conv.bias),
        **_activation(conv.activation),
        "POOL": 2 if conv.average else int(conv.pool),
        "ROW": int(conv.row),
        "WEIGHT": conv.weight,
    }


def _no_conv(linear: LinearStage) -> dict[str, int]:
    """What stands for the shape of images where no convolution reads them."""
    names = ("X", "DY", "Z")
    maps = {f"{name}{part}": 0 for name in names for part in ("", "PITCH", "PLANE")}
    tiles = dict.fromkeys(("MT", "NT", "DMT", "DNT", "WMT", "WNT", "WSPLIT"), 1)
    stage = ConvStage(linear.channels, (1, 1), 1, (1, 1), (1, 1), (1, 1), (0, 0), False, True, 0)
    return (
        _shape_constants(stage)
        | maps
        | tiles
        | {"CODE": 0, "IN_PLACE": 0, "SCRATCH": 0, "FRAGMENTS": 0, "TRANSPOSED": 0}
        | {"WEIGHTS": 0, "TURNED": 0}
    )


def _activation(op: ReLU | Activation | None) -> dict[str, int]:
    """Its number, and the bits of its parameters."""
    kind = "none" if op is None else "relu" if isinstance(op, ReLU) else op.kind
    a, b = (op.a, op.b) if isinstance(op, Activation) else (0.0, 0.0)
    bits = {f"ACT_{name}": int(np.float32(v).view(np.int32)) for name, v in (("A", a), ("B", b))}
    return {"ACT": activation_number(kind), **bits}


def _linear_constants(linear: LinearStage) -> dict[str, int]:
    dropout = linear.dropout
    scale = np.float32(dropout.scale if dropout else 1.0)
    return {
        "C": linear.channels,
        "PIXELS": linear.pixels,
        "O": linear.outputs,
        "BIAS": int(linear.bias),
        **_activation(linear.activation),
        "ROW": int(linear.row),
        "WEIGHT": linear.weight,
        "DROPOUT": int(dropout is not None),
        "STREAM": dropout.stream if dropout else 0,
        "THRESHOLD": dropout.threshold if dropout else 0,
        "SCALE": int(scale.view(np.uint32)),
    }
