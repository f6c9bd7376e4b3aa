"""Normalisation, as torch.nn has it, and the two forms that only cuda-convnet has."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from convloom.ir import ShapeError
from convloom.nn import functional
from convloom.nn.arguments import ArgumentError, no_placement, number, whole
from convloom.nn.init import Constant
from convloom.nn.layers.base import Layer, named
from convloom.nn.parameter import Buffer, Parameter
from convloom.nn.tensor import SymbolicTensor


class _BatchNorm(Layer):
    """What the two layers share; ``axes`` says how many axes the input may have."""

    weight: Parameter | None
    bias: Parameter | None
    running_mean: Buffer | None
    running_var: Buffer | None
    num_batches_tracked: Buffer | None
    axes: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        with named(f"{type(self).__name__}({num_features})"):
            no_placement(device, dtype)
            _check_bias(affine, bias)
            self.num_features = whole(num_features, "num_features")
            self.eps = number(eps, "eps")
            self.momentum = None if momentum is None else number(momentum, "momentum")
        self.affine, self.track_running_stats = bool(affine), bool(track_running_stats)
        self.weight, self.bias = _scale_and_shift(self.num_features, self.affine)
        tracked = self.track_running_stats
        zeros = np.zeros(self.num_features, np.float32)
        self.register_buffer("running_mean", zeros if tracked else None)
        self.register_buffer("running_var", zeros + 1 if tracked else None)
        self.register_buffer("num_batches_tracked", np.zeros((), np.int64) if tracked else None)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        if x.ndim not in self.axes:
            wanted = " or ".join(f"{axes}D" for axes in self.axes)
            raise ShapeError(f"expected {wanted} input (got {x.ndim}D input of shape {x.shape})")
        return functional.batch_norm(
            x,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            momentum=self.momentum,
            eps=self.eps,
            num_batches_tracked=self.num_batches_tracked,
        )

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )


class BatchNorm1d(_BatchNorm):
    """Batch normalisation of (N, C) or (N, C, L), as torch.nn.BatchNorm1d; see ``BatchNorm2d``."""

    axes = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Batch normalisation of (N, C, H, W), as torch.nn.BatchNorm2d.

    Training steps bring each channel to mean 0 and variance 1 over the batch.

    Evaluation and prediction use the running mean and variance, which training steps update with
    the unbiased variance; without running values they normalise by the batch as well.

    Args:
        momentum: the weight of a batch in the running values; None averages all batches alike.
        affine: whether a learnt weight and bias follow.
        track_running_stats: whether there are running values.
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        bias: a weight always has a bias beside it.

    Attributes:
        weight: (num_features,), or None; begins at 1.
        bias: (num_features,), or None; begins at 0.
        running_mean: (num_features,), or None; begins at 0.
        running_var: (num_features,), or None; begins at 1.
        num_batches_tracked: how many batches were seen, int64 (), or None.

    Raises:
        ShapeError: an input of another shape, or a training step with one value a channel.
    """

    axes = (4,)


