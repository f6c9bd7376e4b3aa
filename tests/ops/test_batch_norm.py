"""Batch normalisation against PyTorch in float64 and finite differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import BatchNorm, BatchNormGrad, BatchNormInference
from tests import zoo
from tests.ops.gradcheck import check, close, evaluate
from tests.zoo import Shape

SHAPES: tuple[Shape, ...] = tuple(shape for shape in zoo.NORM if shape != (1, 3, 1, 1))


def tensors(shape: Shape, op: BatchNorm, seed: int = 0) -> list[np.ndarray]:
    """x, and as the op takes them weight, bias and running values."""
    rng = np.random.default_rng(seed)
    c = shape[1]
    rows = [rng.standard_normal(c), rng.standard_normal(c)] if op.affine else []
    running = [rng.standard_normal(c), rng.random(c) + 0.5, np.array(3)] if op.track else []
    return [3 * rng.standard_normal(shape) + 2, *rows, *running]


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients(shape: Shape, affine: bool) -> None:
    op = BatchNorm(affine=affine, track=False)

    def peer(x: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.batch_norm(x, None, None, *rows, training=True)

    check(op, tensors(shape, op), peer, tolerance=1e-10)


@pytest.mark.parametrize("momentum", [0.1, 0.75, 1.0, 0.0, None])
@pytest.mark.parametrize("shape", [(2, 3, 5, 7), (1, 17, 3, 4), (33, 5)], ids=str)
def test_running_values(shape: Shape, momentum: float | None) -> None:
    op = BatchNorm(eps=1e-3, momentum=momentum)
    kind = torch.nn.BatchNorm2d if len(shape) == 4 else torch.nn.BatchNorm1d
    theirs = kind(shape[1], eps=1e-3, momentum=momentum, dtype=torch.float64)
    x, weight, bias, *running = tensors(shape, op)
    names = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    state = zip(names, (weight, bias, *running), strict=True)
    theirs.load_state_dict({name: torch.from_numpy(np.asarray(v)) for name, v in state})
    for seed in range(3):
        x = tensors(shape, op, seed)[0]
        y, *_, mean, variance, count = evaluate(op, x, weight, bias, *running)
        close(y, theirs(torch.from_numpy(x)).detach().numpy())
        running = [mean, variance, count]
        for ours, name in zip(running, names[2:], strict=True):
            close(np.asarray(ours), getattr(theirs, name).numpy())
    inference = op.inference()
    assert inference == BatchNormInference(1e-3)
    y = evaluate(inference, x, weight, bias, *running[:2])[0]
    close(y, theirs.eval()(torch.from_numpy(x)).detach().numpy())


def test_inference_without_weights_and_without_running_values() -> None:
    op = BatchNorm(affine=False)
    x, mean, variance, _ = tensors((2, 3, 4, 5), op)
    inference = op.inference()
    assert inference is not None
    assert inference.arity_in == 3
    wanted = (x - mean.reshape(1, 3, 1, 1)) / np.sqrt(variance.reshape(1, 3, 1, 1) + 1e-5)
    close(evaluate(inference, x, mean, variance)[0], wanted)
    untracked = BatchNorm(track=False)
    assert untracked.inference() is untracked


def test_biased_variance_normalises_and_the_unbiased_one_is_kept() -> None:
    """One channel with the values 0 and 2: variance 1 and 2."""
    op = BatchNorm(eps=0.0, affine=False)
    x = np.array([0.0, 2.0]).reshape(2, 1, 1, 1)
    y, _, _, mean, variance, count = evaluate(op, x, np.zeros(1), np.ones(1), np.array(0))
    np.testing.assert_array_equal(y.ravel(), [-1, 1])
    np.testing.assert_allclose([mean[0], variance[0], count], [0.1, 1.1, 1])


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_one_value_a_channel_is_no_training(shape: Shape) -> None:
    op = BatchNorm(track=False, affine=False)
    with pytest.raises(ShapeError, match="expected more than 1 value per channel when training"):
        op.check_training(TensorSpec(shape))
    op.check_training(TensorSpec((1, 3, 1, 2)))
    op.check_training(TensorSpec((2, *shape[1:])))


def test_an_empty_batch_changes_no_running_value() -> None:
    op = BatchNorm(affine=False)
    x, *running = tensors((0, 3, 4, 4), op)
    y, _, _, *kept = evaluate(op, x, *running)
    assert y.shape == x.shape
    for old, new in zip(running, kept, strict=True):
        np.testing.assert_array_equal(old, new)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_infinity_stay_in_their_channel(value: float) -> None:
    op = BatchNorm(track=False)
    x, weight, bias = tensors((2, 3, 4, 5), op)
    x[0, 1, 2, 3] = value
    y, mean, invstd = evaluate(op, x, weight, bias)
    theirs = torch.nn.functional.batch_norm(
        *map(torch.from_numpy, (x,)), None, None, torch.from_numpy(weight), torch.from_numpy(bias),
        training=True,
    )  # fmt: skip
    close(y, theirs.numpy())
    dx, *_ = evaluate(BatchNormGrad(), x, x, mean, invstd, weight)
    assert np.isnan(dx[:, 1]).all()
    assert np.isfinite(dx[:, ::2]).all()


@pytest.mark.parametrize(
    "shapes",
    [((2, 3, 4, 4), (2,), (3,)), ((2,), (2,), (2,)), ((2, 3, 4, 4), (3,))],
)
def test_what_does_not_fit_is_refused(shapes: tuple[Shape, ...]) -> None:
    with pytest.raises(ShapeError):
        BatchNorm(track=False).infer(*(TensorSpec(shape) for shape in shapes))


def test_the_count_must_be_a_number() -> None:
    x, row = TensorSpec((2, 3, 4, 4)), TensorSpec((3,))
    with pytest.raises(ShapeError, match="number of batches"):
        BatchNorm(affine=False).infer(x, row, row, row)
    assert replace(BatchNorm(), track=False).arity_out == 3
