"""Pooling."""

from __future__ import annotations

from convloom.nn import functional
from convloom.nn.arguments import divisor, no_indices, output_size, pool_window
from convloom.nn.layers.base import Layer, named
from convloom.nn.tensor import SymbolicTensor
from convloom.ops.geometry import Window
from convloom.ops.pool import check_ties

_Size = int | tuple[int, int]
_OutputSize = int | tuple[int | None, int | None] | None


class MaxPool2d(Layer):
    """The greatest element of each window, as torch.nn.MaxPool2d; ties go to the first in scan
    order. The stride is the kernel size unless given. ``return_indices`` is not supported.

    Args:
        outputs: number of windows an axis, which may then overhang the image and are clipped to it,
            and ``padding`` may be negative: the first window starts inside (cuda-convnet's pools).
        ties: ``"first"``, or ``"all"``: every input equal to the window's maximum receives its full
            gradient (cuda-convnet's rule).
        magnitude: take the element of greatest magnitude, with its sign (cuda-convnet's
            ``maxabs``); of equal magnitudes the last in scan order.
    """

    def __init__(
        self,
        kernel_size: _Size,
        stride: _Size | None = None,
        padding: _Size = 0,
        dilation: _Size = 1,
        return_indices: bool = False,
        ceil_mode: bool = False,
        *,
        outputs: _Size | None = None,
        ties: str = "first",
        magnitude: bool = False,
    ) -> None:
        super().__init__()
        with named(f"MaxPool2d({kernel_size})"):
            no_indices(return_indices)
            check_ties(ties)
            self.window = pool_window(kernel_size, stride, padding, dilation, ceil_mode, outputs)
        self.ties = ties
        self.magnitude = magnitude

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        w = self.window
        return functional.max_pool2d(
            x,
            w.kernel,
            w.stride,
            w.padding,
            w.dilation,
            w.ceil_mode,
            outputs=w.outputs,
            ties=self.ties,
            magnitude=self.magnitude,
        )

    def extra_repr(self) -> str:
        w = self.window
        ties = "" if self.ties == "first" else f", ties={self.ties!r}"
        ties += ", magnitude=True" if self.magnitude else ""
        return (
            f"kernel_size={w.kernel}, stride={w.stride}, padding={w.padding}, "
            f"dilation={w.dilation}, ceil_mode={w.ceil_mode}{_outputs(w)}{ties}"
        )


class AvgPool2d(Layer):
    """The mean of each window, as torch.nn.AvgPool2d.

    Args:
        outputs: as of ``MaxPool2d``; needs ``count_include_pad=False``.
    """

    def __init__(
        self,
        kernel_size: _Size,
        stride: _Size | None = None,
        padding: _Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
        *,
        outputs: _Size | None = None,
    ) -> None:
        super().__init__()
        with named(f"AvgPool2d({kernel_size})"):
            self.divisor_override = divisor(divisor_override)
            self.window = pool_window(kernel_size, stride, padding, 1, ceil_mode, outputs)
        self.count_include_pad = bool(count_include_pad)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        w = self.window
        return functional.avg_pool2d(
            x,
            w.kernel,
            w.stride,
            w.padding,
            w.ceil_mode,
            self.count_include_pad,
            self.divisor_override,
            outputs=w.outputs,
        )

    def extra_repr(self) -> str:
        w = self.window
        divided = f", divisor_override={self.divisor_override}" if self.divisor_override else ""
        return (
            f"kernel_size={w.kernel}, stride={w.stride}, padding={w.padding}, "
            f"ceil_mode={w.ceil_mode}, count_include_pad={self.count_include_pad}"
            f"{divided}{_outputs(w)}"
        )


class AdaptiveAvgPool2d(Layer):
    """Means over windows that cover the image in nearly equal parts, as
    torch.nn.AdaptiveAvgPool2d; an extent of None is the input's."""

    def __init__(self, output_size: _OutputSize) -> None:
        super().__init__()
        with named(f"AdaptiveAvgPool2d({output_size})"):
            self.output_size = _checked(output_size)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.adaptive_avg_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class AdaptiveMaxPool2d(Layer):
    """Maxima over windows that cover the image in nearly equal parts, as
    torch.nn.AdaptiveMaxPool2d; an extent of None is the input's."""

    def __init__(self, output_size: _OutputSize, return_indices: bool = False) -> None:
        super().__init__()
        with named(f"AdaptiveMaxPool2d({output_size})"):
            no_indices(return_indices)
            self.output_size = _checked(output_size)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.adaptive_max_pool2d(x, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


def _checked(size: _OutputSize) -> _OutputSize:
    """The size as it was given, for repr. Raises ShapeError if it is none."""
    output_size(size)
    return size


def _outputs(window: Window) -> str:
    return "" if window.outputs is None else f", outputs={window.outputs}"
