"""Pooling."""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.arguments import no_divisor, no_indices, pool_window
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor

_Size = int | tuple[int, int]


class MaxPool2d(Layer):
    """The greatest element of each window, as torch.nn.MaxPool2d; ties go to the first in scan
    order. The stride is the kernel size unless given. ``return_indices`` is not supported."""

    def __init__(
        self,
        kernel_size: _Size,
        stride: _Size | None = None,
        padding: _Size = 0,
        dilation: _Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        with named(f"MaxPool2d({kernel_size})"):
            no_indices(return_indices)
            self.window = pool_window(kernel_size, stride, padding, dilation, ceil_mode)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        w = self.window
        return functional.max_pool2d(x, w.kernel, w.stride, w.padding, w.dilation, w.ceil_mode)

    def extra_repr(self) -> str:
        w = self.window
        return (
            f"kernel_size={w.kernel}, stride={w.stride}, padding={w.padding}, "
            f"dilation={w.dilation}, ceil_mode={w.ceil_mode}"
        )


class AvgPool2d(Layer):
    """The mean of each window, as torch.nn.AvgPool2d. ``divisor_override`` is not supported."""

    def __init__(
        self,
        kernel_size: _Size,
        stride: _Size | None = None,
        padding: _Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        with named(f"AvgPool2d({kernel_size})"):
            no_divisor(divisor_override)
            self.window = pool_window(kernel_size, stride, padding, 1, ceil_mode)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        w = self.window
        return functional.avg_pool2d(
            x, w.kernel, w.stride, w.padding, w.ceil_mode, self.count_include_pad
        )

    def extra_repr(self) -> str:
        w = self.window
        return (
            f"kernel_size={w.kernel}, stride={w.stride}, padding={w.padding}, "
            f"ceil_mode={w.ceil_mode}, count_include_pad={self.count_include_pad}"
        )
