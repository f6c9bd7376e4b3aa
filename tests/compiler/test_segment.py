"""Which nodes become a segment, that it computes the same, and why others do not become one."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import pytest

from convloom import nn
from convloom.backends import get_backend
from convloom.backends.base import LayoutPolicy
from convloom.compiler import compile_graph
from convloom.compiler.rewrite import without_dead_code
from convloom.compiler.segment import segment
from convloom.ir import Graph, Node, Plan, Region, Segment, Selection, TensorSpec
from convloom.nn import CrossEntropyLoss
from convloom.ops import Chain, ChainGradient, Dropout
from convloom.training.graphs import (
    INDEX,
    PROBABILITY,
    evaluation_graph,
    prediction_graph,
    training_graph,
)
from convloom.training.optim import SGD, AdamW
from tests.compiler.helpers import AnyBackend, lenet, same_results, training

SHAPE = (1, 10, 10)
Accepts = Callable[[Chain, list[TensorSpec]], bool]


class ChainBackend(AnyBackend):
    """Serves chains on rung ``onchip``, those that a predicate accepts, and every plain op."""

    rungs = ("reference", "dense", "onchip")

    def __init__(self, accepts: Accepts = lambda chain, specs: True) -> None:
        super().__init__()
        self.accepts = accepts

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        if not isinstance(node.op, Chain):
            return super().select(node, specs, kernels)
        if not self.accepts(node.op, [specs[name] for name in node.inputs]):
            return None
        chain = Segment(node.op.titles([specs[name] for name in node.inputs]), 2, 8, 128, ())
        return Selection("onchip", "chain", None, segment=chain)

    def refusal(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> str:
        return f"{node.title} is too large"


def ops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def segmented(graph: Graph, backend: AnyBackend | None = None) -> tuple[Graph, tuple[str, ...]]:
    made = segment(without_dead_code(graph), backend or ChainBackend(), "auto", "fp32")
    return made.graph, made.notes


def dropped() -> nn.Sequential:
    """Every kind of stage."""
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False),
        nn.AvgPool2d(2, stride=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(48, 7),
        nn.ReLU(),
        nn.Linear(7, 5),
    )


@pytest.mark.parametrize("make", [lenet, lambda: lenet(3), dropped], ids=["pool2", "pool3", "drop"])
def test_a_training_step_becomes_one_node(make: Callable[[], nn.Sequential]) -> None:
    model = make()
    graph = training(model, SHAPE)
    after, notes = segmented(graph)
    assert ops(after) == ["ChainUpdate"]
    assert notes == ()
    assert set(after.updates.values()) <= set(after.nodes[0].outputs)
    model.initialize(0)
    same_results(graph, after, model)


def test_adamw_and_distributions() -> None:
    model = lenet()
    optimizer = AdamW(lr=0.1)
    graph = training_graph(
        model.trace(SHAPE, 4), CrossEntropyLoss(label_smoothing=0.1), PROBABILITY, optimizer, False
    )
    after, _ = segmented(graph)
    assert ops(after) == ["ChainUpdate"]
    assert after.nodes[0].inputs[:1] == ("input",)
    assert {"target", "label", "hyper"} <= set(after.nodes[0].inputs)


def test_parameters_declared_in_another_order_are_matched() -> None:
    """The update takes parameters as the modules were made, the chain as they are used."""

    class Backwards(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(8, 5)
            self.first = nn.Linear(100, 8, bias=False)

        def forward(self, x: nn.Tensor) -> nn.Tensor:
            return self.last(nn.relu(self.first(nn.flatten(x))))

    model = Backwards()
    graph = training(model, SHAPE)
    after, _ = segmented(graph)
    assert ops(after) == ["ChainUpdate"]
    assert after.nodes[0].inputs[1:4] == ("first.weight", "last.weight", "last.bias")
    model.initialize(0)
    same_results(graph, after, model)


def test_clipping_leaves_norm_and_update_as_they_are() -> None:
    graph = training_graph(lenet().trace(SHAPE, 4), CrossEntropyLoss(), INDEX, SGD(lr=0.1), True)
    after, notes = segmented(graph)
    assert ops(after) == ["ChainGradient", "GradientNorm", "SGD"]
    assert notes == ()


def test_evaluation_and_prediction_use_the_forward_half() -> None:
    forward = dropped().trace(SHAPE, 4)
    after, _ = segmented(evaluation_graph(forward, CrossEntropyLoss(), INDEX))
    assert ops(after) == ["ChainEvaluate"]
    assert not any(isinstance(op, Dropout) for op in after.nodes[0].op.stages)  # type: ignore[attr-defined]
    after, _ = segmented(prediction_graph(forward))
    assert ops(after) == ["ChainForward"]
    assert after.outputs == after.nodes[0].outputs


def test_a_later_start_gives_the_gradient_of_its_input() -> None:
    """The first convolution stays a layer, and the update a node for all parameters."""
    model = lenet()
    small = ChainBackend(lambda chain, specs: specs[0].shape[1] > 1)
    graph = training(model, SHAPE)
    after, notes = segmented(graph, small)
    assert [name for name in ops(after) if name.startswith("Chain")] == ["ChainGradient"]
    chain = next(node for node in after.nodes if isinstance(node.op, ChainGradient))
    assert chain.op.needs_dx
    assert "SGD" in ops(after)
    assert "Conv2dWgrad" in ops(after)
    assert notes == ("the on-chip segment begins at 2 (Conv2d): 0…6 (ChainGradient) is too large",)
    model.initialize(0)
    same_results(graph, after, model)


class Branching(nn.Module):
    """A sum of two convolutions, then a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(1, 3, 3)
        self.right = nn.Conv2d(1, 3, 3)
        self.head = nn.Linear(192, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(nn.flatten(nn.relu(self.left(x) + self.right(x))))


def test_a_chain_behind_a_branch() -> None:
    model = Branching()
    graph = training(model, SHAPE)
    after, notes = segmented(graph)
    assert "ChainGradient" in ops(after)
    assert "Linear" not in ops(after)
    assert "Add" in ops(after)
    assert "cannot be part of a chain" in notes[0]
    model.initialize(0)
    same_results(graph, after, model)


class Tied(nn.Module):
    """One weight used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(100, 100)
        self.head = nn.Linear(100, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        return self.head(nn.relu(self.inner(nn.relu(self.inner(nn.flatten(x))))))


class Skip(nn.Module):
    """A tensor read by two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 5)
        self.outer = nn.Linear(100, 5)

    def forward(self, x: nn.Tensor) -> nn.Tensor:
        y = self.outer(nn.flatten(x))
        return y + self.inner(nn.relu(y))


