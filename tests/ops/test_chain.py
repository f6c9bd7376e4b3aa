"""Chains against PyTorch in float64, and against the layers' own references to the bit."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import (
    HYPER,
    SGD,
    AdamW,
    AvgPool2d,
    Chain,
    ChainEvaluate,
    ChainForward,
    ChainGradient,
    ChainUpdate,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Op,
    ReLU,
    SoftmaxCrossEntropy,
    TopKCorrect,
    from_json,
    rounded,
    to_json,
)
from tests.ops.gradcheck import close, evaluate

fn = torch.nn.functional
HEAD = (SoftmaxCrossEntropy(), TopKCorrect())
LENET = (
    Conv2d(),
    ReLU(),
    Conv2d((2, 2), (1, 1)),
    MaxPool2d((2, 2), (2, 2)),
    ReLU(),
    AvgPool2d((2, 1), (1, 1)),
    Flatten(),
    Linear(),
    ReLU(),
    Linear(),
)
BIAS = (True, False, True, True)
SHAPES = ((4, 2, 3, 3), (4,), (5, 4, 3, 3), (6, 10), (6,), (3, 6), (3,))
Arrays = list[np.ndarray]


def operands(dtype: str = "float64", integers: bool = False) -> Arrays:
    """x, parameters and labels of ``LENET``."""
    rng = np.random.default_rng(0)
    shapes = ((4, 2, 12, 10), *SHAPES)
    if integers:
        made = [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]
    else:
        made = [rng.standard_normal(shape).astype(dtype) for shape in shapes]
    return [*made, rng.integers(0, 3, 4)]


def peer(x: torch.Tensor, *p: torch.Tensor) -> torch.Tensor:
    y = fn.relu(fn.conv2d(x, p[0], p[1]))
    y = fn.relu(fn.max_pool2d(fn.conv2d(y, p[2], None, 2, 1), 2))
    y = fn.avg_pool2d(y, (2, 1), 1).flatten(1)
    return fn.linear(fn.relu(fn.linear(y, p[3], p[4])), p[5], p[6])


def peer_gradients(inputs: Arrays) -> tuple[np.ndarray, float, Arrays]:
    """Logits, loss, and gradients of input and parameters."""
    tensors = [torch.from_numpy(value.copy()) for value in inputs]
    leaves = [tensor.requires_grad_() for tensor in tensors[:-1]]
    logits = peer(*leaves)
    loss = fn.cross_entropy(logits, tensors[-1])
    loss.backward()
    return logits.detach().numpy(), loss.item(), [leaf.grad.numpy() for leaf in leaves]  # type: ignore[union-attr]


def test_forward_and_evaluate() -> None:
    inputs = operands()
    logits, loss, _ = peer_gradients(inputs)
    close(evaluate(ChainForward(LENET, BIAS), *inputs[:-1])[0], logits)
    made = evaluate(ChainEvaluate((*LENET, *HEAD), BIAS), *inputs)
    close(made[0], logits)
    close(made[1], np.array(loss))
    np.testing.assert_array_equal(made[2], [(logits.argmax(1) == inputs[-1]).sum(), 4])


@pytest.mark.parametrize("needs_dx", [False, True])
def test_gradients(needs_dx: bool) -> None:
    inputs = operands()
    *_, grads = peer_gradients(inputs)
    chain = ChainGradient((*LENET, *HEAD), BIAS, needs_dx=needs_dx)
    made = evaluate(chain, *inputs, np.array(1.0))
    for got, wanted in zip(made[3:], grads[0 if needs_dx else 1 :], strict=True):
        close(got, wanted)


RULES: tuple[SGD | AdamW, ...] = (
    SGD((1.0, 0.0) * 3 + (1.0,), (1.0,) * 7, nesterov=True),
    AdamW((1.0,) * 7, (1.0, 2.0) * 3 + (1.0,)),
)


@pytest.mark.parametrize("rule", RULES, ids=["sgd", "adamw"])
def test_update_is_the_gradient_then_the_rule(rule: SGD | AdamW) -> None:
    inputs = operands("float32")
    rng = np.random.default_rng(2)
    states = [rng.random(s).astype("float32") for _ in range(rule.states) for s in SHAPES]
    hyper = np.linspace(0.01, 0.2, len(HYPER))
    dloss = np.array(0.5, np.float32)
    chain = ChainUpdate((*LENET, *HEAD), BIAS, update=rule)
    made = evaluate(chain, *inputs, dloss, hyper, *states)
    gradient = ChainGradient((*LENET, *HEAD), BIAS).reference(*inputs, dloss)
    grads = gradient[3:]
    updated = rule.reference(hyper, *inputs[1:8], *grads, *states)
    for got, wanted in zip(made, (*gradient, *updated), strict=True):
        np.testing.assert_array_equal(got, wanted)
    for out, into in chain.inplace.items():
        given = [*inputs, dloss, hyper, *states][into]
        assert given.shape == made[out].shape
    assert sorted(chain.inplace) == list(range(3 + 7, chain.arity_out))


def test_dropout_and_distributions() -> None:
    """The mask is the layer's own, and the loss takes probabilities beside labels."""
    rng = np.random.default_rng(1)
    x, w = rng.standard_normal((5, 8)), rng.standard_normal((3, 8))
    target = rng.dirichlet(np.ones(3), 5)
    counter = np.array([3, 9], np.uint64)
    drop = Dropout(0.4, stream=17)
    entropy = SoftmaxCrossEntropy(0.1, "probability")
    chain = ChainGradient((drop, Linear(), entropy, TopKCorrect()), (False,))
    label = target.argmax(1)
    logits, loss, correct, dw = evaluate(chain, x, w, target, label, counter, np.array(1.0))
    kept, _ = drop.reference(x, counter)
    tensor = torch.from_numpy(w.copy()).requires_grad_()
    expected = torch.from_numpy(kept) @ tensor.T
    truth = torch.from_numpy(0.9 * target + 0.1 / 3)
    fn.cross_entropy(expected, truth).backward()
    close(logits, expected.detach().numpy())
    close(dw, tensor.grad.numpy())  # type: ignore[union-attr]
    assert correct[0] == (logits.argmax(1) == label).sum()
    assert np.isfinite(loss)


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_only_operands_of_products_are_rounded(precision: str) -> None:
    """Against PyTorch in float32 with the rounding put in by hand."""
    inputs = operands("float32")

    class Operand(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(rounded(x.detach().numpy(), precision))

        @staticmethod
        def backward(ctx: object, dy: torch.Tensor) -> torch.Tensor:
            return dy

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, dy: torch.Tensor) -> torch.Tensor:
            return torch.from_numpy(rounded(dy.numpy(), precision))

    near, cut = Operand.apply, Product.apply
    leaves = [torch.from_numpy(value.copy()).requires_grad_() for value in inputs[:-1]]
    x, *p = leaves
    y = fn.relu(cut(fn.conv2d(near(x), near(p[0]), p[1])))
    y = fn.relu(fn.max_pool2d(cut(fn.conv2d(near(y), near(p[2]), None, 2, 1)), 2))
    y = fn.relu(cut(fn.linear(near(fn.avg_pool2d(y, (2, 1), 1).flatten(1)), near(p[3]), p[4])))
    logits = fn.linear(near(y), near(p[5]), p[6])
    loss = fn.cross_entropy(logits, torch.from_numpy(inputs[-1]))
    loss.backward()
    chain = ChainGradient((*LENET, *HEAD), BIAS, precision, needs_dx=True)
    made = evaluate(chain, *inputs, np.array(1.0, np.float32))
    close(made[0], logits.detach().numpy(), 1e-5)
    for got, leaf in zip(made[3:], leaves, strict=True):
        close(got, leaf.grad.numpy(), 1e-4)  # type: ignore[union-attr]


