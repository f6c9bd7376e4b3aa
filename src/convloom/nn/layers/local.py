"""Locally connected layers and unshared biases, as cuda-convnet has them."""

from __future__ import annotations

from typing import Any

from convloom.nn import functional
from convloom.nn import init as initialisers
from convloom.nn.arguments import check_groups, conv_geometry, no_placement, pair, whole
from convloom.nn.layers.base import Layer, named
from convloom.nn.layers.conv import geometry_text
from convloom.nn.parameter import Parameter
from convloom.nn.tensor import SymbolicTensor
from convloom.ops.geometry import Window

_Size = int | tuple[int, int]


class LocallyConnected2d(Layer):
    """A convolution whose filters and biases are unshared: every output pixel has its own.

    Args:
        input_size: height and width of the images, which fix the number of output pixels.
        padding: zeros on each side, or ``"valid"``, or ``"same"`` (stride 1, odd kernels).
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        init: how weights begin; see nn/init.py.

    Attributes:
        output_size: height P and width Q of the output.
        weight: (P * Q * out_channels, in_channels / groups, height, width), pixel by pixel.
        bias: (out_channels, P, Q), or None.

    Raises:
        ShapeError: sizes that cannot be, in the constructor or when traced.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Size,
        input_size: _Size,
        stride: _Size = 1,
        padding: _Size | str = 0,
        dilation: _Size = 1,
        groups: int = 1,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        init: str | initialisers.Initialiser = "he",
    ) -> None:
        super().__init__()
        with named(f"LocallyConnected2d({in_channels}, {out_channels}, {kernel_size})"):
            no_placement(device, dtype)
            self.in_channels = whole(in_channels, "in_channels")
            self.out_channels = whole(out_channels, "out_channels")
            self.kernel_size = pair(kernel_size, "kernel_size")
            self.input_size = pair(input_size, "input_size")
            self.stride, self.padding, self.dilation, self.groups = conv_geometry(
                self.kernel_size, stride, padding, dilation, groups
            )
            check_groups(self.in_channels, self.out_channels, self.groups)
            window = Window(self.kernel_size, self.stride, self.padding, self.dilation)
            self.output_size = window.output(self.input_size)
            pixels = self.output_size[0] * self.output_size[1]
            channels = self.in_channels // self.groups
            shape = (pixels * self.out_channels, channels, *self.kernel_size)
            weight, offset = initialisers.resolve(init, initialisers.fans(shape)[0])
        self.weight = Parameter(shape, weight)
        self.bias = Parameter((self.out_channels, *self.output_size), offset) if bias else None

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.locally_connected2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        return geometry_text(self, f"input_size={self.input_size}")


class UnsharedBias(Layer):
    """Adds a bias of its own to every channel and pixel: behind a ``Conv2d(…, bias=False)`` what
    cuda-convnet calls ``sharedBiases=false``.

    Attributes:
        bias: (channels, height, width).
    """

    def __init__(self, channels: int, size: _Size) -> None:
        super().__init__()
        with named(f"UnsharedBias({channels}, {size})"):
            self.channels = whole(channels, "channels")
            self.size = pair(size, "size")
        self.bias = Parameter((self.channels, *self.size), initialisers.Constant())

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.add_bias(x, self.bias)

    def extra_repr(self) -> str:
        return f"{self.channels}, {self.size}"
