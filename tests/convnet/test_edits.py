"""A run that goes on with an edited parameter file: what was edited changes, and nothing else."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom.convnet.net import Net
from convloom.convnet.optimizer import optimizer_of
from convloom.data import ArrayDataset
from convloom.training import checkpoint
from convloom.training.checkpoint import ResumeError
from convloom.training.engine import Engine
from tests.convnet.files import CONV, DATA, POOL, TAIL, edited, network, rules

NORMS = """
[rnorm1]
type=rnorm
inputs=pool1
channels=8
size=3

[cnorm1]
type=cnorm
inputs=rnorm1
channels=8
size=3

[cmrnorm1]
type=cmrnorm
inputs=cnorm1
channels=8
size=3

[hs1]
type=hs
inputs=cmrnorm1
keep=0.5

[hs2]
type=hs
inputs=hs1
keep=0.5
"""
SIDE = """
[side]
type=fc
inputs=cmrnorm1
outputs=3
initW=0.1

[flat]
type=cost.sum2
inputs=side
gpu=0

[size]
type=cost.sum2
inputs=fc10
gpu=0
"""
LAYERS = DATA + CONV + POOL + NORMS + edited(TAIL, "inputs=pool1", "inputs=hs2") + SIDE
PARAMS = """
[conv1]
epsW=0.01
epsB=0.02
momW=0.9
momB=0.8
wc=0.004
wball=0
wcNormMin=0
wcNormMax=0

[fc10]
epsW=0
epsB=0.2
momW=0.9
momB=0.7

[side]
epsW=0.1
epsB=0.1
momW=0.9
momB=0.9

[rnorm1]
scale=0.01
pow=0.5

[cnorm1]
scale=0.02
pow=0.25

[cmrnorm1]
scale=0.03
pow=0.75
minDiv=2

[hs1]
enable=true

[hs2]
enable=false

[logprob]
coeff=1
topk=5

[flat]
coeff=0

[size]
coeff=0.125
"""


def net(params: str) -> Net:
    made = network(LAYERS, 8)
    return Net(made, rules(params, made))


def data() -> ArrayDataset:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((24, 3, 8, 8)).astype(np.float32)
    return cl.data.from_arrays(images, np.arange(24) % 10, classes=[str(i) for i in range(10)])


def trained(params: str, epochs: int, out: Path | None, **fit: Any) -> cl.Trainer:
    model = net(params)
    trainer = cl.Trainer(
        model, optimizer_of(model, steps=6), model.cost.loss, batch_size=8, device="cpu", out=out
    )
    trainer.fit(data(), epochs, **fit)
    return trainer


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of one epoch."""
    folder = tmp_path_factory.mktemp("run")
    trained(PARAMS, 1, folder)
    return folder / checkpoint.LAST


def by_hand(params: str, saved: Path) -> dict[str, np.ndarray]:
    """A new network with the weights and velocities of the run, trained for another epoch."""
    model, then = net(params), checkpoint.load(saved)
    optimizer = optimizer_of(model, steps=6)
    engine = Engine(
        model, loss=model.cost.loss, optimizer=optimizer, input_shape=model.images, device="cpu"
    )
    held = engine.state()
    engine.load_state({name: value for name, value in then.state.items() if name in held})
    for step, batch in enumerate(data().batches(8, shuffle=True).epoch(1), start=3):
        engine.set_hyper(**optimizer.hyper(step))
        engine.train_step(batch.images, batch.labels)
    return engine.state()


EDITS = [
    ("[rnorm1]\nscale=0.01", "[rnorm1]\nscale=0.5", "[rnorm1] scale was 0.01, it is 0.5"),
    ("pow=0.5\n", "pow=0.625\n", "[rnorm1] pow was 0.5, it is 0.625"),
    ("scale=0.02", "scale=0.5", "[cnorm1] scale was 0.02, it is 0.5"),
    ("minDiv=2", "minDiv=1", "[cmrnorm1] minDiv was 2, it is 1"),
    ("[hs1]\nenable=true", "[hs1]\nenable=false", "[hs1] enable was true, it is false"),
    ("[hs2]\nenable=false", "[hs2]\nenable=true", "[hs2] enable was false, it is true"),
    ("[size]\ncoeff=0.125", "[size]\ncoeff=2", "[size] coeff was 0.125, it is 2"),
    ("[size]\ncoeff=0.125", "[size]\ncoeff=0", "[size] coeff was 0.125, it is 0"),
    ("topk=5", "topk=3", "[logprob] topk was 5, it is 3"),
    ("wball=0", "wball=0.0005", "conv1.weights.0: limit was none, it is wball=0.0005"),
    (
        "wcNormMax=0",
        "wcNormMax=0.001",
        "conv1.weights.0: limit was none, it is wcNormMin=0 wcNormMax=0.001",
    ),
    ("epsW=0.01", "epsW=0.005", "conv1.weights.0: eps was 0.01, it is 0.005"),
    ("wc=0.004", "wc=0.004\nsuperEps=1", "conv1.weights.0: superEps was 0.0, it is 1.0"),
    ("epsW=0\n", "epsW=0.01\n", "fc10.weights.0: eps was 0.0, it is 0.01"),
    ("epsB=0.02", "epsB=0", "conv1.biases: eps was 0.02, it is 0.0"),
]


