"""Whole networks on chip against their chain's reference, and what does not qualify."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from convloom.backends.base import Backend, get_backend
from convloom.backends.cuda import device
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.device import HOPPER, Chip, chip
from convloom.backends.cuda.onchip import plan
from convloom.backends.cuda.onchip.config import ALONE, SHARED, SHARED_BF16, VARIANTS, Config, using
from convloom.backends.cuda.selectors import refusal as why_not
from convloom.backends.cuda.selectors import select_kernel
from convloom.backends.cuda.selectors.chain import on_chip, refusal
from convloom.ir import NHWC, Layout, Selection, TensorSpec
from convloom.ops import (
    SGD,
    Activation,
    AdamW,
    AvgPool2d,
    Chain,
    ChainEvaluate,
    ChainForward,
    ChainGradient,
    ChainUpdate,
    Conv2d,
    Dropout,
    Flatten,
    Linear,
    MaxPool2d,
    Op,
    ReLU,
    SoftmaxCrossEntropy,
    TopKCorrect,
)
from convloom.ops.control import counter_vector, hyper_vector
from tests.backends.harness import Layouts, one_node, outcome

HEAD = (SoftmaxCrossEntropy(), TopKCorrect(2))
HYPER = {
    **{"lr": 0.5, "momentum": 0.9, "beta1": 0.9, "beta2": 0.9},
    **{"eps": 0.1, "bias1": 0.5, "bias2": 0.5},
}
POOL = MaxPool2d((2, 2), (2, 2))
SMOOTH = (SoftmaxCrossEntropy(0.1), TopKCorrect(2))


@dataclass(frozen=True)
class Network:
    """The stages up to the logits, an image's shape, and the weights' shapes."""

    body: tuple[Op, ...]
    image: tuple[int, ...]
    weights: tuple[tuple[int, ...], ...]
    bias: tuple[bool, ...]

    def chain(self, kind: type[Chain], head: tuple[Op, ...] = HEAD, **fields: object) -> Chain:
        """The chain, in bf16 unless ``fields`` say otherwise."""
        stages = self.body if kind is ChainForward else (*self.body, *head)
        return kind(stages, self.bias, **({"precision": "bf16"} | fields))  # type: ignore[arg-type]


#: Two convolutions and a pool; channels, rows and columns that fill no tile.
LENET = Network(
    (Conv2d(), ReLU(), Conv2d(), ReLU(), POOL, Flatten(), Linear()),
    (1, 10, 11),
    ((5, 1, 3, 3), (12, 5, 3, 3), (4, 108)),
    (True, True, True),
)
#: Every kind of stage: padding, a pool of an odd map before the rectifier, dropout.
WIDE = Network(
    (
        *(Conv2d((1, 1), (2, 2)), POOL, ReLU()),
        *(Conv2d(), ReLU(), POOL),
        *(Flatten(), Linear(), ReLU(), Dropout(0.5, 7), Linear()),
    ),
    (3, 13, 12),
    ((24, 3, 5, 5), (40, 24, 3, 3), (70, 160), (10, 70)),
    (True, False, True, True),
)
#: Strides, filters that are not square, convolutions one behind the other.
STRIDED = Network(
    (
        *(Conv2d((2, 2), (1, 1)), ReLU(), Conv2d((2, 1), (1, 0)), ReLU()),
        *(Conv2d((1, 1), (1, 1)), POOL, ReLU(), Flatten(), Linear(), ReLU(), Linear()),
    ),
    (3, 17, 19),
    ((9, 3, 3, 3), (17, 9, 3, 2), (11, 17, 3, 3), (20, 88), (3, 20)),
    (True, True, True, False, True),
)
#: No rectifier, no pool, as many input channels as need planes.
PLAIN = Network(
    (Conv2d(), Conv2d((1, 1), (0, 0)), Flatten(), Linear()),
    (6, 5, 5),
    ((7, 6, 2, 2), (9, 7, 1, 1), (11, 144)),
    (False, True, False),
)
#: An average of what passed a rectifier, and one without.
AVERAGED = Network(
    (
        *(Conv2d(), ReLU(), AvgPool2d((2, 2), (2, 2))),
        *(Conv2d((1, 1), (1, 1)), AvgPool2d((2, 2), (2, 2)), Flatten(), Linear()),
    ),
    (1, 11, 10),
    ((6, 1, 3, 3), (17, 6, 3, 3), (4, 68)),
    (True, True, True),
)
#: Other activations, before and behind a pool, and under dropout; fewer features than filters.
SMOOTHLY = Network(
    (
        *(Conv2d(), Activation("tanh", 1.7159, 0.6667), POOL, Conv2d(), Activation("elu", 1.0)),
        *(Flatten(), Linear(), Activation("sigmoid"), Dropout(0.25, 3)),
        *(Linear(), Activation("leaky_relu", 0.1), Linear()),
    ),
    (1, 9, 10),
    ((6, 1, 2, 2), (12, 6, 3, 3), (9, 48), (7, 9), (4, 7)),
    (True, True, True, True, True),
)
#: One pixel of few channels: its features fill half of what a product takes.
NARROW = Network(
    (*(Conv2d(), ReLU(), POOL, Conv2d(), POOL), Flatten(), Linear()),
    (1, 9, 8),
    ((3, 1, 2, 2), (5, 3, 3, 2), (4, 5)),
    (True, False, True),
)
#: Three tiles of channels, of which a block of few warps takes two at a time.
UNEVEN = Network(
    (Conv2d((2, 2), (3, 1)), ReLU(), Conv2d((1, 1), (1, 2)), POOL, Flatten(), Linear()),
    (1, 15, 11),
    ((17, 1, 4, 4), (9, 17, 3, 3), (3, 108)),
    (False, False, False),
)
PERCEPTRON = Network((Linear(), ReLU(), Linear()), (37,), ((150, 37), (5, 150)), (True, True))
#: A matrix of more bytes than a block has shared memory, in bf16 and tf32; outputs in odd tiles.
LARGE = Network((Linear(), ReLU(), Linear()), (1100,), ((110, 1100), (5, 110)), (True, False))
PRECISIONS = ["bf16", "tf32", "fp32"]
#: Relative to each output's largest magnitude; operands are rounded to 8 and 11 bits.
TOLERANCES = {"bf16": 0.02, "tf32": 0.002, "fp32": 1e-5}
#: How far rounding to tf32 moves a number, at most, relative to it.
HALF_OF_LAST_BIT = 2.0**-11
NETWORKS = [LENET, WIDE, STRIDED, PLAIN, AVERAGED, SMOOTHLY, PERCEPTRON]


@pytest.fixture(params=["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Backend:
    if shutil.which("g++"):
        monkeypatch.setenv("CONVLOOM_SIM", os.environ.get("CONVLOOM_SIM") or "asan")
    return get_backend(request.param)


def operands(network: Network, chain: Chain, n: int, seed: int = 0) -> list[np.ndarray]:
    """Inputs of a chain: multiples of small powers of two, so that sums of products are exact."""
    rng = np.random.default_rng(seed)
    values = [rng.integers(-4, 5, (n, *network.image)).astype(np.float32) / 4]
    for shape, bias in zip(network.weights, network.bias, strict=True):
        spread = 2.0 ** -round(np.log2(8 * np.sqrt(np.prod(shape[1:]))))
        values.append(rng.integers(-8, 9, shape).astype(np.float32) * np.float32(spread))
        if bias:
            values.append(rng.integers(-8, 9, shape[:1]).astype(np.float32) / 64)
    parameters = values[1:]
    if chain.has_loss:
        values.append(rng.integers(0, network.weights[-1][0], n))
    if chain.draws:
        values.append(counter_vector(1, 2))
    if chain.has_gradients:
        values.append(np.asarray(0.5, np.float32))
    if chain.state_count:
        values.append(hyper_vector(HYPER))
        values += [np.full_like(p, 0.25) for p in parameters * (chain.state_count // chain.count)]
    return values


def compare(
    chain: Chain,
    values: Sequence[np.ndarray],
    backend: Backend,
    layouts: Layouts = None,
) -> tuple[np.ndarray, ...]:
    """Kernel against reference: counts exactly, logits and loss within float32's rounding.

    The rest within that of the precision; relative to each output's largest magnitude.
    """
    tolerance = TOLERANCES[chain.precision]
    got = outcome(chain, *values, backend=backend, kernels="onchip", layouts=layouts).outputs
    for i, (y, wanted) in enumerate(zip(got, chain.reference(*values), strict=True)):
        scale = float(np.abs(wanted).max(initial=1e-30))
        allowed = 1e-5 if i < 2 else 0.0 if i == 2 else tolerance
        assert float(np.abs(y - wanted).max(initial=0.0)) <= allowed * scale, f"output {i}"
    return got


#: What changes the kernels of tensor cores: nothing else is compared for them.
SHARED_FORMS = {"split2", "cluster2", "threads256", "early"}
#: What changes only when something happens: bits are compared elsewhere.
TIMES = {
    *("plain", "ahead", "chained", "bulk", "cluster2ahead", "cluster2chained", "cluster2both"),
    *("unbulk", "unspread", "shared288", "shared320"),
}


@pytest.mark.parametrize(
    ("variant", "precision"),
    [
        (variant, precision)
        for variant in VARIANTS
        for precision in ("bf16", "fp32")
        if variant not in TIMES and (variant in SHARED_FORMS or precision == "fp32")
    ],
)
def test_variants(backend: Backend, variant: str, precision: str) -> None:
    """What benchmarks compare: the same gradients, but for the order of sums."""
    network = Network(LENET.body, (1, 14, 14), ((5, 1, 3, 3), (29, 5, 1, 1), (4, 29 * 36)),
                      (True, True, True))  # fmt: skip
    chain = network.chain(ChainGradient, precision=precision)
    values = operands(network, chain, 3)
    plain = one_node(chain, values)
    with using(VARIANTS[variant]):
        compare(chain, values, backend)
        other = backend.select(plain.nodes[0], plain.specs, "onchip")
    with using(VARIANTS["plain"]):
        selected = backend.select(plain.nodes[0], plain.specs, "onchip")
    assert selected is not None
    assert other is not None
    assert other.launch != selected.launch


@pytest.mark.parametrize("network", [STRIDED, AVERAGED, SMOOTHLY])
@pytest.mark.parametrize(
    ("precision", "cluster"), [("bf16", False), ("bf16", True), ("tf32", True), ("fp32", True)]
)
def test_blocks_that_share_an_image(
    backend: Backend, network: Network, precision: str, cluster: bool
) -> None:
    """Pools of odd maps, strides, strips that overlap further back; LENET's are not alike."""
    chain = network.chain(ChainGradient, precision=precision)
    values = operands(network, chain, 3)
    with using(Config(split=2, cluster=cluster)):
        got = outcome(chain, *values, backend=backend, kernels="onchip")
        compare(chain, values, backend)
    segment = got.plan.steps[0].selection.segment
    assert segment is not None
    assert (segment.cluster, segment.blocks) == (2, 6)
    kernels = got.plan.steps[0].selection.launch.kernels
    assert any("cluster" in kernel.source for kernel in kernels) == cluster


