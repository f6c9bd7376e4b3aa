"""The cases that the CUDA backend must never get wrong, each driven as a person would.

Device cuda is a stand-in here, on which the host runs the naive kernels (tests/backends/cuda/
hostgpu.py); with ``-m gpu`` it is the GPU, and kernels are those that ``auto`` takes. The tests of
the parts, in tests/backends/cuda, go deeper; here each case is named and shown whole.
"""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends import base
from convloom.backends.base import DeviceError, OutOfMemoryError
from convloom.backends.cuda import backend as cuda_backend
from convloom.backends.cuda import device as machine
from convloom.backends.cuda import gpu as cuda_gpu
from convloom.backends.cuda import nvrtc
from convloom.backends.cuda.device import Found
from convloom.backends.cuda.gpu import Call, CudaGpu, open_gpu
from convloom.backends.cuda.measure import poison
from convloom.backends.cuda.selectors import RUNGS
from convloom.data import ArrayDataset, from_arrays
from convloom.training.step import TrainingStep
from tests.backends.cuda.hostgpu import HostGpu
from tests.cli.running import environment, invoke, refused, spawn, words

SHAPE, CLASSES, N = (2, 9, 8), 5, 6
State = dict[str, np.ndarray]


@dataclass(frozen=True)
class Place:
    """What device cuda is in a test.

    Attributes:
        kernels: the highest rung that runs there.
        host: the stand-in, None on a GPU.
    """

    kernels: str
    host: HostGpu | None

    def free(self) -> int:
        """Bytes of device memory that are free, once what is asked for is done."""
        gc.collect()
        gpu: Any = self.host or open_gpu()
        gpu.synchronize()
        return int(gpu.free_bytes())

    def assert_back(self, baseline: int) -> None:
        """As much memory is free as was, but for what a driver keeps for itself: some MB, once.

        While other workers of the tests use the GPU, it cannot be counted.
        """
        if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1 and self.host is None:
            return
        lost = baseline - self.free()
        assert lost == 0 if self.host is not None else lost <= 48 << 20


