"""One GPU of this process: memory, copies, kernels, graphs. All calls to CUDA are made here.

Work goes in order on one stream (``upload_aside`` alone has another), so whoever shares a GPU needs
no locks: what was asked first is done first, whichever thread asked. Kernels and copies are asked
for, not awaited; ``download`` and ``synchronize`` wait.

``Gpu`` is what the rest of this backend needs of a device; ``CudaGpu`` is the real one. cuda-core
makes streams, kernels and graphs; what it has no words for (attributes, plain allocation, copies
of host arrays) goes to the driver through cuda.bindings.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Protocol

import numpy as np

from convloom.backends.base import DeviceError, OutOfMemoryError
from convloom.backends.cuda import device
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cuda.nvrtc import Cubin, cuda_core, describe, shared_compiler
from convloom.backends.cuda.overlap import Access, dependencies

#: Pinned buffers that uploads take turns with, and the most bytes that one holds.
_SLOTS, _SLOT_BYTES = 3, 64 << 20
#: Shared memory that a launch may have without asking, a kernel's own among it.
_PLAIN_SHARED = 48 << 10
#: Seconds between two looks of a patient thread.
_LOOK = 1e-4
#: Errors after which the driver refuses everything else in this process.
_FATAL = (
    "ILLEGAL_ADDRESS",
    "ILLEGAL_INSTRUCTION",
    "MISALIGNED_ADDRESS",
    "INVALID_ADDRESS_SPACE",
    "INVALID_PC",
    "HARDWARE_STACK_ERROR",
    "LAUNCH_FAILED",
    "LAUNCH_TIMEOUT",
    "ASSERT",
    "ECC_UNCORRECTABLE",
    "CONTEXT_IS_DESTROYED",
)


class Allocation(Protocol):
    """Bytes of device memory; they are freed when nobody holds the object."""

    @property
    def address(self) -> int: ...

    @property
    def nbytes(self) -> int: ...


class Pinned(Protocol):
    """Host memory that the device reads and writes directly, as uint8."""

    @property
    def array(self) -> np.ndarray: ...


class Mark(Protocol):
    """A moment of the device's work; calling it waits until the moment has come."""

    def __call__(self) -> None: ...


@dataclass(frozen=True)
class Call:
    """A kernel launch with all addresses known.

    Attributes:
        words: addresses and ``long long`` arguments as int, ``float`` arguments as float.
        title: the layer and shapes that a message names.
        access: what it reads and writes, so that a graph may run others beside it; None: anything.
    """

    kernel: Specialisation
    words: tuple[int | float, ...]
    blocks: int
    threads: int
    shared: int
    title: str
    access: Access | None = None


class Gpu(Protocol):
    """What plans need of a device."""

    @property
    def name(self) -> str: ...

    @property
    def arch(self) -> str: ...

    def free_bytes(self) -> int:
        """Device memory that can still be allocated, more or less."""
        ...

    def allocate(self, nbytes: int) -> Allocation:
        """Device memory, zeroed. Raises OutOfMemoryError."""
        ...

    def pinned(self, nbytes: int) -> Pinned:
        """Host memory for ``download_later`` and ``upload_aside``."""
        ...

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy a contiguous array to the device; it may change as soon as this returns."""
        ...

    def download(self, address: int, values: np.ndarray) -> None:
        """Wait, and copy from the device into a contiguous array."""
        ...

    def download_later(self, address: int, values: np.ndarray) -> None:
        """Copy into part of a ``Pinned``; it is there when a ``mark`` made after this is due."""
        ...

    def upload_aside(self, address: int, values: np.ndarray, after: Mark) -> Mark:
        """Copy part of a ``Pinned`` beside all other work, once ``after`` is due.

        The part must not change before the mark returned is due, and what reads the copy must
        ``follow`` that mark.
        """
        ...

    def follow(self, mark: Mark) -> None:
        """What is asked from now on begins when ``mark`` is due; the host does not wait."""
        ...

    def load(self, kernels: Iterable[Specialisation]) -> None:
        """Compile and load kernels. Raises KernelError."""
        ...

    def prepare(self, call: Call) -> Callable[[], None]:
        """A function that launches ``call``, whose kernel has been loaded."""
        ...

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that repeats, as one graph, all launches that ``work`` asks for.

        Launches that share no bytes may run side by side.
        """
        ...

    def mark(self) -> Mark:
        """The moment when all that has been asked so far is done."""
        ...

    def synchronize(self) -> None:
        """Wait until all is done. Raises DeviceError for what went wrong on the device."""
        ...