class GroupNorm(Layer):
    """Each group of channels of each sample to mean 0 and variance 1, as torch.nn.GroupNorm.

    Args:
        affine: whether a learnt weight and bias, a number a channel, follow.
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.
        bias: a weight always has a bias beside it.

    Attributes:
        weight: (num_channels,), or None; begins at 1.
        bias: (num_channels,), or None; begins at 0.

    Raises:
        ShapeError: channels that cannot be split, in the constructor or when traced.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        with named(f"GroupNorm({num_groups}, {num_channels})"):
            no_placement(device, dtype)
            _check_bias(affine, bias)
            self.num_groups = whole(num_groups, "num_groups")
            self.num_channels = whole(num_channels, "num_channels")
            if self.num_channels % self.num_groups:
                raise ShapeError("num_channels must be divisible by num_groups")
            self.eps = number(eps, "eps")
        self.affine = bool(affine)
        self.weight, self.bias = _scale_and_shift(self.num_channels, self.affine)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        if x.shape[1] != self.num_channels:
            raise ShapeError(f"expected {self.num_channels} channels, got {x.shape[1]} ({x.shape})")
        return functional.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"


class InstanceNorm2d(Layer):
    """Each channel of each sample to mean 0 and variance 1, as torch.nn.InstanceNorm2d.

    Args:
        momentum: of running values, which are not supported.
        affine: whether a learnt weight and bias, a number a channel, follow.
        track_running_stats: only False.
        device: not taken; a network's device is chosen when it is compiled.
        dtype: only float32.

    Attributes:
        weight: (num_features,), or None; begins at 1.
        bias: (num_features,), or None; begins at 0.

    Raises:
        ShapeError: an input of another shape, or one value a channel.
        ArgumentError: an option of PyTorch that convloom does not have.
    """

    weight: Parameter | None
    bias: Parameter | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        with named(f"InstanceNorm2d({num_features})"):
            no_placement(device, dtype)
            if track_running_stats:
                raise ArgumentError("track_running_stats is not supported, only False")
            self.num_features = whole(num_features, "num_features")
            self.eps = number(eps, "eps")
            self.momentum = None if momentum is None else number(momentum, "momentum")
        self.affine = bool(affine)
        self.weight, self.bias = _scale_and_shift(self.num_features, self.affine)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        if x.ndim != 4 or x.shape[1] != self.num_features:
            raise ShapeError(f"expected (N, {self.num_features}, H, W), got {x.shape}")
        if x.shape[2] * x.shape[3] == 1:
            raise ShapeError(f"expected more than 1 spatial element, got input size {x.shape}")
        return functional.instance_norm(x, None, None, self.weight, self.bias, eps=self.eps)

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats=False"
        )


class LocalResponseNorm(Layer):
    """x divided by a power of its neighbours' squares over channels, as torch.nn.LocalResponseNorm.

    y = x (k + alpha / size * (sum of squares over ``size`` channels around x))^-beta. The same is
    cuda-convnet's cmrnorm, with alpha for its scale, beta for pow and k for minDiv.

    Args:
        blocked: blocks of ``size`` channels are each other's neighbours, instead of a window
            around each channel (cuda-convnet's option; PyTorch has none).
    """

    def __init__(
        self,
        size: int,
        alpha: float = 1e-4,
        beta: float = 0.75,
        k: float = 1.0,
        *,
        blocked: bool = False,
    ) -> None:
        super().__init__()
        with named(f"LocalResponseNorm({size})"):
            self.size = whole(size, "size")
            self.alpha, self.beta, self.k = _formula(alpha, beta, k)
        self.blocked = bool(blocked)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.local_response_norm(
            x, self.size, self.alpha, self.beta, self.k, blocked=self.blocked
        )

    def extra_repr(self) -> str:
        blocked = ", blocked=True" if self.blocked else ""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}{blocked}"


class ResponseNorm2d(Layer):
    """x divided by a power of its neighbours' squares within the map: cuda-convnet's rnorm.

    y = x (k + alpha / size^2 * (sum of squares over size x size pixels around x))^-beta; alpha is
    its scale, beta its pow.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__()
        with named(f"{type(self).__name__}({size})"):
            self.size = whole(size, "size")
            self.alpha, self.beta, self.k = _formula(alpha, beta, k)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.response_norm2d(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"


class ContrastNorm2d(ResponseNorm2d):
    """x divided by a power of its neighbours' contrast within the map: cuda-convnet's cnorm.

    As ``ResponseNorm2d``, with squares of x minus the mean of the window around it. It trains as
    there: the means of the windows are held constant, so what flows back is not a true gradient.
    """

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return functional.contrast_norm2d(x, self.size, self.alpha, self.beta, self.k)


def _scale_and_shift(channels: int, affine: bool) -> tuple[Parameter | None, Parameter | None]:
    if not affine:
        return None, None
    return Parameter((channels,), Constant(1.0)), Parameter((channels,), Constant())


def _check_bias(affine: bool, bias: bool) -> None:
    if affine and not bias:
        raise ArgumentError("bias=False is not supported, a weight always has a bias beside it")


def _formula(alpha: Any, beta: Any, k: Any) -> tuple[float, float, float]:
    return number(alpha, "alpha"), number(beta, "beta"), number(k, "k")
