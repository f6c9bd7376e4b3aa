"""The comparison's bookkeeping; how fast anything is is never looked at."""

from __future__ import annotations

import csv
import ctypes
import io
import json
from dataclasses import replace

import numpy as np
import pytest

from convloom import nn
from convloom.backends import get_backend
from convloom.data import from_arrays
from convloom.inspection import busy
from convloom.inspection.busy import BusyMeter
from convloom.inspection.environment import environment
from convloom.inspection.versus import (
    END_TO_END,
    STEP,
    Candidate,
    OurSteps,
    OurTraining,
    Row,
    Versus,
    compared,
    with_ratios,
)
from convloom.inspection.workload import make_workload
from convloom.ops.control import HYPER
from convloom.optim import SGD
from convloom.training.engine import Engine


class Clockwork:
    """Trains as many images as asked, in no time."""

    def __init__(self, images: list[int]) -> None:
        self._images = iter(images)
        self.closed = False

    def run_for(self, seconds: float) -> tuple[int, float]:
        return next(self._images), 1.0

    def close(self) -> None:
        self.closed = True


def candidate(engine: str, what: str, runner: object) -> Candidate:
    def make() -> object:
        if isinstance(runner, Exception):
            raise runner
        return runner

    return Candidate("row", engine, what, make, {"workers": 2})


def test_rows_are_medians_and_ratios() -> None:
    ours, theirs = Clockwork([7, 40, 60, 50]), Clockwork([7, 10, 30, 20])
    rows = compared(
        [
            candidate("pytorch", STEP, theirs),
            candidate("convloom", STEP, ours),
            candidate("pytorch", END_TO_END, RuntimeError("no compiler\nat all")),
        ],
        batch_size=10,
        rounds=3,
        seconds=1.0,
        gpu=False,
    )
    assert (rows[0].low, rows[0].images_per_second, rows[0].high) == (10, 20, 30)
    assert rows[0].us == 5e5
    assert (rows[0].ratio, rows[1].ratio) == (None, 2.5)
    assert rows[2].images_per_second is None
    assert rows[2].note == "could not run: RuntimeError: no compiler"
    assert ours.closed
    assert theirs.closed


def test_ratios_are_to_the_best_of_the_same_kind() -> None:
    rows = [
        Row("a", "pytorch", STEP, {}, 10.0),
        Row("b", "pytorch", STEP, {}, 20.0),
        Row("c", "pytorch", END_TO_END, {}, 5.0),
        Row("d", "convloom", STEP, {}, 60.0),
        Row("e", "convloom", END_TO_END, {}, 60.0),
        Row("f", "convloom", END_TO_END, {}),
    ]
    assert [row.ratio for row in with_ratios(rows)] == [None, None, None, 3.0, 12.0, None]


def test_documents() -> None:
    rows = (Row("loader", "pytorch", END_TO_END, {"workers": 2}, 10.0, busy=0.5),)
    found = Versus("lenet", "cpu", 64, 3, 1.0, rows, environment("cpu"))
    document = json.loads(json.dumps(found.to_json()))
    assert document["bench"] == "pytorch"
    assert document["rows"][0]["settings"] == {"workers": 2}
    assert "NVML" in document["busy_source"]
    assert {"command", "date", "hardware", "versions"} <= set(document["environment"])
    (row,) = csv.DictReader(io.StringIO(found.to_csv()))
    assert (row["settings"], row["busy"], row["us"]) == ("workers=2", "0.5", "")


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 3))


@pytest.mark.parametrize(
    ("device", "kind"),
    [("cpu", "plain"), ("cuda-sim", "plain"), ("cuda-sim", "stream"), ("cuda-sim", "resident")],
)
def test_our_training_counts_every_image(device: str, kind: str) -> None:
    draw = np.random.default_rng(0)
    dataset = from_arrays(
        draw.integers(0, 256, (10, 1, 4, 4), np.uint8), draw.integers(0, 3, 10), classes=list("abc")
    )
    engine = Engine(
        small(),
        loss=nn.CrossEntropyLoss(),
        optimizer=SGD(lr=0.01, momentum=0.9),
        input_shape=(1, 4, 4),
        device=device,
    )
    training = OurTraining(engine, dataset.batches(4, shuffle=True), kind)
    images, seconds = training.run_for(0.05)
    assert images > 0
    assert seconds > 0
    assert engine.read("hyper")[HYPER.index("lr")] == 0.01
    whole, rest = divmod(images, 10)
    assert engine.steps_done == 3 * whole + {0: 0, 4: 1, 8: 2}[rest]
    training.run_for(0.0)  # a step at least
    assert engine.steps_done > 3 * whole


def test_our_steps() -> None:
    workload = make_workload(
        small(),
        nn.CrossEntropyLoss(),
        SGD(lr=0.1),
        input_shape=(1, 4, 4),
        batch_size=3,
        samples=8,
    )
    steps = OurSteps(get_backend("cpu"), workload)
    images, _ = steps.run_for(0.01)
    assert images > 0
    assert images % 3 == 0


class FakeNvml:
    """NVML with one GPU that is 40 % busy."""

    def nvmlInit_v2(self) -> int:  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: object) -> int:  # noqa: N802
        assert index == 3
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: object, rates: object) -> int:  # noqa: N802
        rates._obj.gpu = 40
        return 0


def test_how_busy_a_gpu_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml())
    monkeypatch.setattr(busy, "_INTERVAL", 0.001)
    with BusyMeter() as meter:
        while len(meter._seen) < 3:
            pass
    assert meter.share == pytest.approx(0.4)


def test_without_nvml_nobody_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    with BusyMeter() as meter:
        pass
    assert meter.share is None
    assert replace(Row("a", "b", STEP, {}), busy=meter.share).busy is None
