"""Which layouts are chosen, and when a Flatten is free."""

from __future__ import annotations

import numpy as np

from convloom import nn
from convloom.backends.base import LayoutPolicy
from convloom.compiler.layout import choose_layouts, is_view
from convloom.ir import KRSC, NHWC, ROW_MAJOR, Graph, Layout, flattened_nhwc
from convloom.training.graphs import prediction_graph
from tests.compiler.helpers import AnyBackend, lenet, same_results, training

POLICY = AnyBackend.layout_policy


def flattens(graph: Graph) -> list[bool]:
    return [
        is_view(graph, node) for node in graph.nodes if node.op.name in ("Flatten", "Unflatten")
    ]


def test_images_filters_and_the_weights_behind_a_flatten() -> None:
    graph = choose_layouts(training(lenet(), (1, 10, 10)), POLICY)
    assert graph.specs["input"].layout == ROW_MAJOR
    assert graph.specs["0.out"].layout == NHWC
    assert graph.specs["0.weight"].layout == KRSC
    assert graph.specs["0.bias"].layout == ROW_MAJOR
    flat = flattened_nhwc(6, 3, 3)
    assert graph.specs["5.out"].layout == flat
    assert graph.specs["6.weight"].layout == flat
    assert flattens(graph) == [True, True]


def test_gradients_states_and_new_values_lie_as_their_parameter() -> None:
    graph = choose_layouts(training(lenet(), (1, 10, 10)), POLICY)
    for name in ("0.weight", "6.weight"):
        layout = graph.specs[name].layout
        for other in (f"{name}.grad", f"{name}.momentum", graph.updates[name]):
            assert graph.specs[other].layout == layout, other


def test_dropout_behind_the_flatten_makes_it_a_real_step() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(2 * 64, 5))
    graph = choose_layouts(training(model, (1, 10, 10)), POLICY)
    assert graph.specs["1.out"].layout == ROW_MAJOR
    assert graph.specs["3.weight"].layout == ROW_MAJOR
    assert flattens(graph) == [False, False]


def test_weights_that_lie_in_memory_keep_their_order() -> None:
    """Without its dropout the network would order them otherwise."""
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Dropout(0.5), nn.Linear(2 * 64, 5))
    trained = choose_layouts(training(model, (1, 10, 10)), POLICY)
    predicts = prediction_graph(model.trace((1, 10, 10), 2))
    alone = choose_layouts(predicts, POLICY)
    assert alone.specs["3.weight"].layout == flattened_nhwc(2, 8, 8)
    graph = choose_layouts(predicts, POLICY, trained.specs)
    assert graph.specs["3.weight"] == trained.specs["3.weight"]
    assert flattens(graph) == [False]


def test_relu_behind_the_flatten_keeps_it_free() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.ReLU(), nn.Linear(2 * 64, 5))
    assert flattens(choose_layouts(training(model, (1, 10, 10)), POLICY)) == [True, True]


class TwoOrders(nn.Module):
    """One weight behind a Flatten and behind another Linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.mix = nn.Linear(32, 32)
        self.head = nn.Linear(32, 5)

    def forward(self, x):  # type: ignore[no-untyped-def]
        return self.head(self.mix(self.mix(self.conv(x).flatten(1))))


def test_a_weight_that_two_orders_would_share_stays_row_major() -> None:
    graph = choose_layouts(training(TwoOrders(), (1, 6, 6)), POLICY)
    assert graph.specs["mix.weight"].layout == ROW_MAJOR
    assert not any(flattens(graph))


def test_a_flattened_input_is_row_major_and_free() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 5))
    graph = choose_layouts(training(model, (1, 4, 4)), POLICY)
    assert graph.specs["1.weight"].layout == ROW_MAJOR
    assert flattens(graph) == [True]


def test_a_row_major_backend_gets_row_major_everywhere() -> None:
    graph = choose_layouts(training(lenet(), (1, 10, 10)), LayoutPolicy())
    assert {spec.layout for spec in graph.specs.values()} == {ROW_MAJOR}
    assert all(flattens(graph))


def test_a_layout_stores_and_gives_back() -> None:
    draw = np.random.default_rng(0)
    for layout, shape in (
        (ROW_MAJOR, (3, 4)),
        (NHWC, (2, 3, 4, 5)),
        (KRSC, (2, 1, 3, 3)),
        (flattened_nhwc(2, 3, 4), (5, 24)),
        (Layout("io", (1, 0)), (3, 7)),
    ):
        logical = draw.standard_normal(shape)
        memory = layout.store(logical)
        assert memory.shape == layout.stored_shape(shape)
        np.testing.assert_array_equal(layout.logical(memory.ravel(), shape), logical)


def test_host_images_of_many_channels_are_reordered_once() -> None:
    for channels, copies in ((3, 0), (16, 1)):
        model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(64, 5))
        before = training(model, (channels, 6, 6))
        after = choose_layouts(before, POLICY)
        found = [node for node in after.nodes if node.inputs == ("input",)]
        names = [node.outputs[0] for node in found if node.outputs[0] == "input.nhwc"]
        assert len(names) == copies
        assert after.specs["input"].layout == ROW_MAJOR
        if copies:
            assert len(found) == 1
            assert after.specs["input.nhwc"].layout == NHWC
            assert not is_view(after, found[0])
        same_results(before, after, model)
