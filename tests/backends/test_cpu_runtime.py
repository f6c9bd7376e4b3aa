"""The CPU backend around its kernels: compiling, caching, threads, executables."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from convloom.backends.base import Executable, get_backend
from convloom.backends.cache import ObjectCache
from convloom.backends.cpu import backend as cpu_backend
from convloom.backends.cpu import jit, toolchain
from convloom.backends.cpu.backend import CpuBackend
from convloom.backends.cpu.jit import Jit
from convloom.backends.cpu.launch import Specialisation
from convloom.backends.cpu.pool import default_threads
from convloom.backends.cpu.toolchain import Compiler, CompilerError, find_compiler
from convloom.compiler import compile_graph
from convloom.ir import ROW_MAJOR, ConvloomError, Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import SGD, Linear, MaxPool2d, ReLU, SoftmaxCrossEntropy
from convloom.ops.base import Op
from convloom.ops.control import HYPER_SPEC, hyper_vector
from convloom.ops.fused import FusedLinear, FusedLinearDgrad, FusedLinearWgrad
from tests.backends.harness import bind, compare, integers, normals, outcome, plan_of, run_op

RELU = Specialisation("relu", (("CHUNK", 64),))


@pytest.fixture
def compiler() -> Compiler:
    found = find_compiler()
    if found is None:
        pytest.skip("no C++ compiler here")
    return found


@pytest.fixture
def fresh(compiler: Compiler, tmp_path: Path) -> Jit:
    return Jit(compiler, ObjectCache(tmp_path))


class TestCache:
    def test_second_process_compiles_nothing(
        self, fresh: Jit, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fresh.load([RELU, RELU])
        assert capsys.readouterr().err.startswith("compiling 2 kernels with ")  # and the runtime
        assert Jit(fresh.compiler, fresh.cache).load([RELU])
        assert capsys.readouterr().err == ""

    def test_key_holds_constants_flags_and_cpu(
        self, fresh: Jit, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def objects() -> int:
            return len(list(fresh.cache.folder.glob("relu-*.so")))

        fresh.load([RELU])
        fresh.load([Specialisation("relu", (("CHUNK", 128),))])
        assert objects() == 2
        other = replace(fresh.compiler, flags=(*fresh.compiler.flags, "-DOTHER"))
        Jit(other, fresh.cache).load([RELU])
        assert objects() == 3
        monkeypatch.setattr(jit, "cpu_features", lambda: "another machine")
        Jit(fresh.compiler, fresh.cache).load([RELU])
        assert objects() == 4

    def test_key_holds_included_headers(
        self, fresh: Jit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        fresh.load([RELU])
        copied = tmp_path / "sources"
        shutil.copytree(jit.SOURCES, copied)
        with (copied / "abi.h").open("a") as header:  # relu.cpp includes simd.h, which includes it
            header.write("// changed\n")
        monkeypatch.setattr(jit, "SOURCES", copied)
        jit.source_digest.cache_clear()
        Jit(fresh.compiler, fresh.cache).load([RELU])
        jit.source_digest.cache_clear()
        assert len(list(fresh.cache.folder.glob("relu-*.so"))) == 2

    @pytest.mark.parametrize("damage", ("truncated", "empty", "one byte"))
    def test_damaged_object_is_compiled_again(
        self, fresh: Jit, damage: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        fresh.load([RELU])
        (path,) = fresh.cache.folder.glob("relu-*.so")
        good = path.read_bytes()
        flipped = good[:100] + bytes([good[100] ^ 1]) + good[101:]
        path.unlink()  # the old file is mapped by this process
        path.write_bytes(
            {"truncated": good[: len(good) // 2], "empty": b"", "one byte": flipped}[damage]
        )
        capsys.readouterr()
        assert Jit(fresh.compiler, fresh.cache).load([RELU])
        assert "compiling 1 kernel " in capsys.readouterr().err
        assert fresh.cache.holds(path)

    def test_folder_that_cannot_be_written(self, compiler: Compiler, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("in the way")
        blocked = Jit(compiler, ObjectCache(tmp_path / "file"))
        with pytest.warns(UserWarning, match="CONVLOOM_CACHE") as caught:
            assert blocked.load([RELU])
        assert len(caught) == 1

    def test_two_processes_at_once(self, compiler: Compiler, tmp_path: Path) -> None:
        script = """
            from tests.backends.harness import compare, integers
            from convloom.ops import Linear, ReLU
            compare(Linear(), integers((5, 33), 0), integers((7, 33), 1), exact=True)
            compare(ReLU(), integers((5, 33), 0), exact=True)
        """
        both = [start_python(script, CONVLOOM_CACHE=str(tmp_path)) for _ in range(2)]
        assert [process.wait(timeout=120) for process in both] == [0, 0]
        names = sorted(path.name.split("-")[0] for path in (tmp_path / "cpu").iterdir())
        assert names == ["linear_fprop", "relu", "runtime"]


class TestCompiler:
    def test_refused_kernel(self, fresh: Jit) -> None:
        broken = Specialisation("relu", (("CHUNKS", 5),))
        with pytest.raises(CompilerError, match=r"relu\(CHUNKS=5\).*error.*log: ") as caught:
            fresh.load([broken])
        log = Path(str(caught.value).rsplit("log: ", 1)[1].rstrip(")"))
        assert "CHUNK" in log.read_text()
        log.unlink()

    def test_cxx_is_obeyed(self, monkeypatch: pytest.MonkeyPatch, compiler: Compiler) -> None:
        monkeypatch.setenv("CXX", f"{shlex.join(compiler.command)} -DEXTRA")
        wished = find_compiler()
        assert wished is not None
        assert wished.command[-1] == "-DEXTRA"
        monkeypatch.setenv("CXX", "no-such-compiler")
        with pytest.raises(CompilerError, match="CXX=no-such-compiler"):
            find_compiler()
        monkeypatch.setenv("CXX", "g++ '-O2")
        with pytest.raises(CompilerError, match="No closing quotation"):
            find_compiler()

    def test_none_found(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
        assert find_compiler() is None

    def test_without_one_everything_runs_on_numpy(self) -> None:
        cpu_backend._warn_no_compiler.cache_clear()
        with pytest.warns(UserWarning, match=r"convloom\[compiler\].*apt install g\+\+") as caught:
            backend, _ = CpuBackend(None), CpuBackend(None)
        assert len(caught) == 1
        x, w = normals((3, 5), 0), normals((2, 5), 1)
        done = outcome(Linear(), x, w, backend=backend, require="reference")
        np.testing.assert_array_equal(done.outputs[0], x @ w.T)
        node = done.plan.steps[0].node
        fused = replace(node, op=FusedLinear("relu"))
        assert backend.select(fused, done.plan.graph.specs, "auto") is None

    @pytest.mark.parametrize("lanes", (4, 8, 16))
    def test_every_vector_width(self, compiler: Compiler, lanes: int) -> None:
        flags = (*compiler.flags, f"-DCL_LANES={lanes}")
        backend = CpuBackend(replace(compiler, flags=flags))
        x, w, b = integers((9, 37), 0), integers((11, 37), 1), integers((11,), 2)
        dy = integers((9, 11), 3)
        compare(FusedLinear("relu"), x, w, b, exact=True, backend=backend)
        compare(FusedLinearDgrad("relu"), dy, w, x, exact=True, backend=backend)
        compare(FusedLinearWgrad(), x, dy, exact=True, backend=backend)
        image = integers((2, 19, 6, 7), 4)
        compare(MaxPool2d((3, 3), (2, 2), (1, 1)), image, exact=True, backend=backend)
        compare(ReLU(), image, exact=True, backend=backend, layouts=(ROW_MAJOR,))
        labels = np.arange(9)
        compare(SoftmaxCrossEntropy(0.1), 3 * normals((9, 37), 5), labels, backend=backend)


class TestThreads:
    def test_number(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CONVLOOM_NUM_THREADS", "3")
        assert default_threads() == 3
        for wrong in ("²", "0", "-1", "two", "1.5"):
            monkeypatch.setenv("CONVLOOM_NUM_THREADS", wrong)
            with pytest.raises(ConvloomError, match="CONVLOOM_NUM_THREADS"):
                default_threads()
        monkeypatch.delenv("CONVLOOM_NUM_THREADS")
        assert 1 <= default_threads() <= (os.cpu_count() or 1)

    def test_a_forked_child_runs(self) -> None:
        script = """
            import os, sys
            import numpy as np
            from convloom.ops import ReLU
            from tests.backends.harness import normals, outcome
            x = normals((100, 1000), 0)
            done = outcome(ReLU(), x, threads=2, require="dense")
            child = os.fork()
            done.executable.write("x0", -x)
            done.executable.run()
            good = np.array_equal(done.executable.read("y0"), np.maximum(-x, 0))
            if child == 0:
                os._exit(0 if good else 1)
            sys.exit(os.waitpid(child, 0)[1] or not good)
        """
        assert start_python(script).wait(timeout=60) == 0

    def test_many_more_threads_than_cores(self) -> None:
        x = normals((300, 1000), 0)
        done = outcome(ReLU(), x, threads=17, require="dense")
        for _ in range(20):
            done.executable.run()
        np.testing.assert_array_equal(done.executable.read("y0"), np.maximum(x, 0))

    def test_runs_from_several_python_threads(self) -> None:
        values = [normals((50, 997), seed) for seed in range(3)]
        runs = [outcome(ReLU(), value, require="dense").executable for value in values]
        workers = [
            threading.Thread(target=lambda run=run: [run.run() for _ in range(50)]) for run in runs
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        for run, value in zip(runs, values, strict=True):
            np.testing.assert_array_equal(run.read("y0"), np.maximum(value, 0))

    def test_interrupt_leaves_it_usable(self) -> None:
        x = normals((300, 1000), 0)
        executable = outcome(ReLU(), x, require="dense").executable

        def interrupt(*_: object) -> None:
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(KeyboardInterrupt):
                run_for_ever(executable)
        finally:
            signal.signal(signal.SIGALRM, before)
        executable.write("x0", -x)
        executable.run()
        np.testing.assert_array_equal(executable.read("y0"), np.maximum(-x, 0))


@dataclass(frozen=True)
class Cube(Op):
    """An op that has no kernel."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (inputs[0] ** 3,)


