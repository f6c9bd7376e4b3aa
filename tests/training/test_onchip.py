"""Training on chip through the simulator: every way of input gives the same bits."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends.cuda.launch import launch_of
from convloom.backends.cuda.onchip.config import PLAIN, VARIANTS, Config, using
from convloom.data import Augmentation
from convloom.training.engine import Engine
from tests.training.helpers import images_and_labels, make_trainer

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")


def network() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(72, 16),
        nn.ReLU(),
        nn.Dropout(0.25),
        nn.Linear(16, 3),
    )


def trained(**settings: Any) -> tuple[cl.Trainer, dict[str, np.ndarray]]:
    """Two epochs with a short last batch."""
    made = make_trainer(
        network(),
        engine=Engine,
        device="cuda-sim",
        schedule="one-cycle",
        **({"kernels": "onchip"} | settings),
    )
    made.fit(images_and_labels(20, channels=2), 2, images_and_labels(9, channels=2, seed=1))
    return made, made.engine.state()


@pytest.mark.parametrize(
    ("precision", "augment", "config"),
    [
        ("bf16", None, PLAIN),
        ("bf16", Augmentation(padding=1), PLAIN),
        ("fp32", None, PLAIN),
        ("tf32", None, PLAIN),
        ("bf16", None, Config(split=2)),
        ("fp32", None, VARIANTS["together"]),
    ],
    ids=["bf16", "crops", "fp32", "tf32", "shared", "cluster"],
)
def test_a_step_that_feeds_itself_has_the_bits_of_a_gathered_one(
    precision: str, augment: Augmentation | None, config: Config
) -> None:
    with using(config):
        fed, state = trained(input="resident", precision=precision, augment=augment)
        (step,) = fed.engine.plan(8).steps
        assert launch_of(step).fed
        assert step.selection.segment is not None
        assert step.selection.segment.cluster == config.split
        streamed, wanted = trained(input="stream", precision=precision, augment=augment)
    assert state.keys() == wanted.keys()
    for name, value in wanted.items():
        assert state[name].tobytes() == value.tobytes(), name
    for column in ("loss", "accuracy", "val_loss", "val_accuracy"):
        assert fed.history.column(column) == streamed.history.column(column)


def test_tf32_trains_as_layers_do_and_the_plan_says_what_it_computes() -> None:
    """Six steps with layers in fp32 as well: rounding moves a weight by few of its last bits."""
    onchip, state = trained(precision="tf32")
    layers, wanted = trained(kernels="sparse")
    assert "products of tf32 operands, sums in fp32" in str(onchip.engine.plan(8))
    assert onchip.engine.plan(8).notes == ()
    assert len(layers.engine.plan(8).steps) > 5
    for name in layers.model.state_dict():
        difference = np.abs(state[name] - wanted[name]).max()
        assert 0 < difference <= 2.0**-9 * np.abs(wanted[name]).max(), name
