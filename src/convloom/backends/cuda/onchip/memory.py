"""Where the maps of an image, and the weights of a block, lie in shared memory."""

from __future__ import annotations

from dataclasses import dataclass, field

from convloom.backends.cuda.onchip.operand import BFLOAT16, Operand
from convloom.backends.cuda.onchip.stages import ConvStage, Stages
from convloom.backends.selecting import ceil_div

#: Bytes of a pixel in a plane.
_PIXEL = 16
#: Planes of tf32 begin half of this after a multiple of it, in pixels: what a warp reads of two
#: planes, four pixels each, then lies in all banks of shared memory (conv_wgrad.cuh).
_APART = 8
#: Channels up to which the first convolution's input is kept channel by channel.
_FEW_CHANNELS, _FEW_PRODUCTS = 4, 160


@dataclass(frozen=True)
class Map:
    """A map in planes.

    Attributes:
        base: where pixel (0, 0) of the first plane lies, in bytes.
        pitch: pixels from row to row.
        plane: bytes from plane to plane. In maps of single channels pitch and plane count elements.
    """

    base: int = 0
    pitch: int = 0
    plane: int = 0


@dataclass(frozen=True)
class Grid:
    """A map with zeros around: borders left and right are shared by neighbouring rows."""

    height: int
    width: int
    top: int = 0
    left: int = 0
    bottom: int = 0
    right: int = 0

    @property
    def pitch(self) -> int:
        return self.width + max(self.left, self.right)

    @property
    def lead(self) -> int:
        """Pixels before the first; there is always one of zeros."""
        return self.top * self.pitch + max(self.left, 1)

    @property
    def pixels(self) -> int:
        return self.lead + (self.height + self.bottom) * self.pitch + self.right

    def around(self, other: Grid) -> Grid:
        """The same pixels with the borders of both."""
        return Grid(
            self.height,
            self.width,
            max(self.top, other.top),
            max(self.left, other.left),
            max(self.bottom, other.bottom),
            max(self.right, other.right),
        )


@dataclass
class Regions:
    """Named pieces of memory, one behind the other.

    Attributes:
        sizes: {name: bytes}, in order.
    """

    sizes: dict[str, int] = field(default_factory=dict)

    def take(self, name: str, nbytes: int) -> int:
        """Where the piece begins."""
        start = self.nbytes
        self.sizes[name] = ceil_div(nbytes, 128) * 128
        return start

    @property
    def nbytes(self) -> int:
        """Of all pieces."""
        return sum(self.sizes.values())


@dataclass(frozen=True)
class ImageMemory:
    """The region of one image.

    Attributes:
        gather: whether the first convolution's input is kept channel by channel.
        input_bytes: distance of the two buffers of the input; 0 where it has one.
        x, dy, z: for each convolution, its input, the gradient of its output, what it hands on.
        in_place: for each convolution, whether the gradient of its input lies where that lies.
        code: for each convolution, the winners of its windows.
        features, gradients: for each fully connected layer, its input, its output's gradient.
    """

    gather: bool
    input_bytes: int
    x: tuple[Map, ...]
    dy: tuple[Map, ...]
    z: tuple[Map, ...]
    in_place: tuple[bool, ...]
    code: tuple[int, ...]
    features: tuple[int, ...]
    gradients: tuple[int, ...]
    regions: Regions


def gathers(stages: Stages) -> bool:
    """Whether the first convolution's input is kept channel by channel."""
    if not stages.convs:
        return False
    first = stages.convs[0]
    products = first.channels * first.kernel[0] * first.kernel[1]
    return first.channels <= _FEW_CHANNELS and products <= _FEW_PRODUCTS


def image_memory(
    stages: Stages, gradients: bool, in_place: bool, operand: Operand = BFLOAT16
) -> ImageMemory:
    """Place the maps of one image; those of the backward pass too if ``gradients``.

    With ``in_place`` gradients lie where activations lay, if they can; that costs a barrier.
    """
    return _Placement(stages, gradients, in_place, operand).place()


