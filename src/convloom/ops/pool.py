"""Max and average pooling, and their gradients.

Max-pooling takes the first greatest element of a window in scan order (rows, then columns); a NaN
beats every number, and the last NaN wins. Source: torch.nn.MaxPool2d, torch.nn.AvgPool2d.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.geometry import Pair, Window

_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class MaxPool2d(Op):
    """Input x (N,C,H,W); outputs y (N,C,P,Q) and index, int32 (N,C,P,Q).

    ``index`` is the position h*W + w of the winner in its input plane, as PyTorch returns it.
    """

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False

    @property
    def arity_out(self) -> int:
        return 2

    @property
    def window(self) -> Window:
        """The sliding window, for output sizes and index arithmetic."""
        return Window(self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        shape = _pooled_shape(x, self.window)
        if x.shape[2] * x.shape[3] > _INT32_MAX:
            raise ShapeError(f"a plane of {x.shape[2]}x{x.shape[3]} has no int32 index")
        return TensorSpec(shape, x.dtype), TensorSpec(shape, "int32")

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        height, width = x.shape[2:]
        p, q = self.window.output((height, width))
        best = np.full((*x.shape[:2], p, q), -np.inf, x.dtype)
        index = np.full(best.shape, -1, np.int32)
        for (at_p, rows), (at_q, cols) in _taps(self.window, (height, width)):
            value = x[:, :, rows[:, None], cols]
            position = (rows[:, None] * width + cols).astype(np.int32)
            where = (slice(None), slice(None), at_p[:, None], at_q)
            wins = (index[where] < 0) | (value > best[where]) | np.isnan(value)
            best[where] = np.where(wins, value, best[where])
            index[where] = np.where(wins, position, index[where])
        return best, index

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        rule = MaxPool2dGrad(scope.spec(scope.node.inputs[0]).shape[2:])
        return scope.add(rule, dy, scope.node.outputs[1])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One comparison a tap."""
        return outputs[0].size * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class MaxPool2dGrad(Op):
    """Inputs dy (N,C,P,Q), index int32 (N,C,P,Q) of ``MaxPool2d``; output dx (N,C,*size)."""

    size: tuple[int, ...]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, index = inputs
        if dy.shape != index.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the indices {index.shape}")
        return (TensorSpec((*dy.shape[:2], *self.size), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, index = inputs
        planes = dy.shape[0] * dy.shape[1]
        windows = dy.shape[2] * dy.shape[3]
        dx = np.zeros((planes, self.size[0] * self.size[1]), dy.dtype)
        at = (np.arange(planes)[:, None], index.reshape(planes, windows))
        np.add.at(dx, at, dy.reshape(planes, windows))
        return (dx.reshape(*dy.shape[:2], *self.size),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


@dataclass(frozen=True)
class _AvgGeometry:
    """Attributes that average pooling and its gradient share."""

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    ceil_mode: bool = False
    count_include_pad: bool = True

    @property
    def window(self) -> Window:
        """The sliding window, for output sizes and index arithmetic."""
        return Window(self.kernel, self.stride, self.padding, (1, 1), self.ceil_mode)

    def divisor(self, size: Pair) -> np.ndarray:
        """How many cells each window averages, (P, Q).

        With ``count_include_pad`` the padding counts, but not what overhangs it in ``ceil_mode``.
        """
        counts = []
        for axis, positions in enumerate(self.window.output(size)):
            start = np.arange(positions) * self.stride[axis] - self.padding[axis]
            stop = np.minimum(start + self.kernel[axis], size[axis] + self.padding[axis])
            if not self.count_include_pad:
                start, stop = np.maximum(start, 0), np.minimum(stop, size[axis])
            counts.append(stop - start)
        return np.outer(*counts)


@dataclass(frozen=True)
class AvgPool2d(_AvgGeometry, Op):
    """Input x (N,C,H,W); output y (N,C,P,Q), the mean of each window."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(_pooled_shape(inputs[0], self.window), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        size = (x.shape[2], x.shape[3])
        y = np.zeros((*x.shape[:2], *self.window.output(size)), x.dtype)
        for (at_p, rows), (at_q, cols) in _taps(self.window, size):
            y[:, :, at_p[:, None], at_q] += x[:, :, rows[:, None], cols]
        return (y / self.divisor(size).astype(x.dtype),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        _, _, height, width = scope.spec(scope.node.inputs[0]).shape
        rule = AvgPool2dGrad(
            self.kernel,
            self.stride,
            self.padding,
            self.ceil_mode,
            self.count_include_pad,
            size=(height, width),
        )
        return scope.add(rule, dy)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One addition a tap; the division replaces the one that the first tap does not need."""
        return outputs[0].size * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class AvgPool2dGrad(_AvgGeometry, Op):
    """Input dy (N,C,P,Q); output dx (N,C,*size)."""

    size: Pair = (1, 1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy = inputs[0]
        if dy.shape[2:] != self.window.output(self.size):
            raise ShapeError(f"the gradient {dy.shape} does not fit an input of {self.size}")
        return (TensorSpec((*dy.shape[:2], *self.size), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy = inputs[0]
        share = dy / self.divisor(self.size).astype(dy.dtype)
        dx = np.zeros((*dy.shape[:2], *self.size), dy.dtype)
        for (at_p, rows), (at_q, cols) in _taps(self.window, self.size):
            # Within one tap no input cell is met twice, so += loses nothing.
            dx[:, :, rows[:, None], cols] += share[:, :, at_p[:, None], at_q]
        return (dx,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size * self.kernel[0] * self.kernel[1]


def _pooled_shape(x: TensorSpec, window: Window) -> tuple[int, ...]:
    """The output's shape. Raises ShapeError if a window would see no input cell at all."""
    if len(x.shape) != 4:
        raise ShapeError(f"pooling needs an input of shape (N, C, H, W), it got {x.shape}")
    size = (x.shape[2], x.shape[3])
    output = window.output(size)
    for axis in range(2):
        _check_padding(window, size, output, axis)
    return (*x.shape[:2], *output)


def _check_padding(window: Window, size: Pair, output: Pair, axis: int) -> None:
    padding, dilation = window.padding[axis], window.dilation[axis]
    if 2 * padding > window.kernel[axis]:
        raise ShapeError(
            f"padding must be at most half of the kernel size, it is {window.padding} for kernel "
            f"{window.kernel}"
        )
    # A window that starts in the padding sees its first cell at start mod dilation.
    in_padding = min(output[axis], -(-padding // window.stride[axis]))
    starts = (position * window.stride[axis] - padding for position in range(in_padding))
    if size[axis] == 0 or any(start % dilation >= size[axis] for start in starts):
        raise ShapeError(
            f"a window of kernel {window.kernel} and dilation {window.dilation} over "
            f"{size[0]}x{size[1]} with padding {window.padding} would see only padding; use "
            "less padding or dilation, or a larger input"
        )


_Axis = tuple[np.ndarray, np.ndarray]


def _taps(window: Window, size: Pair) -> Iterator[tuple[_Axis, _Axis]]:
    """For each tap in scan order, by axis: the output positions whose tap lies inside the input,
    and the input positions they meet there."""
    output = window.output(size)
    axes = []
    for axis in range(2):
        start = np.arange(output[axis]) * window.stride[axis] - window.padding[axis]
        met = []
        for tap in range(window.kernel[axis]):
            at = start + tap * window.dilation[axis]
            inside = np.flatnonzero((at >= 0) & (at < size[axis]))
            met.append((inside, at[inside]))
        axes.append(met)
    for rows in axes[0]:
        for cols in axes[1]:
            yield rows, cols
