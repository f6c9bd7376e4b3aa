from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom.backends import get_backend
from convloom.convnet.net import Net
from convloom.convnet.optimizer import TensorRule, Velocity, optimizer_of, train_step
from convloom.ir import ShapeError
from convloom.ops import FilterLimit, Op, VelocitySGD
from convloom.training.checkpoint import ResumeError
from convloom.training.optim import OptimizerError, from_json
from tests.backends.harness import run_op
from tests.convnet.files import RULES, SMALL, edited, network, rules
from tests.golden import load as golden
from tests.golden import names
from tests.ops.gradcheck import evaluate

DEVICES = ("reference", "cpu", "cuda-sim")


def net(learning: str = RULES) -> Net:
    made = network(SMALL, 16)
    return Net(made, rules(learning, made)).initialize(0)  # type: ignore[return-value]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 3, 16, 16)).astype(np.float32), np.arange(6)


def test_every_tensor_has_the_rates_of_its_layer() -> None:
    learning = edited(RULES, "wc=0.004", "wc=0.004\nschedW=dexp[10,2]\nwball=0.5")
    by_name = {rule.name: rule for rule in optimizer_of(net(learning), steps=10).rules}
    schedule = "dexp[tgtFactor=10,noiseStdev=0,numSteps=2]"
    limits = ((False, 0.0, 0.5),)
    assert by_name["conv1.weights.0"] == TensorRule(
        "conv1.weights.0", 0.01, 0.9, 0.004, schedule, limits
    )
    assert by_name["conv1.biases"] == TensorRule("conv1.biases", 0.02, 0.8, 0.0)
    assert by_name["fc10.biases"].eps == 0.2


def test_one_step_is_the_rule_applied_to_the_gradients() -> None:
    model, (x, y) = net(), batch()
    before = model.state_dict()
    step = cl.compile(
        model, model.cost.loss, optimizer_of(model), batch_size=6, input_shape=(3, 16, 16),
        device="cpu",
    )  # fmt: skip
    velocity = {name: np.zeros_like(value) for name, value in before.items()}
    weights = before
    rates = {rule.name: rule for rule in optimizer_of(model).rules}
    for _ in range(3):
        step(x, y)
        for name, rate in rates.items():
            g = step.read(f"{name}.grad")
            v = rate.momentum * velocity[name] - rate.eps * (g + rate.decay * weights[name])
            velocity[name], weights[name] = v, weights[name] + v
            np.testing.assert_allclose(step.read(name), weights[name], rtol=2e-5, atol=2e-6)


