"""What the fusion pass joins, what it must leave alone, and that the numbers stay."""

from __future__ import annotations

from collections import Counter

import pytest

from convloom import nn
from convloom.compiler.fuse import fuse
from convloom.compiler.inference import for_inference
from convloom.ir import Graph
from tests.compiler.helpers import AnyBackend, lenet, same_results, training


def kinds(graph: Graph) -> Counter[str]:
    return Counter(node.op.name for node in graph.nodes)


def fused(graph: Graph, backend: AnyBackend | None = None, kernels: str = "auto") -> Graph:
    return fuse(graph, backend or AnyBackend(), kernels)


def test_the_seed_network_becomes_a_handful_of_nodes() -> None:
    model = lenet()
    before = training(model, (1, 10, 10))
    after = fused(before)
    found = kinds(after)
    assert found["FusedConv2d"] == 2
    assert found["PooledConv2dGrad"] == 1
    assert found["FusedLinearDgrad"] == 1
    assert found["FusedLinearWgrad"] == 1
    assert found["FusedConv2dWgrad"] == 1
    gone = {"Conv2d", "ReLU", "MaxPool2d", "MaxPool2dGrad", "ReLUGrad", "BiasGrad", "Conv2dDgrad"}
    assert not gone & set(found)
    same_results(before, after, model)


def test_reference_kernels_are_never_fused() -> None:
    before = training(lenet(), (1, 10, 10))
    assert kinds(fused(before, kernels="reference")) == kinds(before)


@pytest.mark.parametrize(
    "refused", ["FusedConv2d", "PooledConv2dGrad", "FusedLinearDgrad", "FusedConv2dWgrad"]
)
def test_what_the_backend_refuses_stays_apart(refused: str) -> None:
    model = lenet()
    before = training(model, (1, 10, 10))
    after = fused(before, AnyBackend(refuses=(refused,)))
    assert refused not in kinds(after)
    same_results(before, after, model)


def test_other_pools_are_not_taken_for_2x2() -> None:
    model = lenet(pool=3)
    before = training(model, (1, 10, 10))
    after = fused(before)
    assert kinds(after)["MaxPool2d"] == 1
    assert kinds(after)["PooledConv2dGrad"] == 0
    same_results(before, after, model)


def test_greatest_magnitudes_are_not_taken_for_maxima() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2, magnitude=True), nn.ReLU(), nn.Flatten(),
        nn.Linear(2 * 16, 5),
    )  # fmt: skip
    before = training(model, (1, 10, 10))
    after = fused(before)
    assert kinds(after)["MaxPool2d"] == 1
    same_results(before, after, model)


@pytest.mark.parametrize("ties", ["first", "all"])
def test_masks_move_before_overlapping_pools(ties: str) -> None:
    """The mask of the rectifier before a pool is read from the pooled map, and then fused."""
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(3, 2, ties=ties),
        nn.Conv2d(3, 2, 3), nn.ReLU(), nn.MaxPool2d(2, 1), nn.Flatten(), nn.Linear(2 * 4, 5),
    )  # fmt: skip
    before = training(model, (1, 13, 13))
    after = fused(before)
    assert kinds(after)["ReLUGrad"] == 0
    assert kinds(after)["FusedConv2dDgrad"] == 1
    assert kinds(after)["FusedLinearDgrad"] == 1
    same_results(before, after, model)


def test_a_mask_of_another_map_stays_behind_its_pool() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.head = nn.Conv2d(1, 2, 3), nn.Linear(2 * 9, 5)

        def forward(self, x):  # type: ignore[no-untyped-def]
            full = self.conv(x).relu()
            return self.head((nn.max_pool2d(full, 3, 2) + nn.max_pool2d(full, 2, 3)).flatten(1))

    model = Net()
    before = training(model, (1, 10, 10))
    after = fused(before)
    assert kinds(after)["ReLUGrad"] == 1
    same_results(before, after, model)


