"""How busy a GPU is, by the driver's management library (NVML), which nvidia-smi shows too.

NVML says in which share of its last sample period (a sixth of a second to a second) any kernel ran.
It is called through ctypes, so no package is needed.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import threading
from types import TracebackType

_LIBRARIES = ("libnvidia-ml.so.1", "nvml.dll")
#: Seconds between two looks.
_INTERVAL = 0.05
#: How the share is found, for whoever reads it.
SOURCE = "mean of NVML's utilisation (share of its sample period in which any kernel ran)"


class _Rates(ctypes.Structure):
    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class BusyMeter:
    """Looks at the GPU while a block runs; ``share`` is None where NVML does not answer.

    with BusyMeter() as meter:
        train()
    print(meter.share)
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._library, self._handle = _open()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._seen: list[int] = []

    def __enter__(self) -> BusyMeter:
        if self._library is not None:
            self._thread = threading.Thread(target=self._look, daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        # The first sample period reaches back to before the block.
        seen = self._seen[len(self._seen) // 3 :]
        self.share = statistics.fmean(seen) / 100 if seen else None

    def _look(self) -> None:
        assert self._library is not None
        rates = _Rates()
        while not self._over.wait(_INTERVAL):
            if self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates)):
                return
            self._seen.append(int(rates.gpu))


def _open() -> tuple[ctypes.CDLL | None, ctypes.c_void_p]:
    """The library and the first GPU that this process may use; (None, …) where there is none."""
    handle = ctypes.c_void_p()
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
        except OSError:
            continue
        if library.nvmlInit_v2() == 0 and _find(library, handle) == 0:
            return library, handle
    return None, handle


def _find(library: ctypes.CDLL, handle: ctypes.c_void_p) -> int:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible.startswith("GPU-"):
        found: int = library.nvmlDeviceGetHandleByUUID(visible.encode(), ctypes.byref(handle))
    else:
        number = int(visible) if visible.isdigit() else 0
        found = library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
    return found
