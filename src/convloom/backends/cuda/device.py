"""What this machine offers to CUDA, asked of the driver alone: no package, no context, no waiting.

The driver is called through ctypes, because cuda-core can only be imported where it is installed
and only be used where a driver answers.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import importlib.util
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

_LIBRARIES = ("libcuda.so.1", "nvcuda.dll")
_NOT_INITIALIZED, _NO_DEVICE, _DRIVER_MISMATCH = 3, 100, 803  # CUresult
_CAPABILITY_MAJOR, _CAPABILITY_MINOR, _MULTIPROCESSORS = 75, 76, 16  # CUdevice_attribute
#: {major version of CUDA: the first driver that runs it}.
_FIRST_DRIVER = {12: "525", 13: "580"}
#: {major version of CUDA: the oldest compute capability that its NVRTC compiles for}.
_OLDEST = {12: (5, 0), 13: (7, 5)}
#: Architectures whose own instructions a kernel may use; code for them runs on no other.
_SPECIFIC = {(9, 0), (10, 0), (10, 3)}

#: Bytes of shared memory that a block may have: on Hopper and the larger Blackwell GPUs, on the
#: smaller ones, and {compute capability: where it is neither}.
LARGEST_SHARED, _LEAST_SHARED = 227 * 1024, 99 * 1024
_SHARED = {(8, 0): 163 * 1024, (8, 7): 163 * 1024}


@dataclass(frozen=True)
class Found:
    """What the driver answered.

    Attributes:
        error: the driver's error on starting, 0 for none, None where there is no driver.
        name_of_error: that error's name.
        version: the CUDA version that the driver runs, as (major, minor).
        capabilities: compute capability of each GPU that this process may use.
        multiprocessors: of each of these GPUs.
    """

    error: int | None
    name_of_error: str = ""
    version: tuple[int, int] = (0, 0)
    capabilities: tuple[tuple[int, int], ...] = ()
    multiprocessors: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chip:
    """What whole networks on chip ask of a GPU.

    Attributes:
        shared: bytes of shared memory that a block may have; 0 where the GPU lacks what they need
            (compute capability 8.0).
        multiprocessors: how many blocks run at a time, if each takes a multiprocessor.
        clusters: whether blocks can be a cluster (compute capability 9.0).
    """

    shared: int
    multiprocessors: int
    clusters: bool


#: An H100 or H200: what plans are for where there is no GPU.
HOPPER = Chip(LARGEST_SHARED, multiprocessors=132, clusters=True)


def missing() -> str | None:
    """What keeps this process from using a GPU, with the remedy; None when nothing does."""
    return complaint(find(), os.environ, bindings_version())


def has_gpu() -> bool:
    """Whether there seems to be a GPU, be it one that cannot be used."""
    found = find()
    return bool(found.capabilities) or found.error not in (0, None, _NO_DEVICE)


def complaint(
    found: Found, environment: Mapping[str, str], bindings: tuple[int, int] | None
) -> str | None:
    """``missing`` for given facts.

    Args:
        bindings: version of the installed cuda-bindings, None without cuda-core.
    """
    if found.error is None:
        return "this machine has no NVIDIA driver (libcuda.so.1 cannot be loaded)"
    if found.error or not found.capabilities:
        return _no_gpu(found, environment)
    newest = found.version >= (13, 0) and found.capabilities[0] >= _OLDEST[13]
    extra = "cuda13" if newest else "cuda12"
    if bindings is None:
        old = f", and update the driver to {_FIRST_DRIVER[12]} or newer"
        return f"cuda-core is not installed; pip install 'convloom[{extra}]'" + (
            old if found.version < (12, 0) else ""
        )
    major = bindings[0]
    if major not in _FIRST_DRIVER:
        return f"cuda-bindings {major} is not known here; pip install 'convloom[{extra}]'"
    if found.version < (major, 0):
        return (
            f"the NVIDIA driver runs CUDA {_dotted(found.version)} and the installed cuda-core "
            f"compiles for CUDA {major}; update the driver to {_FIRST_DRIVER[major]} or newer"
            + (", or pip install 'convloom[cuda12]'" if found.version >= (12, 0) else "")
        )
    if found.capabilities[0] < _OLDEST[major]:
        return (
            f"the GPU has compute capability {_dotted(found.capabilities[0])} and CUDA {major} "
            f"compiles for {_dotted(_OLDEST[major])} and newer"
            + ("; pip install 'convloom[cuda12]'" if found.capabilities[0] >= _OLDEST[12] else "")
        )
    return None


def bindings_version() -> tuple[int, int] | None:
    """Version of the installed cuda-bindings, or None unless cuda-core can be imported too."""
    try:
        if importlib.util.find_spec("cuda.core") is None:
            return None
        major, minor = importlib.metadata.version("cuda-bindings").split(".")[:2]
    except (ImportError, importlib.metadata.PackageNotFoundError):
        return None
    return int(major), int(minor)


def find() -> Found:
    """Ask the driver, once for each process (a forked child asks again)."""
    return _find(os.getpid())


@cache
def _find(process: int) -> Found:
    driver = _driver()
    if driver is None:
        return Found(None)
    error = driver.cuInit(0)
    version = ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    pair = version.value // 1000, version.value % 1000 // 10
    if error:
        return Found(error, _name(driver, error), pair)
    return Found(0, "", pair, *_of_each(driver))


def architecture(capability: tuple[int, int]) -> str:
    """The name NVRTC has for a GPU's own code: ``sm_90a`` for (9, 0), ``sm_86`` for (8, 6)."""
    major, minor = capability
    return f"sm_{major}{minor}{'a' if capability in _SPECIFIC else ''}"


