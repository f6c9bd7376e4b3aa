"""Batch normalisation, its gradient, and the form it takes when a network only predicts.

Source: Ioffe and Szegedy, "Batch Normalization", arXiv 1502.03167, sections 3 and 3.1, with the
names and conventions of torch.nn.BatchNorm2d: the biased variance normalises, the unbiased one
enters the running variance.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.ir import ShapeError, TensorSpec
from convloom.ops.base import GradientScope, Op, quiet

#: The number of batches seen so far.
COUNT_SPEC = TensorSpec((), "int64")


@dataclass(frozen=True)
class BatchNorm(Op):
    """Each channel to mean 0 and variance 1 over the batch, then scaled and shifted.

    Inputs x (N,C,...); weight and bias (C,) if ``affine``; if ``track`` the running mean and
    variance (C,) and the number of batches seen, int64 (). Outputs y like x; the batch's mean and
    1 / sqrt(biased variance + eps), (C,); if ``track`` the new running mean, variance and number,
    in place. ``momentum`` is the weight of this batch in the running values; None weighs all
    batches alike.
    """

    eps: float = 1e-5
    momentum: float | None = 0.1
    affine: bool = True
    track: bool = True

    @property
    def arity_in(self) -> int | None:
        return 1 + 2 * self.affine + 3 * self.track

    @property
    def arity_out(self) -> int:
        return 6 if self.track else 3

    @property
    def inplace(self) -> Mapping[int, int]:
        first = 3 if self.affine else 1
        return {3 + i: first + i for i in range(3)} if self.track else {}

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        x = inputs[0]
        check_count(self, inputs, 1 + 2 * self.affine + 3 * self.track)
        vectors = inputs[1:-1] if self.track else inputs[1:]
        check_channels(x, vectors)
        if self.track and (inputs[-1].shape, inputs[-1].dtype) != (COUNT_SPEC.shape, "int64"):
            raise ShapeError(f"the number of batches must be {COUNT_SPEC}, it is {inputs[-1]}")
        row = TensorSpec((x.shape[1],), x.dtype)
        kept = (row, row, COUNT_SPEC) if self.track else ()
        return (TensorSpec(x.shape, x.dtype), row, row, *kept)

    def check_training(self, *inputs: TensorSpec) -> None:
        if values_per_channel(inputs[0]) == 1:
            raise ShapeError(
                "expected more than 1 value per channel when training, got input size "
                f"{inputs[0].shape}; train with larger batches, without a last batch of one sample"
            )

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x = inputs[0]
        count = x.size // x.shape[1] if x.shape[1] else 0
        axes = (0, *range(2, x.ndim))
        mean = x.sum(axis=axes) / x.dtype.type(count)
        centred = x - per_channel(mean, x)
        variance = np.square(centred).sum(axis=axes) / x.dtype.type(count)
        invstd = 1 / np.sqrt(variance + x.dtype.type(self.eps))
        y = scaled(centred * per_channel(invstd, x), inputs[1:3] if self.affine else ())
        if not self.track:
            return y, mean, invstd
        return y, mean, invstd, *self._updated(inputs[-3:], mean, variance, count)

    def _updated(
        self, running: Sequence[np.ndarray], mean: np.ndarray, variance: np.ndarray, count: int
    ) -> tuple[np.ndarray, ...]:
        """The running mean, variance and number after this batch; an empty one changes none."""
        old_mean, old_variance, batches = running
        if count == 0:
            return old_mean.copy(), old_variance.copy(), batches.copy()
        seen = batches + 1
        share = mean.dtype.type(1 / int(seen) if self.momentum is None else self.momentum)
        unbiased = variance * mean.dtype.type(count) / mean.dtype.type(count - 1)
        return (
            (1 - share) * old_mean + share * mean,
            (1 - share) * old_variance + share * unbiased,
            np.asarray(seen, np.int64),
        )

    def gradient(self, scope: GradientScope) -> Sequence[str | None]:
        dy, (x, *rest) = scope.grads[0], scope.node.inputs
        assert dy is not None
        weight = rest[:1] if self.affine else []
        made = scope.add(BatchNormGrad(self.affine), dy, x, *scope.node.outputs[1:3], *weight)
        return [*made, *[None] * (len(rest) + 1 - len(made))]

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """Sum, squares of differences, scale and shift."""
        return 6 * inputs[0].size

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """x is read twice: nothing can be normalised before all of it was seen."""
        return super().nbytes(inputs, outputs) + inputs[0].nbytes

    def without_updates(self) -> Op:
        return BatchNorm(self.eps, self.momentum, self.affine, track=False)

    def inference(self) -> Op | None:
        """With running values their use; without them the batch's own, as PyTorch does."""
        return BatchNormInference(self.eps, self.affine) if self.track else self