AMPERE, SMALL_HOPPER = Chip(163 * 1024, 108, False), Chip(227 * 1024, 114, True)


@pytest.mark.parametrize(
    ("network", "n", "config", "of", "shared"),
    [
        (LENET, 66, None, HOPPER, 2),
        (LENET, 67, None, HOPPER, 1),
        (LENET, 57, None, SMALL_HOPPER, 2),
        (LENET, 58, None, SMALL_HOPPER, 1),
        (LENET, 3, None, AMPERE, 1),
        (PERCEPTRON, 3, None, HOPPER, 1),
        (LENET, 54, Config(split=2), AMPERE, 2),
        (LENET, 55, Config(split=2), AMPERE, 1),
        (LENET, 3, Config(split=2, cluster=True), AMPERE, 1),
        (PERCEPTRON, 3, Config(split=2), HOPPER, 1),
    ],
)
def test_blocks_share_images_where_they_can(
    network: Network, n: int, config: Config | None, of: Chip, shared: int
) -> None:
    """Not those of a large batch, nor where there are no strips, or no clusters that are wanted."""
    chain = network.chain(ChainGradient)
    graph = one_node(chain, operands(network, chain, n))
    with using(config):
        selection = on_chip(graph.nodes[0], graph.specs, of)
    assert selection is not None
    assert selection.segment is not None
    assert (selection.segment.cluster, selection.segment.blocks) == (shared, shared * n)
    if config is None:
        with using(SHARED_BF16 if shared > 1 else ALONE):
            assert on_chip(graph.nodes[0], graph.specs, of) == selection


