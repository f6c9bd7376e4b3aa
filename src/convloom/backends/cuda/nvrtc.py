"""Kernel sources to machine code, with NVRTC: one cubin for each specialisation and architecture.

Compiling needs no GPU and no driver, as long as nothing is loaded: cuda-core's ObjectCode talks to
the driver as soon as a kernel is asked of it, and hangs where there is none. So only its bytes are
taken here, and everything is kept as plain data. cuda-core's own cache is not used: it refuses
template instances, which is what every kernel is.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import io
import json
import os
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from convloom.backends.cache import ObjectCache, cache_directory
from convloom.backends.compiling import INCLUDE, announced, in_parallel, refusal
from convloom.backends.cuda.launch import Specialisation, members
from convloom.ir import ConvloomError

SOURCES = Path(__file__).resolve().parents[2] / "kernels" / "cuda"
#: Value-changing options are absent on purpose, as on the CPU. ``-v`` makes ptxas say what a
#: kernel takes.
OPTIONS = {"std": "c++20", "ptxas_options": ["-v"]}
#: The first line a record of the cache starts with; another format gets another number.
_FORMAT = 1
_NVRTC_PACKAGES = ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[^\n]*$", re.MULTILINE)
_PROPERTIES = "Function properties for "
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_REGISTERS = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


class KernelError(ConvloomError):
    """A kernel that NVRTC refused, or that cannot be compiled here at all."""


@dataclass(frozen=True)
class Usage:
    """What a thread or block of a compiled kernel takes.

    Attributes:
        registers: of a thread.
        shared: static shared memory of a block, in bytes; launches add their own to it.
        stack: bytes of local memory of a thread.
        spilled: bytes of registers that a thread stores to and loads from local memory.
    """

    registers: int
    shared: int
    stack: int
    spilled: int


@dataclass(frozen=True)
class Cubin:
    """A compiled kernel: machine code, the kernel's symbol in it, and what it takes."""

    code: bytes = field(repr=False)
    symbol: str
    usage: Usage

    def record(self) -> bytes:
        """As the cache keeps it: a line of JSON, then the code."""
        head = {"format": _FORMAT, "symbol": self.symbol, "usage": asdict(self.usage)}
        return json.dumps(head).encode() + b"\n" + self.code

    @staticmethod
    def from_record(record: bytes) -> Cubin:
        """The inverse of ``record``."""
        head, _, code = record.partition(b"\n")
        fields = json.loads(head)
        return Cubin(code, fields["symbol"], Usage(**fields["usage"]))


@dataclass
class Compiler:
    """Compiles specialisations for GPUs; remembers nothing but what the disk cache holds."""

    cache: ObjectCache

    def compile(self, wanted: Iterable[Specialisation], arch: str) -> dict[Specialisation, Cubin]:
        """The kernels' machine code; what the disk does not have is compiled in parallel.

        Args:
            arch: as ``device.architecture`` spells it.

        Raises:
            KernelError: NVRTC is not installed or refused a kernel; or a source is missing.
        """
        asked = sorted(set(wanted), key=lambda s: (s.source, s.constants))
        done: dict[Specialisation, Cubin] = {}
        for specialisation in asked:
            record = self.cache.read(self._path(specialisation, arch))
            if record is not None:
                done[specialisation] = Cubin.from_record(record)
        todo = [s for s in asked if s not in done]
        if todo:
            done.update(zip(todo, self._build(todo, arch), strict=True))
        return {s: done[s] for s in asked}

    def _build(self, todo: list[Specialisation], arch: str) -> list[Cubin]:
        with announced(len(todo), f"{compiler_identity()} for {arch}"):
            cuda_core()  # its import does not bear two threads
            built = in_parallel(lambda one: compile_kernel(one, arch), todo)
        for specialisation, cubin in zip(todo, built, strict=True):
            self.cache.store(cubin.record(), self._path(specialisation, arch))
        return built

    def _path(self, specialisation: Specialisation, arch: str) -> Path:
        facts = (
            str(_FORMAT),
            translation_unit(specialisation),
            arch,
            compiler_identity(),
            json.dumps(OPTIONS, sort_keys=True),
        )
        key = hashlib.sha256("\0".join(facts).encode()).hexdigest()
        return self.cache.path(f"{specialisation.name}-{arch}", key)


def shared_compiler() -> Compiler:
    """The process's compiler for the present cache folder."""
    return _compiler(cache_directory())


@cache
def _compiler(folder: Path) -> Compiler:
    return Compiler(ObjectCache(folder, "cuda", ".cubin"))


def compile_kernel(specialisation: Specialisation, arch: str) -> Cubin:
    """Compile one kernel, whatever the cache holds.

    Raises:
        KernelError: NVRTC is not installed or refused it.
    """
    core = cuda_core()
    text, expression = translation_unit(specialisation), expression_of(specialisation)
    # NVRTC keeps a cache of its own. When it answers from there it may warn as it did before, but
    # says nothing of registers.
    for fresh in ({}, {"no_cache": True}):
        log = _Log()
        try:
            options = core.ProgramOptions(name=specialisation.source, arch=arch, **OPTIONS, **fresh)
            program = core.Program(text, "c++", options)
            made = program.compile("cubin", name_expressions=(expression,), logs=log)
            symbol = made.symbol_mapping[expression]
            code = bytes(made.code)
        except Exception as error:
            raise _refused(specialisation, arch, text, str(error).replace("\0", "")) from None
        if _PROPERTIES in log.getvalue():
            break
    name = symbol.decode() if isinstance(symbol, bytes) else str(symbol)
    return Cubin(code, name, usage_of(name, log.getvalue()))


