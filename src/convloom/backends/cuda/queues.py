"""Threads whose work runs beside that of others on one GPU: each has a stream of its own.

One small network leaves most of a GPU idle. Several threads that each train one fill it: what a
thread makes after ``begin`` uses a stream of its own, and a data set lies in the device's memory
once for all threads that began with the same ``Sharing``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np

from convloom.backends.cuda.gpu import CudaGpu, Gpu
from convloom.backends.cuda.resident import ResidentData
from convloom.backends.feeding import Samples

#: Threads that keep a GPU busy with small networks; more would wait for the host.
AT_ONCE = 8


class Sharing:
    """Data sets in device memory, by the arrays that they were copied from.

    The arrays must not change as long as this lives.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, bytes, bytes], tuple[np.ndarray, ResidentData]] = {}

    def upload(self, samples: Samples, gpu: Gpu, make: Callable[[], ResidentData]) -> ResidentData:
        """The data set for work on ``gpu``; copied with ``make`` by whoever asks first."""
        key = id(samples.images), samples.scale.tobytes(), samples.shift.tobytes()
        with self._lock:
            if key not in self._held:
                data = make()
                data.gpu.synchronize()  # others read it on streams that know nothing of this one
                self._held[key] = samples.images, data
            return self._held[key][1].on(gpu)


class _Own(threading.local):
    gpu: CudaGpu | None = None
    sharing: Sharing | None = None


_own = _Own()


def begin(sharing: Sharing) -> None:
    """Give this thread a stream of its own, as long as it lives."""
    _own.gpu, _own.sharing = CudaGpu(patient=True), sharing


def own_gpu() -> CudaGpu | None:
    """The GPU through this thread's own stream; None in threads that did not begin."""
    return _own.gpu


def own_sharing() -> Sharing | None:
    """What this thread shares; None in threads that did not begin."""
    return _own.sharing
