"""Every CUDA kernel of every rung against its op's NumPy reference.

On the simulator everywhere, with AddressSanitizer and UBSan where there is g++; on a GPU with
``-m gpu``. A test of a rung runs the ops that have a kernel on that rung; together the rungs cover
every kernel file.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import numpy as np
import pytest

from convloom import optim
from convloom.backends.base import Backend, get_backend
from convloom.backends.cuda.selectors import RUNGS
from convloom.backends.cuda.selectors.config import VARIANTS, using
from convloom.compiler import compile_graph
from convloom.ir import NHWC, ROW_MAJOR, Layout, flattened_nhwc
from convloom.nn import CrossEntropyLoss
from convloom.nn.models import lenet
from convloom.ops import (
    SGD,
    Activation,
    ActivationGrad,
    AdamW,
    Add,
    AddBias,
    AvgPool2d,
    AvgPool2dGrad,
    BiasGrad,
    ChannelDropout,
    ChannelDropoutGrad,
    Concat,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    Dropout,
    DropoutGrad,
    Figures,
    FilterLimit,
    Flatten,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    FusedLinear,
    FusedLinearDgrad,
    FusedLinearWgrad,
    FusedSum,
    GradientNorm,
    Linear,
    LinearDgrad,
    LinearWgrad,
    Local2d,
    MaxPool2d,
    MaxPool2dGrad,
    Mul,
    NoisyReLU,
    PooledConv2dGrad,
    ReLU,
    ReLUGrad,
    Slice,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TopKCorrect,
    TopKError,
    Unflatten,
    UnsharedBiasGrad,
    VelocitySGD,
    WeightedSum,
)
from convloom.ops.control import counter_vector, hyper_vector
from convloom.training.graphs import INDEX, training_graph
from tests.backends.cuda.trials import Trial, check
from tests.backends.gradients import local_and_gradients, op_and_gradient
from tests.backends.harness import assert_close, integers, normals, one_node, outcome, run_op
from tests.backends.test_activation import family_trials
from tests.backends.test_losses import loss_trials, row_trials, softmax_trials
from tests.backends.test_tree import tree_trials
from tests.zoo import (
    ADAPTIVE_POOL,
    AVG_POOL,
    AXIS_MAPS,
    CLASSES,
    CLIPPED_POOL,
    CONV,
    ELEMENTWISE,
    FOURS_POOL,
    LINEAR,
    LOCAL,
    MAX_POOL,
    Case,
)

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], np.float32)


@pytest.fixture(params=["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    """``CONVLOOM_SIM`` chooses another of the simulator's modes."""
    if shutil.which("g++") and request.node.get_closest_marker("slow") is None:
        monkeypatch.setenv("CONVLOOM_SIM", os.environ.get("CONVLOOM_SIM") or "asan")
    return get_backend(request.param)


@pytest.fixture(params=RUNGS)
def rung(request: pytest.FixtureRequest) -> str:
    chosen: str = request.param
    return chosen