@pytest.mark.parametrize(("precision", "config"), [("tf32", SHARED), ("bf16", SHARED_BF16)])
def test_threads_of_shared_images(precision: str, config: Config) -> None:
    chain = LENET.chain(ChainGradient, precision=precision)
    graph = one_node(chain, operands(LENET, chain, 2))
    selection = on_chip(graph.nodes[0], graph.specs, HOPPER)
    assert selection is not None
    assert selection.segment is not None
    assert selection.segment.threads == config.threads


def test_a_thread_beside_others_has_no_clusters(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = LENET.chain(ChainGradient)
    graph = one_node(chain, operands(LENET, chain, 3))
    monkeypatch.setattr(device, "find", lambda: device.Found(None))

    def blocks() -> int:
        selection = CudaBackend().select(graph.nodes[0], graph.specs, "auto")
        assert selection is not None
        assert selection.segment is not None
        return selection.segment.blocks

    assert blocks() == 6
    monkeypatch.setattr("convloom.backends.cuda.backend.own_gpu", lambda: object())
    assert blocks() == 3


def test_biases_come_late_where_memory_is_short() -> None:
    """What fits without them is served."""
    chain = LENET.chain(ChainGradient, precision="fp32")
    graph = one_node(chain, operands(LENET, chain, 3))

    def needed(config: Config) -> tuple[int, Selection]:
        """The least memory that this one takes, and its kernels there."""
        shared, found = 64 << 10, None
        with using(config):
            while made := on_chip(graph.nodes[0], graph.specs, replace(AMPERE, shared=shared)):
                found, shared = made, shared - 128
        assert found is not None
        return shared + 128, found

    least, wanted = needed(VARIANTS["plain"])
    more, _ = needed(ALONE)
    assert least < more
    got = on_chip(graph.nodes[0], graph.specs, replace(AMPERE, shared=least))
    assert got is not None
    assert got.launch == wanted.launch


@pytest.mark.parametrize(
    ("n", "of", "taken"),
    [(1, HOPPER, True), (66, HOPPER, True), (67, HOPPER, False), (54, AMPERE, False)],
)
def test_fp32_is_on_chip_where_clusters_share_the_images(n: int, of: Chip, taken: bool) -> None:
    chain = LENET.chain(ChainGradient, precision="fp32")
    graph = one_node(chain, operands(LENET, chain, n))
    node = graph.nodes[0]
    assert (select_kernel(node, graph.specs, "auto", of) is not None) == taken
    assert bool(why_not(node, graph.specs, "auto", of)) != taken
    assert select_kernel(node, graph.specs, "onchip", of) is not None


@pytest.mark.parametrize("network", [*NETWORKS, NARROW])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_gradients(
    backend: Backend, network: Network, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One block carries two images, one behind the other."""
    monkeypatch.setattr(plan, "MOST_BLOCKS", 2)
    chain = network.chain(ChainGradient, precision=precision)
    compare(chain, operands(network, chain, 3), backend)


def test_gradients_of_channels_that_fill_no_tiles(backend: Backend) -> None:
    """Tiles of channels that are not there lie where another map's begin."""
    chain = UNEVEN.chain(ChainGradient)
    with using(Config(threads=256)):
        compare(chain, operands(UNEVEN, chain, 3), backend)


#: A step all of whose numbers are small and whole: see ``whole_numbers``.
WHOLE = Network(
    (
        *(Conv2d(), ReLU(), POOL, Conv2d((1, 1), (1, 1)), ReLU(), POOL),
        *(Conv2d(), Flatten(), Linear()),
    ),
    (2, 14, 14),
    ((6, 2, 3, 3), (20, 6, 3, 3), (8, 20, 1, 1), (2, 8 * 9)),
    (True, True, False, True),
)


def whole_numbers(n: int) -> list[np.ndarray]:
    """Logits so far apart that one class has probability 1, and it is not the label's."""
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 2, (n, *WHOLE.image)).astype(np.float32)]
    for shape, bias in zip(WHOLE.weights, WHOLE.bias, strict=True):
        values.append(rng.integers(-1, 2, shape).astype(np.float32))
        values += [np.ones(shape[0], np.float32)] if bias else []
    logits = WHOLE.chain(ChainForward, precision="fp32").reference(*values)[0]
    assert (np.abs(logits[:, 0] - logits[:, 1]) > 104).all()
    return [*values, logits.argmin(1), np.asarray(n, np.float32)]


