"""What studies of speed need of a GPU beyond what training does: its peaks, and the slow ways.

Training always takes the fastest way. A study of what each idea buys also needs those without it:
copies from ordinary host memory, launches without graphs, graphs of one step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Call, CudaGpu, Gpu, open_gpu
from convloom.backends.cuda.launch import Specialisation
from convloom.ir import PERSISTENT

_THREADS = 256
#: Bytes copied at once: far more than any cache holds.
_COPIED = 1 << 30
_EACH = 4
_BLOCKS, _CHAINS, _STEPS = 4096, 16, 1024


def device_seconds(gpu: Gpu, work: Callable[[], None]) -> float:
    """How long the device takes for what ``work`` asks, by its own events.

    Gaps in which it waits for the host count. A device without events is timed by the host.
    """
    if isinstance(gpu, NoGraphs):
        gpu = gpu.gpu
    if isinstance(gpu, CudaGpu):
        return gpu.seconds(work)
    start = time.perf_counter()
    work()
    gpu.synchronize()
    return time.perf_counter() - start


def gpu_of(backend: CudaBackend) -> Gpu:
    """The device that a backend uses. Raises DeviceError where there is none."""
    return backend._gpu or open_gpu()


def without_graphs(backend: CudaBackend) -> CudaBackend:
    """A backend on the same device that launches kernels one by one, wherever graphs are used."""
    gpu: Any = NoGraphs(gpu_of(backend))
    return CudaBackend(gpu)


def copy_rate(gpu: Gpu, repeats: int = 10) -> float:
    """Bytes a second, read and written, of a copy within the device's memory: the best of some."""
    nbytes = min(_COPIED, gpu.free_bytes() // 4) // 16 * 16
    source, target = gpu.allocate(nbytes), gpu.allocate(nbytes)
    kernel = Specialisation("peak_copy/naive", (("EACH", _EACH),))
    items = nbytes // 16
    blocks = -(-items // (_THREADS * _EACH))
    words = (source.address, target.address, items)
    call = Call(kernel, words, blocks, _THREADS, 0, "the copy that measures bandwidth")
    return 2 * nbytes / _fastest(gpu, call, repeats)


def fma_rate(gpu: Gpu, repeats: int = 10) -> float:
    """Floating-point operations a second in fp32 fused multiply-adds: the best of some."""
    target = gpu.allocate(4 * _BLOCKS * _THREADS)
    kernel = Specialisation("peak_fma/naive", (("CHAINS", _CHAINS), ("STEPS", _STEPS)))
    words = (target.address, 0.999, 0.001)
    call = Call(kernel, words, _BLOCKS, _THREADS, 0, "the multiply-adds that measure arithmetic")
    return 2 * _CHAINS * _STEPS * _BLOCKS * _THREADS / _fastest(gpu, call, repeats)


def poison(executable: CudaExecutable) -> None:
    """Fill what a run must make, scratch memory included, with NaN (in integers: -1).

    Inputs that share memory with it must be written afterwards.
    """
    for name, buffer in executable.plan.buffers.items():
        if buffer.nbytes and buffer.arena != PERSISTENT and name not in executable.plan.graph.roles:
            nan = np.full(buffer.nbytes, 0xFF, np.uint8)
            executable.gpu.upload(executable.place(name), nan)


def upload_pageable(gpu: Gpu, address: int, values: np.ndarray) -> None:
    """Copy from ordinary memory, and wait for it: what a program does that knows no better."""
    if isinstance(gpu, CudaGpu):
        gpu._enter()
        gpu._ask("cuMemcpyHtoD", address, values.ctypes.data, values.nbytes)
    else:
        gpu.upload(address, values)


class NoGraphs:
    """A GPU whose graphs are plain launches, one after the other."""

    def __init__(self, gpu: Gpu) -> None:
        self.gpu = gpu

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """The work itself."""
        return work

    def __getattr__(self, name: str) -> Any:
        return getattr(self.gpu, name)


def _fastest(gpu: Gpu, call: Call, repeats: int) -> float:
    gpu.load([call.kernel])
    launch = gpu.prepare(call)
    device_seconds(gpu, launch)
    return min(_rounds(gpu, launch, repeats))


def _rounds(gpu: Gpu, launch: Callable[[], None], repeats: int) -> Iterator[float]:
    for _ in range(repeats):
        yield device_seconds(gpu, launch)
