"""Every kernel file of every rung compiles for every architecture, on any machine with NVRTC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from convloom.backends.cache import ObjectCache
from convloom.backends.cuda import create
from convloom.backends.cuda.device import architecture
from convloom.backends.cuda.fed import told
from convloom.backends.cuda.launch import CudaLaunch, Specialisation
from convloom.backends.cuda.nvrtc import SOURCES, Compiler, describe
from convloom.backends.cuda.onchip.config import ALONE, VARIANTS, using
from convloom.backends.cuda.resident import Crops, kernels
from convloom.backends.cuda.selectors import RUNGS
from convloom.ir import ROW_MAJOR, Layout
from convloom.ops import (
    SGD,
    Activation,
    ActivationGrad,
    AdamW,
    AdaptiveAvgPool2d,
    AdaptiveAvgPool2dGrad,
    AdaptiveMaxPool2d,
    AdaptiveMaxPool2dGrad,
    Add,
    AddBias,
    AvgPool2d,
    AvgPool2dGrad,
    BiasGrad,
    ChainForward,
    ChainGradient,
    ChainUpdate,
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
    LeafSum,
    Linear,
    LinearDgrad,
    LinearWgrad,
    Local2d,
    Local2dDgrad,
    Local2dWgrad,
    MaxPool2d,
    MaxPool2dGrad,
    Mul,
    NoisyReLU,
    OneHot,
    PathSum,
    PointwiseLoss,
    PointwiseLossGrad,
    PooledConv2dGrad,
    ReLU,
    ReLUGrad,
    Slice,
    Softmax,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    SoftmaxGrad,
    TopKCorrect,
    TopKError,
    Unflatten,
    UnsharedBiasGrad,
    VelocitySGD,
    WeightedSum,
)
from convloom.ops.base import Op
from convloom.ops.control import counter_vector, hyper_vector
from tests.backends import (
    norms,
)
from tests.backends.gradients import (
    op_and_gradient,
)
from tests.backends.harness import one_node
from tests.trees import TREES
from tests.zoo import AXIS_MAPS

#: Every generation in use, Turing to Blackwell.
CAPABILITIES = ((7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 0), (12, 0))

#: Bytes that a kernel may keep in local memory: at a limit that lets two blocks share a
#: multiprocessor ptxas sets a few registers aside, once, outside of the loops; more of them before
#: CUDA 13.1.
FEW = 40
#: Of a whole network's kernel: sums live in registers across a loop over images, and what is
#: computed once before that loop is set aside.
FEW_ON_CHIP = 1024

Problem = tuple[Op, tuple[np.ndarray, ...], Sequence[Layout | None] | None]


def f(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def i(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.int32)


def problems() -> Iterator[Problem]:
    """Every op, on shapes that each of its kernels serves."""
    g = ((1, 1), (1, 1), (1, 1), 1)  # stride, padding, dilation, groups
    relu = {"activation": "relu"}
    for channels, filters in ((3, 16), (16, 32), (64, 64)):
        x, w, b, y = f(8, channels, 12, 12), f(filters, channels, 3, 3), f(filters), (12, 12)
        dy, pooled = f(8, filters, 12, 12), f(8, filters, 6, 6)
        index = np.zeros(pooled.shape, np.uint8)
        yield Conv2d(*g), (x, w, b), None
        yield Conv2d(*g), (x, w, b), (ROW_MAJOR,)
        yield Conv2dDgrad(*g, size=y), (dy, w), None
        yield Conv2dWgrad(*g, kernel=(3, 3)), (x, dy), None
        yield Conv2dWgrad(*g, kernel=(3, 3)), (x, dy), (ROW_MAJOR,)
        yield FusedConv2d(*g, **relu), (x, w, b), None
        yield FusedConv2d(*g, "clamp", 0.0, 6.0), (x, w, b), None
        yield FusedConv2d(*g, **relu, pool=2), (x, w, b), None
        yield FusedConv2dDgrad(*g, size=y, mask="relu"), (dy, w, x), None
        yield FusedConv2dWgrad(*g, kernel=(3, 3)), (x, dy), None
        for needs_dx, mask in ((True, "relu"), (False, "none")):
            op = PooledConv2dGrad(*g, y, (3, 3), mask, needs_dx, True)
            yield op, (x, w, pooled, index), None
    few, w, b = f(8, 1, 12, 12), f(16, 1, 3, 3), f(16)
    yield Conv2d(*g), (few, w, b), None
    yield FusedConv2d(*g, **relu, pool=2), (few, w, b), None
    yield FusedConv2dWgrad(*g, kernel=(3, 3)), (few, f(8, 16, 12, 12)), None
    yield Conv2d((4, 4), (2, 2), (1, 1), 2), (f(2, 6, 23, 18), f(10, 3, 11, 11), f(10)), None
    for channels, groups, stride in ((64, 64, 2), (128, 32, 1)):
        g = ((stride, stride), (1, 1), (1, 1), groups)
        x, w, b = f(8, channels, 14, 14), f(channels, channels // groups, 3, 3), f(channels)
        dy = f(8, channels, 14 // stride, 14 // stride)
        yield FusedConv2d(*g, **relu), (x, w, b), None
        yield FusedConv2dDgrad(*g, size=(14, 14), mask="relu"), (dy, w, x), None
        yield FusedConv2dWgrad(*g, kernel=(3, 3)), (x, dy), None
    for channels, filters in ((3, 5), (16, 32)):
        x, w, dy = f(8, channels, 6, 6), f(36 * filters, channels, 3, 3), f(8, filters, 6, 6)
        g = ((1, 1), (1, 1))
        yield Local2d(*g), (x, w), None
        yield Local2dDgrad(*g, size=(6, 6)), (dy, w), None
        yield Local2dWgrad(*g, kernel=(3, 3)), (x, dy), None
    for n, inside, outside in ((8, 40, 10), (64, 2048, 10), (64, 512, 256)):
        x, w, b, dy = f(n, inside), f(outside, inside), f(outside), f(n, outside)
        yield Linear(), (x, w, b), None
        yield LinearDgrad(), (dy, w), None
        yield LinearWgrad(), (x, dy), None
        yield FusedLinear("relu"), (x, w, b), None
        yield FusedLinearDgrad("relu"), (dy, w, x), None
        yield FusedLinearWgrad(), (x, dy), None
        yield BiasGrad(), (dy,), None
    image, small = f(4, 6, 9, 8), f(4, 6, 4, 4)
    yield BiasGrad(), (image,), None
    yield MaxPool2d((2, 2), (2, 2)), (image,), None
    yield MaxPool2dGrad((9, 8), (2, 2), (2, 2)), (small, i(4, 6, 4, 4)), None
    yield AvgPool2d((2, 2), (2, 2)), (image,), None
    yield AvgPool2dGrad((2, 2), (2, 2), size=(9, 8)), (small,), None
    wide, pooled = f(4, 16, 13, 13), f(4, 16, 6, 6)
    for ties, rest in (("first", (i(4, 16, 6, 6),)), ("all", (wide, pooled))):
        yield MaxPool2d((3, 3), (2, 2), ties=ties), (wide,), None
        yield MaxPool2dGrad((13, 13), (3, 3), (2, 2), ties=ties), (pooled, *rest), None
    for x in (image, wide):
        yield MaxPool2d((3, 3), (2, 2), magnitude=True), (x,), None
    yield AvgPool2d((3, 3), (2, 2)), (wide,), None
    yield AvgPool2dGrad((3, 3), (2, 2), size=(13, 13)), (pooled,), None
    yield AdaptiveAvgPool2d((1, 1)), (wide,), None
    yield AdaptiveAvgPool2dGrad((13, 13)), (pooled,), None
    yield AdaptiveMaxPool2d((6, 6)), (wide,), None
    yield AdaptiveMaxPool2dGrad((13, 13)), (pooled, i(4, 16, 6, 6)), None
    for case in (AXIS_MAPS[at] for at in (4, 12, 17, 22)):
        for op, *inputs in op_and_gradient(case):
            yield op, tuple(inputs), None
    yield AddBias(), (image, f(6)), None
    yield AddBias(), (image, f(6, 9, 8)), None
    yield AddBias(), (wide, f(16)), None
    yield UnsharedBiasGrad(), (image,), None
    yield ReLU(), (image,), None
    yield ReLUGrad(), (image, image), None
    for kind in ("clamp", "gelu", "tanh", "softplus"):  # whatever the others call, too
        op = Activation(kind, 1.0, 1.0)
        yield op, (image,), None
        yield ActivationGrad(kind, 1.0, 1.0), (image,) * (2 if op.reads else 1), None
    yield Add(), (image, image), None
    yield WeightedSum((1.0, 0.5, 2.0)), (image,) * 3, None
    yield FusedSum((1.0, 1.0)), (image, image), None
    yield Mul(), (image, image), None
    for trial in norms.samples():
        yield trial.op, trial.inputs, None
    yield Dropout(0.3, 1), (image, counter_vector(1, 2)), None
    yield DropoutGrad(0.3), (image, np.zeros(image.shape, np.uint8)), None
    for x in (image, f(4, 8, 5, 5)):
        yield NoisyReLU(1), (x, counter_vector(1, 2)), None
        yield ChannelDropout(0.3, 1), (x, counter_vector(1, 2)), None
        yield ChannelDropoutGrad(0.3), (x, np.zeros(x.shape[:2], np.uint8)), None
    yield Concat(), (image, image), None
    yield Slice(1, 3), (image,), None
    yield Concat(), (wide, wide), None
    yield Slice(4, 8), (wide,), None
    yield Figures(), (f(), f(2), f(3)), None
    yield Flatten(), (image,), None
    yield Unflatten((6, 9, 8)), (f(4, 432),), None
    for n, k in ((8, 10), (20_000, 10), (8, 1000)):
        logits, labels, soft = f(n, k), np.zeros(n, np.int64), f(n, k)
        yield SoftmaxCrossEntropy(0.1), (logits, labels), None
        yield SoftmaxCrossEntropy(0.1, "probability"), (logits, soft), None
        yield SoftmaxCrossEntropyGrad(0.1), (logits, labels, f()), None
        yield SoftmaxCrossEntropyGrad(0.1, "probability"), (logits, soft, f()), None
        yield TopKCorrect(), (logits, labels), None
        yield TopKError(), (logits, labels), None
    for log in (False, True):
        for dim in (1, 3):
            yield Softmax(dim, log), (image,), None
            yield SoftmaxGrad(dim, log), (image, image), None
        for x in (f(4, 1000), f(4, 2000)):
            yield Softmax(1, log), (x,), None
            yield SoftmaxGrad(1, log), (x, x), None
    for kind in ("bce", "bce_logits"):
        loss = PointwiseLoss(kind)
        for x in (image, f(20_000, 10)):
            yield loss, (x,) * (1 + loss.targets), None
            yield PointwiseLossGrad(kind), (*(x,) * (1 + loss.targets), f()), None
    yield OneHot(10), (np.zeros(8, np.int64),), None
    tree = TREES[-1]
    yield PathSum("", 0), (f(8, len(tree.parents)), *tree), None
    yield LeafSum("", 0), (f(8, len(tree.order)), *tree[1:]), None
    hyper, norm, p = hyper_vector({"lr": 0.1}), np.ones(1), f(300)
    yield SGD((1.0, 0.0), (1.0, 1.0)), (hyper, *[p] * 6), None
    yield SGD((1.0,), (1.0,), nesterov=True, clip=True), (hyper, norm, *[p] * 3), None
    yield AdamW((1.0, 0.0), (1.0, 1.0)), (hyper, *[p] * 8), None
    yield AdamW((1.0,), (1.0,), clip=True), (hyper, norm, *[p] * 4), None
    yield GradientNorm(), (p, f(7)), None
    for centred in (False, True):
        limit = FilterLimit(centred, 0.1, 1.0)
        yield VelocitySGD(((limit,),)), (np.zeros(3), *[p] * 3), None
    yield VelocitySGD(((limit,),), (), ((0, 1.0),), 2), (np.zeros(5), *[p] * 6), None
    yield VelocitySGD(((),), (), ((0, 1.0),)), (np.zeros(3), *[p] * 5), None
    yield VelocitySGD(((),), (0,)), (np.zeros(3), *[p] * 3, np.ones(300, np.int64)), None
    yield from chains()


def chains() -> Iterator[Problem]:
    """Small networks on chip: one whose weights stay there, one whose matrix does not fit."""
    pool, labels = MaxPool2d((2, 2), (2, 2)), np.zeros(8, np.int64)
    body = (Conv2d(), ReLU(), Conv2d(), ReLU(), pool, Flatten(), Linear())
    stages = (*body, SoftmaxCrossEntropy(), TopKCorrect())
    given = (f(8, 1, 28, 28), f(16, 1, 3, 3), f(16), f(32, 16, 3, 3), f(32), f(10, 4608), f(10))
    rule = SGD(6 * (1.0,), 6 * (1.0,))
    for precision in ("bf16", "tf32", "fp32"):
        chain = ChainUpdate(stages, 3 * (True,), precision, update=rule)
        # Images as a data set has them.
        yield chain, (*given, labels, f(), hyper_vector({}), *given[1:]), (ROW_MAJOR,)
    yield ChainForward(body, 3 * (True,), "bf16"), given, None
    body = (Conv2d(padding=(2, 2)), ReLU(), pool, Flatten(), Linear(), ReLU(), Linear())
    given = (f(8, 3, 32, 32), f(24, 3, 5, 5), f(24), f(120, 6144), f(120), f(10, 120), f(10))
    stages = (*body, SoftmaxCrossEntropy(), TopKCorrect())
    for precision in ("bf16", "tf32"):
        yield ChainGradient(stages, 3 * (True,), precision), (*given, labels, f()), None


@cache
def specialisations() -> frozenset[Specialisation]:
    """What all rungs need for all problems, and what begins and ends a resident step."""
    backend, found = create(), set[Specialisation]()
    for op, inputs, layouts in problems():
        graph = one_node(op, inputs, layouts)
        served = False
        for rung in RUNGS:
            with using(ALONE):  # clusters, which few GPUs have, come below
                selection = backend.select(graph.nodes[0], graph.specs, rung)
            if selection is not None:
                served = True
                found |= set(selection.launch.kernels) | of_many(selection.launch)
        assert served, f"nothing runs {op}"
    with using(VARIANTS["cluster2chained"]):
        op, inputs, _ = next(chains())
        graph = one_node(op, inputs)
        selection = backend.select(graph.nodes[0], graph.specs, "onchip")
        assert selection is not None
        found |= set(selection.launch.kernels)
    windows = Crops(4, size=28), Crops(0, reflect=True, size=28, noise=True)
    for crops in (None, Crops(4), Crops(4, reflect=True), *windows):
        for mapped in (False, True):
            found |= set(kernels((3, 32, 32), 9, crops, mapped=mapped))
    return frozenset(found)


def of_many(launch: CudaLaunch) -> set[Specialisation]:
    """What runs a step for many networks of images 1x28x28; not the float32 form, to save time."""
    if launch.together is None or dict(launch.phases[0].kernel.constants)["EXACT"]:
        return set()
    gather, _ = kernels((1, 28, 28), 9, None)
    phases = told((*launch.together.prologue, *launch.together.phases), gather)
    return {phase.kernel for phase in phases}


def test_every_kernel_file_is_used() -> None:
    """A kernel that no selector takes is dead; ``peak_*`` measure the machine instead."""
    files = {
        str(path.relative_to(SOURCES).with_suffix(""))
        for path in SOURCES.glob("*/*.cu")
        if not path.parent.name.startswith("peak_")
    }
    assert files - {one.source for one in specialisations()} == set()


def compiles(half: int, capability: tuple[int, int], folder: Path) -> None:
    """Compile one kernel of two, beginning with the first or the second: 0 or 1.

    Neighbours are alike, so both halves take as long; each is in a file of its own, since one
    process runs all tests of a file.
    """
    pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'convloom[cuda13]'")
    wanted = sorted(specialisations(), key=lambda one: (one.source, one.constants))[half::2]
    cache = ObjectCache(folder, "cuda", ".cubin")
    done = Compiler(cache).compile(wanted, architecture(capability))
    assert len(done) == len(wanted)
    print(f"\n{architecture(capability)}: registers, shared memory, stack, spilled; kernel")
    for one, made in sorted(done.items(), key=lambda item: describe(item[0])):
        use = made.usage
        print(f"{use.registers:4}{use.shared:7}{use.stack:6}{use.spilled:5}  {describe(one)}")
    kinds = ("step", "many_step", "cluster_step")
    few = {f"onchip/{kind}": FEW_ON_CHIP for kind in kinds}
    spilled = {
        describe(one): made.usage
        for one, made in done.items()
        if made.usage.spilled > few.get(one.source, FEW)
    }
    assert spilled == {}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_every_kernel_compiles(capability: tuple[int, int], tmp_path: Path) -> None:
    """``pytest -s`` shows the table. The other half is in test_architectures_too.py."""
    compiles(0, capability, tmp_path)
