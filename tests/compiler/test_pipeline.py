"""Plans as a person and a script read them, and errors of compilation."""

from __future__ import annotations

import json

import pytest

from convloom import nn
from convloom.compiler import compile_graph
from convloom.compiler.inference import for_inference
from convloom.ir import ConvloomError
from convloom.ir.printing import quantity
from tests.compiler.helpers import AnyBackend, lenet, training


def test_the_table_shows_every_step_and_the_memory() -> None:
    plan = compile_graph(training(lenet(), (1, 10, 10)), AnyBackend())
    text = str(plan)
    for step in plan.steps:
        assert step.node.op.name in text
    assert "lower bound" in text
    assert "ratio" in text


def test_the_plan_is_plain_data() -> None:
    plan = compile_graph(training(lenet(), (1, 10, 10)), AnyBackend())
    data = json.loads(json.dumps(plan.to_json()))
    assert [row["step"] for row in data["steps"]] == list(range(len(plan.steps)))
    first = data["steps"][0]
    assert first["op"] == "FusedConv2d"
    assert first["flops"] > 0
    assert first["bytes"] > 0


def test_conv_flops_are_counted_by_hand() -> None:
    graph = nn.Sequential(nn.Conv2d(3, 8, 3, bias=False)).trace((3, 6, 6), 2)
    (step,) = compile_graph(graph, AnyBackend()).steps
    assert step.flops == 2 * (2 * 8 * 4 * 4) * (3 * 3 * 3)
    assert step.nbytes == 4 * (2 * 3 * 36 + 8 * 27 + 2 * 8 * 16)


def test_an_unknown_rung_lists_the_ladder() -> None:
    with pytest.raises(ConvloomError, match="auto, reference, dense"):
        compile_graph(training(lenet(), (1, 10, 10)), AnyBackend(), "turbo")


def test_a_node_without_kernel_names_layer_and_shapes() -> None:
    backend = AnyBackend(refuses=("Linear",))
    with pytest.raises(ConvloomError, match=r"6 \(Linear\).*4×54"):
        compile_graph(training(lenet(), (1, 10, 10)), backend)


def test_prediction_drops_dropout_and_keeps_the_output() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.Dropout(0.5))
    graph = for_inference(model.trace((1, 2, 2), 1))
    assert [node.op.name for node in graph.nodes] == ["Flatten", "Linear"]
    assert graph.outputs == (graph.nodes[-1].outputs[0],)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (999, "999"), (1000, "1 k"), (999_600, "1 M"), (1_234_567, "1.23 M")],
)
def test_quantities(value: float, text: str) -> None:
    assert quantity(value) == text