@dataclass(frozen=True)
class BatchNormGrad(Op):
    """Inputs dy and x (N,C,...), mean and 1/std (C,) of ``BatchNorm``, weight if ``affine``.

    Outputs dx and, if ``affine``, the gradients of weight and bias. With h = (x - mean) / std over
    the m values of a channel: dbias = sum dy, dweight = sum dy h, and dx = weight / std
    (dy - dbias / m - h dweight / m).
    """

    affine: bool = True

    @property
    def arity_out(self) -> int:
        return 3 if self.affine else 1

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_count(self, inputs, 4 + self.affine)
        dy, x, *rows = inputs
        if dy.shape != x.shape:
            raise ShapeError(f"the gradient {dy.shape} does not fit the input {x.shape}")
        check_channels(x, rows)
        row = TensorSpec((x.shape[1],), x.dtype)
        return (TensorSpec(x.shape, x.dtype), *([row, row] if self.affine else []))

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, x, mean, invstd, *weight = inputs
        axes = (0, *range(2, x.ndim))
        count = x.dtype.type(x.size // x.shape[1] if x.shape[1] else 0)
        h = (x - per_channel(mean, x)) * per_channel(invstd, x)
        dbias, dweight = dy.sum(axis=axes), (dy * h).sum(axis=axes)
        inner = dy - per_channel(dbias / count, x) - h * per_channel(dweight / count, x)
        scale = invstd * weight[0] if self.affine else invstd
        dx = per_channel(scale, x) * inner
        return (dx, dweight, dbias) if self.affine else (dx,)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 10 * inputs[0].size

    def nbytes(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        """dy and x are read twice: dx needs the sums over all of them."""
        return super().nbytes(inputs, outputs) + 2 * inputs[0].nbytes


@dataclass(frozen=True)
class BatchNormInference(Op):
    """Inputs x (N,C,...); weight and bias if ``affine``; mean and variance; all (C,).

    Output y = (x - mean) weight / sqrt(variance + eps) + bias.
    """

    eps: float = 1e-5
    affine: bool = True

    @property
    def arity_in(self) -> int | None:
        return 5 if self.affine else 3

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        check_count(self, inputs, 5 if self.affine else 3)
        check_channels(inputs[0], inputs[1:])
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    @quiet
    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        x, *rest = inputs
        mean, variance = rest[-2:]
        invstd = 1 / np.sqrt(variance + x.dtype.type(self.eps))
        h = (x - per_channel(mean, x)) * per_channel(invstd, x)
        return (scaled(h, rest[:2] if self.affine else ()),)

    def flops(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> int:
        return 2 * inputs[0].size


def per_channel(row: np.ndarray, x: np.ndarray) -> np.ndarray:
    """A (C,) row in a shape that broadcasts over x (N,C,...)."""
    return row.reshape(1, -1, *(1,) * (x.ndim - 2))


def scaled(h: np.ndarray, weight_and_bias: Sequence[np.ndarray]) -> np.ndarray:
    """h weight + bias, by channel; h where there are none."""
    if not weight_and_bias:
        return h
    weight, bias = (per_channel(row, h) for row in weight_and_bias)
    scaled_h: np.ndarray = h * weight + bias
    return scaled_h


def values_per_channel(x: TensorSpec) -> int:
    """How many values of x (N,C,...) share a mean."""
    return x.shape[0] * math.prod(x.shape[2:])


def check_count(op: Op, inputs: Sequence[TensorSpec], count: int) -> None:
    """Raises ShapeError unless the op got as many tensors as it takes."""
    if len(inputs) != count:
        raise ShapeError(f"{op.name} takes {count} tensors, it got {len(inputs)}")


def check_channels(x: TensorSpec, rows: Sequence[TensorSpec]) -> None:
    """Raises ShapeError unless x has channels and each row one value for each of them."""
    if len(x.shape) < 2:
        raise ShapeError(f"normalisation needs an input of shape (N, C, ...), it got {x.shape}")
    for row in rows:
        if row.shape != (x.shape[1],):
            raise ShapeError(
                f"an input of {x.shape[1]} channels ({x.shape}) does not fit weights and "
                f"statistics of shape {row.shape}; num_features must be {x.shape[1]}"
            )