@cache
def open_gpu() -> CudaGpu:
    """The first GPU that this process may use.

    Raises:
        DeviceError: there is none, or something it needs is missing; says what.
    """
    reason = device.missing()
    if reason is not None:
        raise DeviceError(f"device cuda cannot be used: {reason}; device cpu works everywhere")
    return CudaGpu()


class CudaGpu:
    """A GPU, through cuda-core and its bindings; each has a stream of its own.

    Args:
        patient: whether threads that wait for results let others run.
    """

    def __init__(self, *, patient: bool = False) -> None:
        self._patient = patient
        self._core = cuda_core()
        self._driver = importlib.import_module("cuda.bindings.driver")
        self._process = os.getpid()
        self._thread = threading.local()
        self._lock = threading.RLock()
        try:
            self._device = self._core.Device(0)
            self._device.set_current()
            self._stream = self._device.create_stream()
        except Exception as error:
            raise _translated(error, "the GPU cannot be opened") from None
        self._thread.entered = True
        self._queue = self._stream.handle
        #: For copies beside all other work; made when first needed.
        self._side: Any = None
        self._kernels: dict[Specialisation, Any] = {}
        self._shared: dict[Specialisation, int] = {}  # the most that launches may have by now
        self._sizes: dict[Specialisation, list[int] | None] = {}
        self._slots = [_Slot(self) for _ in range(_SLOTS)]
        self._next_slot = 0
        self.name = str(self._device.name)
        capability = self._device.compute_capability
        self.arch = device.architecture((int(capability[0]), int(capability[1])))
        self.multiprocessors = self._attribute("MULTIPROCESSOR_COUNT")
        self.shared_limit = self._attribute("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN")

    def free_bytes(self) -> int:
        """Device memory that can still be allocated, more or less."""
        self._enter()
        free, _ = self._ask("cuMemGetInfo")
        return int(free)

    def total_bytes(self) -> int:
        """All of the device's memory."""
        self._enter()
        _, total = self._ask("cuMemGetInfo")
        return int(total)

    def allocate(self, nbytes: int) -> _Memory:
        """Device memory, zeroed.

        Raises:
            OutOfMemoryError: the device does not have as much.
        """
        self._enter()
        memory = _Memory(self, nbytes)
        if nbytes:
            self._ask("cuMemsetD8Async", memory.address, 0, nbytes, self._queue)
        return memory

    def pinned(self, nbytes: int) -> _Pinned:
        """Host memory that the device reads and writes directly."""
        self._enter()
        return _Pinned(self, nbytes)

    def upload(self, address: int, values: np.ndarray) -> None:
        """Copy a contiguous array to the device, through pinned memory."""
        self._enter()
        source = values.reshape(-1).view(np.uint8)
        with self._lock:
            for start in range(0, source.nbytes, _SLOT_BYTES):
                part = source[start : start + _SLOT_BYTES]
                self._slots[self._next_slot].send(address + start, part)
                self._next_slot = (self._next_slot + 1) % _SLOTS

    def download(self, address: int, values: np.ndarray) -> None:
        """Wait for all work, and copy from the device into a contiguous array."""
        self._enter()
        if values.nbytes:
            self._copy_out(address, values)
        self.synchronize()

    def download_later(self, address: int, values: np.ndarray) -> None:
        """Copy into part of a pinned array, after the work asked for so far."""
        self._enter()
        self._copy_out(address, values)

    def load(self, kernels: Iterable[Specialisation]) -> None:
        """Compile and load kernels.

        Raises:
            KernelError: NVRTC refused one.
            DeviceError: the driver refused one.
        """
        self._enter()
        with self._lock:
            missing = [k for k in dict.fromkeys(kernels) if k not in self._kernels]
            cubins = shared_compiler().compile(missing, self.arch) if missing else {}
            for specialisation, cubin in cubins.items():
                self._kernels[specialisation] = self._loaded(specialisation, cubin)
                self._shared[specialisation] = _PLAIN_SHARED - cubin.usage.shared

    def prepare(self, call: Call) -> Callable[[], None]:
        """A function that launches ``call``, on the stream or into the graph being captured.

        Raises:
            DeviceError: a block cannot have as much shared memory.
        """
        self._enter()
        kernel = self._kernels[call.kernel]
        self._allow_shared(call, kernel)
        config = self._core.LaunchConfig(
            grid=call.blocks, block=call.threads, shmem_size=call.shared
        )
        if call.kernel not in self._sizes:
            self._sizes[call.kernel] = _parameter_sizes(kernel)
        words = _typed(call, self._sizes[call.kernel])
        launch = self._core.launch
        asked = _Launch(call, (config, kernel, *words))

        def run() -> None:
            captured = getattr(self._thread, "captured", None)
            if captured is not None:
                captured.append(asked)
                return
            try:
                launch(self._stream, *asked.arguments)
            except Exception as error:
                raise _translated(error, _cannot_launch(call)) from None

        return run

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A function that repeats, as one graph, all launches that ``work`` asks for.

        They are the graph's nodes, and depend on each other as their bytes say. One that depends on
        a single other one begins before that has ended, if the kernels of both are ``chained``.
        """
        self._enter()
        captured: list[_Launch] = []
        self._thread.captured = captured
        try:
            work()
        finally:
            del self._thread.captured
        graph = self._graph(captured)
        stream = self._stream
        try:
            graph.upload(stream)  # or the first launch would take milliseconds
        except Exception as error:
            raise _translated(error, "the step's graph cannot be made") from None

        def replay() -> None:
            self._enter()
            try:
                graph.launch(stream)
            except Exception as error:
                raise _translated(error, "the step's graph cannot be launched") from None

        return replay

    def _graph(self, captured: Sequence[_Launch]) -> Any:
        graphs = importlib.import_module("cuda.core.graph")
        try:
            definition = graphs.GraphDefinition()
            nodes: list[Any] = []
            waits = dependencies([one.call.access for one in captured])
            for one, (*others, last) in zip(captured, (w or (None,) for w in waits), strict=True):
                if last is not None and not others and self._chained(captured[last], one):
                    node = _node(definition, one)
                    self._chain(definition, nodes[last], node)
                else:
                    node = _node(definition if last is None else nodes[last], one)
                    node.pred.update(nodes[other] for other in others)
                nodes.append(node)
            return definition.instantiate()
        except Exception as error:
            raise _translated(error, "a graph cannot be made of the step") from None

    def _chained(self, before: _Launch, after: _Launch) -> bool:
        """Whether the kernel of one launch may begin while that of the other still runs."""
        return before.call.kernel.chained and after.call.kernel.chained and self._chains

    @cached_property
    def _chains(self) -> bool:
        """Whether graphs have such edges: from compute capability 9.0 and CUDA 12.3 on. Without
        them each kernel begins when the one before has ended, which gives the same bits."""
        capability = device.capability_of(self.arch)
        (version,) = self._ask("cuDriverGetVersion")
        return capability is not None and capability >= (9, 0) and int(version) >= 12030

    def _chain(self, definition: Any, before: Any, after: Any) -> None:
        """Let a node begin when all blocks of the one before it have said so."""
        driver = self._driver
        edge = driver.CUgraphEdgeData()
        edge.from_port = driver.CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC
        edge.type = int(driver.CUgraphDependencyType.CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC)
        # CUDA 13 has the second form alone, under the plain name.
        second = "cuGraphAddDependencies_v2"
        add = second if hasattr(driver, second) else second.removesuffix("_v2")
        self._ask(add, definition.handle, [before.handle], [after.handle], [edge], 1)

    def upload_aside(self, address: int, values: np.ndarray, after: Mark) -> Mark:
        """Copy part of a pinned array on a stream of its own, once ``after`` is due."""
        self._enter()
        assert isinstance(after, _Mark)
        with self._lock:
            if self._side is None:
                self._side = self._device.create_stream()
        try:
            self._side.wait(after.event)
            self._ask(
                "cuMemcpyHtoDAsync", address, values.ctypes.data, values.nbytes, self._side.handle
            )
            return _Mark(self._side.record(), patient=self._patient)
        except Exception as error:
            raise _translated(error, "a batch cannot be copied to the GPU") from None

    def follow(self, mark: Mark) -> None:
        """What is asked from now on begins when ``mark`` is due; the host does not wait."""
        self._enter()
        assert isinstance(mark, _Mark)
        try:
            self._stream.wait(mark.event)
        except Exception as error:
            raise _translated(error, _FAILED) from None

    def mark(self) -> Mark:
        """The moment when all that has been asked so far is done."""
        self._enter()
        try:
            return _Mark(self._stream.record(), patient=self._patient)
        except Exception as error:
            raise _translated(error, _FAILED) from None

    def synchronize(self) -> None:
        """Wait until all is done.

        Raises:
            DeviceError: a kernel failed while it ran.
        """
        self._enter()
        try:
            self._stream.sync()
        except Exception as error:
            raise _translated(error, _FAILED) from None

    def seconds(self, work: Callable[[], None]) -> float:
        """How long the device takes for what ``work`` asks of it."""
        self._enter()
        start, stop = (self._ask("cuEventCreate", 0)[0] for _ in range(2))
        try:
            self._ask("cuEventRecord", start, self._queue)
            work()
            self._ask("cuEventRecord", stop, self._queue)
            self._ask("cuEventSynchronize", stop)
            return float(self._ask("cuEventElapsedTime", start, stop)[0]) / 1000
        finally:
            for event in (start, stop):
                self._ask("cuEventDestroy", event)

    # What follows is between this class and the driver.

    def _enter(self) -> None:
        """Make the GPU this thread's; a process that was forked cannot use it."""
        if os.getpid() != self._process:
            raise DeviceError(
                "this process was forked after its parent had used the GPU, and CUDA does not "
                "work in it; start workers with multiprocessing's 'spawn', or fork them before "
                "the first use of device cuda"
            )
        if not getattr(self._thread, "entered", False):
            try:
                self._core.Device(0).set_current()
            except Exception as error:
                raise _translated(error, "the GPU cannot be used in this thread") from None
            self._thread.entered = True

    def _ask(self, function: str, *arguments: Any) -> Sequence[Any]:
        """Call the driver; its results without the error code."""
        error, *results = getattr(self._driver, function)(*arguments)
        if int(error):
            raise _failure(str(getattr(error, "name", error)), f"the driver's {function} failed")
        return list(results)

    def _attribute(self, name: str) -> int:
        which = getattr(self._driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._ask("cuDeviceGetAttribute", which, self._ordinal())[0])

    def _ordinal(self) -> Any:
        return self._ask("cuDeviceGet", int(self._device.device_id))[0]

    def _loaded(self, specialisation: Specialisation, cubin: Cubin) -> Any:
        try:
            module = self._core.ObjectCode.from_cubin(cubin.code, name=specialisation.name)
            kernel = module.get_kernel(cubin.symbol)
        except Exception as error:
            what = f"the driver cannot load the kernel {describe(specialisation)}"
            raise _translated(error, what) from None
        # The driver would load it at its first launch, which may be within a capture.
        self._ask("cuKernelGetFunction", kernel.handle)
        return kernel

    def _copy_out(self, address: int, values: np.ndarray) -> None:
        self._ask("cuMemcpyDtoHAsync", values.ctypes.data, address, values.nbytes, self._queue)

    def _allow_shared(self, call: Call, kernel: Any) -> None:
        """Let the kernel have the launch's shared memory, where it is more than usual."""
        if call.shared <= self._shared[call.kernel]:
            return
        if call.shared > self.shared_limit:
            raise DeviceError(
                f"{_cannot_launch(call)}: a block of {self.name} has at most "
                f"{self.shared_limit} bytes of shared memory"
            )
        which = self._driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        try:
            self._ask("cuKernelSetAttribute", which, call.shared, kernel.handle, self._ordinal())
        except DeviceError as error:
            raise DeviceError(f"{_cannot_launch(call)}: {error}") from None
        self._shared[call.kernel] = call.shared


