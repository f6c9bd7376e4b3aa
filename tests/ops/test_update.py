from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import HYPER_SPEC, SGD, AdamW, GradientNorm, Op
from convloom.ops.control import HYPER, hyper_vector
from tests.ops.gradcheck import close, evaluate

SHAPES = ((4, 3, 3, 3), (4,), (5, 7), ())
Arrays = list[np.ndarray]


def normals(seed: int, scale: float = 1.0) -> Arrays:
    rng = np.random.default_rng(seed)
    return [np.asarray(scale * rng.standard_normal(shape)) for shape in SHAPES]


def ours(op: SGD | AdamW, steps: Sequence[Arrays], hypers: Sequence[dict[str, float]]) -> Arrays:
    """The parameters after all steps, from ``normals(0)``."""
    p, states = normals(0), [np.zeros(shape) for shape in SHAPES] * op.states
    for grads, values in zip(steps, hypers, strict=True):
        hyper = hyper_vector(values)
        norm = evaluate(GradientNorm(), *grads) if op.clip else ()
        made = evaluate(op, hyper, *norm, *p, *grads, *states)
        p, states = list(made[: len(p)]), list(made[len(p) :])
    return p


def peers(
    kind: type[torch.optim.Optimizer],
    steps: Sequence[Arrays],
    groups: Sequence[dict[str, float]],
    max_norm: float | None = None,
    **options: object,
) -> Arrays:
    """PyTorch's, with one parameter group for each parameter."""
    tensors = [torch.from_numpy(p).clone().requires_grad_() for p in normals(0)]
    optimizer = kind(
        [{"params": [t], **g} for t, g in zip(tensors, groups, strict=True)], **options
    )  # type: ignore[call-arg]
    for grads in steps:
        for tensor, grad in zip(tensors, grads, strict=True):
            tensor.grad = torch.from_numpy(grad).clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(tensors, max_norm)
        optimizer.step()
    return [tensor.detach().numpy() for tensor in tensors]


DECAY, RATE = (1.0, 0.0, 0.5, 1.0), (1.0, 2.0, 1.0, 0.0)
STEPS = [normals(seed) for seed in (1, 2, 3)]


def groups(lr: float, decay: float) -> list[dict[str, float]]:
    return [{"lr": lr * r, "weight_decay": decay * d} for d, r in zip(DECAY, RATE, strict=True)]