def mixed_graph() -> Graph:
    """relu(x w^T), cubed, then a step of SGD on w whose gradient is w itself."""
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((4, 6)), Role.INPUT)
    builder.declare("label", TensorSpec((4,), "int64"), Role.INPUT)
    builder.declare("w", TensorSpec((5, 6)), Role.PARAMETER)
    builder.declare("v", TensorSpec((5, 6)), Role.STATE)
    builder.declare("hyper", HYPER_SPEC, Role.CONTROL)
    (h,) = builder.add(Linear(), ["x", "w"], layer="first", names=["h"])
    (r,) = builder.add(ReLU(), [h], layer="act", names=["r"])
    (c,) = builder.add(Cube(), [r], layer="cube", names=["c"])
    (y,) = builder.add(ReLU(), [c], layer="last", names=["y"])
    new = builder.add(SGD((1.0,), (1.0,)), ["hyper", "w", "w", "v"], names=["w.new", "v.new"])
    builder.outputs = [y]
    builder.updates = {"w": new[0], "v": new[1]}
    return builder.build()


class TestExecutable:
    def test_numpy_steps_between_compiled_ones(self) -> None:
        executable = bind(mixed_graph(), get_backend("cpu"))
        rungs = [step.selection.rung for step in executable.plan.steps]
        assert rungs == ["dense", "dense", "reference", "dense", "dense"]
        assert executable.plan.steps[2].selection.note
        x, w = integers((4, 6), 0), integers((5, 6), 1)
        executable.write("x", x)
        executable.storage.write("w", w)
        executable.write("hyper", hyper_vector({"lr": 0.5}))
        executable.run()
        np.testing.assert_array_equal(executable.read("y"), np.maximum(x @ w.T, 0) ** 3)
        np.testing.assert_array_equal(executable.read("w"), w / 2)
        np.testing.assert_array_equal(executable.storage.read("w"), w / 2)

    @pytest.mark.parametrize("device", ("cpu", "reference"))
    def test_watched_run_stops_at_the_first_fault(self, device: str) -> None:
        executable = bind(mixed_graph(), get_backend(device))
        x, w = np.full((4, 6), 1e15, np.float32), np.ones((5, 6), np.float32)
        executable.write("x", x)
        executable.write("w", w)
        executable.write("hyper", hyper_vector({"lr": 0.5}))
        assert executable.run_watched() == "cube (Cube)"
        np.testing.assert_array_equal(executable.read("w"), w)
        executable.write("x", x / 1e15)
        assert executable.run_watched() is None
        np.testing.assert_array_equal(executable.read("w"), w / 2)

    @pytest.mark.parametrize("device", ("cpu", "reference"))
    def test_what_can_be_read_and_written(self, device: str) -> None:
        executable = bind(mixed_graph(), get_backend(device))
        executable.run()
        for name in ("h", "nothing"):
            with pytest.raises(KeyError, match=r"can( be read)?: .*\by\b"):
                executable.read(name)
        for name in ("h", "nothing"):
            with pytest.raises(KeyError, match="label"):
                executable.write(name, np.zeros((4, 5), np.float32))
        with pytest.raises(ShapeError, match=r"'x' has shape \(4, 6\).*\(6, 4\)"):
            executable.write("x", np.zeros((6, 4), np.float32))
        with pytest.raises(ShapeError, match="int64"):
            executable.write("label", np.zeros(4, np.float32))
        executable.write("label", np.arange(4, dtype=np.int32))
        assert executable.read("label").tolist() == [0, 1, 2, 3]

    @pytest.mark.parametrize("device", ("cpu", "cuda-sim"))
    @pytest.mark.parametrize("watched", (False, True))
    def test_an_input_can_be_read_while_its_memory_is_its_own(
        self, device: str, watched: bool
    ) -> None:
        x = normals((4, 40), 0)
        for steps, lasts in ((1, True), (5, False)):
            builder = GraphBuilder()
            last = builder.declare("x", TensorSpec(x.shape), Role.INPUT)
            for _ in range(steps):
                (last,) = builder.add(ReLU(), [last])
            builder.outputs = [last]
            backend = get_backend(device)
            plan = compile_graph(builder.build(), backend)
            executable = backend.executable(plan, backend.storage(plan))
            executable.write("x", x)
            np.testing.assert_array_equal(executable.read("x"), x)
            executable.run_watched() if watched else executable.run()
            if lasts:
                np.testing.assert_array_equal(executable.read("x"), x)
            else:
                with pytest.raises(KeyError, match="'x' is not kept after a run, its memory is"):
                    executable.read("x")
            np.testing.assert_array_equal(executable.read(last), np.maximum(x, 0))

    @pytest.mark.parametrize("device", ("cpu", "reference"))
    def test_storage_must_fit_the_plan(self, device: str) -> None:
        backend = get_backend(device)
        plan = plan_of(mixed_graph(), backend)
        builder = GraphBuilder()
        builder.declare("w", TensorSpec((6, 5)), Role.PARAMETER)
        builder.outputs = list(builder.add(ReLU(), ["w"]))
        other = backend.storage(plan_of(builder.build(), backend))
        with pytest.raises(ValueError, match="'w'"):
            backend.executable(plan, other)

    def test_cap(self) -> None:
        x = normals((3, 4), 0)
        assert outcome(ReLU(), x, kernels="reference").rung == "reference"
        assert outcome(ReLU(), x, kernels="dense").rung == "dense"
        with pytest.raises(ValueError, match="auto, reference, dense, sparse"):
            outcome(ReLU(), x, kernels="best")

    def test_another_batch_size_compiles_nothing(self, capsys: pytest.CaptureFixture[str]) -> None:
        w, b = normals((7, 50), 1), normals((7,), 2)
        run_op(FusedLinear("relu"), normals((4, 50), 0), w, b)
        capsys.readouterr()
        for n in (0, 1, 100):
            run_op(FusedLinear("relu"), normals((n, 50), 0), w, b, require="dense")
        assert capsys.readouterr().err == ""

    def test_float64_runs_on_the_reference(self) -> None:
        x = np.random.default_rng(0).standard_normal((2, 3))
        (y,) = run_op(ReLU(), x, require="reference")
        np.testing.assert_array_equal(y, np.maximum(x, 0))


def run_for_ever(executable: Executable) -> None:
    while True:
        executable.run()


def start_python(script: str, **environment: str) -> subprocess.Popen[bytes]:
    """Another interpreter with this one's search path, from the repository's root."""
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join([str(root), str(root / "src"), *sys.path])
    code = "\n".join(line.removeprefix(" " * 12) for line in script.splitlines())
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path, **environment},
        cwd=root,
    )
