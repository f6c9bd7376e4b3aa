"""Layers that pad, resize, sample, blur or mirror images."""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.arguments import check_resizing, given_size, sides, whole
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor

_Sides = int | tuple[int, int, int, int]
_Size = int | tuple[int, int]


class _Pad(Layer):
    """Padding by one number, or by (left, right, top, bottom)."""

    mode = "constant"

    def __init__(self, padding: _Sides) -> None:
        super().__init__()
        with named(f"{type(self).__name__}({padding})"):
            self.padding = sides(padding)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.pad(x, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class ZeroPad2d(_Pad):
    """Zeros around images, as torch.nn.ZeroPad2d; a negative side is cut off."""


class ConstantPad2d(_Pad):
    """A value around images, as torch.nn.ConstantPad2d; a negative side is cut off."""

    def __init__(self, padding: _Sides, value: float) -> None:
        super().__init__(padding)
        self.value = float(value)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.pad(x, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


class ReflectionPad2d(_Pad):
    """Images reflected at their borders, as torch.nn.ReflectionPad2d."""

    mode = "reflect"


class ReplicationPad2d(_Pad):
    """Images whose borders are repeated, as torch.nn.ReplicationPad2d."""

    mode = "replicate"


class Upsample(Layer):
    """Images of another size, as torch.nn.Upsample with mode "nearest" or "bilinear"."""

    def __init__(
        self,
        size: _Size | None = None,
        scale_factor: float | tuple[float, float] | None = None,
        mode: str = "nearest",
        align_corners: bool | None = None,
        recompute_scale_factor: bool | None = None,
    ) -> None:
        super().__init__()
        with named(f"Upsample({size}, {scale_factor})"):
            check_resizing(mode, align_corners)
            given_size(size, scale_factor)
        self.size, self.scale_factor = size, scale_factor
        self.mode, self.align_corners = mode, align_corners
        self.recompute_scale_factor = recompute_scale_factor

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.interpolate(
            x, self.size, self.scale_factor, self.mode, self.align_corners
        )

    def extra_repr(self) -> str:
        given = f"size={self.size}" if self.size else f"scale_factor={self.scale_factor}"
        return f"{given}, mode={self.mode!r}"


class Nailbed(Layer):
    """Every ``stride``-th pixel, so laid that the bed is in the middle (cuda-convnet's nailbed)."""

    def __init__(self, stride: int) -> None:
        super().__init__()
        with named(f"Nailbed({stride})"):
            self.stride = whole(stride, "stride")

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.nailbed(x, self.stride)

    def extra_repr(self) -> str:
        return f"{self.stride}"


class Blur(Layer):
    """A Gaussian blur with zeros beyond the image (cuda-convnet's blur).

    Args:
        filter_size: 3, 5, 7 or 9.
        stdev: of the Gaussian; its taps are scaled to a sum of 1.
    """

    def __init__(self, filter_size: int, stdev: float) -> None:
        super().__init__()
        with named(f"Blur({filter_size}, {stdev})"):
            self.filter_size = whole(filter_size, "filter_size")
        self.stdev = float(stdev)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.blur(x, self.filter_size, self.stdev)

    def extra_repr(self) -> str:
        return f"{self.filter_size}, stdev={self.stdev}"


class Mirror(Layer):
    """Left and right exchanged (cuda-convnet's href)."""

    def __init__(self) -> None:
        super().__init__()

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.mirror(x)
