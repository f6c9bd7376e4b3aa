"""Parts of the real GPU's class, with a driver that is made up here."""

from __future__ import annotations

import ctypes
import gc
import os
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from convloom.backends.base import DeviceError, OutOfMemoryError
from convloom.backends.cuda.gpu import CudaGpu


class Driver:
    """Host memory in place of the driver's."""

    def __init__(self) -> None:
        self.held: dict[int, Any] = {}
        self.full = False

    def _take(self, nbytes: int) -> tuple[Any, ...]:
        if self.full:
            return Error(2), 0
        memory = (ctypes.c_uint8 * nbytes)()
        address = ctypes.addressof(memory)
        self.held[address] = memory
        return 0, address

    def cuMemAllocHost(self, nbytes: int) -> tuple[Any, ...]:  # noqa: N802
        return self._take(nbytes)

    def cuMemAlloc(self, nbytes: int) -> tuple[Any, ...]:  # noqa: N802
        return self._take(nbytes)

    def cuMemFreeHost(self, address: int) -> tuple[Any, ...]:  # noqa: N802
        del self.held[address]
        return (0,)

    cuMemFree = cuMemFreeHost  # noqa: N815

    def cuMemsetD8Async(self, *given: Any) -> tuple[Any, ...]:  # noqa: N802
        return (0,)

    def cuMemGetInfo(self) -> tuple[Any, ...]:  # noqa: N802
        return 0, 1000, 2000


class Error(int):
    name = "CUDA_ERROR_OUT_OF_MEMORY"


class Stream:
    def record(self) -> None:
        raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS: out of bounds")


@pytest.fixture
def gpu() -> CudaGpu:
    """No GPU, but for what the tests below touch."""
    made = object.__new__(CudaGpu)
    made._driver = Driver()
    made._process = os.getpid()
    made._thread = threading.local()
    made._thread.entered = True
    made._queue = 0
    made._stream = Stream()
    made.name = "a made-up GPU"
    return made


def held(gpu: CudaGpu) -> Sequence[int]:
    gc.collect()
    return list(gpu._driver.held)


def test_pinned_memory_lives_as_long_as_any_view(gpu: CudaGpu) -> None:
    """Results on their way may outlive the tables that they were asked of."""
    pinned = gpu.pinned(64)
    view = pinned.array[8:24].view(np.float32)
    view[:] = 3
    assert len(held(gpu)) == 1
    del pinned
    assert len(held(gpu)) == 1
    assert view.tolist() == [3] * 4
    del view
    assert held(gpu) == []


def test_device_memory_is_freed_with_its_object(gpu: CudaGpu) -> None:
    memory = gpu.allocate(64)
    assert held(gpu) == [memory.address]
    del memory
    assert held(gpu) == []
    assert gpu.allocate(0).address == 0


def test_no_memory_left(gpu: CudaGpu) -> None:
    gpu._driver.full = True
    with pytest.raises(OutOfMemoryError, match=r"5,000 bytes .* 1,000 are free on a made-up GPU"):
        gpu.allocate(5000)
    with pytest.raises(DeviceError, match="5,000 bytes of the host's memory cannot be locked"):
        gpu.pinned(5000)
    gpu._driver.full = False
    assert gpu.allocate(64).address


def test_a_lost_context_is_a_device_error(gpu: CudaGpu) -> None:
    with pytest.raises(DeviceError, match=r"ILLEGAL_ADDRESS.*start it again"):
        gpu.mark()
