"""Kernels that begin before the one before them has ended: which do, and that no bit changes."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends.base import DeviceError
from convloom.backends.cuda.gpu import Call, CudaGpu, _Launch
from convloom.backends.cuda.launch import Specialisation, launch_of
from convloom.backends.cuda.onchip.config import VARIANTS, Config, using
from convloom.backends.cuda.overlap import Access
from convloom.backends.feeding import Samples
from convloom.nn.models import lenet
from convloom.normalise import coefficients
from convloom.training.engine import Engine

CLASSES, SHAPE = 5, (2, 9, 8)
CHAINED = Config(chained=True)


def small() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(45, 16), nn.ReLU(), nn.Dropout(0.25), nn.Linear(16, CLASSES)),
    )


def engine_of(network: nn.Module, device: str, precision: str) -> Engine:
    return Engine(
        network,
        loss=nn.CrossEntropyLoss(),
        optimizer=cl.optim.SGD(lr=0.05, momentum=0.9),
        input_shape=(1, 28, 28) if device == "cuda" else SHAPE,
        device=device,
        kernels="onchip",
        precision=precision,
    )


def trained(
    network: nn.Module, device: str, precision: str, config: Config, batch: int, steps: int
) -> list[np.ndarray]:
    """Losses and right answers of training and evaluation steps in turns, and the state then."""
    with using(config):
        engine = engine_of(network, device, precision)
        kernels = [phase.kernel for phase in launch_of(engine.plan(batch).steps[0]).fed]
        assert [kernel.chained for kernel in kernels] == 2 * [config.chained]
        executables = [engine.executable(kind, batch) for kind in ("train", "evaluate")]
    draw = np.random.default_rng(3)
    pixels = draw.integers(0, 256, (40 * batch, *engine.input_shape), np.uint8)
    channels = len(pixels[0])
    normal = coefficients(channels * (0.3,), channels * (0.2,))
    samples = Samples(pixels, draw.integers(0, CLASSES, len(pixels)), *normal)
    data = engine.device_input().upload(samples)  # type: ignore[union-attr]
    runners = [engine.device_input().resident(one, data, None) for one in executables]  # type: ignore[union-attr]
    rates = engine.hyper_rows([{"lr": 0.05 / (1 + step)} for step in range(steps)])
    made: list[np.ndarray] = []
    for turn in range(2):
        for runner, table in zip(runners, (rates, None), strict=True):
            order = draw.integers(0, len(pixels), (steps, batch))
            runner.begin(order, table, first_step=turn * steps)
            asked = []
            while runner.left:
                asked.append(runner.ask(64))
            for part in asked:
                results = part.results()
                made += [results.losses, results.corrects]
    return [*made, *engine.state().values()]


def assert_same(ours: list[np.ndarray], wanted: list[np.ndarray]) -> None:
    assert len(ours) == len(wanted)
    for one, other in zip(ours, wanted, strict=True):
        assert one.tobytes() == other.tobytes()
        assert np.isfinite(one).all()


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
@pytest.mark.parametrize(("precision", "split"), [("bf16", 1), ("fp32", 2)])
def test_steps_of_a_graph_find_their_rows(
    precision: str, split: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seven steps: one alone, and graphs of four and two, each of which counts from its first."""
    monkeypatch.setenv("CONVLOOM_SIM", os.environ.get("CONVLOOM_SIM") or "asan")
    plain = Config(split=split, cluster=split > 1)
    chained = replace(plain, chained=True)
    wanted, *others = (
        trained(small(), "cuda-sim", precision, config, 4, 7)
        for config in (plain, chained, replace(chained, bulk=True))
    )
    for ours in others:
        assert_same(ours, wanted)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
@pytest.mark.parametrize("batch", [64, 300])
@pytest.mark.parametrize("variant", ["plain", "cluster2ahead"])
def test_a_gpu_trains_to_the_same_bits(precision: str, batch: int, variant: str) -> None:
    """Many steps: a kernel that did not wait would be seen. Weights by the copy engine, too."""
    plain = VARIANTS[variant]
    chained = replace(plain, chained=True)
    wanted, *others = (
        trained(lenet(num_classes=CLASSES), "cuda", precision, config, batch, 401)
        for config in (plain, chained, replace(chained, bulk=True))
    )
    for ours in others:
        assert_same(ours, wanted)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_what_is_chained() -> None:
    """The step and its reduction; neither packing nor the kernels of many networks."""
    with using(CHAINED):
        (step,) = engine_of(small(), "cuda-sim", "bf16").plan(4).steps
    launch = launch_of(step)
    chained = {kernel.source: kernel.chained for kernel in launch.kernels}
    assert chained == {"onchip/pack": False, "onchip/step": True, "onchip/reduce": True}
    assert launch.together is not None
    many = [*launch.together.prologue, *launch.together.phases]
    assert not any(phase.kernel.chained for phase in many)


