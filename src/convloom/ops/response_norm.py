"""Local response normalisation: PyTorch's, which is cuda-convnet's cmrnorm, and rnorm and cnorm.

All compute y = x d^-beta, where the denominator d = k + (alpha / n) * (sum of squares over a
window). They differ in the window and in what is squared:

    LocalResponseNorm    neighbouring channels of one pixel; n = size       (lrn, cmrnorm)
    ResponseNorm2d       neighbouring pixels of one channel; n = size^2     (rnorm)
    ContrastNorm2d       as before, of x minus the window's mean at x       (cnorm)

A window of even size has one more neighbour on the low side. Cells outside count as 0 and n stays.
Sources: Krizhevsky et al., "ImageNet classification with deep convolutional neural networks"
(2012), section 3.3; torch.nn.LocalResponseNorm; cuda-convnet's layer descriptions.

Gradient, with t = dy x d^(-beta-1): dx = dy d^-beta - (2 alpha beta / n) x (sum of t over all
windows that hold x's cell). ``ContrastNorm2d`` has x minus its mean in place of the second x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet


@dataclass(frozen=True)
class _Response:
    """What the operations share: the window's size and the numbers of the formula."""

    size: int = 5
    alpha: float = 1e-4
    beta: float = 0.75
    k: float = 1.0

    @property
    def low(self) -> int:
        """How many neighbours a window has on the low side."""
        return self.size // 2

    @property
    def high(self) -> int:
        """How many neighbours a window has on the high side."""
        return self.size - 1 - self.low

    def check(self, x: TensorSpec, rank: int) -> TensorSpec:
        """The spec of y. Raises ShapeError for a size below 1 or another rank."""
        if self.size < 1:
            raise ShapeError(f"the window's size must be at least 1, it is {self.size}")
        if len(x.shape) < rank:
            wanted = "(N, C, H, W)" if rank > 3 else "(N, C, ...)"
            raise ShapeError(f"this normalisation needs an input of shape {wanted}, got {x.shape}")
        return TensorSpec(x.shape, x.dtype)