def test_whole_numbers_are_the_same_in_every_precision() -> None:
    """Up to the logits nothing is rounded, as every format holds small whole numbers."""
    inputs = operands("float32", integers=True)
    body = (Conv2d(), ReLU(), MaxPool2d((2, 2), (2, 2)), Flatten())
    x, w, b = inputs[0], inputs[1], inputs[2]
    plain = ChainForward(body, (True,)).reference(x, w, b)
    for precision in ("tf32", "bf16"):
        made = ChainForward(body, (True,), precision).reference(x, w, b)
        np.testing.assert_array_equal(made[0], plain[0])


def test_operands_and_parameters_by_name() -> None:
    chain = ChainUpdate((*LENET, *HEAD), BIAS, update=SGD((1.0,) * 7, (1.0,) * 7))
    names = ["x", *(f"p{i}" for i in range(7)), "y", "dl", "h", *(f"v{i}" for i in range(7))]
    found = chain.operands(names)
    assert (found.x, found.target, found.label, found.dloss, found.hyper) == (
        "x",
        "y",
        None,
        "dl",
        "h",
    )
    assert found.parameters == tuple(names[1:8])
    assert found.states == tuple(names[-7:])
    assert list(found.all()) == names
    taken = [found.parameters[chain.parameters_of(i)] for i in range(len(LENET))]
    assert taken[0] == ("p0", "p1")
    assert taken[2] == ("p2",)
    assert taken[7] == ("p3", "p4")
    assert taken[9] == ("p5", "p6")
    assert all(not taken[i] for i in (1, 3, 4, 5, 6, 8))
    with pytest.raises(ShapeError, match="takes"):
        chain.operands(names[:-1])


def test_work_is_that_of_the_layers() -> None:
    chain = ChainForward((Flatten(), Linear()), (True,), "bf16")
    x, w, b = np.zeros((4, 2, 3)), np.zeros((5, 6)), np.zeros(5)
    specs = [_spec(value) for value in (x, w, b)]
    assert chain.flops(specs, chain.infer(*specs)) == 2 * 4 * 6 * 5 + 4 * 5
    assert chain.specs_of_stages(specs)[-1].shape == (4, 5)
    assert chain.titles(specs) == ("Flatten 6", "Linear 5")
    assert str(chain) == "ChainForward(Flatten → Linear, precision=bf16)"


WRONG: dict[str, Chain] = {
    "must end with": ChainEvaluate(LENET, BIAS),
    "must end with the logits": ChainForward((*LENET, *HEAD), BIAS),
    "has a bias": ChainForward(LENET, BIAS[:3]),
    "precision must be": ChainForward(LENET, BIAS, "fp8"),
    "update rule": ChainUpdate((*LENET, *HEAD), BIAS, update=SGD((1.0,), (1.0,))),
}


@pytest.mark.parametrize("message", WRONG)
def test_impossible_chains(message: str) -> None:
    chain = WRONG[message]
    with pytest.raises(ShapeError, match=message):
        chain.infer(*(_spec(value) for value in operands()))


def test_survives_json() -> None:
    chain: Op = ChainUpdate((*LENET, *HEAD), BIAS, "bf16", update=RULES[0])
    assert from_json(json.loads(json.dumps(to_json(chain)))) == chain
    assert replace(chain, precision="fp32") != chain


def _spec(value: np.ndarray) -> TensorSpec:
    return TensorSpec(value.shape, str(value.dtype))
