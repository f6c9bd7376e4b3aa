from __future__ import annotations

import numpy as np
import pytest
import torch

from convloom.compiler.autodiff import differentiate
from convloom.compiler.interpret import interpret
from convloom.ir import GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import Add, Concat, Flatten, Slice, Unflatten
from tests import zoo
from tests.ops.gradcheck import check, evaluate, gradients

SHAPES = zoo.ELEMENTWISE


def normal(shape: zoo.Shape, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_flatten_and_back(shape: zoo.Shape) -> None:
    check(Flatten(), [normal(shape)], lambda x: torch.flatten(x, 1))
    flat = normal((shape[0], int(np.prod(shape[1:]))))
    check(Unflatten(shape[1:]), [flat], lambda x: x.reshape(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_add(shape: zoo.Shape) -> None:
    check(Add(), [normal(shape), normal(shape, 1)], torch.add)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_concat(shape: zoo.Shape) -> None:
    inputs = [normal((shape[0], c, *shape[2:]), c) for c in (1, 4, 2)]
    check(Concat(), inputs, lambda *parts: torch.cat(parts, 1))


def test_concat_differentiates_only_by_what_is_wanted() -> None:
    inputs = [normal((2, c, 3)) for c in (1, 4, 2)]
    dy = normal((2, 7, 3), 5)
    assert gradients(Concat(), inputs, dy, wanted=[1])[1].tolist() == dy[:, 1:5].tolist()


def test_a_tensor_used_twice_gets_the_sum_of_its_gradients() -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((2, 3), "float64"), Role.INPUT)
    (double,) = builder.add(Add(), ("x", "x"))
    (joined,) = builder.add(Concat(), (double, "x"))
    builder.declare("dy", builder.spec(joined), Role.INPUT)
    graph = differentiate(builder.build(), joined, "dy", ["x"])
    x, dy = normal((2, 3)), normal((2, 6), 1)
    values = interpret(graph, {"x": x, "dy": dy})
    np.testing.assert_allclose(values[graph.gradients["x"]], 2 * dy[:, :3] + dy[:, 3:])


def test_slice() -> None:
    x = normal((2, 5, 3))
    np.testing.assert_array_equal(evaluate(Slice(1, 4), x)[0], x[:, 1:4])


@pytest.mark.parametrize("shape", [(0, 3, 5, 7), (0, 4)], ids=str)
def test_empty_batch(shape: zoo.Shape) -> None:
    x = np.ones(shape)
    flat = int(np.prod(shape[1:]))
    assert evaluate(Flatten(), x)[0].shape == (0, flat)
    assert evaluate(Unflatten(shape[1:]), np.ones((0, flat)))[0].shape == shape
    assert evaluate(Add(), x, np.ones(shape))[0].shape == shape
    assert evaluate(Concat(), x, np.ones(shape))[0].shape == (0, 2 * shape[1], *shape[2:])


@pytest.mark.parametrize(
    "op, shapes, message",
    [
        (Flatten(), [()], "got a scalar"),
        (Unflatten((3, 4)), [(2, 13)], r"\(13,\) \(13 elements\) cannot take shape \(3, 4\) \(12 "),
        (Add(), [(2, 3), (2, 4)], r"one shape can be added, these are \(2, 3\) and \(2, 4\)"),
        (Concat(), [(2, 3, 5), (2, 3, 6)], r"these are \(2, 3, 5\) and \(2, 3, 6\)"),
        (Concat(), [(2, 3), (1, 3)], r"these are \(2, 3\) and \(1, 3\)"),
        (Concat(), [(2,)], "at least one tensor of shape"),
        (Concat(), [], "at least one tensor of shape"),
        (Slice(1, 4), [(2, 3)], "channels 1 to 4 are not all among the 3"),
    ],
)
def test_shapes_that_do_not_fit(op, shapes, message) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ShapeError, match=message):
        op.infer(*(TensorSpec(shape) for shape in shapes))


def test_moving_is_not_computing() -> None:
    x, part = TensorSpec((2, 8, 3)), TensorSpec((2, 2, 3))
    assert Flatten().flops((x,), (TensorSpec((2, 24)),)) == 0
    assert Concat().flops((x, x), (TensorSpec((2, 16, 3)),)) == 0
    assert Slice(0, 2).nbytes((x,), (part,)) == 2 * part.nbytes
    assert Add().flops((x, x), (x,)) == x.size