def test_a_filter_may_have_both_limits() -> None:
    """wcNormMax is kept first, then wball, which the smaller filter then fulfils."""
    both = "epsW=0.01\nwcNormMin=0.002\nwcNormMax=0.003\nwball=0.0025"
    model, (x, y) = net(edited(RULES, "epsW=0.01", both)), batch()
    (rule,) = (one for one in optimizer_of(model).rules if one.name == "conv1.weights.0")
    assert rule.limits == ((True, 0.002, 0.003), (False, 0.0, 0.0025))
    free = net(edited(RULES, "epsW=0.01", "epsW=0.01\nwcNormMax=0"))
    train_step(free, x, y, device="reference")
    w = free.state_dict()["conv1.weights.0"].astype(np.float64)
    for row in (w := w.reshape(len(w), -1)):
        row *= np.clip(size := np.linalg.norm(row - row.mean()) / row.size, 0.002, 0.003) / size
        row *= min(1.0, 0.0025 / (np.linalg.norm(row) / row.size))
    for device in DEVICES:
        model = net(edited(RULES, "epsW=0.01", both))
        train_step(model, x, y, device=device)
        found = model.state_dict()["conv1.weights.0"]
        np.testing.assert_allclose(found.reshape(w.shape), w, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(
    ("old", "limits"),
    [(None, ()), ([True, 0.1, 0.2], ((True, 0.1, 0.2),)), ((False, 0, 1), ((False, 0, 1),))],
)
def test_limits_of_older_runs_are_read(old: Any, limits: Any) -> None:
    assert TensorRule("w", 0.1, 0.9, 0.0, "default", old).limits == limits


def test_a_cost_coefficient_scales_gradients_and_not_the_decay() -> None:
    (x, y), ends = batch(), []
    for learning in (RULES, edited(RULES, "coeff=1", "coeff=-0.5")):
        model = net(learning)
        before = model.state_dict()["conv1.weights.0"]
        train_step(model, x, y, device="reference")
        ends.append((model.state_dict()["conv1.weights.0"] - before) / 0.01 + 0.004 * before)
    np.testing.assert_allclose(ends[1], -0.5 * ends[0], rtol=1e-3, atol=1e-6)
    with pytest.raises(OptimizerError, match=r"coeff is 0 for \[logprob\], so nothing can be"):
        optimizer_of(net(edited(RULES, "coeff=1", "coeff=0")))


def test_a_frozen_tensor_stays_as_it_is() -> None:
    model, (x, y) = net(edited(RULES, "epsW=0.01", "epsW=0")), batch()
    before = model.state_dict()
    train_step(model, x, y, device="cpu")
    after = model.state_dict()
    np.testing.assert_array_equal(after["conv1.weights.0"], before["conv1.weights.0"])
    assert np.abs(after["conv1.biases"] - before["conv1.biases"]).max() > 0


def test_rates_follow_their_schedule_and_stay_within_a_batch_file() -> None:
    rule = TensorRule("w", 0.1, 0.9, 0.0, "linear[tgtFactor=10,noiseStdev=0]")
    optimizer = Velocity((rule,), steps=10, constant=5)
    rates = [optimizer.hyper(step)["eps:w"] for step in (0, 4, 5, 9, 10)]
    np.testing.assert_allclose(rates, [0.1, 0.1, 0.055, 0.055, 0.01])
    assert optimizer.hyper(0, lr=0.5)["eps:w"] == pytest.approx(0.05)


def test_schedules_count_batch_files() -> None:
    """Files of 3, 3 and 1 updates, two epochs: p is sixths, whatever a file's own updates."""
    rule = TensorRule("w", 1.0, 0.9, 0.0, "linear[tgtFactor=10,noiseStdev=0]")
    optimizer = Velocity((rule,), steps=14, files=(3, 3, 1))
    rates = np.array([optimizer.hyper(step)["eps:w"] for step in range(15)])
    sixths = np.array([0, 0, 0, 1, 1, 1, 2, 3, 3, 3, 4, 4, 4, 5, 6])
    np.testing.assert_allclose(rates, 1 - 0.9 * sixths / 6)
    assert from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("steps", 0),
        ("steps", 2.5),
        ("constant", "5"),
        ("seed", -1),
        ("every", 0),
        ("files", (3, 0)),
        ("files", 3),
    ],
)
def test_counts_are_whole_numbers(name: str, value: Any) -> None:
    with pytest.raises(OptimizerError, match=f"Velocity: {name} must be (a )?whole number"):
        optimizer_of(net(), **{name: value})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "data must be numbers"),
        (np.full((6, 3, 16, 16), "1"), "data must be numbers"),
        (np.zeros((6, 3, 16, 15)), r"images of shape \(N, 3, 16, 16\)"),
        (np.zeros((0, 3, 16, 16)), "batch_size must be a whole number of at least 1"),
    ],
)
def test_a_training_step_is_of_images(data: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        train_step(net(), data, np.arange(6), device="reference")


def test_noise_only_raises_a_rate_and_is_drawn_anew() -> None:
    rule = TensorRule("w", 0.1, 0.9, 0.0, "linear[tgtFactor=1,noiseStdev=1]")
    rates = [Velocity((rule,), steps=100).hyper(step)["eps:w"] for step in range(100)]
    assert min(rates) >= 0.1
    assert len(set(rates)) == 100
    assert np.mean(rates) == pytest.approx(0.1 * (1 + np.sqrt(2 / np.pi)), rel=0.2)


def test_a_description_survives_json() -> None:
    optimizer = optimizer_of(net(), steps=30, constant=3, seed=5)
    assert from_json(json.loads(json.dumps(optimizer.to_json()))) == optimizer


def test_training_lowers_the_loss() -> None:
    model, (x, y) = net(), batch()
    steps = cl.compile(
        model, model.cost.loss, optimizer_of(model), batch_size=6, input_shape=(3, 16, 16),
        device="cpu",
    )  # fmt: skip
    losses = [steps(x, y) for _ in range(20)]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("device", DEVICES)
def test_super_eps_divides_gradients_by_their_size(device: str) -> None:
    """Of conv1's weights alone; its biases and the layers without one learn as ever."""
    model, (x, y) = net(edited(RULES, "wc=0.004", "wc=0.004\nsuperEps=0.5")), batch()
    w = model.state_dict()["conv1.weights.0"]
    step = cl.compile(
        model, model.cost.loss, optimizer_of(model), batch_size=6, input_shape=(3, 16, 16),
        device=device,
    )  # fmt: skip
    v, mean, square = np.zeros((3, *w.shape))
    for _ in range(2):
        step(x, y)
        g = step.read("conv1.weights.0.grad").astype(np.float64)
        mean, square = 0.9 * mean + 0.1 * g, 0.9 * square + 0.1 * g * g
        v = 0.9 * v - 0.01 * g / np.sqrt(square + mean + 0.5)
        w = w + v
        near(step.read("conv1.weights.0"), w, "cpu")
    near(step.read("conv1.weights.0.grad_mean"), mean, "cpu")
    near(step.read("conv1.weights.0.grad_square"), square, "cpu")
    with pytest.raises(KeyError):
        step.read("fc10.weights.0.grad_mean")


@pytest.mark.parametrize("device", DEVICES)
def test_two_minibatches_of_an_update_are_one_of_both(device: str) -> None:
    """Also behind a first update, whose velocity and limits the second one finds."""
    learning = edited(RULES, "wc=0.004", "wc=0.004\nwball=0.001")
    x, y = batch()
    ends = []
    for every, size in ((1, 6), (2, 3)):
        model = net(learning)
        step = cl.compile(
            model, model.cost.loss, optimizer_of(model, every=every), batch_size=size,
            input_shape=(3, 16, 16), device=device,
        )  # fmt: skip
        for _ in range(2):
            begun = model.state_dict()
            for first in range(0, 6, size):
                for name, value in model.state_dict().items():
                    np.testing.assert_array_equal(value, begun[name])
                step(x[first : first + size], y[first : first + size])
        ends.append(model.state_dict())
    for name, value in ends[0].items():
        near(ends[1][name], value.astype(np.float64), "cpu")


def fitted(device: str, epochs: int, out: Path | None, every: int, **fit: Any) -> cl.Trainer:
    """Epochs of three minibatches, so that an update of two ends in the next."""
    rng = np.random.default_rng(0)
    images, names = rng.standard_normal((8, 3, 16, 16)).astype(np.float32), list("0123456789")
    data = cl.data.from_arrays(images, np.arange(8), classes=names)
    model = net()
    trainer = cl.Trainer(
        model, optimizer_of(model, steps=6, every=every), model.cost.loss, batch_size=3,
        device=device, out=out,
    )  # fmt: skip
    trainer.fit(data, epochs, **fit)
    return trainer


@pytest.mark.parametrize("device", ("cpu", "cuda-sim"))
def test_a_run_that_stops_within_an_update_goes_on_to_the_bit(device: str, tmp_path: Path) -> None:
    whole = fitted(device, 2, None, every=2).engine.state()
    half = fitted(device, 1, tmp_path, every=2).engine.state()
    assert half["conv1.weights.0.grad_sum"].any()
    resumed = fitted(device, 2, None, every=2, resume=tmp_path).engine.state()
    assert whole.keys() == resumed.keys()
    for name, value in whole.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)
    with pytest.raises(ResumeError, match="every"):
        fitted(device, 2, None, every=3, resume=tmp_path)