class _Norm(_Response, Op):
    """Input x; output y like x."""

    rank: ClassVar[int]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (self.check(inputs[0], self.rank),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        return (x * self.denominator(x) ** x.dtype.type(-self.beta),)

    def denominator(self, x: np.ndarray) -> np.ndarray:
        """k + (alpha / n) * (sum of squares over each window)."""
        return _denominator(self, x)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """A square, its additions, a power (counted as 8) and a product."""
        return (10 + self.size) * inputs[0].size


class _NormGrad(_Response, Op):
    """Inputs dy and x, of one shape; output dx like x."""

    rank: ClassVar[int]

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        dy, x = inputs
        if dy.shape != x.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the input {x.shape}")
        return (self.check(x, self.rank),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, x = inputs
        d, beta = _denominator(self, x), x.dtype.type(self.beta)
        power = d**-beta
        sums = _window_sum(self, dy * x * power / d, transposed=True)
        factor = x.dtype.type(2 * self.alpha * self.beta / _cells(self))
        return (dy * power - factor * _squared(self, x) * sums,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """As forward, and the second window."""
        return (16 + 2 * self.size) * inputs[0].size


@dataclass(frozen=True)
class LocalResponseNorm(_Norm):
    """Over neighbouring channels. Input x (N,C,...); output y like x.

    ``blocked`` cuts the channels into blocks of ``size`` that are each other's window, instead of
    windows around each channel.
    """

    rank: ClassVar[int] = 3

    blocked: bool = False

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        op = LocalResponseNormGrad(self.size, self.alpha, self.beta, self.k, self.blocked)
        return _gradient(scope, op)


@dataclass(frozen=True)
class LocalResponseNormGrad(_NormGrad):
    """The gradient of ``LocalResponseNorm``: inputs dy and x (N,C,...), output dx."""

    rank: ClassVar[int] = 3

    blocked: bool = False


@dataclass(frozen=True)
class ResponseNorm2d(_Norm):
    """Over neighbouring pixels of each channel. Input x (N,C,H,W); output y like x."""

    rank: ClassVar[int] = 4

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        return _gradient(scope, ResponseNorm2dGrad(self.size, self.alpha, self.beta, self.k))


@dataclass(frozen=True)
class ResponseNorm2dGrad(_NormGrad):
    """The gradient of ``ResponseNorm2d``: inputs dy and x (N,C,H,W), output dx."""

    rank: ClassVar[int] = 4


@dataclass(frozen=True)
class ContrastNorm2d(_Norm):
    """Over neighbouring pixels, of x minus its window's mean. Input x (N,C,H,W); output y like x.

    The mean at a pixel is over the part of its window inside the image. The numerator is x itself.
    """

    rank: ClassVar[int] = 4
    gradient_note: ClassVar[str] = (
        "not a true gradient: the means of the windows are held constant, as cuda-convnet did"
    )

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        return _gradient(scope, ContrastNorm2dGrad(self.size, self.alpha, self.beta, self.k))

    @quiet
    def with_means(self, x: np.ndarray, of: np.ndarray) -> np.ndarray:
        """y of x, but with the means of the windows of another input of x's shape.

        At ``of`` = x the derivative of this function is what ``gradient`` gives.
        """
        contrast = x - (of - _squared(self, of))
        denominator = _denominator_of(self, contrast)
        y: np.ndarray = x * denominator ** x.dtype.type(-self.beta)
        return y


@dataclass(frozen=True)
class ContrastNorm2dGrad(_NormGrad):
    """What ``ContrastNorm2d`` trains by: inputs dy and x (N,C,H,W), output dx.

    Not a true gradient: the means of the windows are held constant, as cuda-convnet did.
    """

    rank: ClassVar[int] = 4


def _gradient(scope: GradientScope, op: Op) -> Sequence[str | None]:
    dy = scope.grads[0]
    assert dy is not None
    return scope.add(op, dy, scope.node.inputs[0])


def _cells(norm: _Response) -> int:
    """What the sum of squares is divided by."""
    across = isinstance(norm, LocalResponseNorm | LocalResponseNormGrad)
    return norm.size if across else norm.size**2


def _denominator(norm: _Response, x: np.ndarray) -> np.ndarray:
    return _denominator_of(norm, _squared(norm, x))


def _denominator_of(norm: _Response, squared: np.ndarray) -> np.ndarray:
    scale = squared.dtype.type(norm.alpha / _cells(norm))
    sums = _window_sum(norm, np.square(squared))
    denominator: np.ndarray = squared.dtype.type(norm.k) + scale * sums
    return denominator


def _squared(norm: _Response, x: np.ndarray) -> np.ndarray:
    """What the window's squares are of: x, or for contrast x minus its window's mean."""
    if not isinstance(norm, ContrastNorm2d | ContrastNorm2dGrad):
        return x
    inside = _window_sum(norm, np.ones((1, 1, *x.shape[2:]), x.dtype))
    contrast: np.ndarray = x - _window_sum(norm, x) / inside
    return contrast


def _window_sum(norm: _Response, v: np.ndarray, transposed: bool = False) -> np.ndarray:
    """At each cell the sum of v over its window; transposed: over the windows that hold it."""
    if isinstance(norm, LocalResponseNorm | LocalResponseNormGrad):
        if norm.blocked:
            return _block_sum(v, norm.size)
        return _sum_along(v, 1, norm, transposed)
    return _sum_along(_sum_along(v, 2, norm, transposed), 3, norm, transposed)


def _sum_along(v: np.ndarray, axis: int, norm: _Response, transposed: bool) -> np.ndarray:
    low, high = (norm.high, norm.low) if transposed else (norm.low, norm.high)
    widths = [(low, high) if i == axis else (0, 0) for i in range(v.ndim)]
    padded = np.moveaxis(np.pad(v, widths), axis, 0)
    cells = v.shape[axis]
    total = np.zeros_like(padded[:cells])
    for shift in range(norm.size):
        total = total + padded[shift : shift + cells]
    return np.moveaxis(total, 0, axis)


def _block_sum(v: np.ndarray, size: int) -> np.ndarray:
    total = np.empty_like(v)
    for first in range(0, v.shape[1], size):
        block = v[:, first : first + size]
        total[:, first : first + size] = block.sum(axis=1, keepdims=True)
    return total