@dataclass(frozen=True)
class _Launch:
    """A call, and what cuda-core wants to know of it."""

    call: Call
    arguments: tuple[Any, ...]


def _node(after: Any, launch: _Launch) -> Any:
    """A launch in a graph, behind one node or at the graph's beginning."""
    try:
        return after.launch(*launch.arguments)
    except Exception as error:
        raise _translated(error, _cannot_launch(launch.call)) from None


class _Memory:
    """Device memory that is freed with the object."""

    def __init__(self, gpu: CudaGpu, nbytes: int) -> None:
        self.nbytes = nbytes
        self.address = 0
        if not nbytes:
            return
        try:
            (pointer,) = gpu._ask("cuMemAlloc", nbytes)
        except DeviceError as error:
            if "OUT_OF_MEMORY" not in str(error):
                raise
            raise OutOfMemoryError(
                f"{nbytes:,} bytes of GPU memory were asked for and {gpu.free_bytes():,} are "
                f"free on {gpu.name}"
            ) from None
        self.address = int(pointer)
        weakref.finalize(self, _free, gpu, "cuMemFree", self.address)


class _Pinned:
    """Page-locked host memory that is freed when nobody holds a view of it."""

    def __init__(self, gpu: CudaGpu, nbytes: int) -> None:
        try:
            (pointer,) = gpu._ask("cuMemAllocHost", max(nbytes, 1))
        except DeviceError as error:
            raise DeviceError(
                f"{nbytes:,} bytes of the host's memory cannot be locked for the GPU: {error}"
            ) from None
        address = int(pointer)
        held = (ctypes.c_uint8 * nbytes).from_address(address)
        self.array = np.ctypeslib.as_array(held)
        # Every view holds ``held``, so results that are on their way outlive what asked for them.
        weakref.finalize(held, _free, gpu, "cuMemFreeHost", address)


