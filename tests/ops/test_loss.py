from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from convloom.compiler.autodiff import differentiate
from convloom.compiler.interpret import interpret
from convloom.ir import ConvloomError, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import (
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TargetError,
    check_targets,
)
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients

ONE = np.array(1.0)


def labels(n: int, classes: int) -> np.ndarray:
    return np.random.default_rng(n).integers(0, classes, n)


def probabilities(n: int, classes: int) -> np.ndarray:
    """Rows of any positive sum, as PyTorch allows."""
    return np.random.default_rng(n).random((n, classes))


def peer(smoothing: float):  # type: ignore[no-untyped-def]
    return lambda x, t: torch.nn.functional.cross_entropy(x, t, label_smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("n, classes", zoo.CLASSES)
def test_indices(n: int, classes: int, smoothing: float) -> None:
    logits = 3 * np.random.default_rng(1).standard_normal((n, classes))
    op = SoftmaxCrossEntropy(smoothing)
    check(op, [logits, labels(n, classes)], peer(smoothing))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("n, classes", zoo.CLASSES)
def test_probabilities(n: int, classes: int, smoothing: float) -> None:
    logits = 3 * np.random.default_rng(1).standard_normal((n, classes))
    op = SoftmaxCrossEntropy(smoothing, "probability")
    inputs = [logits, probabilities(n, classes)]
    check(op, inputs, peer(smoothing), wanted=[0])
    np.testing.assert_allclose(
        evaluate(op, *inputs)[1], torch.softmax(torch.from_numpy(logits), 1).numpy(), rtol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_far_apart_logits(dtype: str) -> None:
    logits, target = np.array([[-431, 279, 427]], dtype), np.array([0])
    loss, _ = evaluate(SoftmaxCrossEntropy(), logits, target)
    assert loss == 858
    grad = gradients(SoftmaxCrossEntropy(), [logits, target], ONE.astype(dtype))[0]
    np.testing.assert_allclose(grad, [[-1, 0, 1]], atol=1e-12)


@pytest.mark.parametrize("label", [0, 1])
def test_large_equal_logits(label: int) -> None:
    loss, probability = evaluate(SoftmaxCrossEntropy(), np.array([[1e8, 1e8]]), np.array([label]))
    assert loss == math.log(2)
    np.testing.assert_array_equal(probability, [[0.5, 0.5]])


def test_float32_loss_is_summed_in_float64() -> None:
    """A running float32 sum of these would lose every small term."""
    n = 4096
    logits = np.zeros((n, 2), np.float32)
    logits[0, 0] = -3e7
    loss, _ = evaluate(SoftmaxCrossEntropy(), logits, np.zeros(n, np.int64))
    assert loss == np.float32((3e7 + (n - 1) * math.log(2)) / n)


@pytest.mark.parametrize("row", [[np.nan, 0, 1], [np.inf, 0, 1], [-np.inf] * 3, [-np.inf, 0, 1]])
@pytest.mark.parametrize("label", [0, 2])
def test_values_that_are_not_finite_pass_as_in_pytorch(row: list[float], label: int) -> None:
    logits, target = np.array([row, [1.0, 2, 3]]), np.array([label, 1])
    tensor = torch.tensor(logits, requires_grad=True)
    wanted = torch.nn.functional.cross_entropy(tensor, torch.from_numpy(target))
    wanted.backward()
    loss, _ = evaluate(SoftmaxCrossEntropy(), logits, target)
    np.testing.assert_allclose(loss, wanted.item(), rtol=1e-12)
    grad = gradients(SoftmaxCrossEntropy(), [logits, target], ONE)[0]
    np.testing.assert_allclose(grad, tensor.grad.numpy(), rtol=1e-12, atol=1e-15)  # type: ignore[union-attr]


def test_the_loss_gradient_scales() -> None:
    """The loss may be one term of several: its incoming gradient need not be 1."""
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((2, 3), "float64"), Role.INPUT)
    builder.declare("t", TensorSpec((2,), "int64"), Role.INPUT)
    loss, _ = builder.add(SoftmaxCrossEntropy(), ("x", "t"))
    builder.declare("dloss", TensorSpec((), "float64"), Role.INPUT)
    graph = differentiate(builder.build(), loss, "dloss", ["x"])
    given = {"x": np.eye(2, 3), "t": np.array([0, 2])}
    one, half = (
        interpret(graph, {**given, "dloss": np.array(scale)})[graph.gradients["x"]]
        for scale in (1.0, 0.5)
    )
    np.testing.assert_array_equal(one / 2, half)


def test_no_samples() -> None:
    """The mean of nothing is NaN, as in PyTorch; its gradient has no rows."""
    inputs = [np.empty((0, 3)), np.empty(0, np.int64)]
    loss, probability = evaluate(SoftmaxCrossEntropy(), *inputs)
    assert np.isnan(loss)
    assert probability.shape == (0, 3)
    assert gradients(SoftmaxCrossEntropy(), inputs, ONE)[0].shape == (0, 3)


@pytest.mark.parametrize("label", [-1, 10])
def test_a_label_out_of_range_names_the_sample(label: int) -> None:
    target = np.array([3, 9, label, 0, label])
    message = rf"sample 2 has label {label} \(2 such samples\); labels must be between 0 and 9"
    with pytest.raises(TargetError, match=message):
        check_targets(target, 10)
    with pytest.raises(ConvloomError, match="sample 2"):
        SoftmaxCrossEntropy().reference(np.zeros((5, 10)), target)


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64"])
def test_sound_labels_of_any_integer_type(dtype: str) -> None:
    check_targets(np.array([0, 9, 4], dtype), 10)
    check_targets(np.array([], dtype), 10)


@pytest.mark.parametrize(
    "target, message",
    [
        (np.zeros((4, 1), np.int64), r"class indices must have shape \(N,\), they have \(4, 1\)"),
        (np.zeros(4), r"probabilities must have shape \(N, 10\).*class indices must be integers"),
        (np.zeros((4, 9)), r"probabilities must have shape \(N, 10\), they have \(4, 9\)"),
        (np.zeros(4, bool), "integer labels or float probabilities, they are bool"),
    ],
)
def test_targets_of_a_wrong_form(target: np.ndarray, message: str) -> None:
    with pytest.raises(TargetError, match=message):
        check_targets(target, 10)


@pytest.mark.parametrize(
    "op, logits, target, message",
    [
        (
            SoftmaxCrossEntropy(),
            (4, 10),
            TensorSpec((5,), "int64"),
            r"must be int64 of shape \(4,\)",
        ),
        (SoftmaxCrossEntropy(), (4, 10), TensorSpec((4,), "int32"), "must be int64 .*it is int32"),
        (SoftmaxCrossEntropy(), (4, 3, 5), TensorSpec((4,), "int64"), "put a Flatten or a Linear"),
        (SoftmaxCrossEntropy(), (4, 0), TensorSpec((4,), "int64"), r"\(N, classes\)"),
        (
            SoftmaxCrossEntropy(1.5),
            (4, 2),
            TensorSpec((4,), "int64"),
            r"label_smoothing must be in",
        ),
        (
            SoftmaxCrossEntropy(0, "prob"),
            (4, 2),
            TensorSpec((4,), "int64"),
            "target must be 'index'",
        ),
        (
            SoftmaxCrossEntropy(0, "probability"),
            (4, 10),
            TensorSpec((4, 9)),
            r"must be float32 of shape \(4, 10\), it is float32 of shape \(4, 9\)",
        ),
    ],
)
def test_shapes_that_do_not_fit(
    op: SoftmaxCrossEntropy, logits: zoo.Shape, target: TensorSpec, message: str
) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(TensorSpec(logits), target)


def test_probabilities_have_no_gradient() -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((2, 3)), Role.INPUT)
    builder.declare("t", TensorSpec((2,), "int64"), Role.INPUT)
    _, probability = builder.add(SoftmaxCrossEntropy(), ("x", "t"))
    builder.declare("dp", TensorSpec((2, 3)), Role.INPUT)
    with pytest.raises(TypeError, match="probabilities of SoftmaxCrossEntropy have no gradient"):
        differentiate(builder.build(), probability, "dp", ["x"])


def test_flops() -> None:
    x, t, loss = TensorSpec((4, 10)), TensorSpec((4,), "int64"), TensorSpec(())
    assert SoftmaxCrossEntropy().flops((x, t), (loss, x)) == 5 * 40
    assert SoftmaxCrossEntropyGrad().flops((x, t, loss), (x,)) == 2 * 40