def test_minibatches_are_counted_through_all_steps() -> None:
    rule = Velocity((TensorRule("w", 0.1, 0.9, 0.0),), every=3)
    assert rule.slots == ("eps:w", "momentum:w", "decay:w", "keep", "move")
    assert rule.kept(["w"]) == ("w.velocity", "w.grad_sum")
    found = [rule.hyper(step) for step in range(7)]
    assert [(one["keep"], one["move"]) for one in found] == [
        *((0, 0), (1, 0), (1, 1), (0, 0), (1, 0), (1, 1), (0, 0))
    ]
    assert from_json(json.loads(json.dumps(rule.to_json()))) == rule
    assert rule.changes_from(rule.to_json()) == []
    assert rule.changes_from({**rule.to_json(), "every": 2}) is None


def test_runs_from_before_updates_of_several_minibatches_go_on() -> None:
    rule = Velocity((TensorRule("w", 0.1, 0.9, 0.0),))
    older = rule.to_json()
    del older["every"]
    assert rule.changes_from(older) == []


def test_a_frozen_tensor_has_no_mean_gradient() -> None:
    model = net(edited(RULES, "epsW=0.01", "epsW=0\nsuperEps=1"))
    rule = optimizer_of(model)
    names = [one.name for one in rule.rules]
    assert rule.kept(names) == tuple(f"{name}.velocity" for name in names)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", names("update"))
