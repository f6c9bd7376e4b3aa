"""Several losses at a time: their sum is trained, each is reported."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.compiler.segment import has_segment
from convloom.ir import ShapeError
from convloom.nn import ArgumentError, CrossEntropyLoss, LossSum, LossTerm, PointwiseLoss
from convloom.training.engine import Engine
from convloom.training.loop import NonFiniteError
from tests.training.helpers import images_and_labels

N, CLASSES = 7, 3


class TwoHeads(nn.Module):
    """A trunk, the logits, and a second output of it beside them."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Linear(36, 8)
        self.logits = nn.Linear(8, CLASSES)
        self.second = nn.Linear(8, CLASSES)

    def forward(self, x: Any) -> Any:
        x = nn.relu(self.trunk(x.flatten(1)))
        x.tracer.also(self.second(x))
        return self.logits(x)


LOSSES = LossSum(
    (
        LossTerm("labels", CrossEntropyLoss(), 0.5, top=2),
        LossTerm("rows", PointwiseLoss("log_square", "batchmean"), 2.0, output=1),
        LossTerm("size", PointwiseLoss("square", "batchmean"), 0.0, output=1),
    )
)


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((N, 1, 6, 6)).astype(np.float32), np.arange(N) % CLASSES


def peer(model: nn.Module, x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """The values and the gradients of all weights by PyTorch in float64."""
    w = {k: torch.from_numpy(v).double().requires_grad_() for k, v in model.state_dict().items()}
    flat = torch.from_numpy(x).double().flatten(1)
    hidden = torch.relu(flat @ w["trunk.weight"].T + w["trunk.bias"])
    logits = hidden @ w["logits.weight"].T + w["logits.bias"]
    second = hidden @ w["second.weight"].T + w["second.bias"]
    rows = torch.nn.functional.one_hot(torch.from_numpy(y), CLASSES)
    costs = {
        "labels": torch.nn.functional.cross_entropy(logits, torch.from_numpy(y)),
        "rows": torch.log1p((second - rows) ** 2).sum() / N,
        "size": (second**2).sum() / N,
    }
    (0.5 * costs["labels"] + 2 * costs["rows"]).backward()
    wrong = logits.argmax(1) != torch.from_numpy(y)
    costs["labels.top1_error"] = wrong.double().mean()
    values = {name: float(value.detach()) for name, value in costs.items()}
    return {"costs": values, "grads": {k: v.grad for k, v in w.items()}}


@pytest.mark.parametrize("device", ["reference", "cpu", "cuda-sim"])
def test_the_gradient_is_the_sum_and_each_is_reported_unscaled(device: str) -> None:
    model, (x, y) = TwoHeads().initialize(0), batch()
    wanted = peer(model, x, y)
    engine = Engine(
        model, loss=LOSSES, optimizer=cl.optim.SGD(lr=0.1), input_shape=(1, 6, 6), device=device
    )
    result = engine.train_step(x, y)
    assert result.costs.keys() == {*wanted["costs"], "labels.top2_error"}
    for name, value in wanted["costs"].items():
        assert result.costs[name] == pytest.approx(value, rel=1e-5), name
    costs = wanted["costs"]
    assert result.loss == pytest.approx(0.5 * costs["labels"] + 2 * costs["rows"], rel=1e-5)
    assert result.correct == round(N * (1 - costs["labels.top1_error"]))
    for name, grad in wanted["grads"].items():
        np.testing.assert_allclose(engine.read(f"{name}.grad"), grad, rtol=1e-4, atol=1e-6)


def test_an_evaluation_reports_what_training_does_and_a_prediction_nothing_more() -> None:
    model, (x, y) = TwoHeads().initialize(0), batch()
    engine = Engine(model, loss=LOSSES, input_shape=(1, 6, 6), device="cpu")
    wanted = peer(model, x, y)["costs"]
    found = engine.evaluate_step(x, y).costs
    assert found["size"] == pytest.approx(wanted["size"], rel=1e-5)
    assert engine.predict(x).shape == (N, CLASSES)
    assert not any("second" in n.layer for n in engine._prediction(N).graph.nodes)


@pytest.mark.parametrize("input", ["resident", "stream"])
def test_every_way_of_input_reports_the_same(input: str) -> None:
    data = images_and_labels(20)
    histories = []
    for settings in ({"device": "cpu"}, {"device": "cuda-sim", "input": input}):
        trainer = cl.Trainer(
            TwoHeads().initialize(1), cl.optim.SGD(lr=0.1), LOSSES, batch_size=8, log_every=1,
            **settings,  # type: ignore[arg-type]
        )  # fmt: skip
        histories.append(trainer.fit(data, epochs=2, validation=data))
    ours, theirs = histories
    for a, b in zip(ours.epochs, theirs.epochs, strict=True):
        for name in LOSSES.figures:
            assert b.costs[name] == pytest.approx(a.costs[name], rel=1e-4, abs=1e-6)
            assert b.val_costs[name] == pytest.approx(a.val_costs[name], rel=1e-4, abs=1e-6)
    assert theirs.steps[0].costs.keys() == set(LOSSES.figures)


def test_a_network_on_chip_stays_there() -> None:
    """What is reported reads the logits, which a segment stores."""
    found = []
    for loss in (LossSum((LossTerm("labels", CrossEntropyLoss(), top=2),)), CrossEntropyLoss()):
        model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(128, CLASSES))
        step = cl.compile(
            model, loss, cl.optim.SGD(lr=0.1), batch_size=N, input_shape=(1, 6, 6),
            device="cuda-sim", kernels="onchip",
        )  # fmt: skip
        assert has_segment(step.plan)
        found.append(step(*batch()))
    assert found[0] == found[1]


