"""``precision=`` from the public doors to the plan, and training through an on-chip chain."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.ir import ConvloomError
from convloom.training import checkpoint
from convloom.training.checkpoint import ResumeError
from convloom.training.engine import Engine
from convloom.training.trainer import TrainerError
from tests.training.helpers import images_and_labels, make_trainer

SHAPE = (1, 6, 6)


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(16, 3),
    )


def trained(**settings: Any) -> tuple[cl.Trainer, dict[str, np.ndarray]]:
    """A run of two epochs with a short last batch on device ``reference``, and its state."""
    made = make_trainer(network(), engine=Engine, device="reference", **settings)
    made.fit(images_and_labels(20), 2, images_and_labels(9, seed=1))
    return made, made.engine.state()


def test_a_chain_gives_the_bits_of_its_layers() -> None:
    """fp32: forward, loss, gradients and updates of whole epochs, evaluation included."""
    layers, wanted = trained(kernels="reference")
    chain, state = trained(kernels="onchip")
    (step,) = chain.engine.plan(8).steps
    assert step.node.op.name == "ChainUpdate"
    assert len(layers.engine.plan(8).steps) > 10
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        assert state[name].tobytes() == value.tobytes(), name
    assert chain.history.column("loss") == layers.history.column("loss")
    assert chain.history.column("val_loss") == layers.history.column("val_loss")


def test_low_precision_trains_and_differs_by_rounding() -> None:
    _, exact = trained()
    for precision, tolerance in (("tf32", 2e-3), ("bf16", 2e-2)):
        made, state = trained(precision=precision)
        assert made.engine.plan(8).precision == precision
        for name in ("0.weight", "5.weight"):
            difference = np.abs(state[name] - exact[name]).max()
            assert 0 < difference < tolerance * np.abs(exact[name]).max()


def test_updates_too_small_for_the_format_add_up() -> None:
    """A step far below bf16's spacing moves the float32 weight, and fifty move it as far."""
    step = cl.compile(
        nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False)),
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=1e-5),
        batch_size=5,
        input_shape=SHAPE,
        device="reference",
        precision="bf16",
    )
    step.write("1.weight", np.ones((3, 36)))
    x = np.random.default_rng(0).standard_normal((5, *SHAPE)).astype(np.float32)
    y = np.array([0, 1, 2, 0, 1])
    for _ in range(50):
        step(x, y)
    moved = step.read("1.weight") - np.float32(1)
    expected = -50 * 1e-5 * step.read("1.weight.grad")
    assert np.abs(moved).max() < 2**-9  # half of the distance of bf16's numbers below 1
    np.testing.assert_allclose(moved, expected, rtol=0.05, atol=4e-6)


def test_gradients_can_be_read_from_a_chain() -> None:
    steps = []
    for kernels in ("reference", "onchip"):
        steps.append(
            cl.compile(
                network(),
                nn.CrossEntropyLoss(),
                cl.optim.SGD(lr=0.1),
                batch_size=5,
                input_shape=SHAPE,
                device="reference",
                kernels=kernels,
            )
        )
    x = np.random.default_rng(0).standard_normal((5, *SHAPE)).astype(np.float32)
    y = np.array([0, 1, 2, 0, 1])
    assert steps[0](x, y) == steps[1](x, y)
    for name in ("0.weight.grad", "5.bias.grad", "0.weight.momentum", "output"):
        np.testing.assert_array_equal(steps[0].read(name), steps[1].read(name))
    with pytest.raises(KeyError, match="can"):
        steps[1].read("1.out")


def test_a_watched_chain_names_the_layer_and_changes_nothing() -> None:
    """The chain runs as one step; where that fails, its layers are run one by one."""
    step = cl.compile(
        network(),
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.1),
        batch_size=5,
        input_shape=SHAPE,
        device="reference",
        precision="bf16",
    )
    x = np.random.default_rng(0).standard_normal((5, *SHAPE)).astype(np.float32)
    y = np.array([0, 1, 2, 0, 1])
    assert step.watch(x, y) is None
    weights = step.read("5.weight")
    weights[0, 0] = np.inf
    step.write("5.weight", weights)
    before = step.read("0.weight")
    assert step.watch(x, y) == "5 (Linear)"
    np.testing.assert_array_equal(step.read("0.weight"), before)


def test_layers_in_fp32_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3))
    with caplog.at_level(logging.WARNING, "convloom"):
        made = make_trainer(model, engine=Engine, device="cpu", precision="bf16")
        made.fit(images_and_labels(20), 1, images_and_labels(9, seed=1))
    told = [record.getMessage() for record in caplog.records if "bf16" in record.getMessage()]
    assert len(told) == 1
    assert "in fp32: 1 (Linear)" in told[0]


def test_prediction_has_the_precision_of_the_trainer() -> None:
    images = images_and_labels(6).images
    ends = {}
    for precision in ("fp32", "bf16"):
        made = make_trainer(
            network().initialize(3), engine=Engine, device="reference", precision=precision
        )
        made.fit(images_and_labels(8), 1)
        made.model.load_state_dict(network().initialize(3).state_dict())
        ends[precision] = made.predict(images)
    assert (ends["fp32"] != ends["bf16"]).any()
    np.testing.assert_allclose(ends["bf16"], ends["fp32"], atol=2e-2)


def test_another_precision_is_another_run(tmp_path: Path) -> None:
    data = images_and_labels(20)
    make_trainer(out=tmp_path, precision="bf16").fit(data, 1)
    with pytest.raises(ResumeError, match="precision was bf16, it is fp32"):
        make_trainer(out=tmp_path).fit(data, 2, resume=True)


def test_checkpoints_from_before_are_of_fp32(tmp_path: Path) -> None:
    data = images_and_labels(20)
    make_trainer(out=tmp_path).fit(data, 1)
    saved = checkpoint.load(tmp_path / checkpoint.LAST)
    old = {name: value for name, value in saved.settings.items() if name != "precision"}
    checkpoint.save(replace(saved, settings=old))
    make_trainer(out=tmp_path).fit(data, 2, resume=True)


def test_unknown_precisions_are_refused() -> None:
    with pytest.raises(TrainerError, match="precision must be 'fp32' or 'tf32' or 'bf16': 'fp8'"):
        make_trainer(precision="fp8")
    with pytest.raises(ConvloomError, match="precision='half' is not known"):
        cl.compile(
            network(),
            nn.CrossEntropyLoss(),
            cl.optim.SGD(lr=0.1),
            batch_size=5,
            input_shape=SHAPE,
            device="reference",
            precision="half",
        )
