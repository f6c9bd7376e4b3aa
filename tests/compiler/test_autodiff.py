"""Reverse-mode differentiation against PyTorch float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.compiler import differentiate
from convloom.ir import GraphBuilder, Role, TensorSpec
from convloom.ops import Add, ReLU, TopKCorrect


class Residual(nn.Module):
    """A branch that is added back, and one layer used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3 * 4 * 4, 3)

    def forward(self, x):  # type: ignore[no-untyped-def]
        once = self.conv(x).relu()
        return self.head((self.conv(once) + x + once).flatten(1))


def test_shared_weights_and_branches_add_their_gradients() -> None:
    model = Residual()
    draw = np.random.default_rng(0)
    x, dy = draw.standard_normal((2, 3, 4, 4)), draw.standard_normal((2, 3))
    y, dx, grads = cl.vjp(model, x, dy, device="reference")

    weights = {k: torch.tensor(v, dtype=torch.float64, requires_grad=True)
               for k, v in model.state_dict().items()}  # fmt: skip
    tx = torch.tensor(x, requires_grad=True)

    def conv(t: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.conv2d(t, weights["conv.weight"], weights["conv.bias"], 1, 1)

    once = conv(tx).relu()
    ty = torch.nn.functional.linear(
        (conv(once) + tx + once).flatten(1), weights["head.weight"], weights["head.bias"]
    )
    ty.backward(torch.tensor(dy))
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-12)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-12, atol=1e-14)
    for name, weight in weights.items():
        np.testing.assert_allclose(grads[name], weight.grad.numpy(), rtol=1e-11, atol=1e-13)


def test_gradients_are_named_after_what_they_belong_to() -> None:
    graph = cl.nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()).trace((1, 5, 5), 1)
    builder = GraphBuilder(graph)
    builder.declare("seed", graph.specs["output"], Role.INPUT)
    made = differentiate(builder.build(), "output", "seed", ["0.weight", "input"])
    assert made.gradients == {"0.weight": "0.weight.grad", "input": "input.grad"}
    assert "0.out.grad" in made.specs


def test_a_tensor_that_the_result_does_not_depend_on_has_no_gradient() -> None:
    builder = GraphBuilder()
    builder.declare("a", TensorSpec((2,)), Role.INPUT)
    builder.declare("b", TensorSpec((2,)), Role.INPUT)
    builder.declare("seed", TensorSpec((2,)), Role.INPUT)
    builder.add(ReLU(), ("a",), names=["y"])
    builder.add(Add(), ("a", "b"), names=["unused"])
    made = differentiate(builder.build(), "y", "seed", ["a", "b"])
    assert set(made.gradients) == {"a"}


def test_the_result_itself_has_the_seed_as_gradient() -> None:
    builder = GraphBuilder()
    builder.declare("a", TensorSpec((2,)), Role.INPUT)
    builder.declare("seed", TensorSpec((2,)), Role.INPUT)
    assert differentiate(builder.build(), "a", "seed", ["a"]).gradients == {"a": "seed"}


def test_an_op_without_gradient_is_named() -> None:
    builder = GraphBuilder()
    builder.declare("logits", TensorSpec((2, 3)), Role.INPUT)
    builder.declare("target", TensorSpec((2,), "int64"), Role.INPUT)
    builder.declare("seed", TensorSpec((2,), "int32"), Role.INPUT)
    (count,) = builder.add(TopKCorrect(), ("logits", "target"), names=["count"])
    made = differentiate(builder.build(), count, "seed", ["logits"])
    assert not made.gradients


@pytest.mark.parametrize("unused", [True, False])
def test_parameters_outside_the_result_get_zero_from_vjp(unused: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 2)
            self.b = nn.Linear(4, 2)

        def forward(self, x):  # type: ignore[no-untyped-def]
            x = x.flatten(1)
            return self.a(x) if unused else self.a(x) + self.b(x)

    _, _, grads = cl.vjp(Net(), np.ones((1, 1, 2, 2)), np.ones((1, 2)), device="reference")
    assert np.any(grads["b.weight"]) != unused
