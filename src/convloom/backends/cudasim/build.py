"""Kernel sources to libraries that the simulator loads.

All wanted specialisations of a kernel file are one translation unit, or a few where there are many,
so that files compile in parallel and each is read once. Libraries are kept on disk under a name
that changes with everything that made them.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from convloom.backends.base import DeviceError
from convloom.backends.cache import ObjectCache, cache_directory
from convloom.backends.compiling import announced, in_parallel, refusal, source_digest
from convloom.backends.cpu.toolchain import (
    COMMON_FLAGS,
    Compiler,
    CompilerError,
    cpu_features,
    find_compiler,
)
from convloom.backends.cuda.launch import Specialisation, members
from convloom.backends.cudasim.elf import thread_local_variables
from convloom.backends.cudasim.machine import (
    Call,
    Launcher,
    Machine,
    MachineError,
    RemoteMachine,
    Settings,
)
from convloom.backends.cudasim.modes import Mode
from convloom.backends.locks import Lock

SOURCES = Path(__file__).resolve().parents[2] / "kernels" / "cuda"
#: Products and sums are fused as nvcc fuses them.
_FLAGS = (
    *COMMON_FLAGS,
    "-fno-strict-aliasing",
    "-fstack-clash-protection",  # large local arrays meet the guard page of the fiber's stack
    "-Wno-unknown-pragmas",
)
#: Without these g++ calls a function for each use of shared memory, and keeps libraries for ever.
_GNU_FLAGS = ("-fno-extern-tls-init", "-fno-gnu-unique")
#: Without the first zig builds a C++ library, which nothing here uses; the second it adds itself.
_ZIG_FLAGS = ("-nostdlib++", "-fno-sanitize=undefined")
_RUNTIME = "sim/runtime/runtime.cpp"
#: Specialisations in one translation unit. More would leave cores idle at the end of a batch.
_MOST_TOGETHER = 8
#: Bytes behind each static shared variable that AddressSanitizer is told to watch.
_GAP = 64


@dataclass(frozen=True)
class Function:
    """A compiled kernel: the library, its index there, and the letters of its parameters."""

    library: str
    entry: int
    letters: str


@dataclass(frozen=True)
class _Unit:
    """One translation unit: specialisations of one kernel file, and where the file lies."""

    kernels: tuple[Specialisation, ...]
    root: Path

    @property
    def stem(self) -> str:
        return self.kernels[0].name

    @property
    def title(self) -> str:
        shown = ", ".join(f"{n}={v}" for n, v in self.kernels[0].constants)
        others = len(self.kernels) - 1
        return f"{self.stem}({shown})" + (f" and {others} more" if others else "")

    @cached_property
    def text(self) -> str:
        source = self.kernels[0].source
        lines = ['#include "sim/cuda_host.h"', '#include "sim/entry.h"', f'#include "{source}.cu"']
        lines += ["namespace convloom {}", "using namespace convloom;"]
        for index, kernel in enumerate(self.kernels):
            lines.append(f"namespace {{ struct P{index} {{\n{members(kernel)}}}; }}")
            lines.append(f"CONVLOOM_SIM_ENTRY({index}, {kernel.name}<P{index}>)")
        return "\n".join(lines) + "\n"


@dataclass
class Workshop:
    """Compiles and loads kernels for one mode, and remembers what it has loaded.

    Args:
        sources: folder of the kernels; the simulator's own headers come from the package.
    """

    compiler: Compiler
    cache: ObjectCache
    mode: Mode
    sources: Path = SOURCES
    _functions: dict[Specialisation, Function] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def load(self, wanted: Iterable[Specialisation]) -> dict[Specialisation, Function]:
        """The kernels; what neither memory nor disk has is compiled, in one batch.

        Raises:
            CompilerError: the compiler refused a kernel, or a source is missing.
        """
        asked = list(dict.fromkeys(wanted))
        with self._lock:  # two threads that want the same compile it once
            self._load([s for s in asked if s not in self._functions])
            return {s: self._functions[s] for s in asked}

    def _load(self, missing: Sequence[Specialisation]) -> None:
        units = self._units(missing)
        for unit, library in zip(units, self._libraries(units), strict=True):
            variables = thread_local_variables(library) if self.mode.checked else []
            try:
                letters = self.machine.load(str(library), len(unit.kernels), variables)
            except MachineError as error:
                raise CompilerError(f"kernel {unit.title}: {error}") from None
            for index, kernel in enumerate(unit.kernels):
                self._functions[kernel] = Function(str(library), index, letters[index])

    def launch(self, call: Call, settings: Settings) -> str:
        """Run a kernel; returns what was wrong, empty if nothing was. Paths are as in kernels/."""
        error = self.machine.launch(call, settings)
        for root in (self.sources, SOURCES):
            error = error.replace(f"{root}/", "")
        return error

    @cached_property
    def machine(self) -> Launcher:
        """What runs the kernels."""
        runtime = str(self.runtime)
        if not self.mode.apart:
            return Machine(runtime)
        return RemoteMachine(
            runtime,
            preload=f"{self._gcc_file('libasan.so')} {self._gcc_file('libubsan.so')}",
            environment={
                # Abandoned fibers and Python itself would be reported as leaks.
                "ASAN_OPTIONS": "detect_leaks=0:detect_stack_use_after_return=0",
                "UBSAN_OPTIONS": "print_stacktrace=1",
            },
        )

    @cached_property
    def runtime(self) -> Path:
        """The runtime library, which kernels are linked to."""
        digest = source_digest(_RUNTIME, SOURCES)
        key = self._key(digest, *_FLAGS, *self._own_flags(), *self.mode.runtime)
        path = self.cache.path(f"runtime-{self.mode.name}", key)
        if self.cache.holds(path):
            return path
        output = self._workplace() / path.name
        # The soname is what a kernel's library asks for, wherever the file lies.
        named = ("-shared", f"-Wl,-soname,{path.name}")
        flags = (*_FLAGS, *self._own_flags(), "-O2", "-g1", *named, *self.mode.runtime)
        self._run(flags, SOURCES / _RUNTIME, output, "simulator runtime")
        return self._published(output, path)

    def _units(self, kernels: Sequence[Specialisation]) -> list[_Unit]:
        by_source: dict[str, list[Specialisation]] = {}
        for kernel in kernels:
            by_source.setdefault(kernel.source, []).append(kernel)
        return [
            _Unit(tuple(group[at : at + _MOST_TOGETHER]), self.sources)
            for _, group in sorted(by_source.items())
            for at in range(0, len(group), _MOST_TOGETHER)
        ]

    def _libraries(self, units: Sequence[_Unit]) -> list[Path]:
        paths = [self.cache.path(unit.stem, self._unit_key(unit)) for unit in units]
        todo = [i for i, path in enumerate(paths) if not self.cache.holds(path)]
        if todo:
            count = sum(len(units[i].kernels) for i in todo)
            with announced(count, f"{self.compiler.name} for the simulator"):
                self._workplace()  # made here, as threads that build could each make one
                assert self.runtime  # built first: kernels are linked to it
                built = in_parallel(lambda i: self._build(units[i], paths[i]), todo)
            for i, path in zip(todo, built, strict=True):
                paths[i] = path
        return paths

    def _build(self, unit: _Unit, path: Path) -> Path:
        """Compile to an object or to assembly, then link without what the mode must not link."""
        folder = self._workplace()
        source, output = folder / f"{path.stem}.cpp", folder / path.name
        source.write_text(unit.text, encoding="utf-8")
        spaced = "-fsanitize=address" in " ".join(self.mode.compile)
        middle = source.with_suffix(".s" if spaced else ".o")
        flags = (*_FLAGS, *self._own_flags(), *self._places(), *self.mode.compile)
        self._run((*flags, "-S" if spaced else "-c"), source, middle, unit.title, unit.text)
        if spaced:
            middle.write_text(with_gaps(middle.read_text("utf-8")), "utf-8")
        linked = ("-shared", "-pthread", "-Wl,--no-as-needed", str(self.runtime))
        self._run((*linked, *self._own_flags(), *self.mode.link), middle, output, unit.title)
        for done in (source, middle):
            done.unlink()
        return self._published(output, path)

    def _run(
        self, flags: Sequence[str], source: Path, output: Path, title: str, text: str = ""
    ) -> None:
        compiler = replace(self.compiler, flags=tuple(flags))
        done = compiler.build(source, output, SOURCES, folder=self.sources)
        if done.returncode != 0 or not output.exists():
            messages = done.stdout + done.stderr
            told = refusal(self.compiler.command, title, text, messages)
            raise CompilerError(f"{self.compiler.name} {told}")

    def _published(self, built: Path, path: Path) -> Path:
        """Where the library lies for good: in the cache if that can be written."""
        if not self.cache.publish(built, path):
            return built
        built.unlink()
        return path

    def _workplace(self) -> Path:
        """A folder that lasts as long as this object does."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="convloom-sim-")
        return Path(self._folder.name)

    def _places(self) -> tuple[str, ...]:
        """Where kernel files are, and how they are named: alike wherever they are installed.

        Libraries are shared by all that use this cache, other installations among them. Messages
        therefore name ``conv2d_fprop/naive.cu``. UBSan names a file by the path that found it,
        which no flag maps; so the compiler runs in the folder, and looks for files there.
        """
        roots = dict.fromkeys((self.sources, SOURCES))
        mapped = (f"-ffile-prefix-map={root}{end}" for root in roots for end in ("/=", "=."))
        return ("-I.", *mapped, "-ffile-prefix-map=./=")

    def _own_flags(self) -> tuple[str, ...]:
        """What this compiler needs besides."""
        if _is_gcc(self.compiler):
            return _GNU_FLAGS
        return _ZIG_FLAGS if self.compiler.name == "zig c++" else ()

    def _unit_key(self, unit: _Unit) -> str:
        sources = (
            source_digest("sim/cuda_host.h", SOURCES),
            source_digest("sim/entry.h", SOURCES),
            source_digest(_RUNTIME, SOURCES),
            self._source_digest(f"{unit.kernels[0].source}.cu"),
        )
        facts = (
            *_FLAGS,
            *self._own_flags(),
            *self.mode.compile,
            *self.mode.link,
            *self.mode.runtime,
        )
        return self._key(unit.text, *sources, *facts)

    def _source_digest(self, name: str) -> str:
        try:
            return source_digest(name, self.sources, SOURCES)
        except FileNotFoundError as error:
            raise CompilerError(f"kernel source {error}") from None

    def _key(self, *facts: str) -> str:
        about = (self.mode.name, self.compiler.identity, *self.compiler.command, cpu_features())
        return hashlib.sha256("\0".join((*about, *facts)).encode()).hexdigest()

    def _gcc_file(self, name: str) -> str:
        command = (*self.compiler.command, f"-print-file-name={name}")
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
        if not Path(shown).is_absolute():
            raise DeviceError(
                f"{self.compiler.name} comes without {name}, which CONVLOOM_SIM={self.mode.name} "
                "needs; install the full g++ package"
            )
        return shown


