"""Two-dimensional convolution (cross-correlation, as in PyTorch) and its two gradients.

    y[n,k,p,q] = b[k] + sum over c,r,s of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * w[k,c,r,s]

with stride u, dilation d and zero padding; with G groups, group g reads channels
[g*C/G, (g+1)*C/G) and writes [g*K/G, (g+1)*K/G). Source: torch.nn.Conv2d's documentation;
Dumoulin and Visin, "A guide to convolution arithmetic for deep learning" (arXiv 1603.07285).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.geometry import Pair, Window


@dataclass(frozen=True)
class ConvGeometry:
    """Attributes that a convolution and its gradients share; each pair is (height, width)."""

    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def window(self, kernel: Pair) -> Window:
        """The sliding window, for output sizes and index arithmetic."""
        return Window(kernel, self.stride, self.padding, self.dilation)


@dataclass(frozen=True)
class Conv2d(ConvGeometry, Op):
    """Inputs x (N,C,H,W), w (K,C/G,R,S) and optionally b (K,); output y (N,K,P,Q)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, w = inputs[:2]
        k, (p, q) = w.shape[0], self._checked_output(x.shape, w.shape)
        if len(inputs) > 2 and inputs[2].shape != (k,):
            raise ShapeError(f"the bias has shape {inputs[2].shape}, {k} filters need ({k},)")
        return (TensorSpec((x.shape[0], k, p, q), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, w = inputs[:2]
        taps = Taps(self, x.shape, w.shape)
        columns = np.zeros((taps.groups, taps.group_filters, taps.positions), x.dtype)
        padded = taps.pad(x)
        for r, s in taps:
            columns += taps.filters(w, r, s) @ taps.columns(taps.patch(padded, r, s))
        y = taps.images(columns)
        return (y + inputs[2][:, None, None] if len(inputs) > 2 else y,)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        x, w = scope.node.inputs[:2]
        dy = scope.grads[0]
        assert dy is not None
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        grads: list[str | None] = [None] * len(scope.node.inputs)
        if scope.wanted[0]:
            dgrad = Conv2dDgrad(*geometry, size=_hw(scope.spec(x)))
            (grads[0],) = scope.add(dgrad, dy, w)
        if scope.wanted[1]:
            wgrad = Conv2dWgrad(*geometry, kernel=_hw(scope.spec(w)))
            (grads[1],) = scope.add(wgrad, x, dy)
        if len(grads) > 2 and scope.wanted[2]:
            (grads[2],) = scope.add(BiasGrad(), dy)
        return grads

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = inputs[1].shape
        bias = outputs[0].size if len(inputs) > 2 else 0
        return 2 * outputs[0].size * c * r * s + bias

    def _checked_output(self, x: tuple[int, ...], w: tuple[int, ...]) -> Pair:
        if len(x) != 4:
            raise ShapeError(f"Conv2d needs an input of shape (N, C, H, W), it got {x}")
        c, k, groups = x[1], w[0], self.groups
        if groups < 1 or c % groups or k % groups:
            raise ShapeError(
                f"{c} input channels and {k} filters cannot be split into {groups} groups; "
                "both must be divisible by groups"
            )
        if w[1] != c // groups:
            raise ShapeError(
                f"the filters expect {w[1] * groups} input channels, the input has {c}"
            )
        return self.window((w[2], w[3])).output((x[2], x[3]))


@dataclass(frozen=True)
class Conv2dDgrad(ConvGeometry, Op):
    """Gradient of the input. Inputs dy (N,K,P,Q), w (K,C/G,R,S); output dx (N,C,*size).

    As a layer of its own it is a transposed convolution, from dy to dx.
    """

    size: Pair = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, w = inputs
        if len(dy.shape) != 4:
            raise ShapeError(f"{self.name} needs images of shape (N, C, H, W), it got {dy.shape}")
        if self.groups < 1 or w.shape[0] % self.groups or w.shape[0] != dy.shape[1]:
            raise ShapeError(
                f"filters of shape {w.shape} in {self.groups} groups do not fit the "
                f"{dy.shape[1]} channels of {dy.shape}"
            )
        if self.window((w.shape[2], w.shape[3])).output(self.size) != dy.shape[2:]:
            raise ShapeError(
                f"maps of {dy.shape[2]}x{dy.shape[3]} are not what filters of {w.shape[2]}x"
                f"{w.shape[3]} make of an image of {self.size[0]}x{self.size[1]}"
            )
        return (TensorSpec((dy.shape[0], w.shape[1] * self.groups, *self.size), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, w = inputs
        taps = Taps(self, (dy.shape[0], w.shape[1] * self.groups, *self.size), w.shape)
        columns = taps.columns(taps.by_group(dy))
        padded = taps.padded(dy.dtype)
        for r, s in taps:
            patch = taps.patch(padded, r, s)
            patch += (taps.filters(w, r, s).swapaxes(1, 2) @ columns).reshape(patch.shape)
        return (taps.crop(padded),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy, w = scope.node.inputs
        gradient = scope.grads[0]
        assert gradient is not None
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        grads: list[str | None] = [None, None]
        if scope.wanted[0]:
            (grads[0],) = scope.add(Conv2d(*geometry), gradient, w)
        if scope.wanted[1]:
            wgrad = Conv2dWgrad(*geometry, kernel=_hw(scope.spec(w)))
            (grads[1],) = scope.add(wgrad, gradient, dy)
        return grads

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = inputs[1].shape
        return 2 * inputs[0].size * c * r * s


@dataclass(frozen=True)
class Conv2dWgrad(ConvGeometry, Op):
    """Gradient of the filters. Inputs x (N,C,H,W), dy (N,K,P,Q); output dw (K,C/G,*kernel)."""

    kernel: Pair = (1, 1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, dy = inputs
        return (TensorSpec((dy.shape[1], x.shape[1] // self.groups, *self.kernel), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, dy = inputs
        w_shape = (dy.shape[1], x.shape[1] // self.groups, *self.kernel)
        taps = Taps(self, x.shape, w_shape)
        dw = np.zeros(w_shape, x.dtype)
        padded = taps.pad(x)
        columns = taps.columns(taps.by_group(dy))
        for r, s in taps:
            seen = taps.columns(taps.patch(padded, r, s))
            dw[:, :, r, s] = (columns @ seen.swapaxes(1, 2)).reshape(w_shape[:2])
        return (dw,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = outputs[0].shape
        return 2 * inputs[1].size * c * r * s


@dataclass(frozen=True)
class BiasGrad(Op):
    """Gradient of a bias along axis 1. Input dy (N,K,...); output db (K,)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((inputs[0].shape[1],), inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy = inputs[0]
        return (dy.sum(axis=(0, *range(2, dy.ndim))),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


def _hw(spec: TensorSpec) -> Pair:
    return spec.shape[2], spec.shape[3]


class Taps:
    """Walks filter taps (r, s); each multiplies a strided view of the padded input.

    Images are held by group, (G, C/G, N, H, W), so that a tap is one matrix product a group:
    weights (K/G, C/G) times columns (C/G, N*P*Q).
    """

    def __init__(
        self, conv: ConvGeometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...]
    ) -> None:
        self.conv = conv
        self.groups = conv.groups
        self.n, self.c, self.h, self.w = x_shape
        self.k, self.group_channels, self.rows, self.cols = w_shape
        self.group_filters = self.k // conv.groups
        self.out = conv.window((self.rows, self.cols)).output((self.h, self.w))
        self.positions = self.n * self.out[0] * self.out[1]

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return product(range(self.rows), range(self.cols))

    def filters(self, w: np.ndarray, r: int, s: int) -> np.ndarray:
        """The weights of a tap, (G, K/G, C/G)."""
        return w[:, :, r, s].reshape(self.groups, self.group_filters, self.group_channels)

    def by_group(self, images: np.ndarray) -> np.ndarray:
        """Images (N, C, H, W) as (G, C/G, N, H, W)."""
        n, c, h, w = images.shape
        return images.reshape(n, self.groups, c // self.groups, h, w).transpose(1, 2, 0, 3, 4)

    def columns(self, by_group: np.ndarray) -> np.ndarray:
        """Images by group, (G, C/G, N, P, Q), as matrices (G, C/G, N*P*Q)."""
        return by_group.reshape(*by_group.shape[:2], self.positions)

    def images(self, columns: np.ndarray) -> np.ndarray:
        """The inverse for an output: (G, K/G, N*P*Q) as (N, K, P, Q)."""
        by_filter = columns.reshape(self.k, self.n, *self.out)
        return np.ascontiguousarray(by_filter.swapaxes(0, 1))

    def padded(self, dtype: np.dtype) -> np.ndarray:
        """A zero input with its padding, by group."""
        (ph, pw) = self.conv.padding
        shape = (self.groups, self.group_channels, self.n, self.h + 2 * ph, self.w + 2 * pw)
        return np.zeros(shape, dtype)

    def pad(self, x: np.ndarray) -> np.ndarray:
        """The input with its padding, by group."""
        padded = self.padded(x.dtype)
        self._inner(padded)[...] = self.by_group(x)
        return padded

    def crop(self, padded: np.ndarray) -> np.ndarray:
        """The (N, C, H, W) images inside a padded array."""
        by_channel = self._inner(padded).reshape(self.c, self.n, self.h, self.w)
        return np.ascontiguousarray(by_channel.swapaxes(0, 1))

    def patch(self, padded: np.ndarray, r: int, s: int) -> np.ndarray:
        """The (G, C/G, N, P, Q) view of what tap (r, s) multiplies."""
        (uh, uw), (dh, dw) = self.conv.stride, self.conv.dilation
        rows = slice(r * dh, r * dh + uh * (self.out[0] - 1) + 1, uh)
        cols = slice(s * dw, s * dw + uw * (self.out[1] - 1) + 1, uw)
        return padded[..., rows, cols]

    def _inner(self, padded: np.ndarray) -> np.ndarray:
        (ph, pw) = self.conv.padding
        return padded[..., ph : ph + self.h, pw : pw + self.w]
