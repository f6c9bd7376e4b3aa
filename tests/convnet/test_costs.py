"""Costs of a network file: several at a time, each by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import convloom as cl
from convloom.convnet import loss_of, optimizer_of
from convloom.convnet.errors import ConfigError
from convloom.convnet.net import Net
from convloom.nn import LossSum
from convloom.training.engine import Engine
from tests.convnet.files import DATA, edited, network, rules

LAYERS = """
[rows]
type=data
dataIdx=2

[hidden]
type=fc
inputs=data
outputs=6
initW=0.3
neuron=tanh[1.0,1.0]
gpu=0

[fc4]
type=fc
inputs=hidden
outputs=4
initW=0.5

[probs]
type=softmax
inputs=fc4

[logprob]
type=cost.logreg
inputs=labels,probs
gpu=0

[side]
type=fc
inputs=hidden
outputs=4
initW=0.5
neuron=logistic

[cross]
type=cost.crossent2
inputs=rows,side
gpu=0

[robust]
type=cost.rflickr
inputs=rows,side
gpu=0

[diff]
type=eltsum
inputs=rows,side
coeffs=-1,1
gpu=0

[sqdiff]
type=cost.sum2
inputs=diff

[small]
type=cost.sum2
inputs=hidden
"""
TEXT = DATA + LAYERS
SIDE = 4
N = 5


def learning(**coefficients: float) -> str:
    """A parameter file; the coefficients that are not given are 1."""
    text = "".join(
        f"[{name}]\nepsW=0.1\nepsB=0.2\nmomW=0.9\nmomB=0.9\n" for name in ("hidden", "fc4", "side")
    )
    for name in ("logprob", "cross", "robust", "sqdiff", "small"):
        text += f"[{name}]\ncoeff={coefficients.get(name, 1)}\n"
    return text.replace("[logprob]\n", "[logprob]\ntopk=2\n")


def net(text: str = TEXT, **coefficients: float) -> Net:
    made = network(text, SIDE)
    return Net(made, rules(learning(**coefficients), made)).initialize(0)  # type: ignore[return-value]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, 3, SIDE, SIDE)).astype(np.float32), np.arange(N) % 4


def peer(model: Net, **coefficients: float) -> tuple[dict[str, float], dict[str, Any]]:
    """The costs by their definitions, and the gradients of their sum, by PyTorch in float64."""
    x, y = batch()
    w = {k: torch.from_numpy(v).double().requires_grad_() for k, v in model.state_dict().items()}

    def fc(name: str, given: torch.Tensor) -> torch.Tensor:
        return given @ w[f"{name}.weights.0"].T + w[f"{name}.biases"]

    hidden = torch.tanh(fc("hidden", torch.from_numpy(x).double().flatten(1)))
    p, side = torch.softmax(fc("fc4", hidden), 1), torch.sigmoid(fc("side", hidden))
    t = torch.nn.functional.one_hot(torch.from_numpy(y), 4).double()
    costs = {
        "logprob": -(t * torch.log(p)).sum(),
        "cross": -(t * torch.log(side) + (1 - t) * torch.log(1 - side)).sum(),
        "robust": torch.log(1 + (side - t) ** 2).sum(),
        "sqdiff": ((side - t) ** 2).sum(),
        "small": (hidden**2).sum(),
    }
    total = sum(coefficients.get(name, 1) * cost for name, cost in costs.items()) / N
    total.backward()
    values = {name: float(cost.detach()) / N for name, cost in costs.items()}
    return values, {name: tensor.grad for name, tensor in w.items()}


def engine(model: Net, device: str = "cpu") -> Engine:
    return Engine(
        model, loss=model.cost.loss, optimizer=optimizer_of(model), input_shape=model.images,
        device=device,
    )  # fmt: skip


COEFFICIENTS = {"logprob": 0.5, "cross": 2.0, "robust": 1.0, "sqdiff": -0.25, "small": 0.0}


@pytest.mark.parametrize("device", ["reference", "cpu", "cuda-sim"])
def test_the_gradient_is_the_sum_of_all_and_values_are_not_scaled(device: str) -> None:
    model = net(**COEFFICIENTS)
    values, grads = peer(model, **COEFFICIENTS)
    ready = engine(model, device)
    result = ready.train_step(*batch())
    assert list(result.costs) == list(model.cost.loss.figures)
    for name, value in values.items():
        assert result.costs[name] == pytest.approx(value, rel=1e-5), name
    total = sum(COEFFICIENTS[name] * value for name, value in values.items())
    assert result.loss == pytest.approx(total, rel=1e-5)
    for name, grad in grads.items():
        np.testing.assert_allclose(ready.read(f"{name}.grad"), grad, rtol=1e-4, atol=1e-6)


def test_the_errors_of_logreg_have_its_k_and_its_ties() -> None:
    model = net()
    assert model.cost.loss.figures[:3] == ("logprob", "logprob.top1_error", "logprob.top2_error")
    for name in ("fc4.weights.0", "fc4.biases"):
        model.load_state_dict({name: 0 * model.state_dict()[name]}, strict=False)
    costs = engine(model).evaluate_step(*batch()).costs
    assert costs["logprob"] == pytest.approx(np.log(4))
    assert costs["logprob.top1_error"] == 0.75
    assert costs["logprob.top2_error"] == 0.5


def test_the_output_is_that_of_the_first_logreg() -> None:
    model = net()
    assert model.cost.outputs[0] == ("fc4", True)
    assert model.predict(batch()[0], device="cpu").shape == (N, 4)
    head = "type=cost.logreg\ninputs=labels,probs"
    only = edited(TEXT, head, "type=cost.crossent2\ninputs=labels,probs")
    assert net(only).cost.outputs[0] == ("probs", True)


def test_a_coefficient_of_0_stops_the_gradient() -> None:
    """What only that cost reaches has no gradient, no decay and no velocity: it does not learn."""
    off = dict.fromkeys(("cross", "robust", "sqdiff"), 0.0)
    model = net(**off)
    names = {rule.name for rule in optimizer_of(model).rules}
    assert names == {"hidden.weights.0", "hidden.biases", "fc4.weights.0", "fc4.biases"}
    before, (values, _) = model.state_dict(), peer(model)
    ready = engine(model)
    costs = ready.train_step(*batch()).costs
    assert costs["cross"] == pytest.approx(values["cross"], rel=1e-5)
    after = model.state_dict()
    for name in ("side.weights.0", "side.biases"):
        np.testing.assert_array_equal(after[name], before[name])
    np.testing.assert_allclose(
        ready.read("hidden.biases.grad"), peer_grad("hidden.biases", **off), rtol=1e-4, atol=1e-6
    )


def peer_grad(name: str, **coefficients: float) -> Any:
    return peer(net(), **coefficients)[1][name]


TWO = (
    edited(
        TEXT[: TEXT.index("[side]")],
        "[probs]",
        "[fc4b]\ntype=fc\ninputs=hidden\noutputs=4\ninitW=0.5\n\n[probs]",
    )
    + """