@pytest.mark.parametrize("precision", ["tf32", "fp32"])
def test_whole_numbers_are_exact(backend: Backend, precision: str) -> None:
    """Every gradient of every layer, against the reference that rounds nothing."""
    values = whole_numbers(3)
    wanted = WHOLE.chain(ChainGradient, precision="fp32").reference(*values)
    assert all(np.count_nonzero(gradient) > gradient.size // 3 for gradient in wanted[3:])
    assert all((gradient == np.rint(gradient)).all() for gradient in wanted[3:])
    chain = WHOLE.chain(ChainGradient, precision=precision)
    got = outcome(chain, *values, backend=backend, kernels="onchip").outputs
    for y, expected in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(y, expected)


def test_tf32_is_within_its_rounding_of_fp32(backend: Backend) -> None:
    """Numbers as they come, where no rounding turns a gate."""
    body = (Conv2d(), Activation("tanh", 1.0, 1.0), Conv2d(), Activation("sigmoid"))
    network = Network((*body, Flatten(), Linear()), (3, 9, 9),
                      ((16, 3, 2, 2), (17, 16, 3, 3), (5, 612)), (True, True, True))  # fmt: skip
    rng = np.random.default_rng(0)
    chain = network.chain(ChainGradient, precision="tf32")
    values = [
        rng.standard_normal(value.shape).astype(np.float32) / max(1, value[:1].size) ** 0.5
        if value.dtype == np.float32 and value.ndim
        else value
        for value in operands(network, chain, 3)
    ]
    got, exact = (
        outcome(one, *values, backend=backend, kernels="onchip").outputs
        for one in (chain, network.chain(ChainGradient, precision="fp32"))
    )
    for y, wanted in zip(got[3:], exact[3:], strict=True):
        difference = float(np.abs(y - wanted).max())
        assert 0 < difference < 4 * HALF_OF_LAST_BIT * float(np.abs(wanted).max())


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_weights_that_stay_in_device_memory(backend: Backend, precision: str) -> None:
    chain = LARGE.chain(ChainGradient, precision=precision)
    values = operands(LARGE, chain, 11)
    graph = one_node(chain, values)
    selection = backend.select(graph.nodes[0], graph.specs, "onchip")
    assert selection is not None
    assert selection.segment is not None
    assert [region.name for region in selection.segment.fixed] == ["matrix 2", "sums", "biases"]
    compare(chain, values, backend)


@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_many_images_a_block_and_the_same_bits_again(backend: Backend, precision: str) -> None:
    """More images than blocks, so that sums outlive an image."""
    network = Network((Conv2d(), ReLU(), Flatten(), Linear()), (1, 4, 4), ((3, 1, 3, 3), (2, 12)),
                      (True, True))  # fmt: skip
    chain = network.chain(ChainGradient, precision=precision)
    values = operands(network, chain, 300)
    once, again = (compare(chain, values, backend) for _ in range(2))
    for first, second in zip(once, again, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("kind", [ChainForward, ChainEvaluate])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_logits_and_loss(backend: Backend, kind: type[Chain], precision: str) -> None:
    network = replace(WIDE, body=tuple(op for op in WIDE.body if not isinstance(op, Dropout)))
    chain = network.chain(kind, head=SMOOTH, precision=precision)
    compare(chain, operands(network, chain, 2), backend)


RULES = {
    "sgd": SGD((1.0, 0.5) * 3, (1.0, 0.0) * 3, nesterov=True),
    "adamw": AdamW((1.0, 0.5) * 3, (1.0, 0.0) * 3),
}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("precision", PRECISIONS)
def test_updates(backend: Backend, rule: SGD | AdamW, precision: str) -> None:
    chain = LENET.chain(ChainUpdate, head=SMOOTH, update=rule, precision=precision)
    compare(chain, operands(LENET, chain, 3), backend)


@pytest.mark.parametrize(("rule", "precision"), [("adamw", "bf16"), ("sgd", "fp32")])
def test_parameters_asked_for_ahead_get_the_same_bits(
    backend: Backend, rule: str, precision: str
) -> None:
    chain = LENET.chain(ChainUpdate, head=SMOOTH, update=RULES[rule], precision=precision)
    values = operands(LENET, chain, 3)
    with using(VARIANTS["plain"]):
        wanted = outcome(chain, *values, backend=backend, kernels="onchip").outputs
    with using(VARIANTS["ahead"]):
        got = compare(chain, values, backend)
    for y, plain in zip(got, wanted, strict=True):
        assert y.tobytes() == plain.tobytes()


@pytest.mark.parametrize("precision", PRECISIONS)
def test_orders_in_memory(backend: Backend, precision: str) -> None:
    """Filters row-major, and a matrix in the order of channels-last features."""
    chain = LENET.chain(ChainGradient, precision=precision)
    values = operands(LENET, chain, 2)
    row, flat = Layout("row"), Layout("flat", (0, 2, 3, 1), (4, 12, 3, 3))
    shown = [row, NHWC, None, row, None, flat, None, None, None]
    made = [None, None, None, NHWC, None, row, None, flat, None]
    compare(chain, values, backend, layouts=[*shown, *made])


def refused(network: Network, chain: Chain) -> str:
    values = operands(network, chain, 67)
    backend = get_backend("cuda-sim")
    graph = one_node(chain, values)
    assert backend.select(graph.nodes[0], graph.specs, "auto") is None
    told: str = backend.refusal(graph.nodes[0], graph.specs, "auto")  # type: ignore[attr-defined]
    return told


def test_refusals() -> None:
    """Each says which stage or size it is about."""
    pool = Network((Conv2d(), AvgPool2d((3, 3), (1, 1)), Flatten(), Linear()), (1, 6, 6),
                   ((3, 1, 3, 3), (2, 12)), (False, False))  # fmt: skip
    assert "AvgPool2d" in refused(pool, pool.chain(ChainGradient))
    large = Network((Conv2d((1, 1), (1, 1)), ReLU(), Conv2d((1, 1), (1, 1)), Flatten(), Linear()),
                    (1, 64, 64), ((32, 1, 3, 3), (8, 32, 3, 3), (2, 8 * 4096)),
                    (False, False, False))  # fmt: skip
    assert "KB of shared memory" in refused(large, large.chain(ChainGradient))
    grouped = Network((Conv2d(groups=2), Flatten(), Linear()), (2, 4, 4), ((4, 1, 3, 3), (2, 16)),
                      (False, False))  # fmt: skip
    assert "groups" in refused(grouped, grouped.chain(ChainGradient))
    assert "input" in refused(LENET, LENET.chain(ChainGradient, needs_dx=True))
    exact = LENET.chain(ChainGradient, precision="fp32")
    assert "its layers are faster in fp32" in refused(LENET, exact)
    graph = one_node(exact, operands(LENET, exact, 67))
    assert get_backend("cuda-sim").select(graph.nodes[0], graph.specs, "onchip") is not None


SMALL = Network((Linear(), ReLU(), Linear()), (300,), ((96, 300), (5, 96)), (True, True))


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("capability", [(8, 0), (8, 6), (9, 0), (12, 0)])
def test_no_kernel_takes_more_shared_memory_than_there_is(
    precision: str, capability: tuple[int, int]
) -> None:
    limit = chip(capability)
    for network in (LENET, SMALL):
        chain = network.chain(ChainGradient, precision=precision)
        graph = one_node(chain, operands(network, chain, 200))
        selection = on_chip(graph.nodes[0], graph.specs, limit)
        assert selection is not None
        assert all(phase.shared <= limit.shared for phase in selection.launch.phases)


def test_older_gpus_are_refused() -> None:
    graph = one_node(LENET.chain(ChainGradient), operands(LENET, LENET.chain(ChainGradient), 2))
    for precision in PRECISIONS:
        node = replace(graph.nodes[0], op=LENET.chain(ChainGradient, precision=precision))
        told = refusal(node, graph.specs, chip((7, 5)))
        assert told == "the GPU is older than compute capability 8.0"


def test_planes_of_tf32_lie_in_other_banks() -> None:
    """What lanes read of two planes, four pixels of 16 bytes each, is in 128 bytes modulo 128."""
    chain = STRIDED.chain(ChainGradient, precision="tf32")
    graph = one_node(chain, operands(STRIDED, chain, 2))
    selection = on_chip(graph.nodes[0], graph.specs, HOPPER)
    assert selection is not None
    step = dict(selection.launch.phases[1].kernel.constants)
    for planes in (step["CONV_XPLANE"][1:], step["CONV_DYPLANE"]):
        assert all(plane % 128 == 64 for plane in planes)


def test_shared_memory_is_shown() -> None:
    chain = LENET.chain(ChainGradient)
    values = operands(LENET, chain, 2)
    graph = one_node(chain, values)
    selection = get_backend("cuda-sim").select(graph.nodes[0], graph.specs, "auto")
    assert selection is not None
    assert selection.segment is not None
    specs = [TensorSpec(value.shape, str(value.dtype)) for value in values]
    assert (selection.segment.stages, selection.segment.blocks) == (chain.titles(specs), 2 * 2)
    step = selection.launch.phases[1]
    assert selection.segment.nbytes <= step.shared <= selection.segment.limit
    assert {"input", "features"} <= {region.name for region in selection.segment.regions}
