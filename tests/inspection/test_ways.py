"""The ways of a GPU, on the stand-in for one; it runs the naive rung only."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from convloom import nn
from convloom.backends.cuda import measure
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.gpu import Call
from convloom.backends.cuda.launch import Specialisation
from convloom.inspection.ladder import RUNG, climbed, entries
from convloom.inspection.ways import GRAPH, PAGEABLE, PINNED, RESIDENT, STREAM, UNROLLED, prepare
from convloom.inspection.ways import ways as ways_of
from convloom.inspection.workload import Workload, make_workload
from convloom.optim import SGD
from tests.backends.cuda.hostgpu import HostGpu


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hostgpu")


@pytest.fixture
def gpu(folder: Path) -> HostGpu:
    if shutil.which("g++") is None:
        pytest.skip("the stand-in for a GPU needs g++")
    return HostGpu(folder)


@pytest.fixture(scope="module")
def workload() -> Workload:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 4 * 4, 3))
    return make_workload(
        model,
        nn.CrossEntropyLoss(),
        SGD(lr=0.1, momentum=0.9),
        input_shape=(1, 6, 6),
        batch_size=4,
        samples=30,
    )


def test_each_way_starts_alike(gpu: HostGpu, workload: Workload) -> None:
    backend = CudaBackend(gpu)
    found = ways_of(backend)
    assert found == (PAGEABLE, PINNED, STREAM, RESIDENT, GRAPH, UNROLLED)
    plan = workload.plan(backend, "naive")
    losses = []
    for way in found:
        runner = prepare(backend, workload, plan, way)
        losses.append(runner.start())
        assert runner.run(5) > 0
    assert len(set(losses)) == 1


@pytest.mark.parametrize(
    ("way", "graphs"),
    [(PAGEABLE, 0), (PINNED, 0), (STREAM, 0), (RESIDENT, 0), (GRAPH, 12), (UNROLLED, 2)],
)
def test_launches_are_those_of_the_way(
    gpu: HostGpu, workload: Workload, way: object, graphs: int
) -> None:
    backend = CudaBackend(gpu)
    runner = prepare(backend, workload, workload.plan(backend, "naive"), way)
    runner.start()
    before = gpu.replayed
    runner.run(12)
    assert gpu.replayed - before == graphs


def test_outputs_are_poisoned_and_weights_are_not(gpu: HostGpu, workload: Workload) -> None:
    backend = CudaBackend(gpu)
    executable, storage = workload.bind(backend, workload.plan(backend, "naive"))
    measure.poison(executable)
    assert str(executable.read("loss")) == "nan"
    assert executable.read("correct").tolist() == [-1, -1]
    for name, value in workload.weights.items():
        assert (storage.read(name) == value).all()


def test_the_peaks_kernels_run(gpu: HostGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_COPIED", 1 << 16)
    monkeypatch.setattr(measure, "_BLOCKS", 2)
    assert measure.copy_rate(gpu, repeats=1) > 0
    assert measure.fma_rate(gpu, repeats=1) > 0


def test_the_copy_is_a_copy(gpu: HostGpu) -> None:
    x = np.random.default_rng(0).integers(0, 256, 16 * 1000, np.uint8)
    source, target = gpu.allocate(x.nbytes), gpu.allocate(x.nbytes)
    gpu.upload(source.address, x)
    kernel = Specialisation("peak_copy/naive", (("EACH", 4),))
    gpu.load([kernel])
    gpu.prepare(Call(kernel, (source.address, target.address, 1000), 1, 256, 0, "copy"))()
    got = np.empty_like(x)
    gpu.download(target.address, got)
    np.testing.assert_array_equal(got, x)


def test_the_ladder_of_a_gpu(
    gpu: HostGpu, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole study, but for kernels that the stand-in cannot run."""
    monkeypatch.setattr(measure, "_COPIED", 1 << 16)
    monkeypatch.setattr(measure, "_BLOCKS", 2)
    backend = CudaBackend(gpu)
    wanted = [
        replace(entry, kernels="naive")
        for entry in entries(backend)
        if entry.without is None and (entry.kind != RUNG or entry.name == "naive")
    ]
    rows, peaks = climbed(backend, workload, wanted, rounds=2, seconds=0.001)
    names = ["naive", "pinned", "stream", "resident", "graph", "unrolled"]
    assert [row.name for row in rows[:6]] == names
    assert [row.name for row in rows[6:]] == ["no unrolling", "no graph", "no resident data"]
    assert "a pretended GPU" in peaks.source
    assert all(row.us is not None and row.us > 0 for row in rows)
    assert rows[6].gain == pytest.approx(rows[6].us / rows[5].us)