@pytest.mark.parametrize(
    ("model", "reason"),
    [(Tied(), "share their weights"), (Skip(), "cannot be part of a chain")],
    ids=["tied", "skip"],
)
def test_what_is_no_chain_stays_layers(model: nn.Module, reason: str) -> None:
    graph = without_dead_code(training(model, SHAPE))
    made = segment(
        graph, ChainBackend(lambda chain, specs: len(chain.products) > 2), "auto", "fp32"
    )
    assert made.graph == graph
    assert len(made.notes) == 1
    assert reason in made.notes[0]


def test_a_tensor_that_is_wanted_outside_forbids_the_segment() -> None:
    graph = training(lenet(), SHAPE)
    watched = graph.replacing(outputs=(*graph.outputs, "1.out"))
    after, notes = segmented(watched, ChainBackend(lambda chain, specs: specs[0].shape[1] == 1))
    assert not any(name.startswith("Chain") for name in ops(after))
    assert notes == (
        "no on-chip segment: 1.out is read after the run, and a segment would not store it",
    )


@pytest.mark.parametrize("kernels", ["dense", "reference"])
def test_lower_rungs_have_no_segments(kernels: str) -> None:
    graph = without_dead_code(training(lenet(), SHAPE))
    assert segment(graph, ChainBackend(), kernels, "fp32").graph == graph


def test_the_reason_of_the_backend_is_told() -> None:
    _, notes = segmented(training(lenet(), SHAPE), ChainBackend(lambda chain, specs: False))
    assert notes == ("no on-chip segment: 0…6 (ChainGradient) is too large",)


def test_layouts_do_not_depend_on_the_segment() -> None:
    graph = training(lenet(), SHAPE)
    with_it = compile_graph(graph, ChainBackend())
    without = compile_graph(graph, ChainBackend(), "dense")
    assert [step.node.op.name for step in with_it.steps] == ["ChainUpdate"]
    for name in graph.roles:
        assert with_it.spec(name) == without.spec(name)
        if name not in ("input", "target"):
            assert with_it.buffers[name] == replace(
                without.buffers[name], last=with_it.buffers[name].last
            )


