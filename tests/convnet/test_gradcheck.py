"""Gradients of network files against differences and devices, and faults that must be found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom.backends.cpu.selectors import elementwise
from convloom.convnet.gradcheck import GradientReport, check_net
from convloom.convnet.net import Net
from convloom.ops import AvgPool2dGrad, ContrastNorm2dGrad, Conv2dWgrad, DropoutGrad
from convloom.ops.base import Op
from tests.convnet.files import CONV, DATA, RULES, SMALL, TAIL, edited, network, rules

MIXED = (
    DATA
    + CONV
    + """
[norm1]
type=cnorm
inputs=conv1
channels=8
size=3

[pool1]
type=pool
pool=avg
inputs=norm1
channels=8
start=-1
sizeX=3
stride=2
neuron=tanh[1,1]

[drop1]
type=hs
inputs=pool1
keep=0.5
"""
    + edited(TAIL, "inputs=pool1", "inputs=drop1")
)
MIXED_RULES = RULES + "\n[norm1]\nscale=0.5\npow=0.75\n\n[drop1]\nenable=true\n"


def checked(text: str = MIXED, learning: str = MIXED_RULES, **options: Any) -> GradientReport:
    made = network(text, 12)
    options = {"device": "reference", "entries": 4, **options}
    return check_net(Net(made, rules(learning, made)), **options)


def test_every_gradient_is_a_row_in_the_order_of_the_file() -> None:
    report = checked(device="cpu")
    assert report.ok
    assert report.device == "cpu"
    assert [(row.layer, row.tensor, row.size) for row in report.rows] == [
        ("conv1", "output", 2 * 8 * 144),
        ("conv1", "biases", 8),
        ("conv1", "weights.0", 600),
        ("norm1", "output", 2 * 8 * 144),
        ("pool1", "output", 2 * 8 * 36),
        ("drop1", "output", 2 * 8 * 36),
        ("fc10", "output", 20),
        ("fc10", "biases", 10),
        ("fc10", "weights.0", 8 * 36 * 10),
    ]
    for row in report.rows:
        assert row.checked + row.skipped == 4
        assert row.verdict == "ok"
        assert 0 < row.error < 1e-6
        assert row.device_error is not None
        assert 0 < row.device_error < 1e-5


def test_a_contrast_normalisation_is_held_to_its_own_rule() -> None:
    rows = {row.layer: row for row in checked().rows}
    assert rows["norm1"].note.startswith("not a true gradient: the means of the windows are held")
    assert rows["norm1"].verdict == "ok"
    assert rows["pool1"].note == ""


@pytest.mark.parametrize("device", ("cpu", "cuda-sim"))
def test_noise_is_held_where_gradients_are_checked(device: str) -> None:
    more = "[more]\ntype=neuron\ninputs=pool1\nneuron=nrelu\n\n[drop1]"
    noisy = edited(edited(MIXED, "neuron=relu", "neuron=nrelu"), "[drop1]", more)
    report = checked(edited(noisy, "type=hs\ninputs=pool1", "type=hs\ninputs=more"), device=device)
    assert report.ok, str(report)
    rows = {row.layer: row for row in report.rows}
    assert rows["more"].note == "not a true gradient: the noise is held constant, as it was then"


def test_layers_that_nothing_learnt_lies_before_have_no_gradient() -> None:
    blur = "\n[blur1]\ntype=blur\ninputs=data\nchannels=3\nfilterSize=3\nstdev=1\ngpu=0\n"
    text = DATA + blur + edited(SMALL.removeprefix(DATA), "inputs=data", "inputs=blur1")
    report = checked(text, RULES)
    assert report.ok
    assert "blur1" not in {row.layer for row in report.rows}


def test_costs_add_up_and_one_of_coefficient_0_gives_no_gradient() -> None:
    side = "\n[side]\ntype=fc\ninputs=drop1\noutputs=3\ninitW=1\n"
    costs = "\n[idle]\ntype=cost.sum2\ninputs=side\n\n[small]\ntype=cost.sum2\ninputs=norm1\n"
    rates = "\n[side]\nepsW=0.1\nepsB=0.2\nmomW=0\nmomB=0\n"
    learning = MIXED_RULES + rates + "\n[idle]\ncoeff=0\n\n[small]\ncoeff=0.25\n"
    report = checked(MIXED + side + costs, learning, device="cpu")
    assert report.ok
    assert "side" not in {row.layer for row in report.rows}
    assert report.notes == ("[side] has no gradient: no cost that counts depends on it",)
    assert report.loss > checked().loss


def test_every_entry_may_be_compared() -> None:
    report = checked(edited(SMALL, "filters=8", "filters=1").replace("channels=8", "channels=1"),
                     RULES, entries=None)  # fmt: skip
    assert report.ok
    assert all(row.checked + row.skipped == row.size for row in report.rows)
    assert sum(row.skipped for row in report.rows) < sum(row.size for row in report.rows) / 10


def test_one_seed_gives_one_report() -> None:
    assert checked() == checked()
    assert checked().loss != checked(seed=1).loss


Fault = Callable[[tuple[np.ndarray, ...]], np.ndarray]


@pytest.mark.parametrize(
    ("kind", "layer", "fault"),
    [
        (Conv2dWgrad, "conv1", lambda good, dy: 1.001 * good),
        (DropoutGrad, "drop1", lambda good, dy: dy),
        (AvgPool2dGrad, "pool1", lambda good, dy: np.where(np.arange(12) < 11, good, 0.5 * good)),
        (ContrastNorm2dGrad, "norm1", lambda good, dy: 0.999 * good),
    ],
)
def test_a_wrong_gradient_rule_is_found(
    kind: type[Op], layer: str, fault: Callable[..., np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In what lies before the layer too, but in nothing behind it."""
    right = kind.reference

    def wrong(self: Op, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (fault(right(self, *inputs)[0], inputs[0]).astype(inputs[0].dtype),)

    monkeypatch.setattr(kind, "reference", wrong)
    report = checked()
    names = [row.layer for row in report.rows]
    bad = {row.layer for row in report.rows if row.verdict == "wrong"}
    assert not report.ok
    assert bad <= set(names[: names.index(layer) + 1])
    before = names[max(names.index(layer) - 1, 0)]
    assert before in bad


def test_a_wrong_kernel_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "activation_number", lambda kind: 0)
    report = checked(device="cpu")
    bad = [row.layer for row in report.rows if row.verdict == "wrong"]
    assert not report.ok
    assert "pool1" in bad


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("neuron=relu", "neuron=sqrt", r"\[conv1\] or its neuron makes NaN or infinities"),
        ("neuron=tanh[1,1]", "neuron=sqrt", r"the gradient of \[pool1\] output is NaN or infinite"),
    ],
)
def test_values_that_have_no_gradient_are_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(cl.ConvloomError, match=message):
        checked(edited(MIXED, old, new))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch must be a whole number of at least 1"),
        ({"entries": 0}, "entries must be a whole number of at least 1"),
        ({"seed": -1}, "seed"),
        ({"device": "tpu"}, "tpu"),
    ],
)
def test_arguments_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(cl.ConvloomError, match=message):
        checked(**options)


def test_files_are_checked_by_their_paths(tmp_path: Path) -> None:
    layers, params = tmp_path / "layers.cfg", tmp_path / "params.cfg"
    layers.write_text(SMALL)
    params.write_text(RULES)
    report = cl.convnet.check_grads(layers, params, 12, divide=4, device="reference", entries=2)
    assert report.ok
    assert {row.layer: row.size for row in report.rows if row.tensor == "biases"} == {
        "conv1": 2,
        "fc10": 3,
    }
