"""What a result must say of its origin: the command, the date, the hardware and the versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from convloom import __version__
from convloom.backends.cuda import device as cuda

#: Distributions whose version may bear on a timing, where they are installed.
_PACKAGES = ("numpy", "cuda-core", "cuda-bindings", "nvidia-cuda-nvrtc", "torch", "triton")
_CPU_INFO = Path("/proc/cpuinfo")


def environment(device: str, gpu: str | None = None) -> dict[str, Any]:
    """Command, date, hardware and versions, as plain data.

    Args:
        device: what computed: ``cpu``, ``cuda`` …
        gpu: the GPU's name, where one was used.
    """
    hardware: dict[str, Any] = {"device": device, "cpu": processor(), "cores": usable_cores()}
    versions = {"convloom": __version__, "python": platform.python_version(), **_installed()}
    if gpu is not None:
        hardware["gpu"] = gpu
        major, minor = cuda.find().version
        versions["driver's CUDA"] = f"{major}.{minor}"
    return {
        "command": shlex.join(["convloom", *sys.argv[1:]]),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "hardware": hardware,
        "versions": versions,
        "system": platform.platform(),
    }


def origin(found: Mapping[str, Any]) -> str:
    """What ``environment`` found, but for the command, in one line: hardware; date; versions."""
    hardware, versions = found["hardware"], found["versions"]
    device = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['cores']} cores"
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{device}; {found['date']}; {named}"


def processor() -> str:
    """The CPU's name, as its maker gives it where the system tells."""
    try:
        lines = _CPU_INFO.read_text().splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or platform.machine())


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