def test_a_lasting_workspace_shares_its_place_with_nobody() -> None:
    class Lasting(ChainBackend):
        def select(
            self, node: Node, specs: Mapping[str, TensorSpec], kernels: str
        ) -> Selection | None:
            found = super().select(node, specs, kernels)
            if found is None or found.rung == "onchip":
                return found and replace(found, workspace=640, lasting=True)
            return replace(found, workspace=64)

    plan = compile_graph(training(Branching(), SHAPE), Lasting())
    (step,) = [step for step in plan.steps if step.selection.lasting]
    assert step.workspace is not None
    mine = plan.buffers[step.workspace]
    assert (mine.first, mine.last) == (0, len(plan.steps))
    others = [b for name, b in plan.buffers.items() if name != step.workspace]
    for other in others:
        if other.arena == mine.arena and other.nbytes:
            assert other.offset >= mine.offset + 640 or other.offset + other.nbytes <= mine.offset


def test_the_plan_shows_the_segment() -> None:
    class Mapped(ChainBackend):
        def select(
            self, node: Node, specs: Mapping[str, TensorSpec], kernels: str
        ) -> Selection | None:
            found = super().select(node, specs, kernels)
            if found is None or found.segment is None:
                return found
            regions = (Region("image", 400), Region("map", 1000))
            chain = replace(
                found.segment, regions=regions, fixed=(Region("weights", 3000),), limit=232448
            )
            assert isinstance(node.op, Chain)
            chain = replace(chain, cluster=2, precision=node.op.precision)
            return replace(found, segment=chain)

    plan = compile_graph(training(lenet(), SHAPE), Mapped(), precision="bf16")
    text = str(plan)
    assert "segment 0…6: Conv2d 4×8×8, ReLU 4×8×8, Conv2d 6×6×6" in text
    assert "8 blocks of 128 threads, 2 images at a time for each cluster of 2" in text
    assert "products of bf16 operands, sums in fp32" in text
    assert "on-chip memory of a block: 5.8 kB of 232 kB" in text
    assert "each image: image 400B, map 1 kB" in text
    assert "the block: weights 3 kB" in text
    assert "precision bf16" in text
    data = json.loads(json.dumps(plan.to_json()))
    assert data["precision"] == "bf16"
    assert data["steps"][0]["segment"]["nbytes"] == 5800


def test_layers_outside_compute_in_fp32_and_the_plan_says_so() -> None:
    plan = compile_graph(training(Branching(), SHAPE), ChainBackend(), precision="bf16")
    note = "only on-chip segments compute in bf16; in fp32: left (Conv2d), right (Conv2d)"
    assert note in plan.notes
    plan = compile_graph(training(lenet(), SHAPE), AnyBackend(), precision="tf32")
    assert any("in fp32: 0 (Conv2d), 2 (Conv2d), 6 (Linear)" in text for text in plan.notes)
    plan = compile_graph(training(lenet(), SHAPE), ChainBackend(), precision="bf16")
    assert plan.notes == ()


def reference_plan(kernels: str, precision: str) -> Plan:
    return compile_graph(
        training(lenet(), SHAPE), get_backend("reference"), kernels, precision=precision
    )


def test_the_reference_device_takes_chains_where_they_are_needed() -> None:
    def kinds(kernels: str, precision: str) -> set[str]:
        return {step.node.op.name for step in reference_plan(kernels, precision).steps}

    assert kinds("onchip", "fp32") == {"ChainUpdate"}
    assert kinds("auto", "bf16") == {"ChainUpdate"}
    assert "ChainUpdate" not in kinds("auto", "fp32")
    assert "ChainUpdate" not in kinds("reference", "bf16")


def test_row_major_backends_are_served_too() -> None:
    class RowMajor(ChainBackend):
        layout_policy = LayoutPolicy()

    plan = compile_graph(training(dropped(), SHAPE), RowMajor())
    assert [step.node.op.name for step in plan.steps] == ["ChainUpdate"]
    assert np.all([spec.layout.order is None for spec in plan.graph.specs.values()])