def test_the_history_keeps_costs(tmp_path: Path) -> None:
    data = images_and_labels(20)
    trainer = cl.Trainer(TwoHeads(), cl.optim.SGD(lr=0.1), LOSSES, batch_size=8, device="cpu")
    history = trainer.fit(data, epochs=1)
    header, row = (line.split(",") for line in history.to_csv().splitlines())
    assert header[9:] == [f"costs.{name}" for name in LOSSES.figures]
    assert float(row[9]) == history[0].costs["labels"]
    assert type(history).from_json(json.loads(json.dumps(history.to_json()))) == history
    plain = cl.Trainer(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), cl.optim.SGD(lr=0.1),
                       CrossEntropyLoss(), device="cpu").fit(data, epochs=1)  # fmt: skip
    assert "costs" not in plain.to_csv()
    assert "costs" not in plain.to_json()["epochs"][0]


def test_a_network_with_several_outputs_is_saved_and_resumed(tmp_path: Path) -> None:
    data = images_and_labels(20)

    def trainer(epochs: int, model: nn.Module, **fit: Any) -> cl.Trainer:
        made = cl.Trainer(
            model, cl.optim.SGD(lr=0.1), LOSSES, batch_size=8, device="cpu", out=tmp_path
        )
        made.fit(data, epochs=epochs, **fit)
        return made

    trainer(1, TwoHeads())
    loaded = cl.load(tmp_path / "last.safetensors")
    assert len(loaded.trace((1, 6, 6)).outputs) == 2
    straight = cl.Trainer(TwoHeads(), cl.optim.SGD(lr=0.1), LOSSES, batch_size=8, device="cpu")
    straight.fit(data, epochs=2)
    resumed = trainer(2, loaded, resume=True)
    for name, value in straight.model.state_dict().items():
        np.testing.assert_array_equal(resumed.model.state_dict()[name], value)
    assert resumed.history[1].costs == straight.history[1].costs


