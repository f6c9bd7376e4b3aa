"""Plans, memory and graphs of the CUDA backend, on a stand-in for the GPU."""

from __future__ import annotations

import gc
import logging
import re
from dataclasses import replace

import numpy as np
import pytest

from convloom import normalise
from convloom.backends.base import DeviceError, OutOfMemoryError, get_backend
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.graph import LAUNCHES, REPETITIONS, Replay
from convloom.backends.cuda.launch import launch_of
from convloom.backends.cuda.resident import ResidentData, ResidentSteps
from convloom.ir import ROW_MAJOR, Plan, ShapeError
from convloom.ops.control import HYPER, hyper_vector
from tests.backends.cuda.hostgpu import HostGpu
from tests.backends.cuda.networks import (
    CLASSES,
    SHAPE,
    assert_same_bits,
    bound,
    evaluate_plan,
    parameters,
    pixels,
    train_plan,
    write_batch,
)


@pytest.fixture
def executable(backend: CudaBackend) -> CudaExecutable:
    made = bound(backend, train_plan(backend, 6))
    assert isinstance(made, CudaExecutable)
    return made


def batch(n: int = 6, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    images = draw.standard_normal((n, *SHAPE)).astype(np.float32)
    return images, draw.integers(0, CLASSES, n)


class TestRuns:
    def test_steps_are_those_of_the_reference(self, executable: CudaExecutable) -> None:
        backend = get_backend("reference")
        reference = bound(backend, train_plan(backend, 6, "reference"))
        for step in range(4):
            for one in (executable, reference):
                write_batch(one, *batch(seed=step))
                one.write("counter", np.array([7, step], np.uint64))
                one.run()
            np.testing.assert_allclose(executable.read("loss"), reference.read("loss"), rtol=1e-5)
            np.testing.assert_array_equal(executable.read("correct"), reference.read("correct"))
        wanted = parameters(reference)
        for name, value in parameters(executable).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)

    def test_first_run_is_launched_and_the_others_are_one_graph(
        self, executable: CudaExecutable, gpu: HostGpu
    ) -> None:
        write_batch(executable, *batch())
        executable.run()
        assert len(gpu.launched) == len(executable.calls) > 0
        assert (gpu.captured, gpu.replayed) == (0, 0)
        for _ in range(3):
            write_batch(executable, *batch())
            executable.run()
        assert len(gpu.launched) == len(executable.calls)
        assert (gpu.captured, gpu.replayed) == (1, 3)

    def test_rates_change_inside_a_graph(self, backend: CudaBackend) -> None:
        """Graph replays and watched runs give the same bits, whatever changes between steps."""
        graphed, watched = (bound(backend, train_plan(backend, 6)) for _ in range(2))
        for step in range(6):
            rates = {"lr": 0.1 if step < 3 else 0.05, "momentum": 0.9}
            if step >= 4:
                rates["weight_decay"] = 0.01
            for one in (graphed, watched):
                write_batch(one, *batch(seed=step))
                one.write("hyper", hyper_vector(rates))
                one.write("counter", np.array([7, step], np.uint64))
            graphed.run()
            assert watched.run_watched() is None
            assert graphed.read("loss").tobytes() == watched.read("loss").tobytes()
        assert_same_bits(parameters(graphed), parameters(watched))

    def test_dropout_differs_from_replay_to_replay(self, executable: CudaExecutable) -> None:
        executable.write("hyper", np.zeros(len(HYPER)))
        losses = []
        for step in (0, 1, 2, 1):
            write_batch(executable, *batch())
            executable.write("counter", np.array([7, step], np.uint64))
            executable.run()
            losses.append(float(executable.read("loss")))
        assert losses[1] == losses[3]
        assert len(set(losses)) == 3

    def test_last_batch_sees_nothing_of_those_before(self, backend: CudaBackend) -> None:
        full = bound(backend, train_plan(backend, 6))
        short = backend.executable(train_plan(backend, 5), full.storage)
        alone = bound(backend, train_plan(backend, 5))
        start = parameters(full)
        write_batch(full, np.full((6, *SHAPE), np.nan, np.float32), np.zeros(6, np.int64))
        full.run()
        for name, value in start.items():
            full.storage.write(name, value)
        for one in (short, alone):
            write_batch(one, *batch(5))
            one.run()
        assert np.isfinite(short.read("loss"))
        assert_same_bits(parameters(short), parameters(alone))

    def test_watched_run_stops_at_the_first_fault(self, executable: CudaExecutable) -> None:
        images, labels = batch()
        images[2, 0, 4, 4] = np.inf
        write_batch(executable, images, labels)
        before = parameters(executable)
        found = executable.run_watched()
        assert found is not None
        assert found.startswith("0 (Conv2d")
        assert_same_bits(parameters(executable), before)