@pytest.mark.parametrize(("old", "new", "told"), EDITS)
def test_what_is_edited_changes_and_nothing_else(
    begun: Path, old: str, new: str, told: str
) -> None:
    params = edited(PARAMS, old, new)
    with pytest.warns(UserWarning, match="from now on") as said:
        resumed = trained(params, 2, None, resume=begun)
    assert [str(one.message) for one in said] == [f"{begun}: {told} from now on"]
    wanted = by_hand(params, begun)
    found = resumed.engine.state()
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    if "topk" not in new:  # which trains alike
        as_it_was = by_hand(PARAMS, begun)
        assert any(np.any(found[name] != as_it_was[name]) for name in as_it_was)


def test_what_was_frozen_begins_with_velocity_0(begun: Path) -> None:
    assert not checkpoint.load(begun).state["fc10.weights.0.velocity"].any()


def test_a_cost_switched_on_begins_what_only_it_reaches_with_velocity_0(begun: Path) -> None:
    assert "side.weights.0.velocity" not in checkpoint.load(begun).state
    params = edited(PARAMS, "[flat]\ncoeff=0", "[flat]\ncoeff=1")
    with pytest.warns(UserWarning, match="from now on") as said:
        resumed = trained(params, 2, begun.parent / "on", resume=begun)
    told = sorted(str(one.message).removeprefix(f"{begun}: ") for one in said)
    assert told == [
        "[flat] coeff was 0, it is 1 from now on",
        "side.biases learns from now on, from velocity 0",
        "side.weights.0 learns from now on, from velocity 0",
    ]
    wanted = by_hand(params, begun)
    for name, value in resumed.engine.state().items():
        np.testing.assert_array_equal(value, wanted[name], err_msg=name)
    last = begun.parent / "on" / checkpoint.LAST
    with pytest.warns(UserWarning, match="from now on") as said:
        off = trained(PARAMS, 3, None, resume=last)
    ends = "side.biases does not learn from now on; its velocity ends"
    assert f"{last}: {ends}" in [str(one.message) for one in said]
    assert "side.weights.0.velocity" not in off.engine.state()


def test_means_of_gradients_end_where_super_eps_does(begun: Path) -> None:
    params, out = edited(PARAMS, "wc=0.004", "wc=0.004\nsuperEps=1"), begun.parent / "adaptive"
    trained(params, 1, out)
    last = out / checkpoint.LAST
    assert checkpoint.load(last).state["conv1.weights.0.grad_square"].any()
    with pytest.warns(UserWarning, match="conv1.weights.0: superEps was 1.0, it is 0.0 from now"):
        off = trained(PARAMS, 2, None, resume=last)
    assert "conv1.weights.0.grad_square" not in off.engine.state()
    for name, value in by_hand(PARAMS, last).items():
        np.testing.assert_array_equal(off.engine.state()[name], value, err_msg=name)


def test_nothing_is_said_where_nothing_was_edited(begun: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resumed = trained(PARAMS + "\n# a remark\n", 2, None, resume=begun)
    for name, value in by_hand(PARAMS, begun).items():
        np.testing.assert_array_equal(resumed.engine.state()[name], value, err_msg=name)


def test_another_network_is_refused_though_parameters_were_edited_too(
    begun: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "tests.convnet.test_edits.LAYERS", edited(LAYERS, "size=3\n\n[hs1]", "size=5\n\n[hs1]")
    )
    with pytest.raises(ResumeError, match="holds another network"):
        trained(edited(PARAMS, "minDiv=2", "minDiv=1"), 2, None, resume=begun)


def test_edited_costs_are_averaged_over_the_steps_that_reported_them(begun: Path) -> None:
    params = edited(PARAMS, "topk=5", "topk=3")
    with pytest.warns(UserWarning, match="topk was 5"):
        history = trained(params, 2, None, resume=begun).history
    assert "logprob.top5_error" in history[0].costs
    assert "logprob.top3_error" in history[1].costs
    assert history.to_csv().splitlines()[0].count("costs.logprob.top") == 3
