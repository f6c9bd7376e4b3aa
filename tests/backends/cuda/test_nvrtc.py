"""Compiling kernels with NVRTC; no GPU is needed."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from convloom.backends.cache import ObjectCache
from convloom.backends.cuda import create, nvrtc
from convloom.backends.cuda.device import architecture
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cuda.nvrtc import Compiler, Cubin, KernelError, Usage, usage_of
from convloom.backends.cuda.resident import Crops, kernels
from convloom.ir import Plan
from tests.backends.cuda.networks import evaluate_plan, train_plan

RECORD = Specialisation("record/naive", (("COSTS", 0), ("RANKS", 2)))


@pytest.fixture
def compiler(tmp_path: Path) -> Compiler:
    pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'convloom[cuda13]'")
    return Compiler(ObjectCache(tmp_path, "cuda", ".cubin"))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of kernels of the test's own."""
    folder = tmp_path / "kernels"
    (folder / "device").mkdir(parents=True)
    (folder / "toy").mkdir()
    monkeypatch.setattr(nvrtc, "SOURCES", folder)
    nvrtc.translation_unit.cache_clear()
    nvrtc._inlined.cache_clear()
    yield folder
    nvrtc.translation_unit.cache_clear()
    nvrtc._inlined.cache_clear()


class TestCache:
    def test_second_time_nothing_is_compiled(
        self, compiler: Compiler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        first = compiler.compile([RECORD, RECORD], "sm_75")
        assert capsys.readouterr().err.startswith("compiling 1 kernel")
        again = Compiler(compiler.cache).compile([RECORD], "sm_75")
        assert again == first
        assert capsys.readouterr().err == ""

    def test_key_holds_constants_architecture_version_and_headers(
        self, compiler: Compiler, sources: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (sources / "device" / "h.cuh").write_text("#pragma once\n#define TWO 2\n")
        (sources / "toy" / "naive.cu").write_text(
            '#include "device/h.cuh"\n'
            "template <class P> __global__ void toy_naive(int* x) { *x = TWO * P::N; }\n"
        )
        toy = Specialisation("toy/naive", (("N", 1),))

        def paths() -> set[Path]:
            return {compiler._path(s, a) for s, a in ((toy, "sm_75"), (toy, "sm_90a"), (two, "x"))}

        two = Specialisation("toy/naive", (("N", 2),))
        before = paths()
        assert len(before) == 3
        (sources / "device" / "h.cuh").write_text("#pragma once\n#define TWO (1 + 1)\n")
        nvrtc.translation_unit.cache_clear()
        nvrtc._inlined.cache_clear()
        edited = paths()
        assert not before & edited
        monkeypatch.setattr(nvrtc, "compiler_identity", lambda: "NVRTC 99")
        assert not edited & paths()

    def test_damaged_record_is_compiled_again(
        self, compiler: Compiler, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (good,) = compiler.compile([RECORD], "sm_75").values()
        (path,) = compiler.cache.folder.iterdir()
        path.write_bytes(path.read_bytes()[:-7])
        capsys.readouterr()
        assert compiler.compile([RECORD], "sm_75") == {RECORD: good}
        assert "compiling 1 kernel" in capsys.readouterr().err

    def test_record_is_whole(self) -> None:
        cubin = Cubin(b"\x7fELF\n\n\0", "_Z3foo", Usage(32, 128, 8, 16))
        assert Cubin.from_record(cubin.record()) == cubin

    def test_cached_kernels_need_no_nvrtc(self, compiler: Compiler) -> None:
        """A second start must not pay for loading the compiler."""
        compiler.compile([RECORD], "sm_75")
        script = (
            "import sys; from pathlib import Path\n"
            "from convloom.backends.cache import ObjectCache\n"
            "from convloom.backends.cuda.nvrtc import Compiler\n"
            "from convloom.backends.cuda.launch import Specialisation\n"
            f"cache = ObjectCache(Path({str(compiler.cache.folder.parent)!r}), 'cuda', '.cubin')\n"
            f"assert Compiler(cache).compile([{RECORD!r}], 'sm_75')\n"
            "assert not [m for m in sys.modules if m.startswith('cuda.')]\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stderr) == (0, "")


class TestSources:
    def test_headers_are_inlined_and_guarded(self, sources: Path) -> None:
        (sources / "device" / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
        (sources / "device" / "b.cuh").write_text('#pragma once\n#include "device/a.cuh"\nint b;\n')
        (sources / "toy" / "naive.cu").write_text(
            '#include "device/b.cuh"\n#include "device/a.cuh"\n#include "sim/host.h"\nint c;\n'
        )
        text = nvrtc.translation_unit(Specialisation("toy/naive", (("K", -3),)))
        assert [line for line in text.splitlines() if "#include" in line] == [
            '#include "sim/host.h"'
        ]
        assert "static constexpr long long K = -3LL;" in text
        host = text.replace('#include "sim/host.h"', "")
        done = subprocess.run(
            ["g++", "-E", "-P", "-x", "c++", "-"], input=host, capture_output=True, text=True
        )
        assert [line for line in done.stdout.splitlines() if line.startswith("int ")] == [
            "int a;",
            "int b;",
            "int c;",
        ]

    def test_missing_header(self, sources: Path) -> None:
        (sources / "toy" / "naive.cu").write_text('#include "device/gone.cuh"\n')
        with pytest.raises(KernelError, match=r"device/gone.cuh, which toy/naive.cu includes"):
            nvrtc.translation_unit(Specialisation("toy/naive"))

    def test_names_are_the_specialisations_own(self) -> None:
        one = Specialisation("a/naive", (("N", 1),))
        others = (Specialisation("b/naive", (("N", 1),)), Specialisation("a/naive", (("N", 2),)))
        assert nvrtc.expression_of(one).startswith("a_naive<P_")
        names = {nvrtc.expression_of(s).partition("<")[2] for s in (one, *others)}
        assert len(names) == 3


class TestCompiler:
    def test_refused_kernel(self, compiler: Compiler, sources: Path) -> None:
        (sources / "toy" / "naive.cu").write_text(
            "// one\ntemplate <class P> __global__ void toy_naive(int* x) { *x = P::GONE; }\n"
        )
        with pytest.raises(
            KernelError,
            match=r"NVRTC .* for sm_75 .*toy/naive\(N=1\): .*cu\(2\): error.*GONE.*log: ",
        ) as caught:
            compiler.compile([Specialisation("toy/naive", (("N", 1),))], "sm_75")
        log = Path(str(caught.value).rsplit("log: ", 1)[1].rstrip(")"))
        assert "P::GONE" in log.read_text()
        log.unlink()
        assert not list(compiler.cache.folder.glob("*"))

    def test_foreign_architecture(self, compiler: Compiler) -> None:
        with pytest.raises(KernelError, match=r"does not compile for sm_199.*pip install -U"):
            compiler.compile([RECORD], "sm_199")

    def test_without_cuda_core(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "cuda.core", None)
        with pytest.raises(KernelError, match=r"pip install 'convloom\[cuda13\]'"):
            nvrtc.compile_kernel(RECORD, "sm_75")

    def test_architectures_cannot_be_asked(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The package of the bindings may be there without the compiler's library, or neither."""

        class Nvrtc:
            @staticmethod
            def nvrtcGetSupportedArchs() -> None:  # noqa: N802
                raise RuntimeError("libnvrtc.so.13 was not found\nsearched: everywhere")

        monkeypatch.setitem(sys.modules, "cuda.bindings.nvrtc", Nvrtc)
        with pytest.raises(KernelError, match=r"NVRTC, .* \(libnvrtc.so.13 was not found\); pip"):
            nvrtc.supported_architectures()
        monkeypatch.setitem(sys.modules, "cuda.core", None)
        with pytest.raises(KernelError, match=r"needs cuda-core .*convloom\[cuda13\]"):
            nvrtc.supported_architectures()

    def test_an_answer_from_nvrtc_s_own_cache(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It may repeat warnings; what a kernel takes is told only when it is compiled afresh."""
        asked: list[bool] = []

        class Core:
            @staticmethod
            def ProgramOptions(**options: object) -> bool:  # noqa: N802
                return bool(options.get("no_cache"))

            @staticmethod
            def Program(text: str, kind: str, fresh: bool) -> Any:  # noqa: N802
                return SimpleNamespace(compile=lambda *_, **given: made(fresh, given["logs"]))

        def made(fresh: bool, logs: Any) -> Any:
            asked.append(fresh)
            logs.write("record/naive.cu(3): warning #128-D: loop is not reachable\n")
            if fresh:
                logs.write("ptxas info    : Function properties for _Z6record\n")
                logs.write("    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n")
                logs.write("ptxas info    : Used 16 registers, used 0 barriers\n")
            names = {nvrtc.expression_of(RECORD): "_Z6record"}
            return SimpleNamespace(symbol_mapping=names, code=b"\x7fELF")

        monkeypatch.setattr(nvrtc, "cuda_core", lambda: Core)
        assert nvrtc.compile_kernel(RECORD, "sm_75").usage == Usage(16, 0, 0, 0)
        assert asked == [False, True]

    def test_usage(self) -> None:
        log = (
            "ptxas info    : Compiling entry function 'b' for 'sm_90a'\n"
            "ptxas info    : Function properties for b\n"
            "ptxas    .  800 bytes stack frame, 12 bytes spill stores, 4 bytes spill loads\n"
            "ptxas info    : Used 255 registers, used 1 barriers, 800 bytes cumulative stack size\n"
            "ptxas info    : Function properties for a\n"
            "ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n"
            "ptxas info    : Used 16 registers, used 1 barriers, 4096 bytes smem, 8 bytes cmem[2]\n"
        )
        assert usage_of("a", log) == Usage(16, 4096, 0, 0)
        assert usage_of("b", log) == Usage(255, 0, 800, 16)
        with pytest.raises(KernelError, match="did not say"):
            usage_of("c", log)

    def test_shared_memory_and_stack_are_told(self, compiler: Compiler, sources: Path) -> None:
        (sources / "toy" / "naive.cu").write_text(
            "template <class P> __global__ void toy_naive(int* x, long long n) {\n"
            "    __shared__ int s[P::N];\n"
            "    int own[64];\n"
            "    for (int i = 0; i < 64; ++i) own[x[i] & 63] = i;\n"
            "    s[threadIdx.x] = own[n]; __syncthreads(); x[0] = s[threadIdx.x ^ 1];\n"
            "}\n"
        )
        toy = Specialisation("toy/naive", (("N", 128),))
        usage = compiler.compile([toy], "sm_80")[toy].usage
        assert (usage.shared, usage.stack, usage.spilled) == (512, 256, 0)
        assert usage.registers > 0


def everything(plans: list[Plan]) -> set[Specialisation]:
    """All kernels of some plans, and those around a resident step."""
    found = {p.kernel for plan in plans for s in plan.steps for p in s.selection.launch.phases}
    windows = Crops(4, size=28), Crops(0, reflect=True, size=28, noise=True)
    for crops in (None, Crops(4), Crops(4, reflect=True), *windows):
        found |= set(kernels((3, 32, 32), 9, crops))
    return found


@pytest.mark.parametrize("capability", ((7, 5), (9, 0)))
@pytest.mark.parametrize("rung", ("naive", "auto"))
def test_a_small_network_compiles(
    compiler: Compiler, rung: str, capability: tuple[int, int]
) -> None:
    backend = create()
    plans = [train_plan(backend, 4, rung), evaluate_plan(backend, 4, rung)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = compiler.compile(everything(plans), architecture(capability))
    for specialisation, cubin in done.items():
        assert cubin.code.startswith(b"\x7fELF"), specialisation
        assert cubin.usage.spilled == 0, specialisation
