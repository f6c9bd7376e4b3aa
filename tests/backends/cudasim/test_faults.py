"""Wrong kernels: each fault is found, by the modes that can find it, and named."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from convloom.backends.cache import ObjectCache
from convloom.backends.cudasim.build import Workshop, shared_workshop
from convloom.backends.cudasim.machine import Settings
from convloom.backends.cudasim.modes import MODES as SIMULATOR_MODES
from tests.backends.cudasim.bench import KERNELS, NEEDS_GCC, Bench, kernel, workshop_of

pytestmark = NEEDS_GCC
MODES = ("plain", "asan", "race")
#: Found without a message: the output is NaN, or depends on the order of threads.
NAN, ORDER = "NaN in the output", "other results in another order"


def cases(file: str) -> dict[str, int]:
    """{name: number} of the cases that a kernel file lists in its enums."""
    text = (KERNELS / "faults" / f"{file}.cu").read_text()
    found: dict[str, int] = {}
    for names in re.findall(r"enum \{ (.*?) \};", text):
        number = 0
        for name in names.split(", "):
            label, _, value = name.partition(" = ")
            number = int(value) if value else number
            found[label] = number
            number += 1
    return found


ALWAYS = {
    # fault: what every mode says of it
    "barriers.SITES": r"thread 32: divergent __syncthreads: this thread waits at "
    r"faults/barriers\.cu:12, while thread 0 waits in __syncthreads at faults/barriers\.cu:9",
    "barriers.RETURNED": r"thread 0: divergent __syncthreads: 63 of 64 threads wait at .*:17, the "
    "others have returned",
    "barriers.COUNTS": r"divergent __syncthreads: 32 of 64 threads wait at .*:20",
    "barriers.WARP_AND_BLOCK": r"thread 0: __syncwarp at .*:23 waits for lanes ffffffff, but only "
    "0000ffff of the warp arrived",
    "barriers.ENDLESS": r"did not end within 0.3 s and is taken for an endless loop, after "
    r"__syncthreads at faults/barriers\.cu:28",
    "barriers.SPINNING": r"did not come to a barrier within 0.3 s and is taken for an endless loop",
    "warps.ABSENT": r"__shfl_down_sync at .*:16 waits for lanes ffffffff, but only 0000ffff",
    "warps.NOT_IN_MASK": r"thread 16: .* the calling lane 16 is not in its mask 0000ffff",
    "warps.BAD_SOURCE": r"__shfl_sync at .*:21 reads lane 20, which takes no part",
    "warps.MIXED": r"__shfl_sync at .*:23 meets __ballot_sync at .*:23 of thread 0",
    "warps.MASKS": r"__shfl_sync at .*:24 reads lane 20, which takes no part",
    "warps.MISALIGNED": r"ldmatrix at .*:25: address not aligned to 16 bytes",
    "warps.OUTSIDE": r"ldmatrix at .*:26: address outside shared memory",
    "warps.MATRIX_HALF": r"ldmatrix at .*:28 needs all 32 lanes, it has 0000ffff",
    "memory.DIVISION": r"thread 0: division (of integers )?by zero",
    "memory.WILD": r"thread 0: invalid memory access",
    "memory.DEEP": r"thread 0: .*local variables overflow the simulator's stack",
    "memory.TOGETHER": ORDER,
    "shared.CLEAN": "",
    "shared.CLEAN_WARP": "",
}
#: fault: what each mode says; a mode that is not named need not find it.
SOMETIMES = {
    "shared.UNWRITTEN": {
        "plain": NAN,
        "asan": NAN,
        "race": r"thread 5: read of uninitialised shared memory, byte 20 of tile",
    },
    "shared.READ_TOO_EARLY": {
        "plain": NAN,
        "asan": NAN,
        "race": r"read of uninitialised shared memory, byte 252 of tile",
    },
    "shared.OVERWRITTEN": {
        "plain": ORDER,
        "asan": ORDER,
        "race": r"thread 32: race in shared memory: read after write, with thread 31, at byte 124 "
        "of tile",
    },
    "shared.NOT_WAITED": {"plain": NAN, "asan": NAN, "race": "uninitialised shared memory"},
    "shared.WAITED_ALONE": {"plain": NAN, "asan": NAN, "race": "uninitialised shared memory"},
    "shared.BEYOND": {"asan": r"thread 63: access outside .* at faults/shared\.cu:50"},
    "shared.BEFORE": {"asan": r"thread 0: access outside .* at faults/shared\.cu:50"},
    "shared.BEYOND_STATIC": {"asan": r"thread 63: access outside .* at faults/shared\.cu:57"},
    "shared.BEYOND_POINTER": {"asan": r"thread 63: access outside .* at faults/shared\.cu:57"},
    "memory.BEYOND": {"asan": r"thread 63: access outside .* at faults/memory\.cu:7"},
    "memory.NOT_MINE": {"asan": r"thread 0: access outside .* at faults/memory\.cu:8"},
    "memory.LOCAL": {"asan": r"thread 0: index 5 out of bounds for type 'float ?\[4\]' at .*:12"},
    "memory.MISALIGNED": {"asan": r"misaligned address .* requires 16 byte alignment at .*:15"},
    "memory.OVERFLOW": {"asan": r"thread 0: signed integer overflow: .* at faults/memory\.cu:18"},
}


def expected() -> list[tuple[str, str, str]]:
    """(mode, fault, what to find) of every combination."""
    always = [(mode, fault, text) for fault, text in ALWAYS.items() for mode in MODES]
    return always + [(m, fault, text) for fault, by in SOMETIMES.items() for m, text in by.items()]


def test_every_case_is_expected() -> None:
    all_cases = {f"{f}.{c}" for f in ("barriers", "warps", "shared", "memory") for c in cases(f)}
    assert all_cases == ALWAYS.keys() | SOMETIMES.keys()


@pytest.mark.parametrize("mode,fault,text", expected())
def test_fault_is_found(mode: str, fault: str, text: str) -> None:
    assert re.search(text, found(mode, fault)), found(mode, fault)
    if text == "":
        assert found(mode, fault) == ""


def found(mode: str, fault: str) -> str:
    """What runs in three orders of threads find in a wrong kernel; the cause, if there are two."""
    file, case = fault.split(".")
    # One batch for all cases of a mode: the files compile in parallel, once.
    workshop_of(mode).load(
        kernel(f"faults/{f}", CASE=number)
        for f in ("barriers", "warps", "shared", "memory")
        for number in cases(f).values()
    )
    bench = Bench(mode)
    x = bench.array(np.arange(64, dtype=np.float32))
    y = bench.array(np.zeros(64, np.float32))
    outputs = []
    for order in range(3):
        y[:] = 0
        error = bench.launch(
            kernel(f"faults/{file}", CASE=cases(file)[case]),
            x,
            y,
            63 if case == "RETURNED" else 1,
            shared=256,
            settings=Settings(workers=2, order=order, seed=3, patience=0.3),
        )
        if error:
            assert error.startswith("block 0, thread ")
            return error
        outputs.append(y.copy())
    if np.isnan(outputs).any():
        return NAN
    return "" if all(np.array_equal(o, outputs[0]) for o in outputs) else ORDER


@pytest.mark.parametrize("case", ["BEYOND", "OVERFLOW"])
def test_a_library_from_another_folder_names_files_alike(tmp_path: Path, case: str) -> None:
    """Installations share a cache: who compiled first does not show in the other's messages."""
    shared = shared_workshop(SIMULATOR_MODES["asan"])
    said = []
    for place in ("first", "second"):
        shutil.copytree(KERNELS, tmp_path / place)
        cache = ObjectCache(tmp_path / "cache", "cuda-sim")
        own = Workshop(shared.compiler, cache, shared.mode, tmp_path / place)
        bench = Bench("asan", own)
        x, y = (bench.array(np.ones(64, np.float32)) for _ in range(2))
        error = bench.launch(kernel("faults/memory", CASE=cases("memory")[case]), x, y, 1)
        said.append(error.split(" (full report")[0])
    assert "at faults/memory.cu:" in said[0]
    assert said[1] == said[0]


