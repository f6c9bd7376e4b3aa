"""Convolution."""

from __future__ import annotations

from typing import Any

from convloom.ir import ShapeError
from convloom.nn import functional
from convloom.nn import init as initialisers
from convloom.nn.arguments import ArgumentError, conv_geometry, no_placement, pair, whole
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
            if self.in_channels % self.groups or self.out_channels % self.groups:
                raise ShapeError(
                    f"{self.in_channels} input channels and {self.out_channels} filters cannot "
                    f"be split into {self.groups} groups; both must be divisible by groups"
                )
            shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
            weight, offset = initialisers.resolve(init, initialisers.fans(shape)[0])
        self.weight = Parameter(shape, weight)
        self.bias = Parameter((self.out_channels,), offset) if bias else None

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.conv2d(
            x, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        parts = [
            f"{self.in_channels}, {self.out_channels}",
            f"kernel_size={self.kernel_size}",
            f"stride={self.stride}",
        ]
        if self.padding != (0, 0):
            parts.append(f"padding={self.padding}")
        if self.dilation != (1, 1):
            parts.append(f"dilation={self.dilation}")
        if self.groups != 1:
            parts.append(f"groups={self.groups}")
        if self.bias is None:
            parts.append("bias=False")
        return ", ".join(parts)