def test_golden_updates(case: str, device: str) -> None:
    """Gradients are sums over the cases there; weights are (fan-in, filters)."""
    found = golden(case)
    p, arrays = found.params, found.arrays
    limits = [FilterLimit(False, 0.0, p["wball"])] if "wball" in p else []
    if "wcNorm" in p:
        limits.append(FilterLimit(True, *p["wcNorm"]))
    op = VelocitySGD((tuple(limits),))
    hyper = np.array([p["eps"], p["mom"], p["wc"]])
    w = arrays["w0"].T.copy()
    v = arrays.get("v0", np.zeros_like(arrays["w0"])).T.copy()
    count = max(int(name[1:]) for name in arrays if name[0] == "w")
    for i in range(1, count + 1):
        total = arrays.get(f"dw_sum{i}", np.zeros_like(arrays["w0"])).T
        w, v = updated(op, device, hyper, w, total / p["cases"], v)
        near(w, arrays[f"w{i}"].T, device)


def near(got: np.ndarray, wanted: np.ndarray, device: str) -> None:
    """Alike to float64's rounding by the reference, to float32's by kernels."""
    tolerance = 1e-9 if device == "reference" else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=1e-3 * tolerance)


def updated(op: Op, device: str, hyper: np.ndarray, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """New weights and velocities, in float64 by the reference or by a device's kernels."""
    if device == "reference":
        return evaluate(op, hyper, *inputs)
    given = (value.astype(np.float32) if value.dtype.kind == "f" else value for value in inputs)
    return run_op(op, hyper, *given, backend=get_backend(device))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("case", names("treefc"))
def test_a_golden_update_of_a_tree(case: str, device: str) -> None:
    """A node's rate and its decay are both divided by the number of its leaves."""
    found = golden(case)
    p, arrays = found.params, found.arrays
    w, sizes = arrays["w"].T.copy(), arrays["sizes"].astype(np.int64)
    hyper, g = np.array([p["eps"], p["mom"], p["wc"]]), arrays["dw"].T / p["cases"]
    w, v = updated(VelocitySGD(((),), (0,)), device, hyper, w, g, 0 * w, sizes)
    near(w, arrays["w_next"].T, device)
    near(v, arrays["v_next"].T, device)


def test_a_diverged_training_is_told_what_to_edit() -> None:
    rule = Velocity()
    assert rule.advice(1.0).startswith("rates of the parameter file: lower epsW and epsB")
    assert rule.advice(0.5).startswith("rates 0.5 times its file's: lower epsW and epsB")
    for floor, said in ((0.25, True), (0.26, False), (0.0, False)):
        rule = Velocity((TensorRule("w", 0.1, 0.9, 0.0, super_eps=floor),))
        assert ("give superEps above 0.25, lower epsW" in rule.advice(1.0)) == said
