"""A ``Gpu`` without a GPU: device memory is host memory, kernels are compiled by the host's g++.

It stands in for the device beneath storage, executables and resident data, so that they are tested
where no GPU is. Threads of a block run one after the other, which is enough for kernels that never
wait for each other (the naive rung); whether kernels are right is the simulator's business. Graphs
run their launches in another order than they were asked for, if their dependencies allow any.
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from pathlib import Path

import numpy as np

from convloom.backends.base import DeviceError, OutOfMemoryError
from convloom.backends.cuda.gpu import Call
from convloom.backends.cuda.launch import Specialisation
from convloom.backends.cuda.nvrtc import expression_of, translation_unit
from convloom.backends.cuda.overlap import Access, dependencies

_HEADER = r"""
#include <cmath>
#define __global__ static
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
struct Extent { unsigned x = 1, y = 1, z = 1; };
static thread_local Extent threadIdx, blockIdx, blockDim, gridDim;
template <class T> T atomicAdd(T* place, T value) { T old = *place; *place += value; return old; }
static inline float __fmul_rn(float a, float b) { volatile float c = a * b; return c; }
static inline float __fadd_rn(float a, float b) { volatile float c = a + b; return c; }
static inline float __int_as_float(int a) { return __builtin_bit_cast(float, a); }
static inline int __float_as_int(float a) { return __builtin_bit_cast(int, a); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static inline float rsqrtf(float a) { return 1 / std::sqrt(a); }
static inline unsigned __umulhi(unsigned a, unsigned b) {
    return (unsigned long long)a * b >> 32;
}
template <class T> T __ldg(const T* place) { return *place; }
"""
_ENTRIES = r"""
template <class T> struct Word {
    static T read(unsigned long long w) { return T(w); }
};
template <class T> struct Word<T*> {
    static T* read(unsigned long long w) { return reinterpret_cast<T*>(w); }
};
template <> struct Word<float> {
    static float read(unsigned long long w) { return __builtin_bit_cast(float, unsigned(w)); }
};
template <class... T> struct Run {
    Run(void (*kernel)(T...), unsigned blocks, unsigned threads, T... arguments) {
        gridDim.x = blocks;
        blockDim.x = threads;
        for (unsigned b = 0; b < blocks; ++b)
            for (unsigned t = 0; t < threads; ++t) {
                blockIdx.x = b;
                threadIdx.x = t;
                kernel(arguments...);
            }
    }
};
template <class... T>
void run(void (*kernel)(T...), unsigned blocks, unsigned threads, const unsigned long long* words) {
    Run<T...>{kernel, blocks, threads, Word<T>::read(*words++)...};
}
#define ENTRY(NAME, ...)                                                             \
    extern "C" void NAME(unsigned blocks, unsigned threads, const unsigned long long* words) { \
        run(&__VA_ARGS__, blocks, threads, words);                                   \
    }
"""


class Memory:
    """Bytes of "device" memory, 256-byte aligned as the driver's."""

    def __init__(self, gpu: HostGpu, nbytes: int) -> None:
        raw = np.zeros(nbytes + 256, np.uint8)
        skip = -raw.ctypes.data % 256
        self.array = raw[skip : skip + nbytes]
        self.nbytes = nbytes
        self.address = int(self.array.ctypes.data) if nbytes else 0
        self._gpu = gpu
        gpu.used += nbytes

    def __del__(self) -> None:
        self._gpu.used -= self.nbytes


class Page:
    """Pinned memory."""

    def __init__(self, nbytes: int) -> None:
        self.array = np.zeros(nbytes, np.uint8)


@dataclass
class HostGpu:
    """The stand-in.

    Attributes:
        total: bytes of memory that it pretends to have.
        launched: kernels launched so far outside graphs, by name; graphs count in ``replayed``.
        recorded: how many launches each captured graph holds.
        broken: names of kernels whose launch fails.
    """

    folder: Path
    total: int = 1 << 30
    name: str = "a pretended GPU"
    arch: str = "sm_90a"
    used: int = 0
    launched: list[str] = field(default_factory=list)
    captured: int = 0
    recorded: list[int] = field(default_factory=list)
    replayed: int = 0
    broken: set[str] = field(default_factory=set)
    _functions: dict[Specialisation, Callable[..., None]] = field(default_factory=dict)
    _recording: list[tuple[Callable[[], None], Access | None]] | None = None

    def free_bytes(self) -> int:
        return self.total - self.used

    def allocate(self, nbytes: int) -> Memory:
        if nbytes > self.free_bytes():
            raise OutOfMemoryError("no memory")
        return Memory(self, nbytes)

    def pinned(self, nbytes: int) -> Page:
        return Page(nbytes)

    def upload(self, address: int, values: np.ndarray) -> None:
        assert self._recording is None, "a graph must not hold copies of host arrays"
        assert values.flags.c_contiguous
        ctypes.memmove(address, values.ctypes.data, values.nbytes)

    def download(self, address: int, values: np.ndarray) -> None:
        assert values.flags.c_contiguous
        ctypes.memmove(values.ctypes.data, address, values.nbytes)

    def download_later(self, address: int, values: np.ndarray) -> None:
        self.download(address, values)

    def upload_aside(
        self, address: int, values: np.ndarray, after: Callable[[], None]
    ) -> Callable[[], None]:
        self.upload(address, values)
        return self.mark()

    def follow(self, mark: Callable[[], None]) -> None:
        pass

    def load(self, kernels: Iterable[Specialisation]) -> None:
        missing = [k for k in dict.fromkeys(kernels) if k not in self._functions]
        if not missing:
            return
        text = _HEADER + "".join(translation_unit(k) for k in missing) + _ENTRIES
        for i, kernel in enumerate(missing):
            text += f"ENTRY(entry{i}, {expression_of(kernel)})\n"
        stem = hashlib.sha256(text.encode()).hexdigest()[:16]
        library = self.folder / f"{stem}.so"
        if not library.exists():
            source = self.folder / f"{stem}.cpp"
            source.write_text(text)
            flags = ("-std=c++20", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w")
            subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
        loaded = ctypes.CDLL(str(library))
        for i, kernel in enumerate(missing):
            self._functions[kernel] = loaded[f"entry{i}"]

    def prepare(self, call: Call) -> Callable[[], None]:
        function = self._functions[call.kernel]
        words = (ctypes.c_uint64 * max(1, len(call.words)))(*map(_word, call.words))

        def work() -> None:
            function(ctypes.c_uint(call.blocks), ctypes.c_uint(call.threads), words)

        def launch() -> None:
            if call.kernel.name in self.broken:
                raise DeviceError(f"{call.title}: cannot be launched")
            if self._recording is not None:
                self._recording.append((work, call.access))
            else:
                self.launched.append(call.kernel.name)
                work()

        return launch

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._recording = recorded = []
        try:
            work()
        finally:
            self._recording = None
        self.captured += 1
        self.recorded.append(len(recorded))
        order = latest_first(dependencies([access for _, access in recorded]))

        def replay() -> None:
            self.replayed += 1
            for number in order:
                recorded[number][0]()

        return replay

    def mark(self) -> Callable[[], None]:
        return lambda: None

    def synchronize(self) -> None:
        pass


def latest_first(waits: Sequence[Sequence[int]]) -> list[int]:
    """An order that keeps the dependencies and is far from that of the numbers.

    Of what may run next it takes what was asked for last.
    """
    followers: list[list[int]] = [[] for _ in waits]
    for number, others in enumerate(waits):
        for other in others:
            followers[other].append(number)
    left = [len(others) for others in waits]
    ready = [-number for number, count in enumerate(left) if not count]
    heapify(ready)
    order = []
    while ready:
        number = -heappop(ready)
        order.append(number)
        for follower in followers[number]:
            left[follower] -= 1
            if not left[follower]:
                heappush(ready, -follower)
    return order


def _word(value: int | float) -> int:
    if isinstance(value, float):
        return int(np.float32(value).view(np.uint32))
    return value % 2**64
