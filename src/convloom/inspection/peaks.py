"""What a device can do at most, measured in the same run as what is compared with it."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from convloom.backends.base import Backend
from convloom.backends.cpu.pool import default_threads
from convloom.backends.cuda import measure
from convloom.backends.cuda.backend import CudaBackend
from convloom.inspection.timing import wall_seconds

#: Bytes copied on a CPU, far more than its caches hold, and the side of its matrix product.
_COPIED, _SIDE = 128 << 20, 1536
_REPEATS = 5


@dataclass(frozen=True)
class Peaks:
    """The two rates that bound every step.

    Attributes:
        bandwidth: bytes a second, read and written, between the device and its memory.
        flops: fp32 operations a second; a fused multiply-add counts as two.
        source: how they were found.
    """

    bandwidth: float
    flops: float
    source: str

    def seconds(self, flops: int, nbytes: int) -> float:
        """The limit: no step with this work can take less."""
        return max(flops / self.flops, nbytes / self.bandwidth)


def measured(backend: Backend) -> Peaks:
    """The peaks of a backend's device."""
    if isinstance(backend, CudaBackend):
        gpu = measure.gpu_of(backend)
        source = f"measured on {gpu.name}: a copy of its memory, and fp32 multiply-adds"
        return Peaks(measure.copy_rate(gpu), measure.fma_rate(gpu), source)
    threads = default_threads()
    source = (
        f"measured on {threads} threads: NumPy's copy of {_COPIED >> 20} MB, and its fp32 matrix "
        "product"
    )
    return Peaks(_copy_rate(threads), _product_rate(), source)


def _copy_rate(threads: int) -> float:
    items = _COPIED // 8
    source, target = np.ones(items), np.zeros(items)
    edges = [items * i // threads for i in range(threads + 1)]
    parts = [slice(a, b) for a, b in itertools.pairwise(edges)]

    with ThreadPoolExecutor(threads) as pool:

        def copy() -> None:
            list(pool.map(lambda part: np.copyto(target[part], source[part]), parts))

        return 2 * _COPIED / min(wall_seconds(copy) for _ in range(_REPEATS))


def _product_rate() -> float:
    a, b = (np.full((_SIDE, _SIDE), value, np.float32) for value in (0.5, 0.25))
    out = np.empty_like(a)

    def multiply() -> None:
        np.matmul(a, b, out=out)

    return 2 * _SIDE**3 / min(wall_seconds(multiply) for _ in range(_REPEATS))
