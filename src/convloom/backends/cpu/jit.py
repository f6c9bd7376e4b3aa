"""Kernel sources to callable functions: one small shared object for each specialisation."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from convloom.backends.cache import ObjectCache, cache_directory
from convloom.backends.compiling import announced, in_parallel, refusal, source_digest
from convloom.backends.cpu.launch import Specialisation
from convloom.backends.cpu.toolchain import Compiler, CompilerError, cpu_features
from convloom.backends.locks import Lock

SOURCES = Path(__file__).resolve().parents[2] / "kernels" / "cpu"
ENTRY = "convloom_kernel"


@dataclass
class Jit:
    """Compiles specialisations and loads them; remembers what it has loaded.

    One instance serves a process; see ``shared_jit``.
    """

    compiler: Compiler
    cache: ObjectCache
    _loaded: dict[Specialisation, int] = field(default_factory=dict)
    _runtime: ctypes.CDLL | None = None
    _lock: Lock = field(default_factory=Lock)

    def load(self, wanted: Iterable[Specialisation]) -> dict[Specialisation, int]:
        """The address of each kernel; what neither memory nor disk has is compiled, in one batch.

        Raises:
            CompilerError: the compiler refused a kernel.
        """
        asked = list(dict.fromkeys(wanted))
        with self._lock:
            missing = [s for s in asked if s not in self._loaded]
            for specialisation, library in zip(
                missing, self._libraries([_Unit.kernel(s) for s in missing]), strict=True
            ):
                self._loaded[specialisation] = _address(library)
            return {s: self._loaded[s] for s in asked}

    def runtime(self) -> ctypes.CDLL:
        """The library of the thread pool."""
        self.load(())
        assert self._runtime is not None
        return self._runtime

    def _libraries(self, kernels: list[_Unit]) -> list[ctypes.CDLL]:
        """The kernels' libraries; the runtime is loaded along with the first of them."""
        units = kernels if self._runtime else [*kernels, _Unit.plain("runtime")]
        paths = [self.cache.path(unit.stem, self._key(unit)) for unit in units]
        found = [self._load_cached(path) for path in paths]
        todo = [i for i, library in enumerate(found) if library is None]
        if todo:
            built = self._compile([units[i] for i in todo], [paths[i] for i in todo])
            for i, library in zip(todo, built, strict=True):
                found[i] = library
        libraries = [library for library in found if library is not None]
        if self._runtime is None:
            self._runtime = libraries.pop()
        return libraries

    def _load_cached(self, path: Path) -> ctypes.CDLL | None:
        if not self.cache.holds(path):
            return None
        try:
            return ctypes.CDLL(str(path))
        except OSError:
            return None  # e.g. a folder mounted noexec: the fresh build is loaded from elsewhere

    def _compile(self, units: list[_Unit], paths: list[Path]) -> list[ctypes.CDLL]:
        folder = Path(tempfile.mkdtemp(prefix="convloom-"))
        try:
            with announced(len(units), self.compiler.name):
                # The longest first, so that none of them is left over when the rest is done.
                order = sorted(range(len(units)), key=lambda i: -units[i].source_bytes)
                objects = in_parallel(lambda i: self._build(units[i], folder), order)
                built = [file for _, file in sorted(zip(order, objects, strict=True))]
                # A loaded object stays mapped after its file is gone; the folder can go at once.
                return [self._load_built(*pair) for pair in zip(built, paths, strict=True)]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _load_built(self, built: Path, destination: Path) -> ctypes.CDLL:
        """Keep and load a fresh object, from wherever this machine lets code be loaded."""
        places = (destination, built) if self.cache.publish(built, destination) else (built,)
        for place in places:
            try:
                return ctypes.CDLL(str(place))
            except OSError as error:
                reason = error
        raise CompilerError(
            f"compiled kernels cannot be loaded from {places[0].parent} ({reason}); set "
            "CONVLOOM_CACHE to a folder from which programs may run (not mounted noexec)"
        )

    def _build(self, unit: _Unit, folder: Path) -> Path:
        stem = f"{unit.stem}-{self._key(unit)[:16]}"
        source, output = folder / f"{stem}.cpp", folder / f"{stem}.so"
        source.write_text(unit.text, encoding="utf-8")
        done = self.compiler.build(source, output, SOURCES)
        if done.returncode != 0 or not output.exists():
            messages = done.stdout + done.stderr
            told = refusal(self.compiler.command, unit.title, unit.text, messages)
            raise CompilerError(f"{self.compiler.name} {told}")
        return output

    def _key(self, unit: _Unit) -> str:
        facts = (
            unit.text,
            source_digest(f"{unit.stem}.cpp", SOURCES),
            self.compiler.identity,
            *self.compiler.command,
            *self.compiler.flags,
            cpu_features(),
        )
        return hashlib.sha256("\0".join(facts).encode()).hexdigest()


@dataclass(frozen=True)
class _Unit:
    """One translation unit: the source it stands for, its text, and its name in messages."""

    stem: str
    text: str
    title: str

    @property
    def source_bytes(self) -> int:
        """Size of the kernel file: how long compiling takes, more or less."""
        return (SOURCES / f"{self.stem}.cpp").stat().st_size

    @staticmethod
    def plain(stem: str) -> _Unit:
        return _Unit(stem, f'#include "{stem}.cpp"\n', stem)

    @staticmethod
    def kernel(specialisation: Specialisation) -> _Unit:
        stem, constants = specialisation.source, specialisation.constants
        members = "".join(f"    static constexpr long {n} = {v};\n" for n, v in constants)
        text = (
            f'#include "{stem}.cpp"\n'
            f"using namespace convloom;\n"
            f"namespace {{\nstruct P {{\n{members}}};\n}}\n"
            f'extern "C" __attribute__((visibility("default")))\n'
            f"void {ENTRY}(const Arg* args, long item, Worker* worker) {{\n"
            f"    {stem}<P>(args, item, worker);\n}}\n"
        )
        shown = ", ".join(f"{n}={v}" for n, v in constants)
        return _Unit(stem, text, f"{stem}({shown})")


def _address(library: ctypes.CDLL) -> int:
    address = ctypes.cast(getattr(library, ENTRY), ctypes.c_void_p).value
    assert address is not None
    return address


@cache
def _jit(compiler: Compiler, folder: Path) -> Jit:
    return Jit(compiler, ObjectCache(folder))


_sharing = Lock()


def shared_jit(compiler: Compiler) -> Jit:
    """The process's JIT for this compiler and the present cache folder."""
    with _sharing:  # two threads that ask first get the same one
        return _jit(compiler, cache_directory())