class TestTensors:
    def test_values_come_back_in_their_logical_shape(self, executable: CudaExecutable) -> None:
        weight = np.arange(4 * 2 * 9, dtype=np.float32).reshape(4, 2, 3, 3)
        assert executable.storage.layouts["0.weight"].layout != ROW_MAJOR
        executable.write("0.weight", weight)
        np.testing.assert_array_equal(executable.storage.read("0.weight"), weight)
        np.testing.assert_array_equal(executable.read("0.weight"), weight)
        executable.write("target", np.arange(6, dtype=np.int32) % CLASSES)
        assert executable.read("target").tolist() == [0, 1, 2, 3, 4, 0]
        executable.write("0.weight", weight[::-1, ::-1])  # any strides
        np.testing.assert_array_equal(executable.read("0.weight"), weight[::-1, ::-1])

    def test_the_input_is_gone_after_a_run(self, executable: CudaExecutable) -> None:
        """The first run is launched, the second is a graph."""
        for seed in range(2):
            write_batch(executable, *batch(seed=seed))
            np.testing.assert_array_equal(executable.read("input"), batch(seed=seed)[0])
            executable.run()
            with pytest.raises(KeyError, match="'input' is not kept after a run"):
                executable.read("input")

    def test_what_can_be_read_and_written(self, executable: CudaExecutable) -> None:
        with pytest.raises(KeyError, match=r"not a tensor of this plan; these can be read: .*loss"):
            executable.read("nothing")
        with pytest.raises(KeyError, match=r"cannot be written; these can: .*\binput\b"):
            executable.write("loss", np.zeros((), np.float32))
        with pytest.raises(ShapeError, match=r"'target' has shape \(6,\).*\(5,\)"):
            executable.write("target", np.zeros(5, np.int64))
        with pytest.raises(ShapeError, match="int64"):
            executable.write("target", np.zeros(6, np.float32))
        with pytest.raises(KeyError, match="no persistent tensor 'nothing'"):
            executable.storage.read("nothing")

    def test_storage_must_fit_the_plan(self, backend: CudaBackend) -> None:
        plan = train_plan(backend, 6)
        storage = backend.storage(evaluate_plan(backend, 6))
        with pytest.raises(ValueError, match=r"keeps '0\.weight\.momentum' elsewhere"):
            backend.executable(plan, storage)
        with pytest.raises(ValueError, match="storage that it made itself"):
            backend.executable(plan, get_backend("reference").storage(plan))