@dataclass
class _Placement:
    stages: Stages
    gradients: bool
    in_place: bool
    operand: Operand
    regions: Regions = field(default_factory=Regions)

    def place(self) -> ImageMemory:
        convs, linears = self.stages.convs, self.stages.linears
        gather = gathers(self.stages)
        x, input_bytes = self._input(gather)
        maps = [x] if convs else []
        for i in range(1, len(convs)):
            maps.append(self._planes(f"input {i + 1}", self._input_grid(i), convs[i].channels))
        features = [
            self.regions.take(
                "features" if j == 0 else f"hidden {j}", self.operand.nbytes * linear.width
            )
            for j, linear in enumerate(linears)
        ]
        if not convs:
            features[0] = x.base
        dense = []
        if convs:
            height, width = convs[-1].handed_on
            dense = [Map(features[0], width, height * width * _PIXEL)]
        dy = [self._gradient(i, maps) for i in range(len(convs))] if self.gradients else []
        code = [self._code(i) for i in range(len(convs))] if self.gradients else []
        rows = []
        if self.gradients:
            rows = [
                self.regions.take(f"gradient of outputs {j + 1}", self.operand.nbytes * linear.out)
                for j, linear in enumerate(linears)
            ]
        none = len(convs) * [Map()]
        return ImageMemory(
            gather,
            input_bytes,
            tuple(maps),
            tuple(dy or none),
            (*maps[1:], *dense),
            tuple(i > 0 and self._in_place(i - 1) for i in range(len(convs))),
            tuple(code or len(convs) * [0]),
            tuple(features),
            tuple(rows or len(linears) * [0]),
            self.regions,
        )

    def _input(self, gather: bool) -> tuple[Map, int]:
        """The network's input, in two buffers that take turns, and their distance."""
        if not self.stages.convs:
            nbytes = self.operand.nbytes * self.stages.linears[0].width
            return Map(self.regions.take("input", nbytes)), 0
        conv = self.stages.convs[0]
        grid = padded_grid(conv)
        if not gather:
            plane = self._plane(grid)
            size = ceil_div(self._planes_of(conv.channels) * plane, 128) * 128
            start = self.regions.take("input", 2 * size)
            return Map(start + grid.lead * _PIXEL, grid.pitch, plane), size
        nbytes = self.operand.nbytes
        plane = ceil_div(grid.pixels, 8) * 8
        size = ceil_div(conv.channels * plane * nbytes, 128) * 128
        start = self.regions.take("input", 2 * size)
        return Map(start + nbytes * grid.lead, grid.pitch, plane), size

    def _planes(self, name: str, grid: Grid, channels: int) -> Map:
        plane = self._plane(grid)
        start = self.regions.take(name, self._planes_of(channels) * plane)
        return Map(start + grid.lead * _PIXEL, grid.pitch, plane)

    def _planes_of(self, channels: int) -> int:
        return ceil_div(channels, self.operand.together)

    def _plane(self, grid: Grid) -> int:
        """Bytes of a plane."""
        pixels = grid.pixels
        if self.operand.spaced:
            pixels += (_APART // 2 - pixels) % _APART
        return pixels * _PIXEL

    def _input_grid(self, i: int) -> Grid:
        grid = padded_grid(self.stages.convs[i])
        return grid.around(dilated_grid(self.stages, i - 1)) if self._in_place(i - 1) else grid

    def _in_place(self, i: int) -> bool:
        """Whether the gradient of convolution i's output lies where that output lay."""
        conv = self.stages.convs[i]
        dense = not conv.pool and conv.stride == (1, 1)
        return self.gradients and self.in_place and dense and i + 1 < len(self.stages.convs)

    def _gradient(self, i: int, maps: list[Map]) -> Map:
        if self._in_place(i):
            return maps[i + 1]
        grid = dilated_grid(self.stages, i)
        return self._planes(f"gradient {i + 1}", grid, self.stages.convs[i].filters)

    def _code(self, i: int) -> int:
        conv = self.stages.convs[i]
        if not conv.pool:
            return 0
        height, width = conv.handed_on
        planes = ceil_div(conv.filters, 8)
        return self.regions.take(f"winners {i + 1}", planes * height * width * 8)


def padded_grid(conv: ConvStage) -> Grid:
    """A convolution's input with its padding."""
    (height, width), (top, left) = conv.size, conv.padding
    return Grid(height, width, top, left, top, left)


def dilated_grid(stages: Stages, i: int) -> Grid:
    """The gradient of convolution i's output on the grid of its input, as its dgrad reads it."""
    conv = stages.convs[i]
    size = [(out - 1) * stride + 1 for out, stride in zip(conv.out, conv.stride, strict=True)]
    if i == 0:
        return Grid(size[0], size[1])
    before = [k - 1 - pad for k, pad in zip(conv.kernel, conv.padding, strict=True)]
    behind = [
        max(0, extent + pad - own)
        for extent, pad, own in zip(conv.size, conv.padding, size, strict=True)
    ]
    return Grid(size[0], size[1], before[0], before[1], behind[0], behind[1])