def _refused(specialisation: Specialisation, arch: str, text: str, told: str) -> KernelError:
    """What to say of NVRTC's refusal ``told``."""
    if "--gpu-architecture" in told:
        return KernelError(
            f"{compiler_identity()} does not compile for {arch}, the architecture of a GPU "
            "that is newer or older than it; pip install -U 'convloom[cuda13]', or "
            "'convloom[cuda12]' for a GPU older than compute capability 7.5"
        )
    if "libnvrtc" in told or "nvrtc64" in told:
        return _not_loaded(told.strip().partition("\n")[0])
    compiler = f"{compiler_identity()} for {arch}"
    return KernelError(f"{compiler} {refusal([compiler], describe(specialisation), text, told)}")


def _not_loaded(told: str) -> KernelError:
    return KernelError(
        f"compiling for a GPU needs NVRTC, which cannot be loaded ({told}); "
        "pip install 'convloom[cuda13]', or 'convloom[cuda12]' for a driver older than 580"
    )


def cuda_core() -> Any:
    """The module cuda.core.

    Raises:
        KernelError: it is not installed.
    """
    try:
        return importlib.import_module("cuda.core")
    except ImportError as error:
        raise KernelError(
            f"compiling for a GPU needs cuda-core ({error}); pip install 'convloom[cuda13]'"
        ) from None


class _Log(io.StringIO):
    """What NVRTC writes; some versions hand over bytes."""

    def write(self, text: str | bytes) -> int:
        return super().write(text.decode() if isinstance(text, bytes) else text)


@cache
def translation_unit(specialisation: Specialisation) -> str:
    """The complete source of a specialisation: its file, headers inlined, and its constants.

    Raises:
        KernelError: a source file of the package is missing.
    """
    source = _inlined(f"{specialisation.source}.cu")
    return f"{source}\nstruct {_struct(specialisation)} {{\n{members(specialisation)}}};\n"


def describe(specialisation: Specialisation) -> str:
    """``conv2d_fprop/naive(C=3, K=16)``, as messages show a kernel."""
    shown = ", ".join(f"{name}={value}" for name, value in specialisation.constants)
    return f"{specialisation.source}({shown})"


def usage_of(symbol: str, log: str) -> Usage:
    """What ptxas wrote (with -v) about the kernel ``symbol``.

    Raises:
        KernelError: the log does not speak of it.
    """
    _, found, rest = log.partition(f"{_PROPERTIES}{symbol}\n")
    # Functions that were not inlined follow with lines of their own; the first ones are ours.
    frame, registers = _FRAME.search(rest), _REGISTERS.search(rest)
    if not found or frame is None or registers is None:
        raise KernelError(f"ptxas did not say what the kernel {symbol} takes: {log.strip()!r}")
    line = rest[registers.start() :].partition("\n")[0]
    shared = _SHARED.search(line)
    stack, stored, loaded = (int(number) for number in frame.groups())
    return Usage(
        registers=int(registers.group(1)),
        shared=int(shared.group(1)) if shared else 0,
        stack=stack,
        spilled=stored + loaded,
    )


@cache
def compiler_identity() -> str:
    """Name and version of the compiler; part of every cache key.

    The package's version is read where there is one: loading NVRTC takes longer than loading all
    kernels from the cache.
    """
    for package in _NVRTC_PACKAGES:
        try:
            return f"NVRTC {importlib.metadata.version(package)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    try:
        nvrtc = importlib.import_module("cuda.bindings.nvrtc")
        _, major, minor = nvrtc.nvrtcVersion()
    except Exception as error:
        raise _not_loaded(str(error).strip().partition("\n")[0]) from None
    return f"NVRTC {major}.{minor}"


def supported_architectures() -> tuple[str, ...]:
    """What the installed NVRTC compiles for, as ``sm_90``, oldest first. Raises KernelError."""
    cuda_core()
    try:
        _, found = importlib.import_module("cuda.bindings.nvrtc").nvrtcGetSupportedArchs()
    except Exception as error:
        raise _not_loaded(str(error).strip().partition("\n")[0]) from None
    return tuple(f"sm_{number}" for number in found)


def expression_of(specialisation: Specialisation) -> str:
    """How C++ names the specialised kernel within its translation unit."""
    return f"{specialisation.name}<{_struct(specialisation)}>"


def _struct(specialisation: Specialisation) -> str:
    """A name for the constants that no two specialisations share."""
    return f"P_{hashlib.sha256(repr(specialisation).encode()).hexdigest()[:16]}"


@cache
def _inlined(name: str, within: tuple[str, ...] = ()) -> str:
    """The text of a source with what it includes in place, each file guarded as by pragma once.

    The simulator's headers stay out: they are for host compilers, behind an #if.
    """
    path = SOURCES / name
    try:
        text = path.read_text()
    except OSError:
        user = f", which {within[-1]} includes," if within else ""
        raise KernelError(
            f"the kernel source {name}{user} is missing from this installation in {SOURCES}; "
            "install convloom again"
        ) from None
    chain = (*within, name)

    def include(match: re.Match[str]) -> str:
        target = _target(match.group(1), name)
        if target.startswith("sim/"):
            return match.group(0)
        if target in chain:
            return ""
        line = text.count("\n", 0, match.start()) + 2
        return f'{_inlined(target, chain)}\n#line {line} "{name}"'

    guard = f"CONVLOOM_{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    body = INCLUDE.sub(include, _PRAGMA_ONCE.sub("", text))
    return f'#ifndef {guard}\n#define {guard}\n#line 1 "{name}"\n{body}\n#endif'


def _target(written: str, includer: str) -> str:
    """The file that an include means: beside the includer, else from the root of the kernels."""
    beside = os.path.normpath(os.path.join(os.path.dirname(includer), written))
    return beside if (SOURCES / beside).is_file() else os.path.normpath(written)