class _Mark:
    """An event that was recorded on one of the streams.

    Args:
        patient: look for it from time to time, and let other Python threads run meanwhile: waiting
            in the driver keeps them out.
    """

    def __init__(self, event: Any, *, patient: bool) -> None:
        self.event = event
        self._patient = patient

    def __call__(self) -> None:
        try:
            while self._patient and not self.event.is_done:
                time.sleep(_LOOK)
            self.event.sync()
        except Exception as error:
            raise _translated(error, _FAILED) from None


class _Slot:
    """One of the pinned buffers behind ``upload``, and the event that guards its reuse."""

    def __init__(self, gpu: CudaGpu) -> None:
        self._gpu = gpu
        self._memory: _Pinned | None = None
        self._sent: Callable[[], None] | None = None

    def send(self, address: int, part: np.ndarray) -> None:
        if self._sent is not None:
            self._sent()
        if self._memory is None or self._memory.array.nbytes < part.nbytes:
            self._memory = self._gpu.pinned(max(part.nbytes, 4096))
        staged = self._memory.array[: part.nbytes]
        staged[...] = part
        gpu = self._gpu
        gpu._ask("cuMemcpyHtoDAsync", address, staged.ctypes.data, part.nbytes, gpu._queue)
        self._sent = gpu.mark()