[probsb]
type=softmax
inputs=fc4b

[logprobb]
type=cost.logreg
inputs=labels,probsb
gpu=0
"""
)


def test_two_logregs_share_a_trunk() -> None:
    text = TWO.replace("[rows]\ntype=data\ndataIdx=2\n", "")
    made = network(text, SIDE)
    texts = "".join(
        f"[{name}]\nepsW=0.1\nepsB=0.2\nmomW=0\nmomB=0\n" for name in ("hidden", "fc4", "fc4b")
    )
    model = Net(made, rules(texts + "[logprob]\ncoeff=1\ntopk=3\n[logprobb]\ncoeff=0.3\n", made))
    model.initialize(0)
    assert model.cost.loss.figures == (
        "logprob", "logprob.top1_error", "logprob.top3_error",
        "logprobb", "logprobb.top1_error", "logprobb.top1_error",
    )  # fmt: skip
    ready = engine(model)
    result = ready.train_step(*batch())
    both = result.costs["logprob"] + 0.3 * result.costs["logprobb"]
    assert result.loss == pytest.approx(both, rel=1e-6)
    assert result.costs["logprob"] != result.costs["logprobb"]


def test_a_saved_network_knows_its_costs(tmp_path: Path) -> None:
    model = net(**COEFFICIENTS)
    wanted = engine(model).evaluate_step(*batch())
    model.save(tmp_path / "net.safetensors")
    loaded = cl.load(tmp_path / "net.safetensors")
    loss = loss_of(loaded)
    assert loss == model.cost.loss
    assert isinstance(loss, LossSum)
    found = Engine(loaded, loss=loss, input_shape=model.images, device="cpu")
    assert found.evaluate_step(*batch()) == wanted
    assert loss_of(cl.nn.Sequential()) is None
    loaded.extra = {"convnet": {"costs": {"terms": [{"name": "a"}]}}}
    with pytest.raises(cl.ConvloomError, match="says of its costs is damaged"):
        loss_of(loaded)


def test_a_softmax_is_one_to_whoever_else_reads_it() -> None:
    tail = "\n[sharp]\ntype=cost.sum2\ninputs=probs\n\n[after]\ntype=fc\ninputs=probs\noutputs=2\n"
    tail += "initW=1\n\n[plain]\ntype=cost.sum2\ninputs=after\n"
    made = network(TEXT + tail, SIDE)
    more = "[after]\nepsW=0.1\nepsB=0\nmomW=0\nmomB=0\n[sharp]\ncoeff=1\n[plain]\ncoeff=1\n"
    model = Net(made, rules(learning() + more, made)).initialize(0)
    assert isinstance(model, Net)
    x, y = batch()
    costs = engine(model).evaluate_step(x, y).costs
    p = model.predict(x, device="cpu").astype(np.float64)
    assert costs["sharp"] == pytest.approx((p**2).sum() / N, rel=1e-5)
    w = model.state_dict()
    after = p @ w["after.weights.0"].T + w["after.biases"]
    assert costs["plain"] == pytest.approx((after**2).sum() / N, rel=1e-5)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("inputs=labels,probs", "inputs=probs,labels", r"\[logprob\] needs labels as its first"),
        ("coeffs=-1,1", "coeffs=1,1", r"\[sqdiff\] needs diff to be the difference from the"),
        ("type=cost.sum2\ninputs=hidden", "type=cost.rflickr\ninputs=rows,diff",
         r"\[small\] reads diff, which is made of rows; labels can only be compared"),
    ],
)  # fmt: skip
def test_what_a_cost_cannot_compare(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        net(edited(TEXT, old, new))


FLICKR = """
[hidden]
type=fc
inputs=data
outputs=4
initW=0.3
neuron=logistic
gpu=0

