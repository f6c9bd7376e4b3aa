"""cl.compile and cl.vjp: the compiled step against PyTorch, plain NumPy and itself."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.training.engine import Engine

SHAPE = (1, 12, 12)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(6 * 16, 5),
    )  # fmt: skip


def batch(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, *SHAPE), dtype=np.float32), draw.integers(0, 5, n)


def compiled(model: nn.Module, optimizer: object, **options: object) -> cl.training.TrainingStep:
    return cl.compile(
        model, nn.CrossEntropyLoss(), optimizer, batch_size=8, input_shape=SHAPE,
        **{"device": "cpu", **options},
    )  # fmt: skip


def torch_twin(model: nn.Module) -> torch.nn.Sequential:
    twin = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 6, 3), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(6 * 16, 5),
    )  # fmt: skip
    twin.load_state_dict({k: torch.from_numpy(v) for k, v in model.state_dict().items()})
    return twin.double()


OPTIMIZERS = {
    "sgd": (
        cl.optim.SGD(lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
        lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01, nesterov=True),
    ),
    "adamw": (
        cl.optim.AdamW(lr=0.01, weight_decay=0.1),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("kind", sorted(OPTIMIZERS))
def test_five_steps_follow_pytorch(kind: str, clip: float | None, device: str) -> None:
    ours, theirs = OPTIMIZERS[kind]
    model = network()
    twin = torch_twin(model)
    optimizer = theirs(twin.parameters())
    step = compiled(model, ours, clip_norm=clip, device=device)
    for i in range(5):
        x, y = batch(8, i)
        loss = step(x, y)
        optimizer.zero_grad()
        expected = torch.nn.functional.cross_entropy(
            twin(torch.from_numpy(x).double()), torch.from_numpy(y)
        )
        expected.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(twin.parameters(), clip)
        optimizer.step()
        assert loss == pytest.approx(expected.item(), rel=2e-5)
    for name, value in twin.state_dict().items():
        np.testing.assert_allclose(step.read(name), value.numpy(), rtol=1e-3, atol=2e-5)
        np.testing.assert_array_equal(model.state_dict()[name], step.read(name))


def test_every_rung_gives_the_same_gradients() -> None:
    x, y = batch(8)
    grads = {}
    for kernels in ("reference", "dense", "sparse", "auto"):
        step = compiled(network(), cl.optim.SGD(lr=0.0), kernels=kernels, seed=3)
        step(x, y)
        grads[kernels] = {n: step.read(f"{n}.grad") for n in step.state_dict()}
    for one, two in itertools.combinations(grads, 2):
        for name, value in grads[one].items():
            np.testing.assert_allclose(grads[two][name], value, rtol=1e-4, atol=1e-6)


def test_two_runs_give_the_same_bits() -> None:
    def run() -> dict[str, np.ndarray]:
        step = compiled(network(), cl.optim.SGD(lr=0.1, momentum=0.9), seed=7)
        for i in range(3):
            step(*batch(8, i))
        return step.state_dict()

    one, two = run(), run()
    for name, value in one.items():
        np.testing.assert_array_equal(two[name], value)


def test_any_batch_size_runs_and_shares_the_weights() -> None:
    step = compiled(network(), cl.optim.SGD(lr=0.1))
    before = step.read("0.weight")
    step(*batch(8))
    between = step.read("0.weight")
    step(*batch(3))
    assert not np.array_equal(before, between)
    assert not np.array_equal(between, step.read("0.weight"))


def test_written_weights_are_used() -> None:
    step = compiled(network(), cl.optim.SGD(lr=0.0))
    step.write("6.weight", np.zeros((5, 96)))
    step.write("6.bias", np.zeros(5))
    assert step(*batch(8)) == pytest.approx(np.log(5), rel=1e-6)


def test_probability_targets() -> None:
    x, y = batch(8)
    hard = compiled(network(), cl.optim.SGD(lr=0.0))(x, y)
    soft = compiled(network(), cl.optim.SGD(lr=0.0))(x, np.eye(5, dtype=np.float32)[y])
    assert soft == pytest.approx(hard, rel=1e-6)


def test_rates_change_without_compiling() -> None:
    step = compiled(network(), cl.optim.SGD(lr=0.0))
    before = step.read("0.weight")
    step(*batch(8))
    np.testing.assert_array_equal(step.read("0.weight"), before)
    step.set_hyper(lr=0.1)
    step(*batch(8))
    assert not np.array_equal(step.read("0.weight"), before)
    with pytest.raises(KeyError, match="learning_rate"):
        step.set_hyper(learning_rate=1.0)


def test_dropout_behind_a_flatten_is_evaluated_on_the_trained_weights() -> None:
    """Without the dropout, the weights behind it would be laid out otherwise."""
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(400, 5))
    engine = Engine(
        model,
        loss=nn.CrossEntropyLoss(),
        optimizer=cl.optim.SGD(lr=0.01),
        input_shape=SHAPE,
        device="cpu",
    )
    x, y = batch(8)
    engine.train_step(x, y)
    found = engine.evaluate_step(x, y)
    logits = engine.predict(x)
    twin = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3), torch.nn.Flatten(), torch.nn.Linear(400, 5)
    )
    held = model.state_dict()
    pairs = {"0.weight": "0.weight", "0.bias": "0.bias", "2.weight": "3.weight", "2.bias": "3.bias"}
    twin.load_state_dict({mine: torch.from_numpy(held[ours]) for mine, ours in pairs.items()})
    wanted = twin(torch.from_numpy(x)).detach()
    np.testing.assert_allclose(logits, wanted.numpy(), rtol=1e-4, atol=1e-5)
    loss = torch.nn.functional.cross_entropy(wanted, torch.from_numpy(y))
    np.testing.assert_allclose(found.loss, float(loss), rtol=1e-5)


def test_dropout_masks_differ_from_step_to_step_and_repeat_from_the_seed() -> None:
    def losses(seed: int) -> list[float]:
        model = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(144, 5))
        model.initialize(0)
        step = compiled(model, cl.optim.SGD(lr=0.0), seed=seed)
        return [step(*batch(8)) for _ in range(3)]

    first = losses(1)
    assert len(set(first)) == 3
    assert losses(1) == first
    assert losses(2) != first


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((8, 1, 9, 9), np.float32), np.zeros(8, int), r"\(N, 1, 12, 12\).*9, 9"),
        (np.zeros((8, *SHAPE), np.uint8), np.zeros(8, int), "float32 images, it got uint8"),
        (np.zeros((8, *SHAPE), np.float32), np.zeros(7, int), "8 images came with 7 targets"),
        (np.zeros((8, *SHAPE), np.float32), np.array([0] * 6 + [5, 0]), "6"),
        (np.zeros((8, *SHAPE), np.float32), np.array([0] * 7 + [-1]), "7"),
        (np.zeros((0, *SHAPE), np.float32), np.zeros(0, int), "at least one image"),
        (np.zeros((8, *SHAPE), np.float32), 3, r"class numbers \(N,\) or probabilities .* not 3"),
        (np.zeros((8, *SHAPE), np.float32), None, "not None"),
        (np.zeros((8, *SHAPE), np.float32), np.zeros(8), "class indices must be integers"),
    ],
)
def test_bad_batches_are_refused_before_anything_runs(
    x: np.ndarray, y: np.ndarray, message: str
) -> None:
    step = compiled(network(), cl.optim.SGD(lr=1.0))
    before = step.read("0.weight")
    with pytest.raises(cl.ConvloomError, match=message):
        step(x, y)
    np.testing.assert_array_equal(step.read("0.weight"), before)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Sequential}, r"nn\.Module.* not the class Sequential \(write Sequential"),
        ({"loss": nn.CrossEntropyLoss}, r"the loss must be .* not the class CrossEntropyLoss"),
        ({"optimizer": "sgd"}, r"the optimizer must be .* not 'sgd'"),
        ({"batch_size": 0}, "batch_size must be a whole number of at least 1, it is 0"),
        ({"batch_size": 2.5}, "batch_size must be"),
        ({"batch_size": None}, "batch_size must be"),
        ({"input_shape": (8, 8)}, r"input_shape must be \(C, H, W\)"),
        ({"input_shape": (2, 1, 8, 8)}, r"input_shape must be \(C, H, W\)"),
        ({"input_shape": (1, 0, 8)}, "each extent of input_shape"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
        ({"seed": 2**64}, r"seed must be below 2\^64"),
        ({"clip_norm": 0}, "clip_norm must be above 0"),
        ({"clip_norm": float("nan")}, "clip_norm must be above 0"),
    ],
)
def test_bad_arguments_of_compile_name_the_remedy(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {
        "model": network(),
        "loss": nn.CrossEntropyLoss(),
        "optimizer": cl.optim.SGD(lr=0.1),
        "batch_size": 8,
        "input_shape": SHAPE,
        "device": "reference",
    }
    with pytest.raises(cl.ConvloomError, match=message):
        cl.compile(**(given | changes))


def test_predict_takes_any_float_and_refuses_what_it_would_guess() -> None:
    model, x = network().initialize(0), np.random.default_rng(0).standard_normal((5, *SHAPE))
    right = model.predict(x.astype(np.float32), device="reference")
    for same in (x, x.astype(np.float32).astype(">f4"), x.astype(np.float32)[::-1][::-1]):
        np.testing.assert_array_equal(model.predict(same, device="reference"), right)
    for batch_size in (0, -1, 2.5, None):
        with pytest.raises(cl.ShapeError, match="batch_size must be a whole number"):
            model.predict(x, batch_size=batch_size, device="reference")  # type: ignore[arg-type]
    with pytest.raises(cl.ConvloomError, match=r"got int64; .* images\.astype\(np\.uint8\)"):
        model.predict(x.astype(np.int64), device="reference")
    with pytest.raises(cl.ConvloomError, match="does not know its normalisation"):
        model.predict(x.astype(np.uint8), device="reference")


def test_reading_what_does_not_exist_names_what_does() -> None:
    step = compiled(network(), cl.optim.SGD(lr=0.1))
    with pytest.raises(KeyError, match=r"nothing has run yet.*0\.weight"):
        step.read("0.weight.grad")
    step(*batch(8))
    assert step.read("0.weight.grad").shape == (4, 1, 3, 3)
    with pytest.raises(KeyError, match=r"0\.out"):
        step.read("0.out")


def test_a_network_without_logits_is_an_error() -> None:
    with pytest.raises(cl.ShapeError, match="end it with Flatten and Linear"):
        compiled(nn.Sequential(nn.Conv2d(1, 2, 3)), cl.optim.SGD(lr=0.1))


def test_the_watched_step_names_the_first_bad_layer() -> None:
    model = network()
    step = compiled(model, cl.optim.SGD(lr=0.1))
    x, y = batch(8)
    assert step.watch(x, y) is None
    weights = step.read("2.weight")
    weights[0, 0, 0, 0] = np.inf
    step.write("2.weight", weights)
    found = step.watch(x, y)
    assert found is not None
    assert found.startswith("2 ")


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_vjp_against_pytorch(device: str) -> None:
    model = network()
    twin = torch_twin(model)
    x, _ = batch(3)
    dy = np.random.default_rng(1).standard_normal((3, 5)).astype(np.float32)
    tx = torch.from_numpy(x).double().requires_grad_()
    ty = twin(tx)
    ty.backward(torch.from_numpy(dy).double())
    y, dx, grads = cl.vjp(model, x, dy, device=device)
    np.testing.assert_allclose(y, ty.detach().numpy(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(dx, tx.grad.numpy(), rtol=1e-4, atol=1e-5)
    for name, parameter in twin.named_parameters():
        np.testing.assert_allclose(grads[name], parameter.grad.numpy(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["cpu", "reference"])
def test_vjp_of_an_empty_batch(device: str) -> None:
    y, dx, grads = cl.vjp(
        network(), np.zeros((0, *SHAPE), np.float32), np.zeros((0, 5), np.float32), device=device
    )
    assert y.shape == (0, 5)
    assert dx.shape == (0, *SHAPE)
    assert all(not value.any() for value in grads.values())


def test_vjp_reference_keeps_the_dtype() -> None:
    x, _ = batch(2)
    y, dx, grads = cl.vjp(network(), x.astype(np.float64), np.ones((2, 5)), device="reference")
    assert {y.dtype, dx.dtype, *(g.dtype for g in grads.values())} == {np.dtype(np.float64)}


def test_vjp_takes_real_numbers() -> None:
    x, dy = np.zeros((1, *SHAPE), complex), np.zeros((1, 5))
    with pytest.raises(cl.ShapeError, match="x must hold real numbers, it holds complex128"):
        cl.vjp(network(), x, dy, device="reference")


def test_vjp_checks_the_shape_of_dy() -> None:
    with pytest.raises(cl.ShapeError, match=r"dy has shape \(2, 4\), the output has \(2, 5\)"):
        cl.vjp(network(), batch(2)[0], np.ones((2, 4)))


def test_prediction_follows_the_trained_weights_and_leaves_them_bound() -> None:
    model = network()
    step = compiled(model, cl.optim.SGD(lr=0.5))
    x, y = batch(8)
    one = model.predict(x)
    step(x, y)
    two = model.predict(x)
    assert not np.array_equal(one, two)
    np.testing.assert_allclose(two.sum(axis=1), 1, rtol=1e-6)
    step(x, y)
    np.testing.assert_array_equal(model.state_dict()["6.bias"], step.read("6.bias"))


def test_state_goes_out_and_in_unchanged() -> None:
    def engine() -> Engine:
        return Engine(
            network(), loss=nn.CrossEntropyLoss(), optimizer=cl.optim.SGD(lr=0.1, momentum=0.9),
            input_shape=SHAPE, device="cpu", seed=5,
        )  # fmt: skip

    one = engine()
    one.train_step(*batch(8))
    state = one.state()
    assert {"0.weight", "0.weight.momentum", "counter"} <= set(state)
    one.train_step(*batch(8, 1))
    two = engine()
    two.load_state(state)
    two.train_step(*batch(8, 1))
    for name, value in one.state().items():
        np.testing.assert_array_equal(two.state()[name], value, err_msg=name)
    with pytest.raises(KeyError, match="no tensor nonsense"):
        two.load_state({"nonsense": np.zeros(1)})