def _free(gpu: CudaGpu, function: str, address: int) -> None:
    """Give memory back. A process that ends, or was forked, has nothing to give back."""
    with contextlib.suppress(Exception):
        gpu._enter()
        gpu._ask(function, address)


def _parameter_sizes(kernel: Any) -> list[int] | None:
    """Bytes of each of a kernel's parameters; None from a driver before CUDA 12.4."""
    try:
        return [int(one.size) for one in kernel.arguments_info]
    except Exception:  # whatever it is, the launch itself will say so too
        return None


def _typed(call: Call, sizes: Sequence[int] | None) -> list[Any]:
    """The words as cuda-core wants them: it passes an int as 64 bits, a NumPy float as it is.

    Raises:
        DeviceError: the kernel's parameters are others; the driver would read rubbish.
    """
    if sizes is None:
        sizes = [4 if isinstance(word, float) else 8 for word in call.words]
    fits = len(sizes) == len(call.words) and all(
        size == 8 or (size == 4 and isinstance(word, float))
        for size, word in zip(sizes, call.words, strict=True)
    )
    if not fits:
        raise DeviceError(
            f"{_cannot_launch(call)}: its parameters take {list(sizes)} bytes, and "
            f"{len(call.words)} arguments are {call.words}"
        )
    floats = {4: np.float32, 8: np.float64}
    return [
        floats[size](word) if isinstance(word, float) else word
        for size, word in zip(sizes, call.words, strict=True)
    ]


_FAILED = "a kernel failed on the GPU (a watched run says which)"


def _cannot_launch(call: Call) -> str:
    return (
        f"{call.title}: the kernel {describe(call.kernel)} cannot be launched with {call.blocks} "
        f"blocks of {call.threads} threads and {call.shared} bytes of shared memory"
    )


def _translated(error: Exception, what: str) -> DeviceError:
    """An exception of cuda-core, whose message begins with the driver's name for it."""
    if isinstance(error, DeviceError):
        return error
    return _failure(str(error).strip().partition("\n")[0] or type(error).__name__, what)


def _failure(reason: str, what: str) -> DeviceError:
    if any(f"CUDA_ERROR_{name}" in reason for name in _FATAL):
        reason += "; this process cannot use the GPU any more, so start it again"
    return DeviceError(f"{what}: {reason}")