[cross]
type=cost.crossent2
inputs=labels,hidden
gpu=0

[robust]
type=cost.rflickr
inputs=labels,hidden
gpu=0
"""


@pytest.mark.parametrize("device", ("reference", "cpu", "cuda-sim"))
def test_labels_may_be_vectors_of_several_classes_step_by_step(device: str) -> None:
    """As Flickr's were: any of the classes may be an image's, or none."""
    made = network(DATA + FLICKR, SIDE)
    rates = (
        "[hidden]\nepsW=0.1\nepsB=0.2\nmomW=0\nmomB=0\n\n[cross]\ncoeff=1\n\n[robust]\ncoeff=0.5\n"
    )
    model = Net(made, rules(rates, made)).initialize(0)
    x, _ = batch()
    t = np.random.default_rng(1).integers(0, 2, (N, 4)).astype(np.float32)
    t[0], t[1] = 0, 1
    w = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    flat = x.reshape(N, -1).astype(np.float64)
    y = 1 / (1 + np.exp(-flat @ w["hidden.weights.0"].T - w["hidden.biases"]))
    cross = -(t * np.log(y) + (1 - t) * np.log(1 - y)).sum() / N
    robust = np.log1p((y - t) ** 2).sum() / N
    dy = (y - t) + 0.5 * 2 * (y - t) / (1 + (y - t) ** 2) * y * (1 - y)
    loss = cl.convnet.train_step(model, x, t, device=device)
    assert loss == pytest.approx(cross + 0.5 * robust, rel=1e-5)
    after = model.state_dict()
    wanted = w["hidden.weights.0"] - 0.1 * dy.T @ flat / N
    np.testing.assert_allclose(after["hidden.weights.0"], wanted, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        after["hidden.biases"], w["hidden.biases"] - 0.2 * dy.mean(axis=0), rtol=1e-4, atol=1e-6
    )