@pytest.fixture(params=["stand-in", pytest.param("gpu", marks=pytest.mark.gpu)])
def cuda(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Place:
    if request.param == "gpu":
        return Place("auto", None)
    if shutil.which("g++") is None:
        pytest.skip("the stand-in for a GPU needs g++")
    gpu = HostGpu(_objects(tmp_path_factory))
    monkeypatch.setattr(cuda_backend, "open_gpu", lambda: gpu)
    return Place("naive", gpu)


def _objects(factory: pytest.TempPathFactory) -> Path:
    """One folder of compiled kernels for the whole session."""
    folder = factory.getbasetemp() / "case-kernels"
    folder.mkdir(exist_ok=True)
    return folder


def network() -> nn.Sequential:
    """Convolution, pool, dropout and a Linear layer."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, CLASSES),
    )


def compiled(place: Place, n: int = N, lr: float = 0.1) -> TrainingStep:
    return cl.compile(
        network(),
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=lr, momentum=0.9),
        batch_size=n,
        input_shape=SHAPE,
        device="cuda",
        kernels=place.kernels,
    )


def batch(seed: int, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, *SHAPE)).astype(np.float32), draw.integers(0, CLASSES, n)


def pixels(count: int, seed: int = 0) -> ArrayDataset:
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (count, *SHAPE), np.uint8)
    labels = np.arange(count) % CLASSES
    return from_arrays(images, labels)


def trainer(place: Place, **changes: Any) -> cl.Trainer:
    settings: dict[str, Any] = {
        "optimizer": cl.optim.SGD(lr=0.05, momentum=0.9),
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 8,
        "device": "cuda",
        "kernels": place.kernels,
        **changes,
    }
    return cl.Trainer(network(), **settings)


def state(step: TrainingStep | cl.Trainer) -> State:
    """Parameters and states."""
    held = step._engine if isinstance(step, TrainingStep) else step.engine
    kept: State = held.state()
    return kept


def assert_same(ours: State, theirs: State) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].tobytes() == value.tobytes(), name


# Case 1: rates inside a graph.


def test_case_1_rates_change_in_mid_run(cuda: Place) -> None:
    """Half the learning rate, then weight decay: what is replayed reads them from the device."""
    graphed, watched = compiled(cuda), compiled(cuda)
    for at in range(7):
        for one in (graphed, watched):
            if at == 3:
                one.set_hyper(lr=0.05)
            if at == 5:
                one.set_hyper(weight_decay=0.02)
        loss = graphed(*batch(at))
        assert watched.watch(*batch(at)) is None
        assert loss == float(watched.read("loss"))
    assert_same(state(graphed), state(watched))
    if cuda.host is not None:
        assert (cuda.host.captured, cuda.host.replayed) == (1, 6)


@pytest.mark.parametrize("way", ["resident", "stream"])
def test_case_1_schedules_inside_graphs_of_many_steps(cuda: Place, way: str) -> None:
    """A cosine schedule and AdamW's corrections, against steps that are watched one by one."""
    data, epochs = pixels(48), 3
    settings = {"optimizer": cl.optim.AdamW(lr=0.01), "schedule": "cosine"}
    ours = trainer(cuda, input=way, log_every=1, **settings)
    ours.fit(data, epochs)
    theirs = trainer(cuda, input=way, **settings)
    theirs.fit(data, 1)  # makes the engine; its weights and states are set back
    engine: Any = theirs.engine
    first = trainer(cuda, input=way, **settings)
    first.model.initialize(0)
    blank = {name: np.zeros_like(value) for name, value in engine.state().items()}
    engine.load_state({**blank, **first.model.state_dict()})
    batches, at = data.batches(8, seed=0, shuffle=True), 0
    for epoch in range(epochs):
        for one in batches.epoch(epoch):
            rates = engine.optimizer.hyper(at)
            engine.set_hyper(**{**rates, "lr": ours.history.steps[at].lr})
            assert engine.watched_step(one.images, one.labels) is None
            assert float(engine.read("loss")) == ours.history.steps[at].loss
            at += 1
    assert_same(ours.engine.state(), engine.state())


# Case 2: large N.


class EveryLayer(nn.Module):
    """One of each layer whose rows do not depend on each other."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 1, bias=False)
        self.max_pool = nn.MaxPool2d(2)
        self.avg_pool = nn.AvgPool2d(2)
        self.linear = nn.Linear(3 * channels * 2 * 2, 3)
        self.last = nn.Linear(3, 2)

    def forward(self, x: nn.SymbolicTensor) -> nn.SymbolicTensor:
        x = nn.relu(self.first(x))
        pooled = self.max_pool(nn.relu(self.second(x)))
        x = nn.concat([pooled, self.avg_pool(x), pooled + self.max_pool(x)])
        return self.last(nn.relu(self.linear(nn.flatten(x))))


def assert_ends_alone(model: nn.Module, x: np.ndarray, classes: int, kernels: str) -> None:
    """The first and the last row of a large batch are what they are in a batch of two.

    Only they have an output gradient, so that gradients of weights are theirs too.
    """
    n = len(x)
    dy = np.zeros((n, classes), np.float32)
    dy[[0, -1]] = np.random.default_rng(1).standard_normal((2, classes))
    y, dx, gradients = cl.vjp(model, x, dy, device="cuda", kernels=kernels)
    ends = [0, n - 1]
    wanted = cl.vjp(model, x[ends].astype(np.float64), dy[ends], device="reference")
    assert not dx[1:-1].any()
    for got, exact in ((y[ends], wanted[0]), (dx[ends], wanted[1])):
        np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-5)
    for name, exact in wanted[2].items():
        np.testing.assert_allclose(gradients[name], exact, rtol=1e-5, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("n", [65_535, 65_536, 70_000])
def test_case_2_the_last_row(cuda: Place, n: int) -> None:
    x = np.random.default_rng(0).standard_normal((n, 1, 4, 4)).astype(np.float32)
    for kernels in RUNGS if cuda.host is None else [cuda.kernels]:
        assert_ends_alone(EveryLayer(), x, 2, kernels)


class LargeMaps(nn.Module):
    """Convolution, activation, both pools, and the sum of their gradients, on maps of 31 x 31."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, channels, 1)
        self.mean, self.most = nn.AvgPool2d(5, 3), nn.MaxPool2d(5, 3)
        self.linear = nn.Linear(channels * 9 * 9, 2)

    def forward(self, x: nn.SymbolicTensor) -> nn.SymbolicTensor:
        x = nn.relu(self.conv(x))
        return self.linear(nn.flatten(self.mean(x) + self.most(x)))


def test_case_2_the_network_of_large_maps(cuda: Place) -> None:
    """The network of the next test, where few of its maps are made."""
    x = np.random.default_rng(0).standard_normal((3, 1, 31, 31)).astype(np.float32)
    assert_ends_alone(LargeMaps(), x, 2, cuda.kernels)


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.parametrize("kernels", RUNGS)
def test_case_2_tensors_past_two_to_the_31(kernels: str) -> None:
    """Maps of 70,000 x 32 x 31 x 31, 2.15 billion elements, forward and backward."""
    x = np.random.default_rng(0).standard_normal((70_000, 1, 31, 31)).astype(np.float32)
    assert_ends_alone(LargeMaps(), x, 2, kernels)


def test_case_2_an_impossible_launch_and_then_a_good_one(
    cuda: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, alone = compiled(cuda), compiled(cuda)
    step(*batch(0))
    alone(*batch(0))
    with monkeypatch.context() as patch:
        _refuse_pools(cuda, patch)
        with pytest.raises(DeviceError, match=r"2 \(MaxPool2d\) on 3×4×7×6 float32|0 \(Fused"):
            step(*batch(1, 3))  # a batch size of its own, so that its launches are new
    step._engine.load_state(state(alone))
    assert step(*batch(2)) == alone(*batch(2))
    assert step(*batch(1, 4)) == alone(*batch(1, 4))
    assert_same(state(step), state(alone))


def _refuse_pools(place: Place, patch: pytest.MonkeyPatch) -> None:
    """Have launches of pools, fused ones on a GPU, ask for more threads than a block can have."""
    if place.host is not None:
        patch.setattr(place.host, "broken", {"max_pool_naive"})
        return
    prepare = CudaGpu.prepare

    def spoilt(self: CudaGpu, call: Call) -> Callable[[], None]:
        fused = call.kernel.source.startswith("conv2d_fprop")
        return prepare(self, replace(call, threads=4096) if fused else call)

    patch.setattr(CudaGpu, "prepare", spoilt)


# Case 3: a notebook goes on after an error.


def test_case_3_a_batch_too_large_for_the_memory(cuda: Place) -> None:
    step = compiled(cuda, 32)
    step(*batch(0, 32))
    step(*batch(1, 32))
    baseline = cuda.free()
    if cuda.host is not None:
        cuda.host.total = cuda.host.used + 1_000_000
    huge = 5_000 if cuda.host is not None else 500_000_000
    images = np.broadcast_to(np.float32(0), (huge, *SHAPE))
    labels = np.broadcast_to(np.int64(0), huge)
    before = state(step)
    with pytest.raises(OutOfMemoryError) as caught:
        step(images, labels)
    for words_ in ("its largest buffers are", "are free on", "up to about", "would fit"):
        assert words_ in str(caught.value)
    assert_same(state(step), before)
    del caught
    if cuda.host is not None:
        cuda.host.total = 1 << 30
    cuda.assert_back(baseline)
    alone = compiled(cuda, 32)
    for at in range(2):
        alone(*batch(at, 32))
    assert step(*batch(2, 32)) == alone(*batch(2, 32))


def test_case_3_plans_of_other_batch_sizes_make_room(cuda: Place) -> None:
    """They are kept to be quick, not to be in the way."""
    if cuda.host is None:
        pytest.skip("a real GPU is too large for a small test to fill")
    step, alone = compiled(cuda), compiled(cuda)
    for n in (200, 150, 100):
        assert step(*batch(n, n)) == alone(*batch(n, n))
    assert alone(*batch(1, 250)) > 0
    arenas = step._engine.plan(250).arenas
    cuda.host.total = cuda.host.used + sum(arenas.values()) // 2
    assert step(*batch(1, 250)) > 0
    assert len(step._engine._executables) == 2  # with the one that ran last
    assert_same(state(step), state(alone))


def test_case_3_memory_is_back_when_trainers_go(cuda: Place) -> None:
    """On a GPU a trainer takes tens of MB, so that five of them would be missed."""
    count, n = (44, 8) if cuda.host is not None else (100_000, 8192)
    data = pixels(count)

    def cell() -> None:
        for way in ("resident", "stream"):
            made = trainer(cuda, input=way, batch_size=n)
            made.fit(data, 2, validation=data)
            made.model.predict(data.images[:3])

    cell()  # what the process keeps: kernels, pinned buffers
    baseline = cuda.free()
    for _ in range(2 if cuda.host is not None else 5):
        cell()
        cuda.assert_back(baseline)


def test_case_3_a_label_out_of_range(cuda: Place) -> None:
    step, alone = compiled(cuda), compiled(cuda)
    images, labels = batch(1)
    for one in (step, alone):
        one(*batch(0))
    for wrong in (-1, CLASSES):
        spoilt = labels.copy()
        spoilt[4] = wrong
        launched = None if cuda.host is None else (len(cuda.host.launched), cuda.host.replayed)
        with pytest.raises(cl.ConvloomError, match=rf"{wrong}.*4|4.*{wrong}"):
            step(images, spoilt)
        if cuda.host is not None:
            assert launched == (len(cuda.host.launched), cuda.host.replayed)
    assert step(images, labels) == alone(images, labels)
    assert_same(state(step), state(alone))


# Case 4: graph replay and the last batch.


def fill_with_nan(engine: Any) -> None:
    """Whatever a step must make before it reads it, in the memory of every batch size."""
    for executable in engine._executables.values():
        poison(executable)


def test_case_4_nothing_of_the_batch_before_is_read(cuda: Place) -> None:
    """Full batches and short ones take turns, and what lies in memory between them is NaN."""
    poisoned, plain = compiled(cuda), compiled(cuda)
    for at, n in enumerate((N, N, 5, N, 5, 5, 1, N, 1)):
        fill_with_nan(poisoned._engine)
        images, labels = batch(at, n)
        assert poisoned(images, labels) == plain(images, labels)
        assert_same(state(poisoned), state(plain))


@pytest.mark.parametrize("way", ["resident", "stream"])
def test_case_4_the_short_last_batch_of_an_epoch(cuda: Place, way: str) -> None:
    """Memory is NaN before each epoch, whose graphs are replayed: 45 images are 5 batches and 5."""

    data = pixels(45)
    plain, poisoned = trainer(cuda, input=way), trainer(cuda, input=way)
    for _ in range(3):
        plain.fit(data, 1, validation=data)
        if poisoned.steps_done:
            fill_with_nan(poisoned.engine)
        poisoned.fit(data, 1, validation=data)
    assert_same(state(poisoned), state(plain))
    assert poisoned.history.column("val_loss") == plain.history.column("val_loss")


def test_case_4_dropout_differs_from_replay_to_replay(cuda: Place) -> None:
    """At rate 0 on one batch, only masks can change a loss; a step that is repeated has its own."""
    step = compiled(cuda, lr=0.0)
    losses = [step(*batch(0)) for _ in range(6)]
    assert len(set(losses)) == 6
    step._engine.load_state({"counter": np.array([0, 2], np.uint64)})
    assert [step(*batch(0)) for _ in range(3)] == losses[2:5]


def test_case_4_dropout_differs_within_a_graph_of_many_steps(cuda: Place) -> None:
    image = pixels(1).images
    same = from_arrays(np.repeat(image, 64, axis=0), np.full(64, 0), classes=list("abcde"))
    made = trainer(
        cuda, input="resident", log_every=1, batch_size=4, optimizer=cl.optim.SGD(lr=0.0)
    )
    made.fit(same, 2)
    losses = [row.loss for row in made.history.steps]
    assert len(losses) == 32
    assert len(set(losses)) > 16  # a mask has few elements here, so some losses meet again


# Case 5: what is missing, each with a message and a remedy of its own.

HOPPER = Found(0, "", (13, 0), ((9, 0),))
#: {what is wrong: (what the driver says, environment, cuda-bindings, what the message says)}.
MISSING: dict[str, tuple[Found, dict[str, str], tuple[int, int] | None, tuple[str, ...]]] = {
    "no driver": (Found(None), {}, (13, 0), ("no NVIDIA driver", "device cpu works everywhere")),
    "no GPU": (Found(100, "CUDA_ERROR_NO_DEVICE", (13, 0)), {}, (13, 0), ("no GPU", "nvidia-smi")),
    "old driver": (
        Found(0, "", (12, 4), ((9, 0),)),
        {},
        (13, 0),
        ("driver runs CUDA 12.4", "update the driver to 580 or newer", "convloom[cuda12]"),
    ),
    "driver older than any": (
        Found(0, "", (11, 4), ((8, 0),)),
        {},
        (12, 9),
        ("driver runs CUDA 11.4", "update the driver to 525 or newer"),
    ),
    "driver of two versions": (
        Found(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"),
        {},
        (13, 0),
        ("DRIVER_MISMATCH", "restart the machine"),
    ),
    "GPU too old": (
        Found(0, "", (13, 0), ((7, 0),)),
        {},
        (13, 0),
        ("compute capability 7.0", "pip install 'convloom[cuda12]'"),
    ),
    "GPUs hidden": (
        Found(100, "CUDA_ERROR_NO_DEVICE", (13, 0)),
        {"CUDA_VISIBLE_DEVICES": ""},
        (13, 0),
        ("CUDA_VISIBLE_DEVICES is empty", "unset it"),
    ),
    "GPU that is not there": (
        Found(100, "CUDA_ERROR_NO_DEVICE", (13, 0)),
        {"CUDA_VISIBLE_DEVICES": "7"},
        (13, 0),
        ("CUDA_VISIBLE_DEVICES=7", "correct or unset it"),
    ),
    "no cuda-core": (HOPPER, {}, None, ("cuda-core is not installed", "convloom[cuda13]")),
}


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets what this machine is taken to be."""

    def pretend(found: Found, changes: dict[str, str], bindings: tuple[int, int] | None) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        for name, value in changes.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(machine, "find", lambda: found)
        monkeypatch.setattr(machine, "bindings_version", lambda: bindings)
        monkeypatch.setattr(cuda_backend, "open_gpu", open_gpu.__wrapped__)

    return pretend


@pytest.mark.parametrize("fault", MISSING)
def test_case_5_each_fault_is_one_line(pretended: Callable[..., None], fault: str) -> None:
    found, changes, bindings, parts = MISSING[fault]
    pretended(found, changes, bindings)
    line = refused(1, "train", "lenet", *words("--data digits --epochs 1 --device cuda"))
    for part in ("device cuda cannot be used", *parts):
        assert part in line
    with pytest.raises(DeviceError, match="device cuda cannot be used"):
        compiled(Place("auto", None))


def test_case_5_all_messages_differ(pretended: Callable[..., None]) -> None:
    told = []
    for found, changes, bindings, _ in MISSING.values():
        pretended(found, {"CUDA_VISIBLE_DEVICES": "0", **changes}, bindings)
        told.append(machine.missing())
    assert None not in told
    assert len(set(told)) == len(told)


def test_case_5_a_driver_newer_than_the_compiler(pretended: Callable[..., None]) -> None:
    """It runs older code: nothing is missing."""
    for version, bindings in (((13, 9), (13, 0)), ((14, 2), (13, 0)), ((13, 0), (12, 9))):
        pretended(replace(HOPPER, version=version), {}, bindings)
        assert machine.missing() is None


def test_case_5_auto_is_the_cpu_and_says_why(tmp_path: Path) -> None:
    given = words("train lenet --data digits --epochs 1 --device auto --batch-size 512")
    done = spawn(*given, cwd=tmp_path, CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 0, done.stderr
    assert "convloom: device auto is cpu: " in done.stderr
    assert "device cpu" in done.stdout + done.stderr


@pytest.mark.parametrize(("fault", "level"), [("no driver", "INFO"), ("old driver", "WARNING")])
def test_case_5_a_gpu_that_auto_cannot_use_is_a_warning(
    pretended: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    level: str,
) -> None:
    monkeypatch.setattr(logging.getLogger("convloom"), "propagate", True)
    pretended(*MISSING[fault][:3])
    base._best_device.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "convloom"):
            assert base.resolve_device("auto") == "cpu"
    finally:
        base._best_device.cache_clear()
    assert [record.levelname for record in caplog.records] == [level]


class Foreign(HostGpu):
    """A GPU whose kernels NVRTC compiles."""

    def load(self, kernels: Any) -> None:
        nvrtc.shared_compiler().compile(kernels, self.arch)


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'convloom[cuda13]'")
    monkeypatch.setenv("CONVLOOM_CACHE", str(tmp_path / "cache"))
    gpu = Foreign(tmp_path)
    monkeypatch.setattr(cuda_backend, "open_gpu", lambda: gpu)
    nvrtc.translation_unit.cache_clear()
    nvrtc._inlined.cache_clear()
    yield gpu
    nvrtc.translation_unit.cache_clear()
    nvrtc._inlined.cache_clear()


def last_line(*given: object) -> str:
    """The error of a command that tells its progress before."""
    result = invoke(*given)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    line = result.stderr.splitlines()[-1]
    assert line.startswith("convloom: error: ")
    return line


TRAIN = words("train lenet --data digits --epochs 1 --device cuda --kernels naive")


def test_case_5_an_architecture_that_the_compiler_does_not_know(foreign: Foreign) -> None:
    foreign.arch = "sm_199"
    line = last_line(*TRAIN)
    assert "does not compile for sm_199" in line
    assert "pip install -U 'convloom[cuda13]'" in line
    assert "sm_30" in refused(2, "build", "lenet", "--arch", "sm_30")


def test_case_5_a_header_is_missing(
    foreign: Foreign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "kernels"
    shutil.copytree(nvrtc.SOURCES, copy)
    (copy / "device" / "types.cuh").unlink()
    monkeypatch.setattr(nvrtc, "SOURCES", copy)
    line = last_line(*TRAIN)
    assert "device/types.cuh" in line
    assert "install convloom again" in line


def test_case_5_the_compiler_cannot_be_loaded(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is there and its library is not."""

    class Broken:
        ProgramOptions = staticmethod(lambda **options: None)

        @staticmethod
        def Program(*given: object) -> None:  # noqa: N802
            raise RuntimeError('Failure finding "libnvrtc.so": No such file\nsearched: here')

    monkeypatch.setattr(nvrtc, "cuda_core", lambda: Broken)
    line = last_line(*TRAIN)
    assert "libnvrtc.so" in line
    assert "pip install" in line


@pytest.mark.gpu
@pytest.mark.parametrize(("value", "part"), [("", "is empty"), ("99", "names no GPU")])
def test_case_5_hidden_gpus(tmp_path: Path, value: str, part: str) -> None:
    command = [sys.executable, "-m", "convloom", *TRAIN]
    done = subprocess.run(
        command, env=environment(CUDA_VISIBLE_DEVICES=value), capture_output=True, text=True
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert part in done.stderr


# Case 6: two processes on one GPU, and two trainers in one process.


def test_case_6_two_trainers_take_turns(cuda: Place) -> None:
    alone, data = trainer(cuda), pixels(45)
    pair = [trainer(cuda, input=way) for way in ("resident", "stream")]
    for _ in range(3):
        alone.fit(data, 1, validation=data)
        for one in pair:
            one.fit(data, 1, validation=data)
    for one in pair:
        assert_same(state(one), state(alone))
        assert one.history.column("val_loss") == alone.history.column("val_loss")


@pytest.mark.gpu
def test_case_6_trainers_in_threads() -> None:
    place, data = Place("auto", None), pixels(200)
    alone = trainer(place)
    alone.fit(data, 4)
    made = [trainer(place, input=("resident", "stream")[i % 2]) for i in range(4)]
    threads = [threading.Thread(target=one.fit, args=(data, 4)) for one in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in made:
        assert_same(state(one), state(alone))


@pytest.mark.gpu
def test_case_6_two_processes() -> None:
    script = """
        import hashlib
        from tests.test_cases_cuda import Place, pixels, state, trainer
        made = trainer(Place("auto", None))
        made.fit(pixels(200), 6)
        print(hashlib.sha256(b"".join(v.tobytes() for v in state(made).values())).hexdigest())
    """
    alone = _python(script).communicate(timeout=300)[0]
    assert len(alone) > 60
    both = [_python(script) for _ in range(2)]
    assert [one.communicate(timeout=300)[0] for one in both] == [alone, alone]


# Case 7: fork after CUDA.


def test_case_7_a_forked_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an object made before the fork says after it; nothing of CUDA is called."""
    gpu = object.__new__(CudaGpu)
    gpu._process = os.getpid() + 1
    for use in (
        gpu.synchronize,
        gpu.free_bytes,
        lambda: gpu.allocate(8),
        lambda: gpu.load([]),
        lambda: gpu.upload(0, np.zeros(1)),
        lambda: gpu.capture(lambda: None),
    ):
        with pytest.raises(DeviceError, match=r"was forked .* 'spawn'"):
            use()
    cuda_gpu._free(gpu, "cuMemFree", 64)  # what is freed there belongs to the parent


@pytest.mark.gpu
def test_case_7_fork_after_cuda_on_a_gpu() -> None:
    """The child explains, uses the CPU, and ends; the parent trains on."""
    script = """
        import multiprocessing
        import convloom as cl
        from tests.test_cases_cuda import Place, pixels, state, trainer

        def child(made, results):
            for work in (
                lambda: made.fit(pixels(40), 1),
                lambda: trainer(Place("auto", None)).fit(pixels(40), 1),
                lambda: made.model.predict(pixels(4).images),
            ):
                try:
                    work()
                    results.put("works")
                except cl.ConvloomError as error:
                    results.put(str(error))
            own = trainer(Place("auto", None), device="cpu")
            own.fit(pixels(40), 1)
            results.put("cpu works")

        made = trainer(Place("auto", None))
        made.fit(pixels(40), 1)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        process = context.Process(target=child, args=(made, results))
        process.start()
        for _ in range(4):
            print(results.get(timeout=100))
        process.join(100)
        print("exit code", process.exitcode)
        made.fit(pixels(40), 1)
        print("steps", made.steps_done)
    """
    out = _python(script).communicate(timeout=300)[0]
    lines = out.splitlines()
    assert len(lines) == 6, out
    for line in lines[:2]:
        assert "forked" in line
        assert "spawn" in line
    assert "forked" in lines[2] or lines[2] == "works"
    assert lines[3:] == ["cpu works", "exit code 0", "steps 10"]


def _python(script: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[1]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