@dataclass(eq=False)
class Node:
    """A node of a made-up graph, and those that it depends on entirely."""

    handle: str
    pred: set[Node] = field(default_factory=set)

    def launch(self, number: int) -> Node:
        return Node(f"node {number}", {self})


class Definition:
    handle = "graph"

    def launch(self, number: int) -> Node:
        return Node(f"node {number}")

    def instantiate(self) -> Definition:
        return self


class Driver:
    """What a programmatic edge needs of the driver."""

    CUgraphEdgeData = SimpleNamespace
    CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC = 1
    CUgraphDependencyType = SimpleNamespace(CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC=1)

    def __init__(self, version: int = 13000, error: int = 0) -> None:
        self.version, self.error = version, error
        self.edges: list[tuple[str, str]] = []

    def cuDriverGetVersion(self) -> tuple[int, int]:  # noqa: N802
        return 0, self.version

    def cuGraphAddDependencies(  # noqa: N802
        self, graph: str, before: list[str], after: list[str], data: list[Any], count: int
    ) -> tuple[int]:
        (edge,) = data
        assert (graph, count, edge.from_port, edge.type) == ("graph", 1, 1, 1)
        self.edges += zip(before, after, strict=True)
        return (self.error,)


class DriverOf12(Driver):
    """CUDA 12, where the plain name takes no data."""

    cuGraphAddDependencies_v2 = Driver.cuGraphAddDependencies  # noqa: N815

    def cuGraphAddDependencies(self, *given: object) -> tuple[int]:  # type: ignore[override]  # noqa: N802
        raise AssertionError("it takes no data")


STEP, OTHER = Specialisation("step", (("CHAINED", 1),)), Specialisation("other")
A, B, C = (Access((), ((start, start + 1),)) for start in range(3))


def edges(
    monkeypatch: pytest.MonkeyPatch,
    launches: list[tuple[Specialisation, Access | None]],
    driver: Driver,
    arch: str = "sm_90a",
) -> list[tuple[str, str]]:
    """The programmatic edges of the graph that ``launches`` make."""
    monkeypatch.setitem(sys.modules, "cuda.core.graph", SimpleNamespace(GraphDefinition=Definition))
    gpu = object.__new__(CudaGpu)
    gpu._driver, gpu.arch = driver, arch
    gpu._graph(
        [
            _Launch(Call(kernel, (), 1, 32, 0, "toy", access), (number,))
            for number, (kernel, access) in enumerate(launches)
        ]
    )
    return driver.edges


@pytest.mark.parametrize("driver", [Driver(), DriverOf12(12090)])
def test_edges_of_a_graph(monkeypatch: pytest.MonkeyPatch, driver: Driver) -> None:
    """Between neighbours that are both chained."""
    kernels = (OTHER, STEP, STEP, STEP, OTHER, STEP)
    made = edges(monkeypatch, [(kernel, None) for kernel in kernels], driver)
    assert made == [("node 1", "node 2"), ("node 2", "node 3")]


def test_whoever_depends_on_several_waits_for_their_end(monkeypatch: pytest.MonkeyPatch) -> None:
    both = Access((*A.writes, *B.writes), C.writes)
    assert edges(monkeypatch, [(STEP, A), (STEP, B), (STEP, both), (STEP, C)], Driver()) == [
        ("node 2", "node 3")
    ]


@pytest.mark.parametrize(("arch", "version"), [("sm_80", 13000), ("sm_90a", 12020)])
def test_no_such_edges_where_there_are_none(
    monkeypatch: pytest.MonkeyPatch, arch: str, version: int
) -> None:
    assert edges(monkeypatch, [(STEP, None), (STEP, None)], Driver(version), arch) == []


def test_an_edge_that_the_driver_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="cuGraphAddDependencies failed"):
        edges(monkeypatch, [(STEP, None), (STEP, None)], Driver(error=1))
