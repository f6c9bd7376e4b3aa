"""Right kernels give right results, in every mode, order of threads and number of workers."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from convloom.backends.cudasim.machine import Settings
from convloom.backends.cudasim.modes import MODES
from convloom.ops import rounded
from tests.backends.cudasim.bench import NEEDS_GCC, Bench, kernel, workshop_of

pytestmark = NEEDS_GCC
f32 = np.float32


@pytest.fixture(params=list(MODES))
def bench(request: pytest.FixtureRequest) -> Bench:
    # One batch: the kernels compile in parallel.
    kernels = [kernel(f"sound/{name}") for name in ("vector_add", "block_sum", "votes", "atomics")]
    kernels += [kernel("sound/fragments", KIND=kind) for kind in range(7)]
    kernels += [kernel("sound/pipeline", THREADS=64)]
    workshop_of(request.param).load(kernels)
    return Bench(request.param)


def settings() -> Iterator[Settings]:
    for order in range(3):
        for workers in (1, 2):
            yield Settings(workers=workers, order=order, seed=5)


def normals(count: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(count).astype(f32)


def test_vector_add(bench: Bench) -> None:
    n = 1000
    x, y, z = (bench.array(normals(n)), bench.array(normals(n) ** 2), bench.array(np.zeros(n, f32)))
    for chosen in settings():
        z[:] = 0
        assert not bench.launch(
            kernel("sound/vector_add"), x, y, z, n, blocks=8, threads=128, settings=chosen
        )
        np.testing.assert_array_equal(z, x + y)


def test_shuffles_and_static_shared_memory(bench: Bench) -> None:
    n, blocks = 1000, 3
    x, partial = bench.array(np.arange(n, dtype=f32)), bench.array(np.zeros(blocks, f32))
    for chosen in settings():
        partial[:] = 0
        assert not bench.launch(
            kernel("sound/block_sum"), x, partial, n, blocks=blocks, threads=96, settings=chosen
        )
        number = np.arange(n) // 96 % blocks
        np.testing.assert_array_equal(partial, [x[number == b].sum() for b in range(blocks)])


def test_asynchronous_copies_and_dynamic_shared_memory(bench: Bench) -> None:
    tiles, threads = 5, 64
    x = bench.array(normals(tiles * 4 * threads))
    y = bench.array(np.zeros_like(x))
    pipeline = kernel("sound/pipeline", THREADS=threads)
    for chosen in settings():
        y[:] = 0
        shared = 2 * 16 * threads
        assert not bench.launch(
            pipeline, x, y, tiles, threads=threads, shared=shared, settings=chosen
        )
        np.testing.assert_array_equal(y.reshape(tiles, -1), x.reshape(tiles, -1)[:, ::-1])


def test_votes(bench: Bench) -> None:
    x = bench.array(normals(64))
    out = bench.array(np.zeros((64, 10), f32))
    i, lane = np.arange(64), np.arange(64) % 32
    warp, positive = i // 32 * 32, x > 0
    of_warp = positive.reshape(2, 32).sum(1).repeat(32)
    wanted = np.stack(
        [
            of_warp,
            of_warp > 0,
            of_warp == 32,
            np.full(64, positive.sum()),
            np.full(64, positive.any()),
            np.full(64, positive.all()),
            x[warp + lane // 8 * 8 + 3],
            np.where(lane % 16 > 0, x[i - 1], x),
            np.where(lane < 8, x[i ^ 4], 0),
            np.where(lane == 0, x[np.minimum(i + 31, 63)], x),
        ],
        axis=1,
    ).astype(f32)
    for chosen in settings():
        out[:] = 0
        assert not bench.launch(kernel("sound/votes"), x, out, settings=chosen)
        np.testing.assert_array_equal(out, wanted)


def test_atomics(bench: Bench) -> None:
    n = 2000
    x = bench.array(np.random.default_rng(1).integers(0, 100, n).astype(f32))
    counts = bench.array(np.zeros(8, np.int32))
    for chosen in settings():
        counts[:] = 0
        assert not bench.launch(
            kernel("sound/atomics"), x, counts, n, blocks=16, threads=128, settings=chosen
        )
        np.testing.assert_array_equal(counts, np.bincount(x.astype(int) % 8, minlength=8))


# Where a lane's v-th element lies, as CUTLASS's CuTe states it (include/cute/atom/
# mma_traits_sm80.hpp): ((thread extents), (thread strides), (value extents), (value strides)) of an
# index that counts along the first axis of the matrix first. Another statement of the tables in
# the PTX ISA, from which the simulator was written.
CUTE = {
    "a16": ((4, 8), (32, 1), (2, 2, 2), (16, 8, 128)),
    "b16": ((4, 8), (16, 1), (2, 2), (8, 64)),
    "a8": ((4, 8), (16, 1), (2, 2), (8, 64)),
    "b8": ((4, 8), (8, 1), (2,), (32,)),
    "c": ((4, 8), (32, 1), (2, 2), (16, 8)),
}


def fragments(name: str, matrix: np.ndarray) -> np.ndarray:
    """(lane, element) of a matrix, as the lanes of a warp hold it."""
    extents, strides, value_extents, value_strides = CUTE[name]
    flat = matrix.ravel(order="F")
    return np.array(
        [
            [
                flat[spread(lane, extents, strides) + spread(v, value_extents, value_strides)]
                for v in range(matrix.size // 32)
            ]
            for lane in range(32)
        ]
    )


def spread(index: int, extents: tuple[int, ...], strides: tuple[int, ...]) -> int:
    total = 0
    for extent, stride in zip(extents, strides, strict=True):
        total += index % extent * stride
        index //= extent
    return total


def as_bfloat16(x: np.ndarray) -> np.ndarray:
    return (x.view(np.uint32) >> 16).astype(np.uint16)


@pytest.mark.parametrize("kind,depth", [(0, 16), (1, 16), (2, 8)])
def test_matrix_products(bench: Bench, kind: int, depth: int) -> None:
    rng = np.random.default_rng(kind)
    a = rng.integers(-8, 9, (16, depth)).astype(f32)
    b = rng.integers(-8, 9, (8, depth)).astype(f32)
    held = [fragments(f"{n}{depth}", m).astype(f32) for n, m in (("a", a), ("b", b))]
    if kind == 0:
        held = [as_bfloat16(h) for h in held]
    if kind == 1:
        held = [h.astype(np.float16) for h in held]
    words = [bench.array(np.ascontiguousarray(h).view(np.uint32)) for h in held]
    out = bench.array(np.zeros((32, 4), f32))
    assert not bench.launch(kernel("sound/fragments", KIND=kind), *words, out, threads=32)
    np.testing.assert_array_equal(out, fragments("c", a @ b.T) + np.array([1, 2, 3, 4], f32))


def test_rounding_to_tf32(bench: Bench) -> None:
    """Ties, the largest number that rounds to infinity, NaN: as the NumPy twin has it."""
    low = np.array([0, 1, 0xFFF, 0x1000, 0x1001, 0x2FFF, 0x3000, 0x7FFFFF], np.uint32)
    high = np.array([0, 1, 126, 127, 254, 255, 256, 400], np.uint32)[:, None] << np.uint32(23)
    values = np.concatenate([high | low, ~(high | low)]).view(f32)
    x = bench.array(values.reshape(32, 4))
    out = bench.array(np.zeros((32, 4), f32))
    assert not bench.launch(kernel("sound/fragments", KIND=5), x, x, out, threads=32)
    np.testing.assert_array_equal(out, rounded(x, "tf32"))
    assert np.isnan(out).any()


def test_picked_bytes(bench: Bench) -> None:
    """PTX ISA, "prmt": a digit's upper bit asks for the byte's sign in all places."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 1 << 32, (32, n), np.uint64).astype(np.uint32) for n in (4, 2))
    out = bench.array(np.zeros((32, 4), f32))
    assert not bench.launch(
        kernel("sound/fragments", KIND=6), bench.array(a), bench.array(b), out, threads=32
    )
    for lane, i in np.ndindex(32, 4):
        picked = np.append(a[lane, i : i + 1].view(np.uint8), b[lane, :1].view(np.uint8))
        digits = int(b[lane, 1]) >> np.arange(0, 16, 4) & 15
        signs = np.where(picked[digits % 8] >= 128, 255, 0)
        wanted = np.where(digits >= 8, signs, picked[digits % 8]).astype(np.uint8)
        assert out.view(np.uint32)[lane, i] == wanted.view(np.uint32)[0]


@pytest.mark.parametrize("transposed", [False, True])
def test_ldmatrix(bench: Bench, transposed: bool) -> None:
    matrices = np.random.default_rng(0).integers(0, 1 << 16, (4, 8, 8)).astype(np.uint16)
    x = bench.array(matrices.reshape(32, 8).view(np.uint32))
    out = bench.array(np.zeros((32, 4), np.uint32))
    assert not bench.launch(
        kernel("sound/fragments", KIND=4 if transposed else 3), x, x, out, threads=32
    )
    got = out.view(np.uint16).reshape(32, 4, 2)
    rows = matrices.transpose(0, 2, 1) if transposed else matrices
    for lane in range(32):
        row, column = lane // 4, lane % 4 * 2
        np.testing.assert_array_equal(got[lane], rows[:, row, column : column + 2])