@pytest.mark.parametrize("mode", MODES)
def test_a_fault_leaves_the_simulator_usable(mode: str) -> None:
    bench = Bench(mode)
    x = bench.array(np.arange(64, dtype=np.float32))
    y = bench.array(np.zeros(64, np.float32))
    for wrong in ("barriers.RETURNED", "warps.ABSENT", "memory.WILD", "memory.DEEP"):
        file, case = wrong.split(".")
        bad, good = (
            kernel(f"faults/{file}", CASE=cases(file)[case]),
            kernel("faults/shared", CASE=0),
        )
        assert bench.launch(bad, x, y, 1)
        y[:] = 0
        assert bench.launch(good, x, y, 1, blocks=3) == ""
        np.testing.assert_array_equal(y, x[::-1])


@pytest.mark.parametrize(
    "how,text",
    [
        ({"threads": 1025}, "a block has 1 to 1024 threads"),
        ({"blocks": 0}, "a grid has 1 to"),
        ({"shared": 1 << 18}, "at most 227 KiB"),
    ],
)
def test_impossible_launches_are_refused(how: dict[str, int], text: str) -> None:
    bench = Bench("plain")
    x, y = (bench.array(np.zeros(64, np.float32)) for _ in range(2))
    good = kernel("faults/shared", CASE=0)
    assert text in bench.launch(good, x, y, 1, **how)
    assert bench.launch(good, x, y, 1) == ""
