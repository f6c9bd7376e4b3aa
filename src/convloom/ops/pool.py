"""Max and average pooling, and their gradients.

Max-pooling takes the first greatest element of a window in scan order (rows, then columns); a NaN
beats every number, and the last NaN wins. By magnitude the last of equal ones wins instead, as in
cuda-convnet. Sources: torch.nn.MaxPool2d, torch.nn.AvgPool2d; for ``outputs``, ``ties`` and
``magnitude`` the pools of cuda-convnet (Krizhevsky, 2012).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.geometry import Pair, Window

_INT32_MAX = 2**31 - 1

#: Who receives a window's gradient: the winner alone, or every input equal to the maximum.
FIRST, ALL = "first", "all"


@dataclass(frozen=True)
class MaxPool2d(Op):
    """Input x (N,C,H,W); outputs y (N,C,P,Q) and, if ties is "first", index, int32 (N,C,P,Q).

    ``index`` is the position h*W + w of the winner in its input plane, as PyTorch returns it. With
    ``ties`` "all" every input equal to the maximum receives the window's full gradient.
    ``outputs`` fixes P and Q: windows are then clipped to the image (``Window``). With
    ``magnitude`` the element of greatest magnitude wins, with its sign.
    """

    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ceil_mode: bool = False
    outputs: Pair | None = None
    ties: str = FIRST
    magnitude: bool = False

    @property
    def arity_out(self) -> int:
        return 2 if self.ties == FIRST else 1

    @property
    def window(self) -> Window:
        """The sliding window, for output sizes and index arithmetic."""
        return Window(
            self.kernel, self.stride, self.padding, self.dilation, self.ceil_mode, self.outputs
        )

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        check_ties(self.ties)
        return maximum_specs(x, _pooled_shape(x, self.window))[: self.arity_out]

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        size = (x.shape[2], x.shape[3])
        taps = _taps(self.window, size)
        return maximum(x, self.window.output(size), taps, self.magnitude)[: self.arity_out]

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy = scope.grads[0]
        assert dy is not None
        x = scope.node.inputs[0]
        _, _, height, width = scope.spec(x).shape
        rule = MaxPool2dGrad(
            (height, width), self.kernel, self.stride, self.padding, self.dilation, self.ties
        )
        if self.ties == FIRST:
            return scope.add(rule, dy, scope.node.outputs[1])
        return scope.add(rule, dy, x, scope.node.outputs[0])

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """One comparison a tap."""
        return outputs[0].size * self.kernel[0] * self.kernel[1]


@dataclass(frozen=True)
class MaxPool2dGrad(Op):
    """Inputs dy (N,C,P,Q) and index int32 (N,C,P,Q) of ``MaxPool2d``; output dx (N,C,*size).

    With ``ties`` "all" the inputs are dy, the pool's input x and its output y. The window is the
    pool's, so that a kernel can gather: few windows hold an input.
    """

    size: Pair
    kernel: Pair
    stride: Pair
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    ties: str = FIRST

    def window(self, outputs: Pair) -> Window:
        """The sliding window, whose number of positions the gradient's size tells."""
        return Window(self.kernel, self.stride, self.padding, self.dilation, outputs=outputs)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_ties(self.ties)
        return (maximum_grad_spec(self.size, inputs),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        if self.ties == FIRST:
            return (scattered(self.size, *inputs),)
        dy, x, y = inputs
        dx = np.zeros(x.shape, dy.dtype)
        # From the last tap to the first an input meets its windows in scan order.
        taps = list(_taps(self.window((dy.shape[2], dy.shape[3])), self.size))
        for (at_p, rows), (at_q, cols) in reversed(taps):
            tap = (slice(None), slice(None), rows[:, None], cols)
            where = (slice(None), slice(None), at_p[:, None], at_q)
            equal = (x[tap] == y[where]) | (np.isnan(x[tap]) & np.isnan(y[where]))
            dx[tap] += np.where(equal, dy[where], dy.dtype.type(0))
        return (dx,)

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
    divisor_override: int | None = None
    outputs: Pair | None = None

    @property
    def window(self) -> Window:
        """The sliding window, for output sizes and index arithmetic."""
        return Window(self.kernel, self.stride, self.padding, (1, 1), self.ceil_mode, self.outputs)

    def divisor(self, size: Pair) -> np.ndarray:
        """What each window's sum is divided by, (P, Q): how many cells it averages.

        With ``count_include_pad`` the padding counts, but not what overhangs it in ``ceil_mode``;
        without, only cells inside the image do. ``divisor_override`` stands for all of them.
        """
        positions = self.window.output(size)
        if self.divisor_override is not None:
            return np.full(positions, self.divisor_override)
        counts = []
        for axis, count in enumerate(positions):
            start = np.arange(count) * self.stride[axis] - self.padding[axis]
            stop = start + self.kernel[axis]
            if self.count_include_pad:
                stop = np.minimum(stop, size[axis] + self.padding[axis])
            else:
                start, stop = np.maximum(start, 0), np.minimum(stop, size[axis])
            counts.append(stop - start)
        return np.outer(*counts)


@dataclass(frozen=True)
class AvgPool2d(_AvgGeometry, Op):
    """Input x (N,C,H,W); output y (N,C,P,Q), the mean of each window."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if self.divisor_override == 0:
            raise ShapeError("divisor_override must not be 0")
        if self.outputs is not None and self.count_include_pad:
            raise ShapeError("windows clipped to the image (outputs) need count_include_pad=False")
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
            self.divisor_override,
            self.outputs,
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


def check_ties(ties: str) -> None:
    """Raises ShapeError unless ``ties`` is a rule."""
    if ties not in (FIRST, ALL):
        raise ShapeError(f"ties must be {FIRST!r} or {ALL!r}, it is {ties!r}")


def maximum_specs(x: TensorSpec, shape: tuple[int, ...]) -> tuple[TensorSpec, TensorSpec]:
    """The specs of maxima of ``shape`` and of their positions in the planes of x."""
    if x.shape[2] * x.shape[3] > _INT32_MAX:
        raise ShapeError(f"a plane of {x.shape[2]}x{x.shape[3]} has no int32 index")
    return TensorSpec(shape, x.dtype), TensorSpec(shape, "int32")


def maximum_grad_spec(size: Pair, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """The spec of dx of ``size``, for a gradient dy and the positions (or the maxima) it fits."""
    dy, last = inputs[0], inputs[-1]
    if dy.shape != last.shape:
        what = "indices" if len(inputs) == 2 else "maxima"
        raise ShapeError(f"the gradient {dy.shape} does not fit the {what} {last.shape}")
    if len(inputs) == 3 and inputs[1].shape != (*dy.shape[:2], *size):
        raise ShapeError(f"the input {inputs[1].shape} is not of the size {size} of this op")
    return TensorSpec((*dy.shape[:2], *size), dy.dtype)


_Axis = tuple[np.ndarray, np.ndarray]
_Taps = Iterator[tuple[_Axis, _Axis]]


def maximum(
    x: np.ndarray, output: Pair, taps: _Taps, magnitude: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The greatest of each window's taps, met in scan order, and its position in the plane."""
    width = x.shape[3]
    best = np.full((*x.shape[:2], *output), -np.inf, x.dtype)
    index = np.full(best.shape, -1, np.int32)
    for (at_p, rows), (at_q, cols) in taps:
        value = x[:, :, rows[:, None], cols]
        position = (rows[:, None] * width + cols).astype(np.int32)
        where = (slice(None), slice(None), at_p[:, None], at_q)
        greater = abs(value) >= abs(best[where]) if magnitude else value > best[where]
        wins = (index[where] < 0) | greater | np.isnan(value)
        best[where] = np.where(wins, value, best[where])
        index[where] = np.where(wins, position, index[where])
    return best, index


def scattered(size: Pair, dy: np.ndarray, index: np.ndarray) -> np.ndarray:
    """dx = 0, then dx[index] += dy for every window, in scan order."""
    planes, windows = dy.shape[0] * dy.shape[1], dy.shape[2] * dy.shape[3]
    dx = np.zeros((planes, size[0] * size[1]), dy.dtype)
    at = (np.arange(planes)[:, None], index.reshape(planes, windows))
    np.add.at(dx, at, dy.reshape(planes, windows))
    return dx.reshape(*dy.shape[:2], *size)


def image_shape(x: TensorSpec) -> tuple[int, int, int, int]:
    """The shape of images. Raises ShapeError for a tensor of another rank."""
    if len(x.shape) != 4:
        raise ShapeError(f"pooling needs an input of shape (N, C, H, W), it got {x.shape}")
    n, c, h, w = x.shape
    return n, c, h, w


def _pooled_shape(x: TensorSpec, window: Window) -> tuple[int, ...]:
    """The output's shape. Raises ShapeError if a window would see no input cell at all."""
    n, c, *size = image_shape(x)
    output = window.output((size[0], size[1]))
    for axis in range(2):
        _check_padding(window, (size[0], size[1]), output, axis)
    return (n, c, *output)


def _check_padding(window: Window, size: Pair, output: Pair, axis: int) -> None:
    if 2 * window.padding[axis] > window.kernel[axis] and window.outputs is None:
        raise ShapeError(
            f"padding must be at most half of the kernel size, it is {window.padding} for kernel "
            f"{window.kernel}"
        )
    if size[axis] == 0 or not all(
        _sees(window, axis, size[axis], position) for position in _doubtful(window, axis, output)
    ):
        raise ShapeError(
            f"a window of kernel {window.kernel} and dilation {window.dilation} over "
            f"{size[0]}x{size[1]} with padding {window.padding} would see only padding; use "
            "less padding or dilation, or a larger input"
        )


def _doubtful(window: Window, axis: int, output: Pair) -> Iterator[int]:
    """Positions that may see no cell: those that start in the padding, and the last."""
    yield from range(min(output[axis], -(-max(window.padding[axis], 0) // window.stride[axis])))
    if window.outputs is not None:
        yield output[axis] - 1


def _sees(window: Window, axis: int, size: int, position: int) -> bool:
    """Whether some tap of the window lies inside."""
    start = position * window.stride[axis] - window.padding[axis]
    # A window that starts in the padding sees its first cell at start mod dilation.
    first = start if start >= 0 else start % window.dilation[axis]
    return first < size and first < start + window.extent(axis)


def _taps(window: Window, size: Pair) -> _Taps:
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
