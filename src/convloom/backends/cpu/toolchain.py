"""Which C++ compiler this machine has, and the flags that kernels are compiled with."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from convloom.ir import ConvloomError

#: Value-changing flags are absent on purpose: NaN, Inf and signed zero behave as IEEE 754 says.
#: Contraction to fused multiply-add is on for every compiler, so that they round alike.
COMMON_FLAGS = (
    "-std=c++20",
    "-march=native",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fno-exceptions",
    "-fno-rtti",
    "-fvisibility=hidden",
    "-fPIC",
    "-pthread",
)
FLAGS = (*COMMON_FLAGS, "-O3", "-shared")
_CANDIDATES = ("g++", "clang++", "c++")


class CompilerError(ConvloomError):
    """A compiler that was asked for is missing, or refused a kernel."""


@dataclass(frozen=True)
class Compiler:
    """A command that compiles one C++ file to a shared object.

    ``identity`` names product and version; it is part of every cache key.
    """

    command: tuple[str, ...]
    identity: str
    flags: tuple[str, ...]

    @property
    def name(self) -> str:
        """As messages show it: ``g++``."""
        return "zig c++" if "ziglang" in self.command else Path(self.command[0]).name

    def build(
        self, source: Path, output: Path, include: Path, folder: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Compile ``source``, in ``folder``; the caller looks at the exit status and the messages.

        The compiler has a process group of its own: Ctrl-C is for us to answer, and must not make
        a kernel look as if it could not be compiled.
        """
        arguments = [*self.command, *self.flags, f"-I{include}", str(source), "-o", str(output)]
        environment = {**os.environ, "LC_ALL": "C"}
        return subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            env=environment,
            cwd=folder,
            process_group=0,
        )


def find_compiler() -> Compiler | None:
    """``$CXX``, else g++, clang++ or c++ on the path, else the ziglang wheel, else None.

    Raises:
        CompilerError: ``$CXX`` names a command that does not exist or does not run.
    """
    return _find_compiler(os.environ.get("CXX", ""), os.environ.get("PATH", ""))


@functools.cache
def _find_compiler(wished: str, path: str) -> Compiler | None:
    if wished.strip():
        return _wished_compiler(wished)
    for candidate in _CANDIDATES:
        found = shutil.which(candidate, path=path)
        if found and (identity := _identity((found,))):
            return Compiler((found,), identity, _flags((found,)))
    return _zig()


def _wished_compiler(wished: str) -> Compiler:
    try:
        command = tuple(shlex.split(wished))
    except ValueError as error:
        raise CompilerError(
            f"CXX={wished} is no command line ({error}); correct CXX or unset it"
        ) from None
    found = shutil.which(command[0])
    identity = _identity((found, *command[1:])) if found else ""
    if not found or not identity:
        raise CompilerError(
            f"CXX={wished} is not a compiler that runs here; correct CXX or unset it"
        )
    command = (os.path.abspath(found), *command[1:])  # it also runs in other folders
    return Compiler(command, identity, _flags(command))


def _zig() -> Compiler | None:
    if importlib.util.find_spec("ziglang") is None:
        return None
    command = (sys.executable, "-m", "ziglang", "c++")
    # Asking zig itself would take longer than loading all kernels.
    identity = f"ziglang {importlib.metadata.version('ziglang')}"
    return Compiler(command, identity, _flags(command))


def _flags(command: tuple[str, ...]) -> tuple[str, ...]:
    """FLAGS and what this compiler needs besides."""
    if "ziglang" in command or Path(command[0]).name == "zig":
        # Without -nostdlib++ zig would first build a C++ standard library, for most of a minute.
        return (*FLAGS, "-nostdlib++", "-fno-sanitize=undefined", "-g0")
    return (*FLAGS, "-Wl,--as-needed")  # the driver links libstdc++, which nothing here uses


def _identity(command: tuple[str, ...]) -> str:
    try:
        shown = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return shown.stdout.strip() if shown.returncode == 0 else ""


@functools.cache
def cpu_features() -> str:
    """The instruction sets of this CPU: a kernel cached on one machine may not run on another."""
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    wanted = ("flags", "Features", "model name", "CPU part", "isa")
    facts = {line for line in lines if line.split(":")[0].strip() in wanted}
    return "\n".join([platform.machine(), *sorted(facts)])