def with_specials(shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = normals(shape, seed).ravel()
    values[: len(SPECIAL)] = SPECIAL[: len(values)]
    return np.random.default_rng(seed).permutation(values).reshape(shape)


# Convolution ----------------------------------------------------------------------------------


def convolutions(case: Case, at: int) -> Iterator[Trial]:
    """Forward and gradients of a case, exact on integers and close on normals."""
    conv = case.op
    assert isinstance(conv, Conv2d)
    geometry = (conv.stride, conv.padding, conv.dilation, conv.groups)
    for exact, make in ((True, integers), (False, normals)):
        x, w, *b = (make(shape, 7 * at + i) for i, shape in enumerate(case.shapes))
        (y,) = conv.infer(*case.specs("float32"))
        dy, size, kernel = make(y.shape, at + 100), x.shape[2:], w.shape[2:]
        yield Trial(conv, (x, w, *b), exact)
        yield Trial(Conv2dDgrad(*geometry, size=size), (dy, w), exact)
        yield Trial(Conv2dWgrad(*geometry, kernel=kernel), (x, dy), exact)
        yield Trial(FusedConv2d(*geometry, activation="relu"), (x, w, *b), exact)
        yield Trial(FusedConv2dDgrad(*geometry, size=size, mask="relu"), (dy, w, x), exact)
        yield Trial(FusedConv2dWgrad(*geometry, kernel=kernel), (x, dy), exact)
        if min(y.shape[2:]) < 2:
            continue
        pooled = FusedConv2d(*geometry, activation="relu", pool=2)
        yield Trial(pooled, (x, w, *b), exact)
        index = pooled.reference(x, w, *b)[1]
        dyp = make(index.shape, at + 200)
        for needs_dx, has_bias, mask in ((True, True, "relu"), (False, True, "none")):
            op = PooledConv2dGrad(*geometry, size, kernel, mask, needs_dx, has_bias)
            yield Trial(op, (x, w, dyp, index), exact)


class TestConvolution:
    @pytest.mark.parametrize("part", range(5))
    def test_zoo(self, backend: Backend, rung: str, part: int) -> None:
        cases = list(enumerate(CONV))[part::5]
        check([t for at, case in cases for t in convolutions(case, at)], backend, rung)

    @pytest.mark.parametrize("part", range(2))
    def test_channels_in_fours(self, backend: Backend, rung: str, part: int) -> None:
        """What is read and written four at a time: no row of the zoo has such channels."""
        # n, c, k, size, kernel, stride, padding, dilation, groups
        cases = [
            Case(Conv2d(s, p, d, g), ((n, c, *size), (k, c // g, *kernel), (k,)))
            for n, c, k, size, kernel, s, p, d, g in (
                (3, 8, 20, (9, 7), (3, 3), (1, 1), (1, 1), (1, 1), 1),
                (2, 16, 32, (12, 11), (3, 2), (1, 1), (1, 1), (1, 1), 1),
                (2, 24, 40, (10, 9), (3, 2), (2, 3), (1, 1), (1, 1), 2),
                (1, 64, 70, (6, 6), (1, 1), (1, 1), (0, 0), (1, 1), 1),
                (2, 12, 8, (9, 9), (3, 3), (2, 1), (2, 2), (2, 2), 1),
                (1, 36, 132, (5, 5), (3, 3), (1, 1), (1, 1), (1, 1), 1),
            )
        ]
        mine = list(enumerate(cases))[part::2]
        check([t for at, case in mine for t in convolutions(case, at)], backend, rung)

    def test_small_groups(self, backend: Backend, rung: str) -> None:
        """Depthwise filters and groups in fours: strides, dilations, tails of lanes and rows."""
        # n, c, k, size, kernel, stride, padding, dilation, groups
        cases = [
            Case(Conv2d(s, p, d, g), ((n, c, *size), (k, c // g, *kernel), (k,)))
            for n, c, k, size, kernel, s, p, d, g in (
                (2, 8, 8, (7, 9), (3, 3), (1, 1), (1, 1), (1, 1), 8),
                (3, 36, 36, (6, 11), (3, 3), (2, 2), (1, 1), (1, 1), 36),
                (1, 4, 4, (9, 8), (5, 4), (2, 3), (2, 1), (1, 2), 4),
                (31, 4, 4, (5, 5), (2, 1), (1, 1), (0, 0), (2, 1), 4),
                (2, 132, 132, (4, 5), (3, 3), (1, 1), (1, 1), (1, 1), 132),
                (2, 16, 16, (6, 7), (3, 3), (1, 1), (1, 1), (1, 1), 4),
                (1, 24, 48, (8, 7), (3, 2), (2, 2), (1, 1), (1, 1), 6),
                (2, 16, 8, (7, 6), (1, 3), (1, 2), (0, 2), (1, 2), 2),
            )
        ]
        trials = [t for at, case in enumerate(cases) for t in convolutions(case, at)]
        served = check(trials, backend, rung)
        assert rung != "tiled" or served == len(trials)

    def test_small_groups_not_finite(self, backend: Backend, rung: str) -> None:
        """An Inf beside the outputs of a row's last tile reaches no sum it is not part of."""
        x, w, dy = normals((2, 4, 5, 6), 0), normals((4, 1, 3, 3), 1), normals((2, 4, 5, 6), 2)
        x[0, 1, 3, 5], x[1, 2, 0, 0], dy[1, 3, 4, 4] = np.nan, np.inf, -np.inf
        geometry = ((1, 1), (1, 1), (1, 1), 4)
        trials = [
            Trial(Conv2d(*geometry), (x, w)),
            Trial(FusedConv2dDgrad(*geometry, size=(5, 6), mask="relu"), (dy, w, x)),
            Trial(Conv2dWgrad(*geometry, kernel=(3, 3)), (x, normals(dy.shape, 3))),
            Trial(Conv2dWgrad(*geometry, kernel=(3, 3)), (normals(x.shape, 3), dy)),
        ]
        check(trials, backend, rung)

    def test_row_major_memory(self, backend: Backend, rung: str) -> None:
        x, w, b = integers((2, 3, 9, 8), 0), integers((6, 3, 3, 2), 1), integers((6,), 2)
        trials = []
        for orders in itertools.product((ROW_MAJOR, NHWC), repeat=3):
            x_order, w_order, y_order = orders
            fused = FusedConv2d((2, 1), (1, 1), activation="relu")
            pooled = FusedConv2d((2, 1), (1, 1), activation="relu", pool=2)
            forward = (x_order, w_order, None, y_order, y_order)
            trials += [Trial(op, (x, w, b), True, layouts=forward) for op in (fused, pooled)]
            dy = integers(fused.infer(*specs_of(x, w))[0].shape, 3)
            dgrad = FusedConv2dDgrad((2, 1), (1, 1), size=(9, 8), mask="relu")
            backward = (y_order, w_order, x_order, x_order)
            trials.append(Trial(dgrad, (dy, w, x), True, layouts=backward))
            wgrad = FusedConv2dWgrad((2, 1), (1, 1), kernel=(3, 2))
            trials.append(Trial(wgrad, (x, dy), True, layouts=(x_order, y_order, w_order)))
            plain = (Conv2d((2, 1), (1, 1)), (x, w, b), True)
            trials.append(Trial(*plain, layouts=(x_order, w_order, None, y_order)))
        check(trials, backend, rung)

    def test_not_finite(self, backend: Backend, rung: str) -> None:
        x, w = normals((2, 3, 8, 8), 0), normals((4, 3, 3, 3), 1)
        dy = normals((2, 4, 8, 8), 2)
        x[0, 1, 3, 3], x[1, 2, 0, 5], dy[1, 3, 4, 4] = np.nan, np.inf, -np.inf
        geometry = ((1, 1), (1, 1))
        trials = [
            Trial(Conv2d(*geometry), (x, w)),
            Trial(FusedConv2d(*geometry, activation="relu", pool=2), (x, w)),
            Trial(Conv2dDgrad(*geometry, size=(8, 8)), (dy, w)),
            Trial(Conv2dWgrad(*geometry, kernel=(3, 3)), (x, dy)),
            Trial(FusedConv2dDgrad(*geometry, size=(8, 8), mask="relu"), (dy, w, x)),
        ]
        check(trials, backend, rung)

    def test_direct(self, backend: Backend, rung: str) -> None:
        """Bands of an image, slices of channels, blocks of filters; maps that leave tails."""
        trials = direct_convolutions(
            (2, 16, 32, (12, 11), (3, 3), (1, 1)),
            (1, 24, 32, (21, 13), (3, 3), (0, 0)),
            (1, 4, 64, (9, 9), (5, 5), (2, 2)),
            (2, 12, 128, (5, 6), (2, 3), (0, 1)),
            (1, 32, 64, (8, 30), (3, 2), (1, 1)),
        )
        served = check(trials, backend, rung)
        assert rung != "direct" or served == len(trials)

    @pytest.mark.parametrize("variant", ["slid", "slid-wide4"])
    def test_sliding_forward(self, backend: Backend, variant: str) -> None:
        """Filters of all heights, warps that are not full, and blocks of filters."""
        trials = direct_convolutions(
            (5, 16, 32, (12, 14), (3, 3), (1, 1)),
            (1, 20, 32, (11, 27), (3, 3), (0, 0)),
            (3, 4, 64, (10, 10), (5, 5), (2, 2)),
            (2, 12, 128, (6, 6), (2, 3), (0, 1)),
            (3, 8, 32, (9, 14), (4, 2), (1, 1)),
        )
        for trial in trials[3::6]:  # of normals
            trial.inputs[0].ravel()[[0, 7, 200]] = np.nan, np.inf, -np.inf
        with using(VARIANTS[variant]):
            assert all(last_source(trial, backend).endswith("sliding") for trial in trials)
            assert check(trials, backend, "direct") == len(trials)

    def test_winograd_forward(self, backend: Backend) -> None:
        """Odd maps, paddings, windows of many images in a group, many groups; channels that fill no
        chunk, many chunks, several blocks of filters. What is not finite is as in the reference."""
        trials = direct_convolutions(
            (11, 16, 32, (12, 14), (3, 3), (0, 0)),
            (2, 28, 64, (11, 9), (3, 3), (1, 1)),
            (3, 8, 32, (12, 13), (3, 3), (2, 0)),
            (1, 64, 32, (9, 14), (3, 3), (1, 2)),
            (7, 32, 128, (5, 6), (3, 3), (1, 1)),
            (1, 16, 16, (9, 70), (3, 3), (1, 1)),
        )
        for trial in trials[3::12]:  # of normals, and so their bias and pool
            trial.inputs[0].ravel()[[0, 7, 200]] = np.nan, np.inf, -np.inf
        for trial in trials[10::12]:
            trial.inputs[1].ravel()[[0, 700]] = np.nan, np.inf
            trial.inputs[2][5] = -np.inf
        # Sums of what is near the largest number overflow, the outputs do not.
        x, w = normals((2, 16, 10, 14), 1), normals((32, 16, 3, 3), 2) / 64
        x[0, 3, 3, 4], x[1, 5] = 3e38, -2e38
        trials += [Trial(FusedConv2d(activation="relu", pool=pool), (x, w)) for pool in (0, 2)]
        with using(VARIANTS["winograd"]):
            assert [last_source(trial, backend) for trial in trials] == [
                "conv2d_fprop/winograd"
            ] * len(trials)
            assert check(trials, backend, "direct") == len(trials)

    def test_sparse(self, backend: Backend, rung: str) -> None:
        """Odd maps, strips of an image, several blocks of channels and of filters."""
        trials = pooled_gradients(
            (3, 16, 8, (9, 7), (1, 1)),
            (2, 32, 24, (8, 10), (0, 0)),
            (1, 64, 8, (7, 6), (0, 2)),
            (5, 16, 16, (6, 5), (2, 1)),
            (1, 16, 32, (16, 14), (0, 0)),
            (2, 32, 40, (6, 14), (1, 0)),
            (1, 32, 8, (20, 40), (1, 1)),
        )
        served = check(trials, backend, rung)
        assert rung != "sparse" or served == len(trials)

    @pytest.mark.parametrize("variant", ["slid", "slid-tall2"])
    def test_sliding(self, backend: Backend, variant: str) -> None:
        """Odd maps, warps that are not full, several images a block and blocks of channels."""
        trials = pooled_gradients(
            (3, 16, 32, (14, 14), (0, 0)),
            (2, 32, 8, (9, 7), (0, 0)),
            (5, 16, 24, (6, 8), (1, 0)),
            (2, 16, 8, (9, 13), (1, 1)),
            (1, 32, 16, (7, 10), (2, 2)),
            (1, 16, 8, (4, 57), (0, 0)),
        )
        for trial in trials[2::4]:  # with a mask, of normals
            trial.inputs[2].ravel()[[0, 7, 20]] = np.nan, np.inf, -np.inf
        with using(VARIANTS[variant]):
            assert all(last_source(trial, backend).endswith("sliding") for trial in trials[::2])
            assert check(trials, backend, "sparse") == len(trials)

    def test_winograd_pooled_gradient(self, backend: Backend) -> None:
        """Odd maps and paddings, chunks in shared memory all together or by turns, tails of them,
        blocks of 16 and of 32 channels, windows of many images in a group."""
        trials = pooled_gradients(
            (11, 16, 32, (14, 14), (0, 0)),
            (2, 32, 48, (9, 7), (1, 1)),
            (3, 48, 40, (6, 9), (1, 2)),
            (2, 64, 16, (7, 6), (2, 0)),
            (1, 16, 56, (10, 11), (0, 1)),
        )[::2]
        for trial in trials[1::2]:  # of normals
            trial.inputs[2].ravel()[[0, 7, 20]] = np.nan, np.inf, -np.inf
        for trial in trials[3::4]:
            trial.inputs[1].ravel()[[0, 700]] = np.nan, np.inf
        with using(VARIANTS["winograd"]):
            assert {last_source(trial, backend) for trial in trials} == {"conv2d_dgrad/winograd"}
            assert check(trials, backend, "sparse") == len(trials)

    def test_winograd_input_gradient(self, backend: Backend) -> None:
        """As above, without a pool; with a mask and without."""
        trials = []
        for n, c, k, size, padding in (
            (5, 16, 32, (12, 14), (0, 0)),
            (2, 32, 16, (9, 7), (1, 1)),
            (3, 48, 40, (6, 9), (1, 2)),
            (2, 64, 64, (7, 6), (2, 0)),
        ):
            for exact, make in ((True, integers), (False, normals)):
                x, w = make((n, c, *size), 1), make((k, c, 3, 3), 2)
                (y,) = Conv2d(padding=padding).infer(*specs_of(x, w))
                dy = make(y.shape, 3)
                if not exact:
                    dy.ravel()[[0, 7, 200]] = np.nan, np.inf, -np.inf
                mask, a = ("leaky_relu", 0.5) if c == 32 else ("relu", 0.0)
                fused = FusedConv2dDgrad(padding=padding, size=size, mask=mask, a=a)
                trials.append(Trial(fused, (dy, w, x), exact))
                trials.append(Trial(Conv2dDgrad(padding=padding, size=size), (dy, w), exact))
        # Sums of what is near the largest number overflow, the gradients do not.
        dy, w = normals((2, 16, 10, 14), 1), normals((16, 32, 3, 3), 2) / 64
        dy[0, 3, 3, 4], dy[1, 5] = 3e38, -2e38
        trials.append(Trial(Conv2dDgrad(size=(12, 16)), (dy, w)))
        with using(VARIANTS["winograd"]):
            assert {last_source(trial, backend) for trial in trials} == {"conv2d_dgrad/winograd"}
            assert check(trials, backend, "direct") == len(trials)

    def test_winograd_filter_gradient(self, backend: Backend) -> None:
        """Odd maps, few windows, tails of sixteen, and blocks of channels, filters and windows."""
        trials = pooled_gradients(
            (3, 16, 32, (14, 14), (0, 0)),
            (2, 32, 64, (9, 7), (1, 1)),
            (19, 16, 32, (6, 8), (1, 0)),
            (1, 48, 32, (5, 30), (2, 2)),
            (7, 16, 32, (4, 5), (0, 0)),
            (1, 16, 32, (6, 120), (1, 1)),
            (1, 16, 32, (2, 3), (1, 1)),
        )
        for trial in trials[2::8]:  # with a mask, of normals
            trial.inputs[2].ravel()[[0, 7, 20]] = np.nan, np.inf, -np.inf
        with using(VARIANTS["wino_wgrad"]):
            assert all("conv2d_wgrad/winograd" in sources(trial, backend) for trial in trials)
            assert check(trials, backend, "sparse") == len(trials)

    def test_winograd_filter_gradient_of_whole_maps(self, backend: Backend) -> None:
        """As behind a pool; windows overhang odd maps. All that is not finite passes."""
        cases = (
            (3, 16, 32, (14, 14), (1, 1)),
            (2, 32, 64, (9, 7), (1, 1)),
            (19, 16, 32, (5, 6), (1, 0)),
            (1, 48, 32, (4, 31), (2, 2)),
            (1, 16, 32, (1, 1), (1, 1)),
        )
        trials = []
        for n, c, k, (rows, cols), padding in cases:
            outputs = (rows + 2 * padding[0] - 2, cols + 2 * padding[1] - 2)
            for make, finite in ((integers, True), (normals, True), (normals, False)):
                x, dy = make((n, c, rows, cols), 1), make((n, k, *outputs), 2)
                if not finite:
                    x[0, 3, 0, 0], x[-1, 5, -1, -1], dy[0, 7, -1, 0] = np.inf, np.nan, -np.inf
                for op in (Conv2dWgrad, FusedConv2dWgrad):
                    wgrad = op(padding=padding, kernel=(3, 3))
                    trials.append(Trial(wgrad, (x, dy), exact=make is integers))
        # The sum of two gradients near the largest number overflows, they do not.
        x, dy = np.zeros((1, 16, 6, 6), np.float32), np.zeros((1, 32, 6, 6), np.float32)
        x[0, 3, 2, 2], dy[0, 5, 2, 2] = 3e38, 1
        trials.append(Trial(Conv2dWgrad(padding=(1, 1), kernel=(3, 3)), (x, dy), exact=True))
        with using(VARIANTS["wino_wgrad"]):
            assert all("winograd" in sources(trial, backend, "direct")[0] for trial in trials)
            assert check(trials, backend, "direct") == len(trials)

    def test_winograd_filter_gradient_not_finite(self, backend: Backend) -> None:
        """What inputs that are not finite, or whose sums are not, touch: as without filtering."""
        *_, trial = pooled_gradients((3, 16, 32, (10, 8), (1, 1)))
        x, touched = trial.inputs[0], [3, 5, 8, 15]
        x[0, 3, 2, 2], x[1, 5, 9, 7], x[2, 15, 4, 1] = np.nan, np.inf, -np.inf
        x[2, 8, 4:6, 4:6] = 3e38  # whose sums overflow, and whose products do not
        trial.inputs[2][:] *= 1e-3
        made = []
        filtered = replace(VARIANTS["wino_wgrad"], wino_unrolled=16)
        for variant in (filtered, VARIANTS["unwino_wgrad"]):
            with using(variant):
                made.append(run_op(trial.op, *trial.inputs, backend=backend, kernels="sparse"))
        (dw, db), (wanted_dw, wanted_db) = made
        assert_close(db, wanted_db, 1e-5)
        for channel in range(16):
            assert_close(dw[:, channel], wanted_dw[:, channel], 1e-5)
            assert np.isfinite(dw[:, channel]).all() or channel in touched
            assert not np.isfinite(dw[:, channel]).all() or channel not in (3, 5, 15)

    def test_lenet_layers(self, backend: Backend, rung: str) -> None:
        """The shapes that training meets, at a batch that leaves tails."""
        trials = []
        for c, k, side in ((1, 16, 28), (16, 32, 14)):
            x, w, b = normals((3, c, side, side), c), normals((k, c, 3, 3), 1), normals((k,), 2)
            forward = FusedConv2d(padding=(1, 1), activation="relu", pool=2)
            order = ROW_MAJOR if c == 1 else None
            trials.append(Trial(forward, (x, w, b), layouts=(order,)))
            y, index = forward.reference(x, w, b)
            dyp = normals(y.shape, 3)
            backward = PooledConv2dGrad(
                padding=(1, 1), size=(side, side), kernel=(3, 3), needs_dx=c > 1
            )
            trials.append(Trial(backward, (x, w, dyp, index), layouts=(order,)))
        check(trials, backend, rung)


def sources(trial: Trial, backend: Backend, rung: str = "sparse") -> list[str]:
    """The kernels that run on a rung, by default the highest below those on chip, in order."""
    graph = one_node(trial.op, trial.inputs)
    selection = backend.select(graph.nodes[0], graph.specs, rung)
    assert selection is not None
    return [phase.kernel.source for phase in selection.launch.phases]


def last_source(trial: Trial, backend: Backend) -> str:
    return sources(trial, backend)[-1]


def direct_convolutions(
    *cases: tuple[int, int, int, tuple[int, int], tuple[int, int], tuple[int, int]],
) -> list[Trial]:
    """With n, c, k, size, kernel, padding: exact on integers and close on normals."""
    trials = []
    for n, c, k, size, kernel, padding in cases:
        for exact, make in ((True, integers), (False, normals)):
            x, w, b = make((n, c, *size), 1), make((k, c, *kernel), 2), make((k,), 3)
            trials.append(Trial(Conv2d(padding=padding), (x, w), exact))
            for pool in (0, 2):
                op = FusedConv2d(padding=padding, activation="relu", pool=pool)
                trials.append(Trial(op, (x, w, b), exact))
    return trials


def pooled_gradients(*cases: tuple[int, int, int, tuple[int, int], tuple[int, int]]) -> list[Trial]:
    """Of 3x3 convolutions with n, c, k, size, padding: exact on integers and close on normals."""
    trials = []
    for n, c, k, size, padding in cases:
        for exact, make in ((True, integers), (False, normals)):
            x, w = make((n, c, *size), 1), make((k, c, 3, 3), 2)
            forward = FusedConv2d(padding=padding, activation="relu", pool=2)
            y, index = forward.reference(x, w)
            dyp = make(y.shape, 3)
            for needs_dx, has_bias, mask in ((True, False, "relu"), (False, True, "none")):
                op = PooledConv2dGrad(
                    padding=padding,
                    size=size,
                    kernel=(3, 3),
                    mask=mask,
                    needs_dx=needs_dx,
                    has_bias=has_bias,
                )
                trials.append(Trial(op, (x, w, dyp, index), exact))
    return trials


def specs_of(*arrays: np.ndarray):  # type: ignore[no-untyped-def]
    from convloom.ir import TensorSpec

    return [TensorSpec(a.shape, str(a.dtype)) for a in arrays]


# Linear ---------------------------------------------------------------------------------------


class TestLinear:
    SIZES = ((1, 1, 1), (2, 5, 3), (31, 33, 7), (33, 130, 13), (130, 70, 24), (65, 129, 66))

    def trials(self, n: int, i: int, o: int, exact: bool, bias: bool) -> Iterator[Trial]:
        make = integers if exact else normals
        x, w, b, dy = make((n, i), 0), make((o, i), 1), make((o,), 2), make((n, o), 3)
        yield Trial(Linear(), (x, w, b) if bias else (x, w), exact)
        yield Trial(LinearDgrad(), (dy, w), exact)
        yield Trial(LinearWgrad(), (x, dy), exact)
        yield Trial(FusedLinear("relu"), (x, w, b), exact)
        yield Trial(FusedLinearDgrad("relu"), (dy, w, x), exact)
        yield Trial(FusedLinearWgrad(), (x, dy), exact)

    def test_zoo(self, backend: Backend, rung: str) -> None:
        trials: list[Trial] = []
        for case in LINEAR:
            (n, i), (o, _) = case.shapes[:2]
            trials += self.trials(n, i, o, exact=i % 2 == 1, bias=len(case.shapes) > 2)
        check(trials, backend, rung)

    def test_tails(self, backend: Backend, rung: str) -> None:
        trials: list[Trial] = []
        for n, i, o in self.SIZES:
            trials += self.trials(n, i, o, exact=True, bias=True)
        trials += self.trials(40, 300, 20, exact=False, bias=False)
        trials += self.trials(70, 68, 76, exact=True, bias=True)
        trials += self.trials(5, 2052, 10, exact=True, bias=True)
        trials += self.trials(130, 260, 3, exact=True, bias=True)
        trials += self.trials(33, 200, 132, exact=False, bias=True)
        check(trials, backend, rung)

    def test_weight_in_the_order_of_a_flattened_image(self, backend: Backend, rung: str) -> None:
        flat = flattened_nhwc(3, 4, 5)
        x, w, dy = integers((7, 60), 0), integers((9, 60), 1), integers((7, 9), 2)
        masked: tuple[Layout | None, ...] = (None, flat, flat, flat)
        trials = [
            Trial(Linear(), (x, w), True, layouts=(flat, flat)),
            Trial(LinearDgrad(), (dy, w), True, layouts=(None, flat, flat)),
            Trial(LinearWgrad(), (x, dy), True, layouts=(flat, None, flat)),
            Trial(FusedLinear("relu"), (x, w), True, layouts=(flat, flat)),
            Trial(FusedLinearDgrad("relu"), (dy, w, x), True, layouts=masked),
            Trial(FusedLinearWgrad(), (x, dy), True, layouts=(flat, None, flat)),
        ]
        check(trials, backend, rung)

    def test_no_samples(self, backend: Backend, rung: str) -> None:
        x, w, dy = np.zeros((0, 6), np.float32), integers((4, 6), 0), np.zeros((0, 4), np.float32)
        trials = [
            Trial(Linear(), (x, w), True),
            Trial(LinearDgrad(), (dy, w), True),
            Trial(LinearWgrad(), (x, dy), True),
            Trial(FusedLinearWgrad(), (x, dy), True),
            Trial(BiasGrad(), (dy,), True),
        ]
        check(trials, backend, rung)

    def test_nan_stays_in_its_row(self, backend: Backend, rung: str) -> None:
        x, w = normals((6, 50), 0), normals((11, 50), 1)
        x[2, 49] = np.nan
        check([Trial(FusedLinear("relu"), (x, w)), Trial(Linear(), (x, w))], backend, rung)


# Element by element ----------------------------------------------------------------------------


class TestElementwise:
    def test_zoo(self, backend: Backend, rung: str) -> None:
        trials = []
        for at, shape in enumerate(ELEMENTWISE):
            a, b = with_specials(shape, 2 * at), with_specials(shape, 2 * at + 1)
            counter = counter_vector(seed=2**63 + at, step=7)
            mask = np.random.default_rng(at).integers(0, 2, shape).astype(np.uint8)
            trials += [
                Trial(ReLU(), (a,), True),
                Trial(ReLUGrad(), (a, b), True),
                Trial(Add(), (a, b), True),
                Trial(Mul(), (a, b), True),
                Trial(FusedSum((1.0, 1.0)), (a, b), True),
                Trial(Dropout(0.3, stream=99), (a, counter), True),
                Trial(DropoutGrad(0.4), (b, mask), True),
                Trial(NoisyReLU(99), (a, counter), tolerance=2e-6),
                Trial(NoisyReLU(99, fixed=True), (a,), tolerance=2e-6),
            ]
        check(trials, backend, rung)

    def test_dropout_of_channels(self, backend: Backend, rung: str) -> None:
        trials = []
        for at, shape in enumerate(((1, 1, 1, 1), (3, 17, 5, 7), (33, 3, 2, 2), (2, 8, 3, 5))):
            x, counter = with_specials(shape, at), counter_vector(seed=2**63 + at, step=7)
            op = ChannelDropout(0.3, stream=99)
            mask = op.reference(x, counter)[1]
            for order in (NHWC, ROW_MAJOR):
                forward = (ROW_MAJOR, None, order, None)
                trials += [
                    Trial(op, (x, counter), True, layouts=forward),
                    Trial(ChannelDropoutGrad(0.3), (x, mask), True, layouts=(order, None, order)),
                ]
        x, counter = normals((3, 5, 19), 0), counter_vector(1, 2)
        trials.append(Trial(ChannelDropout(0.5, rescale=False), (x, counter), True))
        check(trials, backend, rung)

    def test_activations(self, backend: Backend, rung: str) -> None:
        """Every function of the family: a few elements, and several blocks with a tail."""
        trials = [*family_trials((3, 5), True), *family_trials((1, 3, 19, 23), True)]
        assert check(trials, backend, rung) in (0, len(trials))

    def test_activations_exact_on_integers(self, backend: Backend, rung: str) -> None:
        x, dy = integers((2, 5, 7, 9), 0), integers((2, 5, 7, 9), 1)
        trials = []
        for op in (Activation("clamp", -1.0, 2.0), Activation("linear", 2.0, -1.0)):
            kept = {"y": op.reference(x), "": ()}[op.reads]
            trials.append(Trial(op, (x,), True))
            trials.append(Trial(ActivationGrad(op.kind, op.a, op.b), (dy, *kept), True))
        check(trials, backend, rung)

    def test_sums(self, backend: Backend, rung: str) -> None:
        """One to nine terms, more than one launch adds, with coefficients and without."""
        trials = []
        for count in (1, 2, 3, 4, 5, 9):
            terms = tuple(integers((3, 7), at) for at in range(count))
            some = tuple(float(at % 3) - 1 for at in range(count))
            for coefficients in ((1.0,) * count, some):
                trials.append(Trial(WeightedSum(coefficients), terms, True))
                trials.append(Trial(FusedSum(coefficients), terms, True))
        check(trials, backend, rung)

    def test_other_orders(self, backend: Backend, rung: str) -> None:
        x, counter = with_specials((3, 5, 7, 9), 0), counter_vector(3, 2**32 - 1)
        flat = flattened_nhwc(3, 4, 5)
        y = with_specials((7, 60), 1)
        trials = [
            Trial(ReLU(), (x,), True, layouts=(ROW_MAJOR, NHWC)),
            Trial(ReLU(), (x,), True, layouts=(NHWC, ROW_MAJOR)),
            Trial(Add(), (x, x), True, layouts=(ROW_MAJOR, NHWC, NHWC)),
            Trial(ReLU(), (y,), True, layouts=(flat, flat)),
            Trial(ReLUGrad(), (y, y), True, layouts=(flat, flat, flat)),
            Trial(
                Dropout(0.5, 2**32 - 1),
                (x, counter),
                True,
                layouts=(ROW_MAJOR, None, ROW_MAJOR, ROW_MAJOR),
            ),
            Trial(Dropout(0.5, 1), (x[0, 0, 0], counter), True),
            Trial(NoisyReLU(2**32 - 1), (x, counter), layouts=(ROW_MAJOR, None, ROW_MAJOR)),
            Trial(NoisyReLU(1), (np.ones(50_000, np.float32), counter), tolerance=1e-6),
            Trial(Dropout(0.5, 1, rescale=False), (with_specials((3, 5, 6, 2), 2), counter), True),
            *(Trial(Dropout(p, 1), (normals((4, 100), 0), counter), True) for p in (0.0, 1.0)),
        ]
        check(trials, backend, rung)


# Pooling ---------------------------------------------------------------------------------------


class TestPool:
    def test_max(self, backend: Backend, rung: str) -> None:
        trials = []
        for case in MAX_POOL:
            op = case.op
            assert isinstance(op, MaxPool2d)
            x = case.integers()[0]  # many ties
            y, index = op.reference(x)
            window = (op.kernel, op.stride, op.padding, op.dilation)
            dy = integers(y.shape, 1)
            trials += [
                Trial(op, (x,), True),
                Trial(MaxPool2dGrad(x.shape[2:], *window), (dy, index), True),
                Trial(MaxPool2dGrad(x.shape[2:], *window, ties="all"), (dy, x, y), True),
            ]
        check(trials, backend, rung)

    def test_fours_clipped_and_adaptive(self, backend: Backend, rung: str) -> None:
        trials = [
            Trial(op, tuple(inputs), "Max" in op.name)
            for case in (*FOURS_POOL, *CLIPPED_POOL, *ADAPTIVE_POOL)
            for op, *inputs in op_and_gradient(case)
        ]
        check(trials, backend, rung)

    def test_max_passes_special_values(self, backend: Backend, rung: str) -> None:
        op = MaxPool2d((3, 3), (2, 2), (1, 1))
        low = np.full((1, 20, 4, 4), -np.inf, np.float32)
        trials = [
            Trial(op, (with_specials((1, 2, 5, 5), 3),), True),
            Trial(MaxPool2d((2, 2), (2, 2)), (low,), True),
            *(
                Trial(MaxPool2d((3, 3), (2, 2), magnitude=True), (with_specials(shape, 4),), True)
                for shape in ((1, 2, 5, 5), (2, 4, 5, 5))
            ),
        ]
        for shape in ((1, 2, 7, 7), (2, 4, 7, 7)):
            tied = MaxPool2d((3, 3), (2, 2), ties="all")
            x = with_specials(shape, 5)
            (y,) = tied.reference(x)
            dy = with_specials(y.shape, 6)
            grad = MaxPool2dGrad((7, 7), (3, 3), (2, 2), ties="all")
            trials += [Trial(tied, (x,), True), Trial(grad, (dy, x, y), True)]
        check(trials, backend, rung)

    def test_row_major_memory(self, backend: Backend, rung: str) -> None:
        x, op = integers((2, 3, 8, 8), 0), MaxPool2d((3, 3), (2, 2))
        y, index = op.reference(x)
        trials = []
        for a, b in itertools.product((ROW_MAJOR, NHWC), repeat=2):
            trials.append(Trial(op, (x,), True, layouts=(a, b, b)))
            grad = MaxPool2dGrad((8, 8), (3, 3), (2, 2))
            trials.append(Trial(grad, (y, index), True, layouts=(b, b, a)))
            tied = MaxPool2dGrad((8, 8), (3, 3), (2, 2), ties="all")
            trials.append(Trial(tied, (y, x, y), True, layouts=(b, a, b, a)))
        mixed = (ROW_MAJOR, NHWC, NHWC)
        trials.append(Trial(grad, (y, index), True, layouts=mixed))
        trials.append(Trial(tied, (y, x, y), True, layouts=(*mixed, NHWC)))
        check(trials, backend, rung)

    def test_average(self, backend: Backend, rung: str) -> None:
        trials = []
        for case in AVG_POOL:
            op = case.op
            x = case.inputs(dtype="float32")[0]
            dy = normals(op.infer(*case.specs())[0].shape, 1)
            attributes = {field.name: getattr(op, field.name) for field in fields(op)}
            grad = AvgPool2dGrad(**attributes, size=x.shape[2:])
            trials += [Trial(op, (x,)), Trial(grad, (dy,))]
        check(trials, backend, rung)


# Moving elements -------------------------------------------------------------------------------


class TestBias:
    def test_shared_and_unshared(self, backend: Backend, rung: str) -> None:
        trials = []
        for shape in ((31, 3, 5, 7), (1, 17, 2, 3), (2, 20, 3, 3), (33, 10), (0, 3, 2, 2)):
            x, dy = with_specials(shape, 0), integers(shape, 2)
            for order in (None, ROW_MAJOR):
                trials.append(Trial(UnsharedBiasGrad(), (dy,), True, layouts=(order,)))
                for bias in (shape[1:2], shape[1:]):
                    orders = (order, None, order)
                    trials.append(Trial(AddBias(), (x, normals(bias, 1)), True, layouts=orders))
        check(trials, backend, rung)


class TestLocal:
    def test_zoo(self, backend: Backend, rung: str) -> None:
        trials = [
            Trial(op, tuple(inputs), exact)
            for case in LOCAL
            for exact, make in ((True, integers), (False, normals))
            for op, *inputs in local_and_gradients(case, make)
        ]
        served = check(trials, backend, rung)
        assert rung not in ("naive", "tiled") or served == len(trials)

    def test_row_major_memory_and_not_finite(self, backend: Backend, rung: str) -> None:
        trials = []
        for orders in itertools.product((ROW_MAJOR, NHWC), repeat=3):
            case = Case(Local2d((2, 1), (1, 1)), ((3, 4, 4, 3), (24, 4, 3, 3)))
            for op, *inputs in local_and_gradients(case, integers):
                inputs[0].ravel()[[0, 5, 20]] = np.nan, np.inf, -np.inf
                trials.append(Trial(op, tuple(inputs), True, layouts=orders))
        check(trials, backend, rung)


class TestAxisMaps:
    def test_zoo(self, backend: Backend, rung: str) -> None:
        trials = [
            Trial(op, tuple(inputs), tolerance=3e-6)
            for case in AXIS_MAPS
            for op, *inputs in op_and_gradient(case)
        ]
        check(trials, backend, rung)

    def test_row_major_memory_and_not_finite(self, backend: Backend, rung: str) -> None:
        trials = []
        for case in AXIS_MAPS[1::4]:
            for orders in itertools.product((ROW_MAJOR, NHWC), repeat=2):
                for op, x in op_and_gradient(case):
                    x = x.copy()
                    x[0, 0, -1, 0], x[0, 0, 0, -1] = np.nan, np.inf
                    trials.append(Trial(op, (x,), tolerance=3e-6, layouts=orders))
        check(trials, backend, rung)


class TestShape:
    def test_concat_and_slice(self, backend: Backend, rung: str) -> None:
        trials = []
        for rest in ((), (4,), (4, 5)):
            parts = tuple(integers((3, c, *rest), c) for c in (1, 4, 17))
            whole = np.concatenate(parts, axis=1)
            trials += [Trial(Concat(), parts, True), Trial(Slice(1, 5), (whole,), True)]
        fours = tuple(integers((3, c, 4, 5), c) for c in (4, 20, 8))
        whole = np.concatenate(fours, axis=1)
        trials += [Trial(Concat(), fours, True), Trial(Slice(4, 24), (whole,), True)]
        trials.append(Trial(Slice(3, 23), (whole,), True))
        mixed = tuple(integers((3, c, 4, 5), c) for c in (3, 2))
        figures = (np.array(2.5, np.float32), integers((2,), 0), integers((3, 5), 1))
        trials.append(Trial(Figures(), figures, True))
        trials.append(Trial(Concat(), mixed, True, layouts=(ROW_MAJOR, NHWC, ROW_MAJOR)))
        trials.append(Trial(Concat(), mixed, True, layouts=(ROW_MAJOR, NHWC, NHWC)))
        check(trials, backend, rung)

    def test_reordering_reshapes(self, backend: Backend, rung: str) -> None:
        shape, flat = (2, 5, 9, 13), flattened_nhwc(5, 9, 13)
        x, trials = integers(shape, 0), []
        y = x.reshape(2, -1)
        for before, after in itertools.product((NHWC, ROW_MAJOR), (flat, ROW_MAJOR)):
            trials.append(Trial(Flatten(), (x,), True, layouts=(before, after)))
            trials.append(Trial(Unflatten(shape[1:]), (y,), True, layouts=(after, before)))
        check(trials, backend, rung)


# Loss and metrics ------------------------------------------------------------------------------


class TestValues:
    """Softmax, losses that compare values, class numbers as rows, sums along a tree."""

    @pytest.mark.parametrize("trials", [softmax_trials, loss_trials, row_trials, tree_trials])
    def test_trials(
        self, backend: Backend, rung: str, trials: Callable[[], Iterator[Trial]]
    ) -> None:
        wanted = list(trials())
        served = check(wanted, backend, rung)
        assert rung != "naive" or served == len(wanted)


class TestLoss:
    @pytest.mark.parametrize("smoothing", (0.0, 0.1))
    def test_zoo(self, backend: Backend, rung: str, smoothing: float) -> None:
        trials = []
        for at, (n, classes) in enumerate(CLASSES):
            logits = 5 * normals((n, classes), at)
            labels = np.random.default_rng(at).integers(0, classes, n)
            weights = np.abs(normals((n, classes), at + 1))
            probability = SoftmaxCrossEntropy().reference(logits, labels)[1]
            dloss = np.array(0.7, np.float32)
            for kind, target in (("index", labels), ("probability", weights)):
                if kind == "probability" and at % 2:
                    continue
                trials += [
                    Trial(SoftmaxCrossEntropy(smoothing, kind), (logits, target)),
                    Trial(SoftmaxCrossEntropyGrad(smoothing, kind), (probability, target, dloss)),
                ]
            ties = integers((n, classes), at)
            trials.append(Trial(TopKCorrect(5), (ties, labels), True))
            trials.append(Trial(TopKError(5), (ties, labels), tolerance=1e-7))
        check(trials, backend, rung)

    def test_many_samples(self, backend: Backend, rung: str) -> None:
        logits = normals((1500, 10), 0)
        labels = np.random.default_rng(0).integers(0, 10, 1500)
        trials = [
            Trial(SoftmaxCrossEntropy(), (logits, labels), tolerance=1e-6),
            Trial(TopKCorrect(3), (logits, labels), True),
            Trial(TopKError(3), (logits, labels), tolerance=1e-7),
            Trial(TopKError(3), (logits[:0], labels[:0])),
        ]
        check(trials, backend, rung)

    def test_far_apart_and_huge_logits(self, backend: Backend, rung: str) -> None:
        zero, op = np.zeros(1, np.int64), SoftmaxCrossEntropy()
        trials = [
            Trial(op, (np.array([[-431, 279, 427]], np.float32), zero), True),
            Trial(op, (np.full((1, 2), 1e8, np.float32), zero), tolerance=1e-7),
        ]
        check(trials, backend, rung)

    def test_not_finite(self, backend: Backend, rung: str) -> None:
        logits = normals((4, 40), 0)
        logits[1, 3], logits[2, 5], logits[3, 6] = np.nan, -np.inf, np.inf
        target = np.array([0, 1, 2, 3])
        trials = [Trial(SoftmaxCrossEntropy(), (logits, target))]
        ranked = integers((50, 33), 0, high=20)
        ranked[3, 4], ranked[4, :] = np.nan, np.nan
        labels = np.random.default_rng(1).integers(0, 33, 50)
        trials += [Trial(TopKCorrect(k), (ranked, labels), True) for k in (1, 5, 50)]
        trials += [Trial(TopKError(k), (ranked, labels), tolerance=1e-7) for k in (1, 5, 50)]
        check(trials, backend, rung)


# Sums and updates ------------------------------------------------------------------------------


class TestReductions:
    def test_bias(self, backend: Backend, rung: str) -> None:
        trials = []
        for shape in ((1, 1), (33, 10), (3, 17, 5, 7), (70, 33, 9, 6), (2, 5, 40), (300, 3, 8, 8)):
            orders = (ROW_MAJOR, NHWC) if len(shape) == 4 else (ROW_MAJOR,)
            for order in orders:
                trials.append(Trial(BiasGrad(), (integers(shape, 0),), True, layouts=(order,)))
                trials.append(Trial(BiasGrad(), (normals(shape, 1),), layouts=(order,)))
        check(trials, backend, rung)

    def test_norm(self, backend: Backend, rung: str) -> None:
        gradients = tuple(normals(s, i) for i, s in enumerate(TestUpdate.SHAPES))
        trials = [
            Trial(GradientNorm(), gradients, tolerance=1e-12),
            Trial(GradientNorm(), (np.full(3, np.inf, np.float32),)),
            Trial(GradientNorm(), tuple(normals((i + 1,), i) for i in range(19)), tolerance=1e-12),
        ]
        check(trials, backend, rung)


class TestUpdate:
    SHAPES = ((3,), (17, 5), (9_000,), (1,), (2, 3, 3, 3), (256,))
    RATES = (1.0, 1.0, 2.0, 0.1, 1.0, 1.0)
    DECAYS = (1.0, 0.0, 0.5, 1.0, 1.0, 0.0)

    def tensors(self, groups: int) -> tuple[np.ndarray, ...]:
        made = [normals(s, 10 * g + i) for g in range(groups) for i, s in enumerate(self.SHAPES)]
        last = len(self.SHAPES)
        return (*made[:-last], *(np.abs(v) for v in made[-last:]))  # second moments

    def test_sgd(self, backend: Backend, rung: str) -> None:
        rates = hyper_vector({"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "max_norm": 1.0})
        trials = []
        for nesterov, clip in itertools.product((False, True), repeat=2):
            op = SGD(self.DECAYS, self.RATES, clip, nesterov=nesterov)
            norm = (np.array([3.0]),) if clip else ()
            trials.append(Trial(op, (rates, *norm, *self.tensors(3))))
        check(trials, backend, rung)

    def test_adamw(self, backend: Backend, rung: str) -> None:
        rates = hyper_vector(
            {
                **{"lr": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
                **{"max_norm": 1.0, "bias1": 0.1, "bias2": 0.001},
            }
        )
        trials = []
        for clip in (False, True):
            norm = (np.array([3.0]),) if clip else ()
            op = AdamW(self.DECAYS, self.RATES, clip)
            trials.append(Trial(op, (rates, *norm, *self.tensors(4))))
        check(trials, backend, rung)

    def test_velocity(self, backend: Backend, rung: str) -> None:
        ball, norm = FilterLimit(False, 0.0, 0.3), FilterLimit(True, 0.02, 0.03)
        limits = ((), (ball,), (), (), (norm, ball))
        rates = np.array([0.1, 0.2, 0.0, 1.0, 0.3, 0.1] + [0.9] * 6 + [5e-4, 0, 0.1, 0, 0.1, 0])
        given = (rates, *self.tensors(3))
        divisors = [np.arange(1, shape[0] + 1) for shape in self.SHAPES]
        some = VelocitySGD((*limits, ()), (1, 3, 4))
        adaptive = VelocitySGD((*limits, ()), (1,), ((1, 0.5), (2, 1.5), (4, 0.5)))
        special = [np.roll(np.resize(SPECIAL, 50), i) + normals((50,), i) for i in range(5)]
        means = [normals(self.SHAPES[i], i) ** 2 for i in (1, 2, 4) for _ in range(2)]
        trials = [
            Trial(VelocitySGD((*limits, ())), given),
            Trial(some, (*given, divisors[1], divisors[3], divisors[4])),
            Trial(adaptive, (*given, *means[::2], *means[1::2], divisors[1])),
            Trial(VelocitySGD(((),), (), ((0, 1.5),)), (rates[::6], *special)),
        ]
        for keep, move in itertools.product((0, 1), repeat=2):
            several, more = replace(adaptive, every=3), np.array([*rates, keep, move])
            states = (*means[::2], *means[1::2], *self.tensors(1))
            trials.append(Trial(several, (more, *given[1:], *states, divisors[1])))
            lone = np.array([*rates[::6], keep, move])
            trials.append(Trial(VelocitySGD(((),), every=2), (lone, *special[:4])))
        check(trials, backend, rung)

    def test_many_parameters(self, backend: Backend, rung: str) -> None:
        """More tensors than one launch takes."""
        count = 21
        tensors = tuple(normals((i % count + 1, 7), i) for i in range(3 * count))
        rates = hyper_vector({"lr": 0.1, "momentum": 0.9})
        op = SGD((1.0,) * count, (1.0,) * count)
        check([Trial(op, (rates, *tensors))], backend, rung)


# A whole training step --------------------------------------------------------------------------


class TestStep:
    def test_lenet(self, backend: Backend, rung: str) -> None:
        """Forward, loss, gradients and update are those of the reference, on the same batch."""
        x = normals((3, 1, 28, 28), 0)
        labels = np.array([7, 0, 9])
        results = []
        for one, kernels in ((backend, rung), (get_backend("reference"), "auto")):
            model = lenet(10, 1, 28).initialize(0)
            graph = training_graph(
                model.trace((1, 28, 28), 3), CrossEntropyLoss(), INDEX, optim.SGD(0.1, 0.9), False
            )
            plan = compile_graph(graph, one, kernels)
            executable = one.executable(plan, one.storage(plan))
            for name, value in model.state_dict().items():
                executable.write(name, value)
            executable.write("loss.grad", np.ones((), np.float32))
            executable.write("hyper", hyper_vector({"lr": 0.1, "momentum": 0.9}))
            executable.write("input", x)
            executable.write("target", labels)
            executable.run()
            names = ["loss", *model.state_dict()]
            results.append({name: executable.read(name) for name in names})
        ours, theirs = results
        for name, value in theirs.items():
            assert_close(ours[name], value, 1e-5)


# Sizes -----------------------------------------------------------------------------------------


@pytest.fixture(
    params=[70_000, *(pytest.param(n, marks=pytest.mark.gpu) for n in (65_535, 65_536))]
)
def large(request: pytest.FixtureRequest, backend: Backend) -> int:
    """Samples at the border of what 16 bits count; the simulator has time for one of them."""
    n: int = request.param
    if backend.name == "cuda-sim" and n != 70_000:
        pytest.skip("the simulator runs 70,000 only")
    return n


class TestLargeBatch:
    """More samples than 16 bits count; tiny ones, so that the simulator has time for them."""

    def image_trials(self, n: int) -> Iterator[Trial]:
        geometry = ((1, 1), (1, 0))
        x, w, b = integers((n, 1, 2, 2), 0), integers((2, 1, 2, 2), 1), integers((2,), 2)
        (y,) = Conv2d(*geometry).infer(*specs_of(x, w))
        dy = integers(y.shape, 3, -1, 2)
        yield Trial(FusedConv2d(*geometry, activation="relu"), (x, w, b), True)
        yield Trial(FusedConv2dDgrad(*geometry, size=(2, 2), mask="relu"), (dy, w, x), True)
        yield Trial(FusedConv2dWgrad(*geometry, kernel=(2, 2)), (x, dy), True)
        yield Trial(Conv2d(*geometry), (x, w, b), True)
        yield Trial(Conv2dDgrad(*geometry, size=(2, 2)), (dy, w), True)
        yield Trial(Conv2dWgrad(*geometry, kernel=(2, 2)), (x, dy), True)
        pool = MaxPool2d((2, 2), (2, 2))
        yield Trial(pool, (x,), True)
        yield Trial(MaxPool2dGrad((2, 2), (2, 2), (2, 2)), pool.reference(x), True)
        yield Trial(BiasGrad(), (x,), True)
        yield Trial(Concat(), (x, x), True)
        yield Trial(ReLU(), (x,), True)

    def more_image_trials(self, n: int) -> Iterator[Trial]:
        """What a network of pools, sums and joins has beside; channels for the sparse kernels."""
        x, w = integers((n, 16, 2, 2), 0), integers((8, 16, 1, 1), 1)
        fused = FusedConv2d(activation="relu", pool=2)
        yield Trial(fused, (x, w), True)
        y, index = fused.reference(x, w)
        dy = integers(y.shape, 2, -1, 2)
        for needs_dx, mask in ((True, "relu"), (False, "none")):
            op = PooledConv2dGrad(size=(2, 2), kernel=(1, 1), mask=mask, needs_dx=needs_dx)
            yield Trial(op, (x, w, dy, index), True)
        small = integers((n, 2, 2, 2), 3)
        pool = AvgPool2d((2, 2), (2, 2))
        yield Trial(pool, (small,), True)
        yield Trial(AvgPool2dGrad((2, 2), (2, 2), size=(2, 2)), pool.reference(small), True)
        yield Trial(Add(), (small, small), True)
        yield Trial(ReLUGrad(), (small, small), True)
        yield Trial(Slice(1, 2), (small,), True)
        yield Trial(Flatten(), (small,), True)
        yield Trial(Unflatten((2, 2, 2)), Flatten().reference(small), True)

    def row_trials(self, n: int) -> Iterator[Trial]:
        x, w, dy = integers((n, 3), 0), integers((2, 3), 1), integers((n, 2), 2, -1, 2)
        yield Trial(FusedLinear("relu"), (x, w), True)
        yield Trial(FusedLinearDgrad("relu"), (dy, w, x), True)
        yield Trial(FusedLinearWgrad(), (x, dy), True)
        yield Trial(Linear(), (x, w), True)
        yield Trial(LinearDgrad(), (dy, w), True)
        yield Trial(LinearWgrad(), (x, dy), True)
        labels = np.arange(n) % 3
        yield Trial(SoftmaxCrossEntropy(), (x, labels))
        probability = SoftmaxCrossEntropy().reference(x, labels)[1]
        dloss = np.array(1.0, np.float32)
        yield Trial(SoftmaxCrossEntropyGrad(), (probability, labels, dloss))
        yield Trial(TopKCorrect(2), (x, labels), True)
        yield Trial(TopKError(2), (x, labels), tolerance=1e-7)
        yield Trial(Dropout(0.5), (x, counter_vector(1, 2)), True)
        mask = np.arange(3 * n).reshape(n, 3).astype(np.uint8) % 2
        yield Trial(DropoutGrad(0.5), (x, mask), True)

    @pytest.mark.slow
    def test_images(self, backend: Backend, rung: str, large: int) -> None:
        check(list(self.image_trials(large)), backend, rung)

    @pytest.mark.slow
    def test_more_images(self, backend: Backend, rung: str, large: int) -> None:
        check(list(self.more_image_trials(large)), backend, rung)

    @pytest.mark.slow
    def test_rows(self, backend: Backend, rung: str, large: int) -> None:
        check(list(self.row_trials(large)), backend, rung)

    @pytest.mark.gpu
    @pytest.mark.slow
    def test_tensor_past_two_to_the_31(self, rung: str) -> None:
        """The output has 2.15 billion elements; its first and last image are looked at."""
        x = integers((70_000, 1, 31, 31), 0)
        w, op = integers((32, 1, 1, 1), 1), Conv2d()
        y = outcome(op, x, w, backend=get_backend("cuda"), kernels=rung).outputs[0]
        assert y.size > 2**31
        for image in (0, -1):
            at = slice(image, None) if image else slice(1)
            np.testing.assert_array_equal(y[at], op.reference(x[at], w)[0])


def test_naive_fuses_nothing(backend: Backend) -> None:
    x, w = integers((2, 3, 8, 8), 0), integers((4, 3, 3, 3), 1)
    trials = [
        Trial(FusedConv2d(activation="relu"), (x, w)),
        Trial(FusedLinear("relu"), (integers((2, 3), 0), integers((4, 3), 0))),
    ]
    assert check(trials, backend, "naive", every=True) == 0
    assert check(trials, backend, "fused") == 2