class TestMemory:
    def test_too_large_says_what_would_fit(self, backend: CudaBackend, gpu: HostGpu) -> None:
        storage = backend.storage(train_plan(backend, 1))
        large = train_plan(backend, 5000)
        gpu.total = gpu.used + 1_000_000
        with pytest.raises(OutOfMemoryError) as caught:
            backend.executable(large, storage)
        message = str(caught.value)
        assert "are free on a pretended GPU" in message
        assert "1 MB are free" in message
        assert len(re.findall(r" \d[\d.]* [kM]?B[,;]", message)) >= 5
        fits = int(re.search(r"up to about (\d+) would fit", message)[1])  # type: ignore[index]
        assert 1 <= fits < 5000
        backend.executable(train_plan(backend, fits), storage)

    def test_nothing_fits(self, backend: CudaBackend, gpu: HostGpu) -> None:
        storage = backend.storage(train_plan(backend, 1))
        gpu.total = gpu.used + 100
        with pytest.raises(OutOfMemoryError, match="no batch of any size would fit"):
            backend.executable(train_plan(backend, 8), storage)

    def test_memory_is_back_after_an_error_and_after_use(
        self, backend: CudaBackend, gpu: HostGpu
    ) -> None:
        storage = backend.storage(train_plan(backend, 1))
        base, gpu.total = gpu.used, gpu.used + 1_000_000
        with pytest.raises(OutOfMemoryError):
            backend.executable(train_plan(backend, 5000), storage)
        assert gpu.used == base
        small = backend.executable(train_plan(backend, 32), storage)
        write_batch(small, *batch(32))
        small.run()
        write_batch(small, *batch(32))
        small.run()  # its graph must not keep it alive
        assert gpu.used > base
        gc.disable()
        try:
            del small
            assert gpu.used == base
        finally:
            gc.enable()

    def test_size_is_told_before_it_is_taken(
        self,
        backend: CudaBackend,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(logging.getLogger("convloom"), "propagate", True)
        storage = backend.storage(train_plan(backend, 1))
        with caplog.at_level(logging.INFO, "convloom"):
            for n in (8, 4, 16):
                backend.executable(train_plan(backend, n), storage)
        told = [record.getMessage() for record in caplog.records]
        assert [line.split(" take ")[0] for line in told] == ["batches of 8", "batches of 16"]
        assert all(line.endswith("B of memory on a pretended GPU") for line in told)


class TestFailures:
    def test_launch_names_layer_kernel_and_shapes(
        self, executable: CudaExecutable, gpu: HostGpu
    ) -> None:
        write_batch(executable, *batch())
        gpu.broken = {"max_pool_naive"}
        with pytest.raises(DeviceError, match=r"2 \(MaxPool2d\) on 6×4×7×6 float32"):
            executable.run()
        gpu.broken = set()
        write_batch(executable, *batch())
        executable.run()
        assert np.isfinite(executable.read("loss"))

    def test_capture_that_fails_can_be_tried_again(
        self, executable: CudaExecutable, gpu: HostGpu
    ) -> None:
        write_batch(executable, *batch())
        executable.run()
        gpu.broken = {"activation_naive"}
        with pytest.raises(DeviceError, match="ReLU"):
            executable.run()
        gpu.broken = set()
        write_batch(executable, *batch())
        executable.run()
        assert gpu.captured == 1

    def test_a_plan_of_another_backend(self, backend: CudaBackend) -> None:
        plan = train_plan(backend, 2)
        foreign = replace(
            plan,
            steps=tuple(
                replace(step, selection=replace(step.selection, launch=None)) for step in plan.steps
            ),
        )
        with pytest.raises(ValueError, match="no CUDA kernel for 0 "):
            backend.executable(foreign, backend.storage(plan))


class TestReplay:
    def test_lengths_are_powers_of_two(self, gpu: HostGpu) -> None:
        replay = Replay(gpu, [lambda: None])
        assert replay.longest == REPETITIONS
        assert list(replay.lengths(2 * REPETITIONS + 13)) == [REPETITIONS] * 2 + [8, 4, 1]
        assert list(replay.lengths(0)) == []

    @pytest.mark.parametrize(
        ("launches", "longest"), [(1, REPETITIONS), (20, 32), (LAUNCHES, 1), (3 * LAUNCHES, 1)]
    )
    def test_graphs_are_not_too_long(self, gpu: HostGpu, launches: int, longest: int) -> None:
        assert Replay(gpu, [lambda: None] * launches).longest == longest

    def test_each_length_is_captured_once(self, gpu: HostGpu) -> None:
        asked: list[str] = []
        calls = [lambda: asked.append("call") for _ in range(100)]
        replay = Replay(gpu, calls, [lambda: asked.append("before")])
        replay.run(11)
        replay.run(11)
        wanted = [["before"] + count * 100 * ["call"] for count in (8, 2, 1)]
        assert asked == [name for part in wanted for name in part]
        assert gpu.replayed == 6

    def test_later_repetitions_may_have_launches_of_their_own(self, gpu: HostGpu) -> None:
        asked: list[int] = []
        replay = Replay(
            gpu, [lambda: asked.append(0)], later=lambda place: [lambda: asked.append(place)]
        )
        replay.run(7)
        assert asked == [0, 1, 2, 3, 0, 1, 0]


class TestPrologue:
    """What a step makes from parameters before it runs, and keeps up to date itself."""

    @pytest.fixture
    def prepared(self, backend: CudaBackend) -> CudaExecutable:
        made = bound(backend, with_prologue(train_plan(backend, 6)))
        assert isinstance(made, CudaExecutable)
        return made

    def test_it_comes_before_each_run(self, prepared: CudaExecutable, gpu: HostGpu) -> None:
        write_batch(prepared, *batch())
        prepared.run()
        first = gpu.launched[0]
        assert len(gpu.launched) == len(prepared.calls) + 1
        assert gpu.launched.count(first) == gpu.launched[1:].count(first) + 1
        for _ in range(2):
            write_batch(prepared, *batch())
            prepared.run()
        assert (gpu.captured, gpu.replayed) == (1, 2)

    def test_it_comes_once_a_graph(self, prepared: CudaExecutable, gpu: HostGpu) -> None:
        one = pixels(40)
        coefficients = normalise.coefficients((0.3, 0.5), (0.3, 0.2))
        data = ResidentData(gpu, one.images, one.labels, *coefficients)
        order = np.arange(9 * 6).reshape(9, 6) % 40
        ResidentSteps(prepared, data).train(order, np.zeros((9, len(HYPER))))
        assert gpu.recorded == [1 + 8 * (2 + len(prepared.calls))]


def with_prologue(plan: Plan) -> Plan:
    """The plan with its first launch also as the first step's prologue."""
    first, *rest = plan.steps
    launch = launch_of(first)
    twice = replace(launch, prologue=launch.phases[:1])
    return replace(
        plan, steps=(replace(first, selection=replace(first.selection, launch=twice)), *rest)
    )


def test_rungs_are_a_ladder(backend: CudaBackend) -> None:
    assert backend.rungs[0] == "naive"
    plan = train_plan(backend, 2)
    with pytest.raises(ValueError, match="auto, naive"):
        backend.select(plan.steps[0].node, plan.graph.specs, "best")