@pytest.mark.parametrize("max_norm", [None, 0.7, 1e6])
@pytest.mark.parametrize("decay", [0.0, 0.05])
@pytest.mark.parametrize("momentum, nesterov", [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd(momentum: float, nesterov: bool, decay: float, max_norm: float | None) -> None:
    values = {"lr": 0.1, "momentum": momentum, "weight_decay": decay, "max_norm": max_norm or 0}
    op = SGD(DECAY, RATE, clip=max_norm is not None, nesterov=nesterov)
    options = {"momentum": momentum, "nesterov": nesterov}
    wanted = peers(torch.optim.SGD, STEPS, groups(0.1, decay), max_norm, lr=0.1, **options)
    for got, peer in zip(ours(op, STEPS, [values] * 3), wanted, strict=True):
        close(got, peer)


@pytest.mark.parametrize("max_norm", [None, 0.7])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_adamw(decay: float, max_norm: float | None) -> None:
    fixed = {"lr": 0.1, "weight_decay": decay, "beta1": 0.8, "beta2": 0.99, "eps": 1e-6}
    hypers = [
        {**fixed, "bias1": 1 - 0.8**t, "bias2": 1 - 0.99**t, "max_norm": max_norm or 0}
        for t in (1, 2, 3)
    ]
    op = AdamW(DECAY, RATE, clip=max_norm is not None)
    options = {"betas": (0.8, 0.99), "eps": 1e-6}
    wanted = peers(torch.optim.AdamW, STEPS, groups(0.1, decay), max_norm, lr=0.1, **options)
    for got, peer in zip(ours(op, STEPS, hypers), wanted, strict=True):
        close(got, peer)


def test_three_steps_by_hand() -> None:
    hyper = hyper_vector({"lr": 0.1, "momentum": 0.9})
    w, v, seen = np.ones(1), np.zeros(1), []
    for _ in range(3):
        w, v = evaluate(SGD((1.0,), (1.0,)), hyper, w, np.ones(1), v)
        seen.append(float(w[0]))
    np.testing.assert_allclose(seen, [0.9, 0.71, 0.439], rtol=1e-15)


def test_a_parameter_without_gradient_still_decays_unless_excluded() -> None:
    hyper = hyper_vector({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01})
    one, zero = np.ones(1), np.zeros(1)
    first, second, *_ = evaluate(
        SGD((1.0, 0.0), (1.0, 1.0)), hyper, one, one, zero, zero, zero, zero
    )
    assert first[0] == pytest.approx(0.999)
    assert second[0] == 1


def test_float32_parameters_stay_float32() -> None:
    w = [np.ones(3, np.float32)] * 3
    hyper = hyper_vector({"lr": 0.1, "momentum": 0.9, "weight_decay": 0.1, "bias1": 1, "bias2": 1})
    assert [made.dtype for made in evaluate(SGD((1.0,), (1.0,)), hyper, *w)] == [np.float32] * 2
    made = evaluate(AdamW((1.0,), (1.0,)), hyper, *w, w[0])
    assert [value.dtype for value in made] == [np.float32] * 3


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_clips_as_in_pytorch(value: float) -> None:
    grads = normals(1)
    grads[1][2] = value
    norm = evaluate(GradientNorm(), *grads)[0]
    np.testing.assert_array_equal(norm, [value])
    values = {"lr": 0.1, "momentum": 0.9, "max_norm": 1.0}
    ones = (1.0,) * 4
    got = ours(SGD(ones, ones, clip=True), [grads], [values])
    same = [{"lr": 0.1}] * 4
    wanted = peers(torch.optim.SGD, [grads], same, 1.0, lr=0.1, momentum=0.9)
    for mine, peer in zip(got, wanted, strict=True):
        close(mine, peer)


def test_norm_sums_in_float64() -> None:
    grads = [np.full(1000, 1e-4, np.float32), np.full(1, 1e4, np.float32)]
    exact = np.sqrt(sum(np.square(g.astype(np.float64)).sum() for g in grads))
    assert evaluate(GradientNorm(), *grads)[0][0] == exact


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", [SGD, AdamW])
def test_what_may_be_updated_in_place(kind: type[SGD | AdamW], clip: bool) -> None:
    op = kind((1.0, 1.0), (1.0, 1.0), clip=clip)
    first = 2 if clip else 1
    assert [op.inplace[out] - first for out in (0, 1)] == [0, 1]
    states = range(2, op.arity_out)
    assert [op.inplace[out] - first for out in states] == [out + 2 for out in states]


def test_slots() -> None:
    vector = hyper_vector({"lr": 0.5, "bias2": 0.25})
    assert vector[HYPER.index("lr")] == 0.5
    assert vector[HYPER.index("bias2")] == 0.25
    assert vector.sum() == 0.75
    with pytest.raises(KeyError, match="unknown control 'rate'; the slots are lr, momentum"):
        hyper_vector({"rate": 1.0})


W = TensorSpec((3,))


@pytest.mark.parametrize(
    "op, inputs, message",
    [
        (
            SGD((1.0,), (1.0,)),
            (HYPER_SPEC, W, W),
            "SGD of 1 parameters takes 1 rates and 4 tensors",
        ),
        (SGD((1.0,), ()), (HYPER_SPEC, W, W, W), "it got 0 and 4"),
        (SGD((1.0,), (1.0,)), (TensorSpec((2,)), W, W, W), "hyper must have shape"),
        (AdamW((1.0,), (1.0,)), (HYPER_SPEC, W, TensorSpec((4,)), W, W), "must have one shape"),
    ],
)
def test_inputs_that_do_not_fit(op: Op, inputs: tuple[TensorSpec, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        op.infer(*inputs)


def test_no_parameters() -> None:
    assert SGD((), ()).infer(HYPER_SPEC) == ()
    assert SGD((), ()).reference(hyper_vector({})) == ()


def test_flops_and_bytes() -> None:
    op, inputs = SGD((1.0,), (1.0,)), (HYPER_SPEC, W, W, W)
    assert op.flops(inputs, (W, W)) == 6 * 3
    assert SGD((1.0,), (1.0,), nesterov=True).flops(inputs, (W, W)) == 8 * 3
    assert AdamW((1.0,), (1.0,)).flops((*inputs, W), (W, W, W)) == 14 * 3
    norm = TensorSpec((1,), "float64")
    assert SGD((1.0,), (1.0,), clip=True).flops((HYPER_SPEC, norm, W, W, W), (W, W)) == 7 * 3
    assert op.nbytes(inputs, (W, W)) == 72 + 5 * 12
    assert GradientNorm().flops((W, W), (TensorSpec((1,), "float64"),)) == 12
