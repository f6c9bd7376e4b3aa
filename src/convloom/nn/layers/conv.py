"""Convolution and transposed convolution."""

from __future__ import annotations

from typing import Any

from convloom.nn import functional
from convloom.nn import init as initialisers
from convloom.nn.arguments import (
    ArgumentError,
    check_groups,
    conv_geometry,
    no_placement,
    pair,
    whole,
)
from convloom.nn.arguments import (
    output_padding as checked_output_padding,
)
from convloom.nn.layers.base import Layer, named
from convloom.nn.parameter import Parameter
from convloom.nn.tensor import SymbolicTensor

_Size = int | tuple[int, int]


class Conv2d(Layer):
    """Convolution of (N, C, H, W), as torch.nn.Conv2d.

    Args:
        padding: zeros on each side, or ``"valid"``, or ``"same"`` (stride 1, odd kernels).
        padding_mode: only ``"zeros"``.
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        init: how weights begin; see nn/init.py. ``pytorch`` for torch's own default.

    Attributes:
        weight: (out_channels, in_channels / groups, height, width).
        bias: (out_channels,), or None.

    Raises:
        ShapeError: sizes that cannot be, in the constructor or when traced.
        ArgumentError: an option of PyTorch that convloom does not have.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Size,
        stride: _Size = 1,
        padding: _Size | str = 0,
        dilation: _Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        init: str | initialisers.Initialiser = "he",
    ) -> None:
        super().__init__()
        with named(f"Conv2d({in_channels}, {out_channels}, {kernel_size})"):
            no_placement(device, dtype)
            if padding_mode != "zeros":
                raise ArgumentError(f"padding_mode must be 'zeros', it is {padding_mode!r}")
            self.in_channels = whole(in_channels, "in_channels")
            self.out_channels = whole(out_channels, "out_channels")
            self.kernel_size = pair(kernel_size, "kernel_size")
            self.stride, self.padding, self.dilation, self.groups = conv_geometry(
                self.kernel_size, stride, padding, dilation, groups
            )
            check_groups(self.in_channels, self.out_channels, self.groups)
            shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
            weight, offset = initialisers.resolve(init, initialisers.fans(shape)[0])
        self.weight = Parameter(shape, weight)
        self.bias = Parameter((self.out_channels,), offset) if bias else None

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        return geometry_text(self)


class ConvTranspose2d(Layer):
    """Transposed convolution of (N, C, H, W), as torch.nn.ConvTranspose2d.

    Args:
        padding: what a convolution back would pad; it makes the output smaller.
        output_padding: rows and columns added on the far side; smaller than the stride.
        padding_mode: only ``"zeros"``.
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        init: how weights begin; see nn/init.py. ``pytorch`` for torch's own default.

    Attributes:
        weight: (in_channels, out_channels / groups, height, width).
        bias: (out_channels,), or None.

    Raises:
        ShapeError: sizes that cannot be, in the constructor or when traced.
        ArgumentError: an option of PyTorch that convloom does not have.
    """

    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: _Size,
        stride: _Size = 1,
        padding: _Size = 0,
        output_padding: _Size = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: _Size = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        init: str | initialisers.Initialiser = "he",
    ) -> None:
        super().__init__()
        with named(f"ConvTranspose2d({in_channels}, {out_channels}, {kernel_size})"):
            no_placement(device, dtype)
            if padding_mode != "zeros":
                raise ArgumentError(f"padding_mode must be 'zeros', it is {padding_mode!r}")
            self.in_channels = whole(in_channels, "in_channels")
            self.out_channels = whole(out_channels, "out_channels")
            self.kernel_size = pair(kernel_size, "kernel_size")
            self.padding = pair(padding, "padding")
            self.stride, _, self.dilation, self.groups = conv_geometry(
                self.kernel_size, stride, self.padding, dilation, groups
            )
            self.output_padding = checked_output_padding(output_padding, self.stride)
            check_groups(self.in_channels, self.out_channels, self.groups)
            shape = (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
            weight, offset = initialisers.resolve(init, initialisers.fans(shape)[0])
        self.weight = Parameter(shape, weight)
        self.bias = Parameter((self.out_channels,), offset) if bias else None

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.conv_transpose2d(
            x,
            self.weight,
            self.bias,
            self.stride,
            self.padding,
            self.output_padding,
            self.groups,
            self.dilation,
        )

    def extra_repr(self) -> str:
        return geometry_text(self, output_padding=self.output_padding)


def geometry_text(layer: Any, *sizes: str, output_padding: tuple[int, int] = (0, 0)) -> str:
    """What ``repr`` says of a layer with a convolution's geometry; defaults are left out.

    Args:
        sizes: what stands behind the kernel's size.
    """
    parts = [
        f"{layer.in_channels}, {layer.out_channels}",
        f"kernel_size={layer.kernel_size}",
        *sizes,
        f"stride={layer.stride}",
    ]
    if layer.padding != (0, 0):
        parts.append(f"padding={layer.padding}")
    if output_padding != (0, 0):
        parts.append(f"output_padding={output_padding}")
    if layer.dilation != (1, 1):
        parts.append(f"dilation={layer.dilation}")
    if layer.groups != 1:
        parts.append(f"groups={layer.groups}")
    if layer.bias is None:
        parts.append("bias=False")
    return ", ".join(parts)