def test_a_run_stopped_in_mid_epoch_reports_the_whole_epoch(tmp_path: Path) -> None:
    class Stop(cl.training.Callback):
        def on_step(self, moment: cl.training.Moment) -> None:
            if moment.progress.step == 2:
                moment.trainer.stop()

    def trainer(out: Path | None, *callbacks: Any) -> cl.Trainer:
        return cl.Trainer(
            TwoHeads(), cl.optim.SGD(lr=0.1), LOSSES, batch_size=4, device="cpu", out=out,
            log_every=2, callbacks=callbacks,
        )  # fmt: skip

    data = images_and_labels(20)
    straight = trainer(None).fit(data, epochs=1, validation=data)
    with pytest.raises(cl.training.TrainingInterrupted):
        trainer(tmp_path, Stop()).fit(data, epochs=1, validation=data)
    resumed = trainer(tmp_path).fit(data, epochs=1, validation=data, resume=True)
    assert resumed[0].costs == straight[0].costs
    assert resumed[0].val_costs == straight[0].val_costs
    assert resumed.steps == straight.steps


def test_values_as_targets() -> None:
    losses = LossSum(LOSSES.terms[1:])
    model, (x, y) = TwoHeads().initialize(0), batch()
    wanted = 2 * peer(model, x, y)["costs"]["rows"]
    step = cl.compile(
        model, losses, cl.optim.SGD(lr=0.1), batch_size=N, input_shape=(1, 6, 6), device="cpu"
    )
    rows = np.eye(CLASSES, dtype=np.float32)[y]
    assert step(x, rows) == pytest.approx(wanted, rel=1e-5)
    with pytest.raises(cl.ConvloomError, match=r"compares class numbers \(N,\), the targets have"):
        Engine(TwoHeads(), loss=LOSSES, input_shape=(1, 6, 6), device="cpu").evaluate_step(x, rows)


def test_labels_must_fit_every_output_that_reads_them() -> None:
    model = TwoHeads()
    model.second = nn.Linear(8, 2)
    engine = Engine(model, loss=LOSSES, input_shape=(1, 6, 6), device="cpu")
    with pytest.raises(cl.ConvloomError, match="between 0 and 1 for 2 classes"):
        engine.evaluate_step(*batch())


def test_a_cost_that_is_not_finite_ends_training_though_it_has_no_gradient() -> None:
    class Huge(TwoHeads):
        def forward(self, x: Any) -> Any:
            x.tracer.also(nn.functional.activation(x.flatten(1), "linear", 1e30, 1e30))
            return super().forward(x)

    terms = (LOSSES.terms[0], LOSSES.terms[2])
    trainer = cl.Trainer(Huge(), cl.optim.SGD(lr=0.1), LossSum(terms), device="cpu")
    with pytest.raises(NonFiniteError, match="the cost size is inf at step 1"):
        trainer.fit(images_and_labels(20), epochs=1)


def test_a_sum_survives_json_and_says_what_was_edited() -> None:
    saved = json.loads(json.dumps(LOSSES.to_json()))
    assert LossSum.from_json(saved) == LOSSES
    assert LOSSES.changes_from(saved) == []
    first, *rest = LOSSES.terms
    edited = LossSum((LossTerm("labels", CrossEntropyLoss(), 0.0, top=1), *rest))
    assert edited.changes_from(saved) == [
        "[labels] coeff was 0.5, it is 0 from now on",
        "[labels] topk was 2, it is 1 from now on",
    ]
    assert LossSum((first,)).changes_from(saved) is None
    assert LOSSES.changes_from("CrossEntropyLoss(label_smoothing=0.0)") is None


def test_sums_that_make_no_sense() -> None:
    term = LOSSES.terms[0]
    for terms in ((), (term, term)):
        with pytest.raises(ArgumentError, match="needs terms of different names"):
            LossSum(terms)
    with pytest.raises(ShapeError, match="coefficient of a must be a finite number, it is nan"):
        LossTerm("a", CrossEntropyLoss(), float("nan"))
    with pytest.raises(ShapeError, match="the k of a's error"):
        LossTerm("a", CrossEntropyLoss(), top=0)
