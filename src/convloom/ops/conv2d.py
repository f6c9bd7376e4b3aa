"""Two-dimensional convolution (cross-correlation, as in PyTorch) and its two gradients.

    y[n,k,p,q] = b[k] + sum over c,r,s of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * w[k,c,r,s]

with stride u, dilation d and zero padding; with G groups, group g reads channels
[g*C/G, (g+1)*C/G) and writes [g*K/G, (g+1)*K/G). Source: torch.nn.Conv2d's documentation;
Dumoulin and Visin, "A guide to convolution arithmetic for deep learning" (arXiv 1603.07285).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op
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

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, w = inputs[:2]
        taps = _Taps(self, x.shape, w.shape)
        y = taps.zeros_output(x.dtype)
        padded = taps.pad(x)
        for r, s, g in taps:
            y[:, taps.k(g)] += np.einsum(
                "ncpq,kc->nkpq", taps.patch(padded, r, s, g), w[taps.k(g), :, r, s]
            )
        if len(inputs) > 2:
            y += inputs[2][:, None, None]
        return (y,)

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
        return 2 * outputs[0].size * c * r * s

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
    """Gradient of the input. Inputs dy (N,K,P,Q), w (K,C/G,R,S); output dx (N,C,*size)."""

    size: Pair = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, w = inputs
        return (TensorSpec((dy.shape[0], w.shape[1] * self.groups, *self.size), dy.dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, w = inputs
        taps = _Taps(self, (dy.shape[0], w.shape[1] * self.groups, *self.size), w.shape)
        padded = taps.zeros_padded(dy.dtype)
        for r, s, g in taps:
            taps.patch(padded, r, s, g)[...] += np.einsum(
                "nkpq,kc->ncpq", dy[:, taps.k(g)], w[taps.k(g), :, r, s]
            )
        return (taps.crop(padded),)

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

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, dy = inputs
        w_shape = (dy.shape[1], x.shape[1] // self.groups, *self.kernel)
        taps = _Taps(self, x.shape, w_shape)
        dw = np.zeros(w_shape, x.dtype)
        padded = taps.pad(x)
        for r, s, g in taps:
            dw[taps.k(g), :, r, s] = np.einsum(
                "nkpq,ncpq->kc", dy[:, taps.k(g)], taps.patch(padded, r, s, g)
            )
        return (dw,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = outputs[0].shape
        return 2 * inputs[1].size * c * r * s


@dataclass(frozen=True)
class BiasGrad(Op):
    """Gradient of a bias along axis 1. Input dy (N,K,...); output db (K,)."""

    differentiable: ClassVar[bool] = False

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec((inputs[0].shape[1],), inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy = inputs[0]
        return (dy.sum(axis=(0, *range(2, dy.ndim))),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return inputs[0].size


def _hw(spec: TensorSpec) -> Pair:
    return spec.shape[2], spec.shape[3]


class _Taps:
    """Walks filter taps (r, s) and groups g; each tap sees a strided view of the padded input."""

    def __init__(
        self, conv: ConvGeometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...]
    ) -> None:
        self.conv = conv
        self.n, self.c, self.h, self.w = x_shape
        self.filters, self.group_channels, self.rows, self.cols = w_shape
        self.out = conv.window((self.rows, self.cols)).output((self.h, self.w))

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        for r in range(self.rows):
            for s in range(self.cols):
                for g in range(self.conv.groups):
                    yield r, s, g

    def k(self, group: int) -> slice:
        """The filters of a group."""
        size = self.filters // self.conv.groups
        return slice(group * size, (group + 1) * size)

    def zeros_output(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((self.n, self.filters, *self.out), dtype)

    def zeros_padded(self, dtype: np.dtype) -> np.ndarray:
        (ph, pw) = self.conv.padding
        return np.zeros((self.n, self.c, self.h + 2 * ph, self.w + 2 * pw), dtype)

    def pad(self, x: np.ndarray) -> np.ndarray:
        padded = self.zeros_padded(x.dtype)
        self.crop(padded)[...] = x
        return padded

    def crop(self, padded: np.ndarray) -> np.ndarray:
        (ph, pw) = self.conv.padding
        return padded[:, :, ph : ph + self.h, pw : pw + self.w]

    def patch(self, padded: np.ndarray, r: int, s: int, group: int) -> np.ndarray:
        """The (N, C/G, P, Q) view of what tap (r, s) of this group multiplies."""
        (uh, uw), (dh, dw) = self.conv.stride, self.conv.dilation
        first = group * self.group_channels
        rows = slice(r * dh, r * dh + uh * (self.out[0] - 1) + 1, uh)
        cols = slice(s * dw, s * dw + uw * (self.out[1] - 1) + 1, uw)
        return padded[:, first : first + self.group_channels, rows, cols]