def chip(capability: tuple[int, int] | None = None) -> Chip:
    """The first GPU; without one, as ``HOPPER``.

    Source: CUDA C++ programming guide, "Technical specifications per compute capability".

    Args:
        capability: of a GPU that need not be here; one that is not is taken to have as many
            multiprocessors as ``HOPPER``.
    """
    found = find()
    here = found.capabilities[0] if found.capabilities else None
    capability = capability or here
    if capability is None:
        return HOPPER
    known = found.multiprocessors if capability == here else ()
    count = known[0] if known else HOPPER.multiprocessors
    return Chip(_shared(capability), count, capability >= (9, 0))


def _shared(capability: tuple[int, int]) -> int:
    if capability < (8, 0):
        return 0
    return _SHARED.get(
        capability, LARGEST_SHARED if capability[0] in (9, 10, 11) else _LEAST_SHARED
    )


def capability_of(arch: str) -> tuple[int, int] | None:
    """The compute capability that a name means: (9, 0) for ``sm_90``, ``sm_90a`` and ``90``."""
    match = re.fullmatch(r"(?:sm_)?(\d{1,2})(\d)[af]?", arch.strip().lower())
    return (int(match.group(1)), int(match.group(2))) if match else None


def _driver() -> ctypes.CDLL | None:
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


def _of_each(driver: ctypes.CDLL) -> tuple[tuple[tuple[int, int], ...], tuple[int, ...]]:
    """Compute capability and multiprocessors of each GPU."""
    count, value = ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetCount(ctypes.byref(count))

    def attribute(which: int, ordinal: int) -> int:
        driver.cuDeviceGetAttribute(ctypes.byref(value), which, ordinal)
        return value.value

    gpus = range(count.value)
    return (
        tuple((attribute(_CAPABILITY_MAJOR, i), attribute(_CAPABILITY_MINOR, i)) for i in gpus),
        tuple(attribute(_MULTIPROCESSORS, i) for i in gpus),
    )


def _name(driver: ctypes.CDLL, error: int) -> str:
    text = ctypes.c_char_p()
    driver.cuGetErrorName(error, ctypes.byref(text))
    return (text.value or b"").decode() or f"error {error}"


def _no_gpu(found: Found, environment: Mapping[str, str]) -> str:
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if found.error in (0, _NO_DEVICE):
        if visible is None:
            return "the NVIDIA driver finds no GPU on this machine; see what nvidia-smi says"
        if not visible.strip():
            return "CUDA_VISIBLE_DEVICES is empty, which hides every GPU; unset it"
        return f"CUDA_VISIBLE_DEVICES={visible} names no GPU of this machine; correct or unset it"
    remedy = "see what nvidia-smi says"
    if found.error == _NOT_INITIALIZED:
        remedy = (
            "CUDA does not work in a process that was forked from one which had asked for a GPU, "
            "so start workers with multiprocessing's 'spawn'"
        )
    elif found.error == _DRIVER_MISMATCH:
        remedy = "its two halves have different versions, so restart the machine"
    return f"the NVIDIA driver does not start ({found.name_of_error}); {remedy}"


def _dotted(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
