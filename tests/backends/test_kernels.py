"""Every non-convolution CPU kernel against its op's NumPy reference."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest

from convloom.ir import NHWC, ROW_MAJOR, Layout, flattened_nhwc
from convloom.ops import (
    SGD,
    AdamW,
    Add,
    AddBias,
    AvgPool2d,
    AvgPool2dGrad,
    ChannelDropout,
    ChannelDropoutGrad,
    Concat,
    Dropout,
    DropoutGrad,
    Figures,
    FilterLimit,
    Flatten,
    FusedSum,
    GradientNorm,
    Linear,
    LinearDgrad,
    LinearWgrad,
    Local2d,
    Local2dWgrad,
    MaxPool2d,
    MaxPool2dGrad,
    Mul,
    NoisyReLU,
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
from convloom.ops.fused import FusedLinear, FusedLinearDgrad, FusedLinearWgrad
from convloom.random import normal
from tests.backends.gradients import local_and_gradients, op_and_gradient
from tests.backends.harness import compare, integers, normals, outcome, run_op
from tests.zoo import ADAPTIVE_POOL, AXIS_MAPS, CLIPPED_POOL, FOURS_POOL, LOCAL, Case

RESIZES = [case for case in AXIS_MAPS if getattr(case.op, "mode", "") == "bilinear"]

SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0], np.float32)


def with_specials(shape: tuple[int, ...], seed: int) -> np.ndarray:
    values = normals(shape, seed).ravel()
    values[: len(SPECIAL)] = SPECIAL[: len(values)]
    return np.random.default_rng(seed).permutation(values).reshape(shape)


class TestLinear:
    SIZES = ((1, 1, 1), (2, 5, 3), (31, 33, 7), (33, 1030, 13), (130, 70, 24))

    @pytest.mark.parametrize("n,i,o", SIZES)
    def test_exact_on_small_integers(self, n: int, i: int, o: int) -> None:
        x, w, b = integers((n, i), 0), integers((o, i), 1), integers((o,), 2)
        dy = integers((n, o), 3)
        compare(Linear(), x, w, exact=True)
        compare(FusedLinear("relu"), x, w, b, exact=True)
        compare(FusedLinearDgrad("relu"), dy, w, x, exact=True)
        compare(FusedLinearWgrad(), x, dy, exact=True)

    def test_random(self) -> None:
        x, w, b, dy = (
            normals((64, 500), 0),
            normals((20, 500), 1),
            normals((20,), 2),
            normals((64, 20), 3),
        )
        compare(Linear(), x, w, b)
        compare(LinearDgrad(), dy, w)
        compare(LinearWgrad(), x, dy)

    def test_wide_layer_walks_its_outputs_in_blocks(self) -> None:
        x, w, dy = integers((5, 40), 0), integers((601, 40), 1), integers((5, 601), 2)
        compare(Linear(), x, w, exact=True)
        compare(LinearDgrad(), dy, w, exact=True)
        compare(LinearWgrad(), x, dy, exact=True)

    def test_weight_in_the_order_of_a_flattened_image(self) -> None:
        flat = flattened_nhwc(3, 4, 5)
        x, w, dy = integers((7, 60), 0), integers((9, 60), 1), integers((7, 9), 2)
        compare(Linear(), x, w, exact=True, layouts=(flat, flat))
        compare(FusedLinearDgrad("relu"), dy, w, x, exact=True, layouts=(None, flat, flat, flat))
        compare(FusedLinearWgrad(), x, dy, exact=True, layouts=(flat, None, flat))

    def test_no_samples_give_zero_gradients(self) -> None:
        x, dy = np.zeros((0, 6), np.float32), np.zeros((0, 4), np.float32)
        dw, db = run_op(FusedLinearWgrad(), x, dy, require="dense")
        assert not dw.any()
        assert not db.any()
        assert run_op(Linear(), x, integers((4, 6), 0))[0].shape == (0, 4)

    def test_nan_stays_in_its_row(self) -> None:
        x, w = normals((6, 50), 0), normals((11, 50), 1)
        x[2, 49] = np.nan
        (y,) = run_op(FusedLinear("relu"), x, w, require="dense")
        assert np.isnan(y[2]).all()
        assert np.isfinite(np.delete(y, 2, axis=0)).all()


class TestElementwise:
    SHAPES = ((1,), (3, 5), (2, 3, 5, 7), (2, 17, 31, 33))

    @pytest.mark.parametrize("shape", SHAPES)
    def test_special_values(self, shape: tuple[int, ...]) -> None:
        a, b = with_specials(shape, 0), with_specials(shape, 1)
        compare(ReLU(), a, exact=True)
        compare(ReLUGrad(), a, b, exact=True)
        compare(Add(), a, b, exact=True)
        compare(Mul(), a, b, exact=True)
        compare(FusedSum((1.0, 1.0)), a, b, exact=True)

    @pytest.mark.parametrize("count", (1, 3, 6))
    def test_sums(self, count: int) -> None:
        terms = [integers((3, 7), at) for at in range(count)]
        some = tuple(float(at % 3) - 1 for at in range(count))
        for coefficients in ((1.0,) * count, some):
            compare(WeightedSum(coefficients), *terms, exact=True)
            compare(FusedSum(coefficients), *terms, exact=True)

    def test_row_major_input_is_reordered(self) -> None:
        x = with_specials((3, 5, 70, 9), 0)
        compare(ReLU(), x, exact=True, layouts=(ROW_MAJOR, NHWC))
        compare(Add(), x, x, exact=True, layouts=(ROW_MAJOR, NHWC, NHWC))
        compare(ReLU(), x, exact=True, layouts=(NHWC, ROW_MAJOR))


class TestDropout:
    @pytest.mark.parametrize("shape", ((9,), (33, 65), (3, 5, 7, 11), (2, 3, 50, 41)))
    @pytest.mark.parametrize("layout", (None, ROW_MAJOR))
    def test_same_mask_as_the_reference(self, shape: tuple[int, ...], layout: object) -> None:
        counter = counter_vector(seed=2**63 + 12345, step=7)
        x = with_specials(shape, 0)
        layouts = (layout, None, layout, layout)
        compare(Dropout(0.3, stream=99), x, counter, exact=True, layouts=layouts)

    @pytest.mark.parametrize("p", (0.0, 1.0))
    def test_extreme_rates(self, p: float) -> None:
        compare(Dropout(p, stream=1), normals((4, 100), 0), counter_vector(1, 2), exact=True)

    def test_gradient(self) -> None:
        mask = np.random.default_rng(0).integers(0, 2, (3, 5, 6, 7)).astype(np.uint8)
        compare(DropoutGrad(0.4), with_specials((3, 5, 6, 7), 1), mask, exact=True)
        compare(DropoutGrad(0.4, rescale=False), normals((3, 5), 1), mask[:, :, 0, 0], exact=True)

    @pytest.mark.parametrize("order", (NHWC, ROW_MAJOR))
    @pytest.mark.parametrize("shape", ((1, 1, 1, 1), (3, 17, 5, 7), (33, 3, 2, 2)))
    def test_channels(self, shape: tuple[int, ...], order: Layout) -> None:
        x, counter = with_specials(shape, 0), counter_vector(seed=2**63 + 12345, step=7)
        op = ChannelDropout(0.3, stream=99)
        compare(op, x, counter, exact=True, layouts=(order, None, order, None))
        compare(op, x, counter, exact=True, layouts=(ROW_MAJOR, None, order, None))
        mask = op.reference(x, counter)[1]
        compare(ChannelDropoutGrad(0.3), x, mask, exact=True, layouts=(order, None, order))

    def test_channels_of_other_ranks(self) -> None:
        x, counter = normals((3, 5, 19), 0), counter_vector(1, 2)
        compare(ChannelDropout(0.5, rescale=False), x, counter, exact=True)


class TestNoise:
    @pytest.mark.parametrize("shape", ((9,), (33, 65), (3, 5, 7, 11), (2, 3, 50, 41)))
    @pytest.mark.parametrize("layout", (None, ROW_MAJOR))
    @pytest.mark.parametrize("fixed", (False, True))
    def test_same_noise_as_the_reference(
        self, shape: tuple[int, ...], layout: object, fixed: bool
    ) -> None:
        x, layouts = with_specials(shape, 0), (layout, *(() if fixed else (None,)), layout)
        counter = () if fixed else (counter_vector(seed=2**63 + 12345, step=7),)
        compare(NoisyReLU(99, fixed), x, *counter, tolerance=2e-6, layouts=layouts)

    def test_every_part_of_the_normal_law(self) -> None:
        """A million numbers, among them some of the far tails, each to itself."""
        ones, counter = np.ones(2**20, np.float32), counter_vector(1, 2)
        (got,) = run_op(NoisyReLU(3), ones, counter)
        n = normal(1, 3, ones.shape, step=2)
        assert np.abs(n).max() > 4.5
        np.testing.assert_allclose(got, np.maximum(1 + n, 0), rtol=1e-6, atol=4e-7)


POOLS = [
    ((2, 2), (2, 2), (0, 0), False),
    ((3, 3), (2, 2), (1, 1), False),
    ((3, 2), (1, 3), (1, 0), True),
    ((2, 2), (2, 2), (1, 1), True),
    ((1, 1), (2, 2), (0, 0), True),
    ((5, 4), (3, 2), (2, 2), True),
]


class TestPool:
    @pytest.mark.parametrize("kernel,stride,padding,ceil", POOLS)
    @pytest.mark.parametrize("channels", (1, 3, 17))
    def test_max(self, kernel, stride, padding, ceil, channels) -> None:  # type: ignore[no-untyped-def]
        x = integers((2, channels, 11, 9), 0)  # many ties
        op = MaxPool2d(kernel, stride, padding, ceil_mode=ceil)
        compare(op, x, exact=True)
        y, index = op.reference(x)
        grad = MaxPool2dGrad((11, 9), kernel, stride, padding)
        compare(grad, integers(y.shape, 1), index, exact=True)
        compare(replace(grad, ties="all"), integers(y.shape, 1), x, y, exact=True)

    def test_max_with_dilation(self) -> None:
        op = MaxPool2d((3, 2), (2, 1), (1, 1), dilation=(2, 3))
        x = integers((2, 5, 12, 10), 0)
        compare(op, x, exact=True)
        y, index = op.reference(x)
        grad = MaxPool2dGrad((12, 10), (3, 2), (2, 1), (1, 1), (2, 3))
        compare(grad, integers(y.shape, 1), index, exact=True)
        compare(replace(grad, ties="all"), integers(y.shape, 1), x, y, exact=True)

    @pytest.mark.parametrize("case", (*CLIPPED_POOL, *ADAPTIVE_POOL, *FOURS_POOL), ids=str)
    def test_zoo(self, case: Case) -> None:
        """Forward and backward as a network would run them, on integers: ties are many."""
        for op, *inputs in (one for one in op_and_gradient(case)):
            compare(op, *inputs, exact="Max" in op.name)

    def test_ties_that_are_nan(self) -> None:
        op = MaxPool2d((3, 3), (2, 2), ties="all")
        x = with_specials((2, 5, 7, 7), 3)
        (y,) = op.reference(x)
        dy = with_specials(y.shape, 4)
        compare(MaxPool2dGrad((7, 7), (3, 3), (2, 2), ties="all"), dy, x, y, exact=True)

    def test_max_passes_special_values(self) -> None:
        compare(MaxPool2d((3, 3), (2, 2), (1, 1)), with_specials((1, 2, 5, 5), 3), exact=True)
        low = np.full((1, 20, 4, 4), -np.inf, np.float32)
        compare(MaxPool2d((2, 2), (2, 2)), low, exact=True)
        x = with_specials((2, 9, 5, 5), 4)
        compare(MaxPool2d((3, 3), (2, 2), magnitude=True), x, exact=True)

    def test_gradient_adds_where_windows_overlap(self) -> None:
        x = np.zeros((1, 1, 5, 5), np.float32)
        _, index = MaxPool2d((3, 3), (2, 2)).reference(x)
        (dx,) = run_op(
            MaxPool2dGrad((5, 5), (3, 3), (2, 2)), np.ones((1, 1, 2, 2), np.float32), index
        )
        assert np.argwhere(dx[0, 0]).tolist() == [[0, 0], [0, 2], [2, 0], [2, 2]]
        row = np.array([[[[5, 3, 1, 2, 5]]]], np.float32)
        _, index = MaxPool2d((1, 2), (1, 1)).reference(row)
        (dx,) = run_op(
            MaxPool2dGrad((1, 5), (1, 2), (1, 1)), np.ones((1, 1, 1, 4), np.float32), index
        )
        assert dx.ravel().tolist() == [1, 1, 0, 1, 1]

    @pytest.mark.parametrize("kernel,stride,padding,ceil", POOLS)
    @pytest.mark.parametrize("counted", (False, True))
    def test_average(self, kernel, stride, padding, ceil, counted) -> None:  # type: ignore[no-untyped-def]
        x = normals((2, 19, 11, 9), 0)
        op = AvgPool2d(kernel, stride, padding, ceil, counted)
        compare(op, x)
        dy = normals(op.reference(x)[0].shape, 1)
        compare(AvgPool2dGrad(kernel, stride, padding, ceil, counted, size=(11, 9)), dy)

    def test_row_major_input(self) -> None:
        x = normals((2, 3, 8, 8), 0)
        compare(MaxPool2d((2, 2), (2, 2)), x, exact=True, layouts=(ROW_MAJOR,))
        compare(AvgPool2d((2, 2), (2, 2)), x, layouts=(ROW_MAJOR,))


class TestBias:
    SHAPES = ((31, 3, 5, 7), (1, 17, 2, 3), (33, 10), (2, 40, 9, 8), (0, 3, 2, 2))

    @pytest.mark.parametrize("shape", SHAPES, ids=str)
    @pytest.mark.parametrize("layout", (None, ROW_MAJOR))
    def test_shared_and_unshared(self, shape: tuple[int, ...], layout: Layout | None) -> None:
        x = with_specials(shape, 0)
        for bias in (shape[1:2], shape[1:]):
            compare(AddBias(), x, normals(bias, 1), exact=True, layouts=(layout, None, layout))
        dy = integers(shape, 2)
        compare(UnsharedBiasGrad(), dy, exact=True, layouts=(layout,))


class TestLocal:
    @pytest.mark.parametrize("case", LOCAL, ids=str)
    def test_zoo(self, case: Case) -> None:
        for exact, make in ((True, integers), (False, normals)):
            for op, *inputs in local_and_gradients(case, make):
                compare(op, *inputs, exact=exact)

    def test_not_finite(self) -> None:
        case = Case(Local2d(padding=(1, 1)), ((2, 3, 3, 3), (36, 3, 3, 3)))
        for op, *inputs in local_and_gradients(case, normals):
            inputs[0].ravel()[[0, 5, 20]] = np.nan, np.inf, -np.inf
            compare(op, *inputs)

    def test_row_major_input(self) -> None:
        x, w = integers((2, 3, 4, 4), 0), integers((20, 3, 3, 3), 1)
        compare(Local2d(), x, w, exact=True, layouts=(ROW_MAJOR,))
        dy = integers((2, 5, 2, 2), 2)
        wgrad = Local2dWgrad(kernel=(3, 3))
        compare(wgrad, x, dy, exact=True, layouts=(ROW_MAJOR, ROW_MAJOR))


class TestAxisMaps:
    @pytest.mark.parametrize("case", AXIS_MAPS, ids=str)
    def test_zoo(self, case: Case) -> None:
        for op, x in op_and_gradient(case):
            compare(op, x, tolerance=3e-6)

    @pytest.mark.parametrize("case", RESIZES, ids=str)
    def test_weights_of_zero_meet_inf(self, case: Case) -> None:
        """As in PyTorch: an output that lies on one input has a tap of weight 0 at the next."""
        for op, x in op_and_gradient(case):
            for at in range(0, x.shape[2] * x.shape[3], 3):
                special = x.copy()
                special.reshape(*x.shape[:2], -1)[0, 0, at] = np.inf
                compare(op, special, tolerance=3e-6, thread_counts=(1,))

    def test_row_major_and_not_finite(self) -> None:
        for case in AXIS_MAPS[1::4]:
            for op, x in op_and_gradient(case):
                x = x.copy()
                x[0, 0, -1, 0], x[0, 0, 0, -1] = np.nan, np.inf
                compare(op, x, tolerance=3e-6, layouts=(ROW_MAJOR,))


class TestShape:
    @pytest.mark.parametrize("rest", ((), (4, 5)))
    def test_concat_and_slice(self, rest: tuple[int, ...]) -> None:
        parts = [integers((3, c, *rest), c) for c in (1, 4, 17)]
        compare(Concat(), *parts, exact=True)
        compare(Slice(1, 5), np.concatenate(parts, axis=1), exact=True)

    def test_concat_of_a_row_major_input(self) -> None:
        parts = [integers((3, c, 4, 5), c) for c in (3, 2)]
        compare(Concat(), *parts, exact=True, layouts=(ROW_MAJOR,))
        compare(Slice(1, 4), np.concatenate(parts, axis=1), exact=True, layouts=(ROW_MAJOR,))

    def test_reordering_reshapes(self) -> None:
        shape, flat = (2, 5, 9, 13), flattened_nhwc(5, 9, 13)
        x = integers(shape, 0)
        y = x.reshape(2, -1)
        for before, after in itertools.product((NHWC, ROW_MAJOR), (flat, ROW_MAJOR)):
            compare(Flatten(), x, exact=True, layouts=(before, after))
            compare(Unflatten(shape[1:]), y, exact=True, layouts=(after, before))


class TestLoss:
    @pytest.mark.parametrize("classes", (1, 2, 10, 16, 33, 100))
    @pytest.mark.parametrize("smoothing", (0.0, 0.1))
    def test_labels(self, classes: int, smoothing: float) -> None:
        logits = 5 * normals((37, classes), 0)
        target = np.random.default_rng(1).integers(0, classes, 37)
        compare(SoftmaxCrossEntropy(smoothing), logits, target)
        probability = SoftmaxCrossEntropy().reference(logits, target)[1]
        dloss = np.array(0.7, np.float32)
        compare(SoftmaxCrossEntropyGrad(smoothing), probability, target, dloss)

    @pytest.mark.parametrize("smoothing", (0.0, 0.1))
    def test_probabilities(self, smoothing: float) -> None:
        logits, t = normals((9, 21), 0), np.abs(normals((9, 21), 1))
        compare(SoftmaxCrossEntropy(smoothing, "probability"), logits, t)
        probability = SoftmaxCrossEntropy().reference(logits, np.zeros(9, np.int64))[1]
        op = SoftmaxCrossEntropyGrad(smoothing, "probability")
        compare(op, probability, t, np.array(1.0, np.float32))

    def test_many_samples(self) -> None:
        logits, target = normals((61, 1500), 0), np.random.default_rng(1).integers(0, 1500, 61)
        compare(SoftmaxCrossEntropy(), logits, target)
        probability = SoftmaxCrossEntropy().reference(logits, target)[1]
        compare(SoftmaxCrossEntropyGrad(), probability, target, np.array(1, np.float32))

    def test_far_apart_and_huge_logits(self) -> None:
        zero = np.zeros(1, np.int64)
        loss, p = run_op(SoftmaxCrossEntropy(), np.array([[-431, 279, 427]], np.float32), zero)
        assert loss == 858
        (d,) = run_op(SoftmaxCrossEntropyGrad(), p, zero, np.array(1, np.float32))
        np.testing.assert_allclose(d, [[-1, 0, 1]], atol=1e-6)
        loss, _ = run_op(SoftmaxCrossEntropy(), np.full((1, 2), 1e8, np.float32), zero)
        np.testing.assert_allclose(loss, np.log(2), rtol=1e-7)

    def test_not_finite(self) -> None:
        logits = normals((4, 20), 0)
        logits[1, 3], logits[2, 5], logits[3, 6] = np.nan, -np.inf, np.inf
        target = np.array([0, 1, 2, 3])
        loss, p = run_op(SoftmaxCrossEntropy(), logits, target, require="dense")
        _, wanted = SoftmaxCrossEntropy().reference(logits, target)
        assert np.isnan(loss)
        np.testing.assert_allclose(p, wanted, rtol=1e-6)

    def test_figures(self) -> None:
        figures = (np.array(2.5, np.float32), integers((2,), 0), integers((3, 5), 1))
        compare(Figures(), *figures, exact=True)

    def test_top_k(self) -> None:
        logits = integers((50, 33), 0, high=20)  # ties
        logits[3, 4], logits[4, :] = np.nan, np.nan
        target = np.random.default_rng(1).integers(0, 33, 50)
        for k in (1, 5, 50):
            compare(TopKCorrect(k), logits, target, exact=True)
            compare(TopKError(k), logits, target, tolerance=1e-7)
            compare(TopKError(k), logits[:0], target[:0])


def hyper(**values: float) -> np.ndarray:
    return hyper_vector(values)


class TestUpdate:
    SHAPES = ((3,), (17, 5), (40_000,), (1,))

    def tensors(self, groups: int) -> list[np.ndarray]:
        made = [normals(s, 10 * g + i) for g in range(groups) for i, s in enumerate(self.SHAPES)]
        return made[:-4] + [np.abs(v) for v in made[-4:]]  # second moments are not negative

    @pytest.mark.parametrize("nesterov", (False, True))
    @pytest.mark.parametrize("clip", (False, True))
    def test_sgd(self, nesterov: bool, clip: bool) -> None:
        op = SGD((1.0, 0.0, 0.5, 1.0), (1.0, 1.0, 2.0, 0.1), clip, nesterov=nesterov)
        rates = hyper(lr=0.1, momentum=0.9, weight_decay=5e-4, max_norm=1.0)
        norm = [np.array([3.0])] if clip else []
        compare(op, rates, *norm, *self.tensors(3))

    @pytest.mark.parametrize("clip", (False, True))
    def test_adamw(self, clip: bool) -> None:
        op = AdamW((1.0, 0.0, 0.5, 1.0), (1.0, 1.0, 2.0, 0.1), clip)
        rates = hyper(
            lr=0.01, weight_decay=0.1, beta1=0.9, beta2=0.999, eps=1e-8, max_norm=1.0,
            bias1=0.1, bias2=0.001,
        )  # fmt: skip
        norm = [np.array([3.0])] if clip else []
        compare(op, rates, *norm, *self.tensors(4))

    def test_velocity(self) -> None:
        limits = ((), (FilterLimit(False, 0.0, 0.3),), (), ())
        rates = np.array([0.1, 0.2, 0.0, 1.0, 0.9, 0.8, 0.9, 0.0, 5e-4, 0.0, 0.1, 0.1])
        compare(VelocitySGD(limits), rates, *self.tensors(3))
        divisors = [np.arange(1, len(one) + 1) for one in self.tensors(1)]
        compare(VelocitySGD(limits, (1, 2)), rates, *self.tensors(3), *divisors[1:3])
        means = self.tensors(2)
        adaptive = VelocitySGD(limits, (1,), ((1, 0.3), (2, 1.5)))
        compare(adaptive, rates, *self.tensors(3), *means[1:3], *means[5:7], divisors[1])
        special = [np.resize(SPECIAL, 50) + normals((50,), i) for i in range(5)]
        for op, count in ((VelocitySGD(((),)), 3), (VelocitySGD(((),), (), ((0, 1.5),)), 5)):
            compare(
                op,
                np.array([0.1, 0.9, 0.2]),
                *(np.roll(x, i) for i, x in enumerate(special[:count])),
            )
        for keep, move in itertools.product((0, 1), repeat=2):
            both = VelocitySGD(limits, (1,), ((1, 0.3), (2, 1.5)), 3)
            given = (*self.tensors(3), *means[1:3], *means[5:7], *self.tensors(1), divisors[1])
            compare(both, np.array([*rates, keep, move]), *given)
            lone = np.array([0.1, 0.9, 0.2, keep, move])
            compare(VelocitySGD(((),), every=2), lone, *special[:4])
        filters = normals((6, 4, 3, 3), 0)
        centred = VelocitySGD(((FilterLimit(True, 0.02, 0.03),),))
        for op in (centred, VelocitySGD(((*centred.limits[0], FilterLimit(False, 0, 0.025)),))):
            rates = np.array([0.1, 0.9, 0.0])
            compare(op, rates, filters, normals((6, 4, 3, 3), 1), 0 * filters)

    def test_updates_happen_in_place(self) -> None:
        done = outcome(
            SGD((1.0,), (1.0,)), hyper(lr=0.1, momentum=0.9), *np.ones((3, 5), np.float32)
        )
        buffers = done.plan.buffers
        assert (buffers["y0"], buffers["y1"]) == (buffers["x1"], buffers["x3"])
        np.testing.assert_array_equal(done.executable.read("x1"), done.outputs[0])

    def test_three_steps_of_momentum(self) -> None:
        ones, rates = np.ones(1, np.float32), hyper(lr=0.1, momentum=0.9)
        executable = outcome(SGD((1.0,), (1.0,)), rates, ones, ones, 0 * ones).executable
        seen = [float(executable.read("x1")[0])]
        for _ in range(2):
            executable.run()
            seen.append(float(executable.read("x1")[0]))
        np.testing.assert_allclose(seen, [0.9, 0.71, 0.439], rtol=1e-6)

    def test_norm(self) -> None:
        compare(GradientNorm(), *self.tensors(1), tolerance=1e-12)
        (norm,) = run_op(GradientNorm(), np.full(3, np.inf, np.float32))
        assert np.isinf(norm[0])
