"""Locally connected layers: convolution geometry, with filters of its own for every output pixel.

    y[n,k,p,q] = sum over c,r,s of x[n, c, p*u + r*d - pad, q*u + s*d - pad] * w[p,q,k,c,r,s]

Filters are kept as those of a convolution, (P*Q*K, C/G, R, S): output pixel by output pixel, each
with its K filters. Source: the ``local`` layers of cuda-convnet (Krizhevsky, 2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet
from convloom.ops.conv2d import ConvGeometry, Taps
from convloom.ops.geometry import Pair


@dataclass(frozen=True)
class Local2d(ConvGeometry, Op):
    """Inputs x (N,C,H,W), w (P*Q*K,C/G,R,S); output y (N,K,P,Q)."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, w = inputs
        if len(x.shape) != 4 or len(w.shape) != 4:
            raise ShapeError(
                f"Local2d needs images (N, C, H, W) and filters (P*Q*K, C/G, R, S), it got "
                f"{x.shape} and {w.shape}"
            )
        p, q = self.window((w.shape[2], w.shape[3])).output((x.shape[2], x.shape[3]))
        filters, left = divmod(w.shape[0], p * q)
        if left or filters == 0:
            raise ShapeError(
                f"{w.shape[0]} filters cannot be shared out to an output of {p}x{q} pixels"
            )
        if self.groups < 1 or filters % self.groups or w.shape[1] * self.groups != x.shape[1]:
            raise ShapeError(
                f"{filters} filters of {w.shape[1]} channels in {self.groups} groups do not fit "
                f"an input of {x.shape[1]} channels"
            )
        return (TensorSpec((x.shape[0], filters, p, q), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, w = inputs
        walk = _Walk(self, x.shape, w.shape)
        padded = walk.taps.pad(x)
        y = np.zeros(walk.columns, x.dtype)
        for r, s in walk.taps:
            y += walk.filters(w, r, s) @ walk.by_pixel(walk.taps.patch(padded, r, s))
        return (walk.images(y),)

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        x, w = scope.node.inputs
        dy = scope.grads[0]
        assert dy is not None
        geometry = (self.stride, self.padding, self.dilation, self.groups)
        grads: list[str | None] = [None, None]
        if scope.wanted[0]:
            _, _, height, width = scope.spec(x).shape
            (grads[0],) = scope.add(Local2dDgrad(*geometry, size=(height, width)), dy, w)
        if scope.wanted[1]:
            _, _, rows, cols = scope.spec(w).shape
            (grads[1],) = scope.add(Local2dWgrad(*geometry, kernel=(rows, cols)), x, dy)
        return grads

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = inputs[1].shape
        return 2 * outputs[0].size * c * r * s


@dataclass(frozen=True)
class Local2dDgrad(ConvGeometry, Op):
    """Gradient of the input. Inputs dy (N,K,P,Q), w (P*Q*K,C/G,R,S); output dx (N,C,*size)."""

    size: Pair = (0, 0)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, w = inputs
        return (TensorSpec((dy.shape[0], w.shape[1] * self.groups, *self.size), dy.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, w = inputs
        shape = (dy.shape[0], w.shape[1] * self.groups, *self.size)
        walk = _Walk(self, shape, w.shape)
        columns = walk.by_pixel(walk.taps.by_group(dy))
        padded = walk.taps.padded(dy.dtype)
        for r, s in walk.taps:
            part = walk.filters(w, r, s).swapaxes(-1, -2) @ columns
            walk.taps.patch(padded, r, s)[...] += part.transpose(2, 3, 4, 0, 1)
        return (walk.taps.crop(padded),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = inputs[1].shape
        return 2 * inputs[0].size * c * r * s


@dataclass(frozen=True)
class Local2dWgrad(ConvGeometry, Op):
    """Gradient of the filters. Inputs x (N,C,H,W), dy (N,K,P,Q); output dw (P*Q*K,C/G,*kernel)."""

    kernel: Pair = (1, 1)

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x, dy = inputs
        filters = dy.shape[1] * dy.shape[2] * dy.shape[3]
        return (TensorSpec((filters, x.shape[1] // self.groups, *self.kernel), x.dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, dy = inputs
        (spec,) = self.infer(TensorSpec(x.shape), TensorSpec(dy.shape))
        walk = _Walk(self, x.shape, spec.shape)
        dw, padded = np.zeros(spec.shape, x.dtype), walk.taps.pad(x)
        columns = walk.by_pixel(walk.taps.by_group(dy))
        for r, s in walk.taps:
            seen = walk.by_pixel(walk.taps.patch(padded, r, s))
            dw[:, :, r, s] = (columns @ seen.swapaxes(-1, -2)).reshape(spec.shape[:2])
        return (dw,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        _, c, r, s = outputs[0].shape
        return 2 * inputs[1].size * c * r * s


class _Walk:
    """The taps of a convolution, whose products are taken pixel by pixel: (P, Q, G, …) matrices."""

    def __init__(
        self, conv: ConvGeometry, x_shape: tuple[int, ...], w_shape: tuple[int, ...]
    ) -> None:
        p, q = conv.window((w_shape[2], w_shape[3])).output((x_shape[2], x_shape[3]))
        filters = w_shape[0] // (p * q)
        self.taps = Taps(conv, x_shape, (filters, *w_shape[1:]))
        self.columns = (p, q, conv.groups, filters // conv.groups, x_shape[0])

    def filters(self, w: np.ndarray, r: int, s: int) -> np.ndarray:
        """The weights of a tap, (P, Q, G, K/G, C/G)."""
        return w[:, :, r, s].reshape(*self.columns[:4], w.shape[1])

    def by_pixel(self, by_group: np.ndarray) -> np.ndarray:
        """Images by group, (G, C/G, N, P, Q), as matrices (P, Q, G, C/G, N)."""
        return by_group.transpose(3, 4, 0, 1, 2)

    def images(self, columns: np.ndarray) -> np.ndarray:
        """The inverse for an output: (P, Q, G, K/G, N) as (N, K, P, Q)."""
        p, q, groups, filters, n = self.columns
        by_image = columns.transpose(4, 2, 3, 0, 1).reshape(n, groups * filters, p, q)
        return np.ascontiguousarray(by_image)