def with_gaps(assembly: str) -> str:
    """g++'s assembly with spare bytes behind each thread-local variable.

    AddressSanitizer puts no red zones around thread-local variables, which is what shared memory
    is here; the runtime poisons these gaps instead (runtime/asan.h).
    """
    lines, inside = [], False
    for line in assembly.splitlines():
        if line.startswith("\t.section"):
            inside = ".tbss" in line
        elif re.match(r"\t\.(text|data|bss)\b", line):
            inside = False
        lines.append(line)
        if inside and line.startswith("\t.zero"):
            lines.append(f"\t.zero\t{_GAP}")
    return "\n".join(lines) + "\n"


def compiler_for(mode: Mode) -> Compiler:
    """The compiler of a mode: any for plain runs, g++ for the others.

    Raises:
        DeviceError: there is none.
    """
    compiler = find_compiler()
    if compiler is not None and (mode.name == "plain" or _is_gcc(compiler)):
        return compiler
    if mode.name == "plain":
        raise DeviceError(
            "cuda-sim compiles CUDA kernels with a C++ compiler, and none was found; install one "
            "with `apt install g++`"
        )
    found = shutil.which("g++")
    if compiler is None or found is None:
        raise DeviceError(
            f"CONVLOOM_SIM={mode.name} needs g++, which was not found; `apt install g++`"
        )
    shown = subprocess.run([found, "--version"], capture_output=True, text=True).stdout.strip()
    return Compiler((found,), shown, ())


def _is_gcc(compiler: Compiler) -> bool:
    return "Free Software Foundation" in compiler.identity


_workshops: dict[tuple[Compiler, Path, Mode], Workshop] = {}
_sharing = Lock()


def shared_workshop(mode: Mode) -> Workshop:
    """The process's workshop for a mode and the present compiler and cache folder."""
    key = compiler_for(mode), cache_directory(), mode
    with _sharing:  # two threads that ask first get the same one
        if key not in _workshops:
            _workshops[key] = Workshop(key[0], ObjectCache(key[1], "cuda-sim"), mode)
        return _workshops[key]
