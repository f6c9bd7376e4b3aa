"""The direct convolution kernels of the CPU against the ops' NumPy references.

Every case runs the kernels that the dense and the sparse rung take; minimal filtering, a rung
above, has a test of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from convloom.backends.base import Backend, get_backend
from convloom.backends.cpu.jit import shared_jit
from convloom.backends.cpu.launch import CpuLaunch
from convloom.backends.cpu.toolchain import find_compiler
from convloom.ir import NHWC, ROW_MAJOR, Layout
from convloom.ops import (
    BiasGrad,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    Op,
    PooledConv2dGrad,
)
from tests.backends.harness import assert_close, compare, integers, normals, outcome, plan_of
from tests.backends.harness import one_node as graph_of

Pair = tuple[int, int]


@dataclass(frozen=True)
class Shape:
    """One convolution: batch, channels, image, filters, kernel and geometry."""

    n: int
    c: int
    size: Pair
    k: int
    kernel: Pair = (3, 3)
    stride: Pair = (1, 1)
    padding: Pair = (0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1
    planar: bool = False

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, int]:
        return self.stride, self.padding, self.dilation, self.groups

    @property
    def x(self) -> tuple[int, ...]:
        return (self.n, self.c, *self.size)

    @property
    def w(self) -> tuple[int, ...]:
        return (self.k, self.c // self.groups, *self.kernel)

    @property
    def y(self) -> tuple[int, ...]:
        return (self.n, self.k, *Conv2d(*self.geometry).window(self.kernel).output(self.size))

    @property
    def images(self) -> Layout:
        return ROW_MAJOR if self.planar else NHWC

    def __str__(self) -> str:
        sizes = "x".join(map(str, (*self.x, self.k, *self.kernel)))
        marks = f"s{self.stride[0]}p{self.padding[0]}d{self.dilation[0]}g{self.groups}"
        return f"{sizes}-{marks}{'-nchw' if self.planar else ''}"


#: Every kernel, tail and way of reading: channels below, at and beyond a vector; odd sizes; stride
#: below, at and beyond the kernel; padding beyond the kernel; 1x1; kernel = input; groups of all
#: kinds; images in strips; NCHW.
ZOO = (
    Shape(1, 1, (1, 1), 1, (1, 1)),
    Shape(33, 1, (9, 11), 16, planar=True),
    Shape(2, 3, (9, 7), 17, padding=(1, 1), planar=True),
    Shape(2, 16, (12, 13), 33),
    Shape(3, 5, (8, 11), 3, (5, 3), (2, 1), (2, 0)),
    Shape(2, 17, (6, 5), 33, (1, 1)),
    Shape(2, 600, (3, 5), 32, (1, 1)),
    Shape(31, 3, (7, 5), 4, (7, 5)),
    Shape(1, 3, (23, 25), 16, (11, 11), (4, 4), (2, 2)),
    Shape(2, 4, (9, 10), 8, (2, 2), (3, 3)),
    Shape(2, 4, (13, 12), 6, (3, 2), padding=(1, 2), dilation=(2, 3)),
    Shape(2, 8, (9, 9), 48, stride=(2, 2), padding=(2, 2), dilation=(2, 2)),
    Shape(1, 4, (5, 6), 4, padding=(3, 3), planar=True),
    Shape(1, 6, (9, 8), 64, padding=(1, 1), groups=2),
    Shape(1, 64, (40, 30), 40, padding=(1, 1)),
    Shape(2, 256, (7, 7), 96, padding=(1, 1)),
    Shape(2, 32, (9, 8), 32, padding=(1, 1), groups=32),
    Shape(2, 17, (9, 20), 17, stride=(2, 2), padding=(1, 1), groups=17, planar=True),
    Shape(3, 16, (11, 12), 16, stride=(2, 1), padding=(1, 1), groups=4),
    Shape(2, 9, (12, 12), 18, (7, 7), padding=(3, 3), groups=3),
    Shape(2, 24, (10, 9), 24, padding=(2, 2), dilation=(2, 2), groups=24),
)
#: Behind a 2x2 max-pool: with and without strips, slices, tails, padding and overhang.
POOLED = (
    Shape(2, 16, (26, 26), 32),
    Shape(33, 1, (7, 8), 3, planar=True),
    Shape(1, 3, (9, 7), 17, padding=(1, 1)),
    Shape(3, 17, (10, 11), 5, (3, 2), (2, 1), (1, 0)),
    Shape(2, 8, (12, 13), 16, padding=(1, 1), dilation=(2, 2)),
    Shape(2, 256, (9, 9), 32, padding=(1, 1)),
    Shape(1, 32, (33, 40), 16, (5, 5), padding=(2, 2)),
    Shape(2, 6, (9, 8), 64, padding=(1, 1), groups=2),
)


@dataclass(frozen=True)
class Run:
    """An op with its inputs and the layouts they (and the outputs) lie in."""

    op: Op
    inputs: tuple[np.ndarray, ...]
    layouts: tuple[Layout | None, ...]


def runs(shape: Shape, draw: object = integers) -> Iterator[Run]:
    """The three convolutions of a shape, each once plain and once fused."""
    x, w, b, dy = (
        draw(s, seed)  # type: ignore[operator]
        for seed, s in enumerate((shape.x, shape.w, (shape.k,), shape.y))
    )
    g, lay = shape.geometry, shape.images
    yield Run(Conv2d(*g), (x, w), (lay, None, lay))
    yield Run(FusedConv2d(*g, activation="relu"), (x, w, b), (lay, None, None, lay))
    yield Run(Conv2dDgrad(*g, size=shape.size), (dy, w), (lay, None, lay))
    masked = FusedConv2dDgrad(*g, size=shape.size, mask="relu")
    yield Run(masked, (dy, w, x), (lay, None, lay, lay))
    yield Run(Conv2dWgrad(*g, kernel=shape.kernel), (x, dy), (lay, lay, None))
    yield Run(FusedConv2dWgrad(*g, kernel=shape.kernel), (x, dy), (lay, lay, None))


def pooled_runs(shape: Shape, draw: object = integers) -> Iterator[Run]:
    """Forward with pool, and the joint gradient with and without dx, bias and mask."""
    x, w, b = (
        draw(s, seed)  # type: ignore[operator]
        for seed, s in enumerate((shape.x, shape.w, (shape.k,)))
    )
    g, lay = shape.geometry, shape.images
    forward = FusedConv2d(*g, activation="relu", pool=2)
    yield Run(forward, (x, w, b), (lay, None, None, NHWC, NHWC))
    y, index = forward.reference(x, w, b)
    dyp = (draw(y.shape, 9) * (y > 0)).astype(np.float32)  # type: ignore[operator]
    whole = PooledConv2dGrad(*g, size=shape.size, kernel=shape.kernel, mask="relu")
    inputs = (x, w, dyp, index)
    yield Run(whole, inputs, (lay, None, NHWC, NHWC, None, None, lay))
    plain = replace(whole, mask="none", has_bias=False)
    yield Run(plain, inputs, (lay, None, NHWC, NHWC, None, lay))
    yield Run(replace(whole, mask="none", needs_dx=False), inputs, (lay, None, NHWC, NHWC))


@pytest.fixture(scope="module")
def backend() -> Backend:
    """The CPU backend, with the kernels of all cases compiled in one parallel batch."""
    found = get_backend("cpu")
    compiler = find_compiler()
    assert compiler is not None, "these tests need a C++ compiler"
    kernels = []
    cases = [(run, "dense") for shape in ZOO for run in runs(shape)]
    cases += [(run, rung) for shape in POOLED for run in pooled_runs(shape) for rung in RUNGS]
    for run, rung in cases:
        graph = graph_of(run.op, run.inputs, run.layouts)
        for step in plan_of(graph, found, rung).steps:
            assert isinstance(step.selection.launch, CpuLaunch)
            kernels += [phase.kernel for phase in step.selection.launch.phases]
    shared_jit(compiler).load(kernels)
    return found


RUNGS = ("dense", "sparse")


def check(run: Run, backend: Backend, rung: str = "dense", exact: bool = True) -> None:
    """Against the reference, with the same bits for 1, 2 and 3 threads."""
    taken = outcome(run.op, *run.inputs, kernels=rung, layouts=run.layouts, backend=backend).rung
    options = {"kernels": rung, "layouts": run.layouts, "backend": backend, "require": taken}
    compare(run.op, *run.inputs, exact=exact, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("shape", ZOO, ids=str)
def test_exact_on_small_integers(shape: Shape, backend: Backend) -> None:
    for run in runs(shape):
        check(run, backend)


@pytest.mark.parametrize("shape", ZOO, ids=str)
def test_random(shape: Shape, backend: Backend) -> None:
    for run in runs(shape, normals):
        check(run, backend, exact=False)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_pooled_exact_on_small_integers(shape: Shape, rung: str, backend: Backend) -> None:
    for run in pooled_runs(shape):
        check(run, backend, rung)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_pooled_random(shape: Shape, rung: str, backend: Backend) -> None:
    for run in pooled_runs(shape, normals):
        check(run, backend, rung, exact=False)


def test_lists_are_taken_where_they_pay(backend: Backend) -> None:
    rungs = {}
    for shape in POOLED:
        _, whole, *_ = pooled_runs(shape)
        rungs[shape] = outcome(
            whole.op, *whole.inputs, kernels="sparse", layouts=whole.layouts, backend=backend
        ).rung
    assert rungs[POOLED[0]] == "sparse"
    assert rungs[POOLED[5]] == "sparse"
    # Three channels of a group fill few lanes, and the dense kernel fills all.
    assert rungs[POOLED[7]] == "dense"


SPECIALS = (np.nan, np.inf, -np.inf)


def with_specials(values: np.ndarray, seed: int) -> np.ndarray:
    """A copy with NaN and infinities at three places."""
    flat = values.copy().ravel()
    places = np.random.default_rng(seed).choice(flat.size, len(SPECIALS), replace=False)
    flat[places] = SPECIALS
    return flat.reshape(values.shape)


#: A direct, a pointwise, a lanewise and a strided case.
SPECIAL_ZOO = (ZOO[4], ZOO[5], ZOO[8], ZOO[13], ZOO[16], ZOO[18])


@pytest.mark.parametrize("shape", SPECIAL_ZOO, ids=str)
def test_nan_and_inf_pass(shape: Shape, backend: Backend) -> None:
    """A zero weight times NaN is NaN; gradients that are not finite reach what they reach."""
    for run in runs(shape):
        inputs = (with_specials(run.inputs[0], 1), *run.inputs[1:])
        with np.errstate(invalid="ignore"):
            wanted = run.op.reference(*inputs)
        got = outcome(run.op, *inputs, kernels="dense", layouts=run.layouts, backend=backend)
        for y, reference in zip(got.outputs, wanted, strict=True):
            np.testing.assert_array_equal(y, reference)


@pytest.mark.parametrize("shape", [POOLED[0], POOLED[2], POOLED[3]], ids=str)
def test_pool_lets_nan_win(shape: Shape, backend: Backend) -> None:
    forward, *_ = pooled_runs(shape)
    inputs = (with_specials(forward.inputs[0], 2), *forward.inputs[1:])
    with np.errstate(invalid="ignore"):
        wanted = forward.op.reference(*inputs)
    got = outcome(forward.op, *inputs, kernels="dense", layouts=forward.layouts, backend=backend)
    for y, reference in zip(got.outputs, wanted, strict=True):
        np.testing.assert_array_equal(y, reference)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("shape", POOLED, ids=str)
def test_pooled_gradients_pass_what_is_not_finite(
    shape: Shape, rung: str, backend: Backend
) -> None:
    """NaN and Inf reach exactly the filters, biases and inputs they belong to, on every rung."""
    _, whole, *_ = pooled_runs(shape)
    x, w, dyp, index = whole.inputs
    # Inputs and filters without zeros: the rungs differ in 0 times Inf alone.
    x, w = np.where(x == 0, 1, x).astype(np.float32), np.where(w == 0, 1, w).astype(np.float32)
    inputs = (x, w, with_specials(dyp, 3), index)
    with np.errstate(invalid="ignore"):
        wanted = whole.op.reference(*inputs)
    options = {"kernels": rung, "layouts": whole.layouts, "backend": backend}
    got = outcome(whole.op, *inputs, **options).outputs  # type: ignore[arg-type]
    for y, reference in zip(got[1:], wanted[1:], strict=True):
        np.testing.assert_array_equal(y, reference)
    poisoned = ~np.isfinite(with_specials(dyp, 3)).all(axis=(0, 2, 3))
    assert np.array_equal(~np.isfinite(got[0]).all(axis=(1, 2, 3)), poisoned)


@pytest.mark.parametrize("n", [0, 1])
def test_small_batches(n: int, backend: Backend) -> None:
    """An empty batch gives empty maps and zero gradients."""
    shape = Shape(n, 3, (9, 7), 17, padding=(1, 1), planar=True)
    for run in (*runs(shape), *pooled_runs(replace(shape, planar=False))):
        compare(run.op, *run.inputs, exact=True, kernels="dense", layouts=run.layouts)


def test_another_batch_size_compiles_nothing(backend: Backend) -> None:
    for shape in (*ZOO, *POOLED):
        pools = () if shape in ZOO else tuple(pooled_runs(shape))
        other = replace(shape, n=shape.n + 4)
        more = () if shape in ZOO else tuple(pooled_runs(other))
        pairs = zip((*runs(shape), *pools), (*runs(other), *more), strict=True)
        for run, wider in pairs:
            assert kernels_of(run, backend) == kernels_of(wider, backend), f"{shape} {run.op}"


def kernels_of(run: Run, backend: Backend) -> list[object]:
    """The specialisations of a run, in order."""
    graph = graph_of(run.op, run.inputs, run.layouts)
    (step,) = plan_of(graph, backend, "sparse").steps
    return [phase.kernel for phase in step.selection.launch.phases]


@pytest.mark.parametrize("layout", [NHWC, ROW_MAJOR], ids=lambda layout: layout.name)
@pytest.mark.parametrize("shape", [(33, 17, 3, 5), (2, 64, 9, 9), (1, 1, 1, 1), (0, 5, 2, 2)])
def test_bias_gradient(shape: Sequence[int], layout: Layout) -> None:
    compare(BiasGrad(), integers(shape, 0), exact=True, layouts=(layout,))
    compare(BiasGrad(), normals(shape, 1), layouts=(layout,))


def test_bias_gradient_of_a_linear_layer() -> None:
    compare(BiasGrad(), integers((33, 10), 0), exact=True)


@pytest.mark.parametrize("rung", ["reference", "dense"])
def test_a_rung_is_a_cap(rung: str, backend: Backend) -> None:
    shape = POOLED[0]
    for run in (*runs(shape), *pooled_runs(shape)):
        if rung == "reference" and type(run.op).__name__ not in ("Conv2d", "Conv2dDgrad"):
            continue
        got = outcome(run.op, *run.inputs, kernels=rung, layouts=run.layouts, backend=backend)
        assert got.rung == rung
        for y, reference in zip(got.outputs, run.op.reference(*run.inputs), strict=True):
            assert_close(y.astype(np.float64), reference.astype(np.float64), 0.0)
