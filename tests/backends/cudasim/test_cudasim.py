"""The backend "cuda-sim": plans of CUDA kernels, run step by step on the host."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends.base import DeviceError, LayoutPolicy, get_backend
from convloom.backends.cache import ObjectCache
from convloom.backends.cpu import toolchain
from convloom.backends.cpu.toolchain import CompilerError
from convloom.backends.cuda.launch import Argument, CudaLaunch, Phase, Tensor
from convloom.backends.cudasim.backend import CudaSimBackend
from convloom.backends.cudasim.build import Workshop, compiler_for, with_gaps
from convloom.backends.cudasim.elf import plain_name, thread_local_variables
from convloom.backends.cudasim.executable import CudaSimExecutable
from convloom.backends.cudasim.memory import CudaSimStorage
from convloom.backends.cudasim.modes import (
    MODES,
    SimulationError,
    mode_of_environment,
    patience,
)
from convloom.ir import ConvloomError, Node, Plan, Selection, TensorSpec
from convloom.ops import Add
from tests.backends.cudasim.bench import KERNELS, NEEDS_GCC, kernel, workshop_of
from tests.backends.harness import integers, normals, one_node, plan_of

pytestmark = NEEDS_GCC
MODE_NAMES = ("plain", "asan", "race")


@dataclass
class OneKernel:
    """A backend whose every op is one launch of a test kernel."""

    phase: Phase
    name = "cuda-sim"
    rungs = ("naive",)
    layout_policy = LayoutPolicy()

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection:
        """The launch; it may use 4 KiB of workspace."""
        return Selection("naive", "test", CudaLaunch((self.phase,)), workspace=4096)


def bound(mode: str, source: str, *arguments: Argument, **constants: int) -> CudaSimExecutable:
    """One step y0 = Add(x0, x1) of 64 numbers that runs a test kernel, with x0 and x1 written."""
    x = np.arange(64, dtype=np.float32)
    phase = Phase(kernel(source, **constants), arguments, blocks=1, threads=64, shared=256)
    plan = plan_of(one_node(Add(), [x, x]), OneKernel(phase))  # type: ignore[arg-type]
    workshop = workshop_of(mode)
    executable = CudaSimExecutable(plan, CudaSimStorage(plan, workshop.machine), workshop)
    executable.write("x0", x)
    executable.write("x1", 2 * x)
    return executable


ADD = (Tensor("x0"), Tensor("x1"), Tensor("y0"), 64)


class TestExecutable:
    @pytest.mark.parametrize("mode", MODE_NAMES)
    def test_a_step(self, mode: str) -> None:
        executable = bound(mode, "sound/vector_add", *ADD)
        for threads in (1, 2):
            executable.set_num_threads(threads)
            executable.run()
            np.testing.assert_array_equal(executable.read("y0"), 3 * np.arange(64))
        assert executable.run_watched() is None
        executable.write("x1", np.full(64, np.nan))
        assert executable.run_watched() == "test (Add)"

    @pytest.mark.parametrize("mode", MODE_NAMES)
    def test_an_error_names_step_kernel_block_and_thread(self, mode: str) -> None:
        executable = bound(mode, "faults/barriers", Tensor("x0"), Tensor("y0"), 1, CASE=0)
        with pytest.raises(
            SimulationError,
            match=r"test \(Add\): kernel faults_barriers, block 0, thread 32: divergent "
            r"__syncthreads: this thread waits at faults/barriers.cu:12",
        ):
            executable.run()

    def test_memory_of_other_tensors_is_closed(self) -> None:
        # Behind x0, x1, y0 and the workspace, but still in the arena.
        behind = (3 * 256 + 4096) // 4
        executable = bound("asan", "faults/memory", Tensor("x0"), Tensor("y0"), behind, CASE=0)
        with pytest.raises(SimulationError, match=r"Add.*access outside .* at faults/memory.cu:7"):
            executable.run()
        np.testing.assert_array_equal(executable.read("x0"), np.arange(64))  # nothing is lost

    def test_two_threads_that_write_one_element(self) -> None:
        executable = bound("race", "faults/memory", Tensor("x0"), Tensor("y0"), 1, CASE=7)
        with pytest.raises(SimulationError, match="results change with the order"):
            executable.run()

    def test_a_kernel_that_writes_to_its_input(self) -> None:
        executable = bound("race", "sound/vector_add", *ADD[:2], Tensor("x1"), 64)
        with pytest.raises(SimulationError, match="writes to an input of its step"):
            executable.run()

    def test_what_a_kernel_leaves_out_is_nan(self) -> None:
        executable = bound("plain", "sound/vector_add", *ADD[:3], 60)
        executable.run()
        assert np.isnan(executable.read("y0")[60:]).all()
        assert executable.run_watched() == "test (Add)"

    @pytest.mark.parametrize(
        "arguments",
        [ADD[:3], (*ADD, 1), (*ADD[:3], 1.0), (7, *ADD[1:]), (*ADD[:2], 0.0, 64)],
    )
    def test_launch_must_fit_the_kernel(self, arguments: tuple[Argument, ...]) -> None:
        with pytest.raises(SimulationError, match="takes parameters 'pppi'"):
            bound("plain", "sound/vector_add", *arguments)

    def test_reading_and_writing(self) -> None:
        executable = bound("plain", "sound/vector_add", *ADD)
        with pytest.raises(KeyError, match="cannot be written; these can: x0, x1"):
            executable.write("y0", np.zeros(64))
        with pytest.raises(KeyError, match="is not a tensor of this plan"):
            executable.read("z")
        with pytest.raises(ValueError, match="at least 1"):
            executable.set_num_threads(0)

    def test_storage_of_another_backend_is_refused(self) -> None:
        plan = bound("plain", "sound/vector_add", *ADD).plan
        with pytest.raises(ValueError, match="storage that it made itself"):
            CudaSimBackend(MODES["plain"]).executable(plan, get_backend("cpu").storage(plan))


class TestTraining:
    @pytest.mark.parametrize("mode", MODE_NAMES)
    def test_a_network_learns_as_on_the_cpu(
        self, mode: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CONVLOOM_SIM", mode)
        x, y = normals((4, 1, 10, 10), 0), np.array([0, 3, 2, 3])
        losses = []
        for device in ("cpu", "cuda-sim"):
            model = nn.Sequential(
                nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(64, 4)
            ).initialize(seed=1)
            step = cl.compile(
                model,
                nn.CrossEntropyLoss(),
                cl.optim.SGD(lr=0.1, momentum=0.9),
                batch_size=4,
                input_shape=(1, 10, 10),
                device=device,
            )
            losses.append([float(step(x, y)) for _ in range(3)])
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)
        assert losses[1][2] < losses[1][0]

    def test_many_plans_compile_in_one_batch(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setenv("CONVLOOM_CACHE", str(tmp_path))
        backend = CudaSimBackend(MODES["plain"])
        plans = [plan(backend, n) for n in (3, 4, 5)]
        backend.prepare(plans)
        assert capsys.readouterr().err.startswith("compiling ")
        for one in plans:
            backend.executable(one, backend.storage(one)).run()
        assert capsys.readouterr().err == ""


def plan(backend: CudaSimBackend, n: int) -> Plan:
    return plan_of(one_node(Add(), [integers((n,), 0), integers((n,), 1)]), backend)


class TestBuilding:
    def workshop(self, folder: Path, sources: Path = KERNELS) -> Workshop:
        return Workshop(
            compiler_for(MODES["plain"]), ObjectCache(folder, "cuda-sim"), MODES["plain"], sources
        )

    def test_second_process_compiles_nothing(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        wanted = [kernel("sound/vector_add"), kernel("sound/votes")]
        self.workshop(tmp_path).load(wanted)
        assert capsys.readouterr().err.startswith("compiling 2 kernels with g++ for the simulator")
        self.workshop(tmp_path).load(wanted)
        assert capsys.readouterr().err == ""

    def test_specialisations_of_a_file_share_a_library(self, tmp_path: Path) -> None:
        wanted = [kernel("sound/fragments", KIND=kind) for kind in range(5)]
        functions = self.workshop(tmp_path).load(wanted)
        assert len({f.library for f in functions.values()}) == 1
        assert [f.entry for f in functions.values()] == [0, 1, 2, 3, 4]
        assert {f.letters for f in functions.values()} == {"ppp"}

    def test_a_changed_source_is_compiled_again(self, tmp_path: Path) -> None:
        keys = []
        for number, body in enumerate(("y[0] = 1.0f;", "y[0] = 2.0f;")):
            folder = tmp_path / str(number) / "own"
            folder.mkdir(parents=True)
            text = f"template <class P> __global__ void own_set(float* y) {{ {body} }}\n"
            (folder / "set.cu").write_text(text)
            functions = self.workshop(tmp_path, folder.parent).load([kernel("own/set")])
            keys.append(functions[kernel("own/set")].library)
        assert keys[0] != keys[1]

    def test_a_refused_kernel_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "bad.cu").write_text(
            "template <class P> __global__ void own_bad(int n) {}\n"
        )
        with pytest.raises(CompilerError, match=r"could not compile the kernel own_bad\(N=3\): "):
            self.workshop(tmp_path, tmp_path).load([kernel("own/bad", N=3)])
        with pytest.raises(CompilerError, match=r"own/none\.cu does not exist"):
            self.workshop(tmp_path, tmp_path).load([kernel("own/none")])

    def test_cache_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.warns(UserWarning, match="cannot be kept"):
            functions = self.workshop(tmp_path / "file").load([kernel("sound/vector_add")])
        assert functions

    def test_two_caches_in_one_process(self, tmp_path: Path) -> None:
        """Each has a runtime of its own, of which the loader would give all kernels the first."""
        code = (
            "import os, sys\n"
            "from tests.backends.cudasim.test_cudasim import Tensor, bound\n"
            "from tests.backends.cudasim import bench\n"
            "for folder in sys.argv[1:]:\n"
            "    os.environ['CONVLOOM_CACHE'] = folder\n"
            "    bench._workshops.clear()\n"
            "    step = bound('plain', 'faults/shared', Tensor('x0'), Tensor('y0'), 1, CASE=0)\n"
            "    step.run()\n"
            "    print(step.read('y0')[0])\n"
        )
        places = [str(tmp_path / name) for name in ("one", "two")]
        command = [sys.executable, "-c", code, *places]
        shown = subprocess.run(command, capture_output=True, text=True)
        assert shown.stdout == "63.0\n63.0\n", shown.stderr

    def test_static_shared_variables(self) -> None:
        functions = workshop_of("asan").load([kernel("faults/shared", CASE=c) for c in (0, 12)])
        # One library, or two where another test has loaded one of the kernels before.
        for library in {function.library for function in functions.values()}:
            variables = thread_local_variables(Path(library))
            found = [v for v in variables if v.name in ("tile", "other")]
            assert {v.nbytes for v in found} == {256}
            for one, following in itertools.pairwise(found):
                assert one.offset + one.nbytes + 64 <= following.offset

    def test_with_gaps(self) -> None:
        text = "\t.section\t.tbss\ntile:\n\t.zero\t8\n\t.section\t.bss\n\t.zero\t8\n"
        assert with_gaps(text).count("\t.zero\t64") == 1

    @pytest.mark.parametrize(
        "mangled,plain",
        [
            ("_ZZ4kernPfE4tile", "tile"),
            ("_ZZ13faults_sharedIN12_GLOBAL__N_12P0EEvPKfPfxE5other", "other"),
            ("_ZZ4kernPfE1a_0", "a"),
            ("smem_raw", "smem_raw"),
        ],
    )
    def test_plain_name(self, mangled: str, plain: str) -> None:
        assert plain_name(mangled) == plain

    def test_no_compiler(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("CXX", raising=False)
        monkeypatch.setenv("PATH", str(tmp_path))
        monkeypatch.setattr(toolchain.importlib.util, "find_spec", lambda name: None)
        with pytest.raises(DeviceError, match=r"none was found; install one with `apt install g"):
            compiler_for(MODES["plain"])
        with pytest.raises(DeviceError, match=r"CONVLOOM_SIM=asan needs g\+\+"):
            compiler_for(MODES["asan"])


class TestModes:
    def test_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CONVLOOM_SIM", raising=False)
        assert mode_of_environment().name == "plain"
        monkeypatch.setenv("CONVLOOM_SIM", "race")
        assert get_backend("cuda-sim").mode.name == "race"  # type: ignore[attr-defined]
        monkeypatch.setenv("CONVLOOM_SIM", "valgrind")
        with pytest.raises(ConvloomError, match="choose one of plain, debug, asan, race"):
            get_backend("cuda-sim")

    def test_patience(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("CONVLOOM_SIM_TIMEOUT", raising=False)
        assert patience(MODES["plain"]) == 60
        assert patience(MODES["debug"]) == 0
        monkeypatch.setenv("CONVLOOM_SIM_TIMEOUT", "2.5")
        assert patience(MODES["debug"]) == 2.5
        for wrong in ("soon", "-1", "nan", "inf"):
            monkeypatch.setenv("CONVLOOM_SIM_TIMEOUT", wrong)
            with pytest.raises(ConvloomError, match="must be a number of seconds"):
                patience(MODES["plain"])

    def test_fibers_without_assembly(self, tmp_path: Path) -> None:
        """The switch of every machine that is not x86-64."""
        mode = replace(MODES["plain"], runtime=("-DCONVLOOM_SIM_UCONTEXT",))
        own = workshop_of("plain")
        workshop = Workshop(own.compiler, own.cache, mode, KERNELS)
        executable = bound("plain", "sound/vector_add", *ADD)
        phase = Phase(kernel("faults/shared", CASE=0), (Tensor("x0"), Tensor("y0"), 1), 1, 64, 256)
        plan = replace(
            executable.plan,
            steps=tuple(
                replace(step, selection=replace(step.selection, launch=CudaLaunch((phase,))))
                for step in executable.plan.steps
            ),
        )
        other = CudaSimExecutable(plan, CudaSimStorage(plan, workshop.machine), workshop)
        other.write("x0", np.arange(64))
        other.run()
        np.testing.assert_array_equal(other.read("y0"), np.arange(63, -1, -1))


class TestInterruption:
    @pytest.mark.parametrize("mode", MODE_NAMES)
    def test_ctrl_c_ends_an_endless_kernel(self, mode: str) -> None:
        executable = bound(mode, "faults/barriers", Tensor("x0"), Tensor("y0"), 1, CASE=4)

        def interrupt() -> None:
            time.sleep(0.5)
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            executable.run()
        thread.join()
        again = bound(mode, "sound/vector_add", *ADD)
        again.run()
        np.testing.assert_array_equal(again.read("y0"), 3 * np.arange(64))

    def test_a_forked_child_simulates_too(self) -> None:
        executable = bound("plain", "sound/vector_add", *ADD)
        executable.run()
        child = os.fork()
        if child == 0:
            executable.run()
            os._exit(0 if executable.read("y0")[1] == 3 else 1)
        assert os.waitpid(child, 0)[1] == 0

    def test_the_child_process_needs_no_package(self) -> None:
        """It runs machine.py as a program; anything more would take long under a sanitizer."""
        code = (
            "import sys, runpy; sys.argv = ['machine.py'];"
            "from importlib.util import find_spec;"
            "place = find_spec('convloom.backends.cudasim.machine').origin;"
            "before = set(sys.modules);"
            "runpy.run_path(place, run_name='other');"
            "print(*{m.split('.')[0] for m in set(sys.modules) - before} & {'numpy', 'convloom'})"
        )
        shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert shown.returncode == 0, shown.stderr
        assert shown.stdout.strip() == ""