def test_ceil_mode_is_fused_only_where_no_window_overhangs() -> None:
    for size, joined in ((10, True), (9, False)):
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True), nn.Flatten(),
            nn.Linear(2 * 4 * 4, 5),
        )  # fmt: skip
        before = training(model, (1, size, size))
        after = fused(before)
        assert (kinds(after)["MaxPool2d"] == 0) == joined
        same_results(before, after, model)


def test_pool_before_relu() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 5)
    )
    before = training(model, (1, 10, 10))
    after = fused(before)
    assert kinds(after)["PooledConv2dGrad"] == 1
    same_results(before, after, model)


class Branching(nn.Module):
    """The map between convolution and pool is read a second time; so are two other results."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1)
        self.deep = nn.Conv2d(3, 3, 3, padding=1)
        self.head = nn.Linear(3 * 3 * 3 + 3 * 6 * 6, 5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        full = self.conv(x).relu()
        pooled = nn.functional.max_pool2d(full, 2).flatten(1)
        deep = (self.deep(full) + full).relu().flatten(1)
        return self.head(nn.concat([pooled, deep], 1))


def test_a_map_that_others_read_is_kept() -> None:
    model = Branching()
    before = training(model, (1, 6, 6))
    after = fused(before)
    assert kinds(after)["MaxPool2d"] == 1
    same_results(before, after, model)


class Shared(nn.Module):
    """One convolution used twice: its weight has two gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.head = nn.Linear(2 * 3 * 3, 5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        x = self.conv(x).relu()
        x = nn.functional.max_pool2d(self.conv(x).relu(), 2)
        return self.head(x.flatten(1))


def test_shared_weights() -> None:
    model = Shared()
    before = training(model, (2, 6, 6))
    same_results(before, fused(before), model)


def test_a_network_that_predicts_is_fused_too() -> None:
    graph = for_inference(lenet().trace((1, 10, 10), 2))
    assert kinds(fused(graph)) == {"FusedConv2d": 2, "Flatten": 1, "Linear": 1}


def test_fully_connected_layers() -> None:
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 5)
    )
    before = training(model, (1, 4, 4))
    after = fused(before)
    assert kinds(after)["FusedLinear"] == 2
    assert kinds(after)["FusedLinearDgrad"] == 2
    assert kinds(after)["ReLUGrad"] == 0
    same_results(before, after, model)


def test_a_residual_connection_and_its_rectifier_become_one_node() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(32, 10)

        def forward(self, x):  # type: ignore[no-untyped-def]
            y = nn.relu(x + self.conv(x))
            y = nn.relu(nn.functional.weighted_sum([y, self.conv(y)], [0.5, 2.0]))
            return self.fc(y.flatten(1))

    model = Net()
    before = training(model, (2, 4, 4))
    after = fused(before)
    assert kinds(after)["FusedSum"] == 2
    assert not {"WeightedSum", "ReLU"} & set(kinds(after))
    same_results(before, after, model)


def test_cheap_activations_follow_their_layers() -> None:
    """Where the gradient reads what the activation read, only prediction can be fused."""
    model = nn.Sequential(
        *(nn.Conv2d(1, 3, 3), nn.ReLU6(), nn.Conv2d(3, 3, 3), nn.Hardswish(), nn.Flatten()),
        *(nn.Linear(108, 12), nn.LeakyReLU(0.1), nn.Linear(12, 10), nn.Tanh()),
    )
    before = training(model, (1, 10, 10))
    after = fused(before)
    assert [kinds(after)[n] for n in ("FusedConv2d", "FusedLinear", "Activation")] == [
        1,
        1,
        2,
    ]
    assert [kinds(after)[name] for name in ("FusedConv2dDgrad", "FusedLinearDgrad")] == [1, 1]
    assert kinds(after)["ActivationGrad"] == 2  # of Hardswish and Tanh
    same_results(before, after, model)
    forward = kinds(fused(for_inference(model.trace((1, 10, 10), 4))))
    assert [forward[name] for name in ("FusedConv2d", "FusedLinear", "Activation")] == [2, 1, 1]
