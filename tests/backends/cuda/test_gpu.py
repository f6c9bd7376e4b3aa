"""The runtime on a real GPU: ``pytest -m gpu tests/backends/cuda``."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import numpy as np
import pytest

from convloom import nn, normalise
from convloom.backends.base import DeviceError, OutOfMemoryError, get_backend
from convloom.backends.cuda import device, nvrtc
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Call, CudaGpu, open_gpu
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cuda.resident import Crops, ResidentData, ResidentSteps
from convloom.backends.cuda.selectors import RUNGS
from convloom.nn.models import lenet
from convloom.ops.control import hyper_vector
from convloom.optim import SGD
from convloom.training.engine import Engine
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

pytestmark = pytest.mark.gpu

MEAN, STD = (0.31, 0.52), (0.27, 0.19)

TOYS = {
    "fill": """
        template <class P> __global__ void toy_fill(float* y, long long n, float value) {
            long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
            if (i < n) y[i] = value + P::K;
        }""",
    "big": """
        template <class P> __global__ void toy_big(float* y, long long n) {
            extern __shared__ __align__(128) unsigned char smem_raw[];
            float* s = (float*)smem_raw;
            for (int i = threadIdx.x; i < n; i += blockDim.x) s[i] = i;
            __syncthreads();
            for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = s[n - 1 - i];
        }""",
    "wild": """
        template <class P> __global__ void toy_wild(float* y) { *(float*)8 = 1; }""",
}


@pytest.fixture(scope="module")
def gpu() -> CudaGpu:
    reason = device.missing()
    if reason is not None:
        pytest.fail(f"no GPU can be used: {reason}")
    return open_gpu()


@pytest.fixture
def backend(gpu: CudaGpu) -> CudaBackend:
    return CudaBackend(gpu)


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "toy").mkdir()
    for name, text in TOYS.items():
        (tmp_path / "toy" / f"{name}.cu").write_text(textwrap.dedent(text))
    monkeypatch.setattr(nvrtc, "SOURCES", tmp_path)
    return tmp_path


def batch(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    draw = np.random.default_rng(seed)
    return draw.standard_normal((n, *SHAPE)).astype(np.float32), draw.integers(0, CLASSES, n)


def train(executable: CudaExecutable, steps: int, watched: bool = False, n: int = 6) -> list[float]:
    """Steps with rates that change on the way; returns the losses."""
    losses = []
    for step in range(steps):
        write_batch(executable, *batch(n, step))
        executable.write("hyper", hyper_vector({"lr": 0.1 / (1 + step), "momentum": 0.9}))
        executable.write("counter", np.array([7, step], np.uint64))
        if watched:
            assert executable.run_watched() is None
        else:
            executable.run()
        losses.append(float(executable.read("loss")))
    return losses


def trainer(backend: CudaBackend, n: int = 6, kernels: str = "auto") -> CudaExecutable:
    made = bound(backend, train_plan(backend, n, kernels))
    assert isinstance(made, CudaExecutable)
    return made


@pytest.fixture
def alone() -> None:
    """Free memory can only be counted while no other worker of the tests uses the GPU."""
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:
        pytest.skip("memory is counted, and other workers use the GPU")


class TestDevice:
    def test_what_it_is(self, gpu: CudaGpu) -> None:
        print(f"\n{gpu.name}, {gpu.arch}, {gpu.multiprocessors} multiprocessors")
        assert gpu.arch.startswith("sm_")
        assert gpu.multiprocessors > 0
        assert gpu.shared_limit >= 64 << 10
        assert 0 < gpu.free_bytes() <= gpu.total_bytes()

    def test_memory_is_zero_and_comes_back(self, gpu: CudaGpu, alone: None) -> None:
        gpu.synchronize()
        before = gpu.free_bytes()
        memory = gpu.allocate(256 << 20)
        values = np.ones(1 << 20, np.uint8)
        gpu.download(memory.address + (255 << 20), values)
        assert not values.any()
        assert gpu.free_bytes() < before
        del memory
        assert gpu.free_bytes() == before

    def test_copies_of_any_size(self, gpu: CudaGpu) -> None:
        """Larger than a pinned buffer; and a host array may change once it has been handed over."""
        values = np.arange(40_000_000, dtype=np.float32)
        memory = gpu.allocate(values.nbytes)
        source = values.copy()
        gpu.upload(memory.address, source)
        source[:] = -1
        back = np.empty_like(values)
        gpu.download(memory.address, back)
        np.testing.assert_array_equal(back, values)
        small = np.zeros(3)
        for i in range(50):
            small[:] = i
            gpu.upload(memory.address + 24 * i, small)
        got = np.empty((50, 3))
        gpu.download(memory.address, got)
        np.testing.assert_array_equal(got[:, 0], np.arange(50))

    def test_more_memory_than_there_is(self, gpu: CudaGpu, alone: None) -> None:
        before = gpu.free_bytes()
        with pytest.raises(OutOfMemoryError, match="are free on"):
            gpu.allocate(gpu.total_bytes() * 2)
        assert gpu.free_bytes() == before

    def test_time_is_measured(self, gpu: CudaGpu) -> None:
        memory = gpu.allocate(1 << 28)
        values = np.zeros(1 << 26, np.uint8)
        assert 0 < gpu.seconds(lambda: gpu.upload(memory.address, values)) < 60


class TestLaunches:
    def test_kernel_and_graph(self, gpu: CudaGpu, toys: Path) -> None:
        memory = gpu.allocate(4000)
        fill = Specialisation("toy/fill", (("K", 3),))
        gpu.load([fill])
        launch = gpu.prepare(Call(fill, (memory.address, 1000, 0.5), 4, 256, 0, "toy"))
        launch()
        values = np.empty(1000, np.float32)
        gpu.download(memory.address, values)
        assert (values == 3.5).all()
        gpu.upload(memory.address, np.zeros(1000, np.float32))
        graph = gpu.capture(lambda: [launch() for _ in range(3)] and None)
        gpu.download(memory.address, values)
        assert (values == 0).all()  # captured, not run
        graph()
        gpu.download(memory.address, values)
        assert (values == 3.5).all()
        assert gpu.seconds(graph) > 0

    def test_much_shared_memory(self, gpu: CudaGpu, toys: Path) -> None:
        n = gpu.shared_limit // 4
        memory = gpu.allocate(4 * n)
        big = Specialisation("toy/big")
        gpu.load([big])
        gpu.prepare(Call(big, (memory.address, n), 1, 256, 4 * n, "toy"))()
        values = np.empty(n, np.float32)
        gpu.download(memory.address, values)
        np.testing.assert_array_equal(values, np.arange(n)[::-1])
        with pytest.raises(DeviceError, match=r"toy: the kernel toy/big.*at most"):
            gpu.prepare(Call(big, (memory.address, n), 1, 256, 4 * n + 4, "toy"))

    def test_impossible_launches_harm_nothing(self, gpu: CudaGpu, toys: Path) -> None:
        memory = gpu.allocate(4000)
        fill = Specialisation("toy/fill", (("K", 0),))
        gpu.load([fill])
        words = (memory.address, 1000, 2.0)
        with pytest.raises(DeviceError, match=r"conv9: the kernel toy/fill\(K=0\).*4096 threads"):
            gpu.prepare(Call(fill, words, 1, 4096, 0, "conv9"))()
        with pytest.raises(DeviceError, match="its parameters take"):
            gpu.prepare(Call(fill, words[:2], 1, 256, 0, "conv9"))
        bad = gpu.prepare(Call(fill, words, 1, 4096, 0, "conv9"))
        with pytest.raises(DeviceError, match="conv9"):
            gpu.capture(bad)
        gpu.prepare(Call(fill, words, 4, 256, 0, "toy"))()
        values = np.empty(1000, np.float32)
        gpu.download(memory.address, values)
        assert (values == 2).all()

    def test_wild_pointer_is_named_and_the_process_told_to_end(self, tmp_path: Path) -> None:
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy" / "wild.cu").write_text(TOYS["wild"])
        done = python(
            f"""
            from pathlib import Path
            from convloom.backends.cuda import nvrtc
            nvrtc.SOURCES = Path({str(tmp_path)!r})
            from convloom.backends.base import DeviceError
            from convloom.backends.cuda.gpu import Call, open_gpu
            from convloom.backends.cuda.launch import Specialisation
            gpu, wild = open_gpu(), Specialisation("toy/wild")
            gpu.load([wild])
            gpu.prepare(Call(wild, (0,), 1, 32, 0, "toy"))()
            try:
                gpu.synchronize()
            except DeviceError as error:
                print(error)
            """
        )
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in done
        assert "start it again" in done


class TestTraining:
    @pytest.mark.parametrize("rung", RUNGS)
    def test_every_rung_follows_the_reference(self, backend: CudaBackend, rung: str) -> None:
        reference = bound(get_backend("reference"), train_plan(get_backend("reference"), 6, "auto"))
        executable = trainer(backend, kernels=rung)
        np.testing.assert_allclose(train(executable, 5), train(reference, 5), rtol=1e-5)
        wanted = parameters(reference)
        for name, value in parameters(executable).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-4, atol=1e-6, err_msg=name)

    @pytest.mark.parametrize("rung", RUNGS)
    def test_same_bits_with_and_without_graphs_and_again(
        self, backend: CudaBackend, rung: str
    ) -> None:
        graphed, again, watched = (trainer(backend, kernels=rung) for _ in range(3))
        losses = train(graphed, 8)
        assert losses == train(again, 8)
        assert losses == train(watched, 8, watched=True)
        assert_same_bits(parameters(graphed), parameters(again))
        assert_same_bits(parameters(graphed), parameters(watched))

    @pytest.mark.parametrize("crops", (None, Crops(2, reflect=True)))
    def test_resident_steps_have_the_host_paths_bits(
        self, backend: CudaBackend, gpu: CudaGpu, crops: Crops | None
    ) -> None:
        one = pixels()
        data = ResidentData(gpu, one.images, one.labels, *normalise.coefficients(MEAN, STD))
        draw = np.random.default_rng(1)
        order = draw.integers(0, len(one.labels), (150, 6))
        rates = np.array([hyper_vector({"lr": 0.1 / (1 + i), "momentum": 0.9}) for i in range(150)])
        draws = draw.integers(0, 5, (len(one.labels), 3), np.uint8) if crops else None
        resident, fed = trainer(backend), trainer(backend)
        results = ResidentSteps(resident, data, crops).train(order, rates, draws=draws)
        losses = []
        for step, samples in enumerate(order):
            images = _cropped(one.images[samples], draws, samples, crops)
            write_batch(fed, normalise.normalise(images, MEAN, STD), one.labels[samples])
            fed.write("hyper", rates[step])
            fed.write("counter", np.array([7, step], np.uint64))
            fed.run()
            losses.append(float(fed.read("loss")))
        assert results.losses.tolist() == losses
        assert_same_bits(parameters(resident), parameters(fed))

    def test_lenet_follows_the_cpu(self) -> None:
        draw = np.random.default_rng(0)
        batches = [
            (draw.standard_normal((64, 1, 28, 28)).astype(np.float32), draw.integers(0, 10, 64))
            for _ in range(10)
        ]
        losses = {}
        for name in ("cpu", "cuda"):
            engine = Engine(
                lenet(10, 1, 28),
                loss=nn.CrossEntropyLoss(),
                optimizer=SGD(lr=0.01, momentum=0.9),
                input_shape=(1, 28, 28),
                device=name,
            )
            losses[name] = [engine.train_step(*one).loss for one in batches]
        np.testing.assert_allclose(losses["cuda"][:5], losses["cpu"][:5], rtol=1e-6)
        np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=1e-4)

    @pytest.mark.parametrize("n", (65_535, 65_536, 70_000))
    def test_large_batches(self, backend: CudaBackend, n: int) -> None:
        """The last row of a large batch is what it is in a small one."""
        images, labels = batch(n, 0)
        training = trainer(backend, n)
        logits = []
        for rows in (slice(None), slice(n - 3, n)):
            plan = evaluate_plan(backend, len(labels[rows]), "auto")
            executable = backend.executable(plan, training.storage)
            write_batch(executable, images[rows], labels[rows])
            executable.run()
            logits.append(executable.read(plan.graph.outputs[0])[-3:])
        np.testing.assert_allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6)
        write_batch(training, images, labels)
        assert training.run_watched() is None

    def test_a_fault_is_found(self, backend: CudaBackend) -> None:
        executable = trainer(backend)
        images, labels = batch(6, 0)
        images[5, 1, 3, 3] = np.nan
        write_batch(executable, images, labels)
        before = parameters(executable)
        found = executable.run_watched()
        assert found is not None
        assert found.startswith("0 ")
        assert_same_bits(parameters(executable), before)


class TestProcess:
    def test_threads_have_the_results_of_one(self, backend: CudaBackend) -> None:
        """What one thread captures holds nothing of another's."""
        alone = train(trainer(backend), 40)
        losses: dict[int, list[float]] = {}

        def work(index: int) -> None:
            losses[index] = train(trainer(backend), 40)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert losses == dict.fromkeys(range(4), alone)

    def test_goes_on_after_too_large_a_batch(
        self, backend: CudaBackend, gpu: CudaGpu, alone: None
    ) -> None:
        storage = backend.storage(train_plan(backend, 1))
        gpu.synchronize()
        before = gpu.free_bytes()
        with pytest.raises(OutOfMemoryError, match="would fit"):
            backend.executable(train_plan(backend, 1_000_000_000), storage)
        assert gpu.free_bytes() == before
        small = trainer(backend, 32)
        assert np.isfinite(train(small, 3, n=32)).all()

    def test_fork_is_explained(self) -> None:
        """The child must neither hang nor crash."""
        done = python(
            """
            import os
            from convloom.backends.base import DeviceError
            from convloom.backends.cuda.gpu import open_gpu
            gpu = open_gpu()
            child = os.fork()
            if child == 0:
                try:
                    gpu.allocate(64)
                except DeviceError as error:
                    print(error, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            gpu.synchronize()
            """
        )
        assert "forked" in done
        assert "spawn" in done

    def test_hidden_gpus(self) -> None:
        for value, words in (("", "is empty"), ("99", "names no GPU")):
            done = python(
                "from convloom.backends.cuda import device; print(device.missing())",
                CUDA_VISIBLE_DEVICES=value,
            )
            assert words in done

    def test_two_processes_have_the_results_of_one(self) -> None:
        script = """
            from convloom.backends.cuda.backend import CudaBackend
            from tests.backends.cuda.test_gpu import train, trainer
            print(train(trainer(CudaBackend()), 30))
        """
        alone = python(script)
        both = [start(script) for _ in range(2)]
        assert [one.communicate(timeout=300)[0] for one in both] == [alone, alone]


def _cropped(
    images: np.ndarray, draws: np.ndarray | None, samples: np.ndarray, crops: Crops | None
) -> np.ndarray:
    if crops is None or draws is None:
        return images
    p = crops.padding
    padded = np.pad(images, ((0, 0), (0, 0), (p, p), (p, p)), mode="reflect")
    made = np.empty_like(images)
    for i, sample in enumerate(samples):
        row, column, flip = draws[sample]
        crop = padded[i, :, row : row + SHAPE[1], column : column + SHAPE[2]]
        made[i] = crop[:, :, ::-1] if flip else crop
    return made


def start(script: str, **changes: str) -> subprocess.Popen[str]:
    root = Path(__file__).resolve().parents[3]
    path = os.pathsep.join([str(root / "src"), str(root), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "PYTHONPATH": path, **changes},
        stdout=subprocess.PIPE,
        text=True,
    )


def python(script: str, **changes: str) -> str:
    """What a new process prints."""
    process = start(script, **changes)
    out, _ = process.communicate(timeout=300)
    assert process.returncode == 0, out
    return out
