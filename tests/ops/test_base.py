from __future__ import annotations

import json

import pytest

import convloom.ops as ops
from convloom.compiler.autodiff import differentiate
from convloom.ir import GraphBuilder, Role, TensorSpec
from convloom.ops import SGD, Conv2d, Dropout, ReLU, ReLUGrad, from_json, to_json
from convloom.ops.base import _REGISTRY


def test_json_keeps_attributes() -> None:
    op = Conv2d((1, 2), (0, 3), (1, 1), 4)
    data = to_json(op)
    assert data == {
        "op": "Conv2d",
        "stride": (1, 2),
        "padding": (0, 3),
        "dilation": (1, 1),
        "groups": 4,
    }
    again = from_json(json.loads(json.dumps(data)))
    assert again == op
    assert hash(again) == hash(op)


def test_json_of_an_unknown_op_or_attribute() -> None:
    with pytest.raises(ValueError, match="unknown operation 'Warp'; was it saved by a newer"):
        from_json({"op": "Warp"})
    with pytest.raises(ValueError, match="operation ReLU has no attribute slope"):
        from_json({"op": "ReLU", "slope": 0.1})


def test_every_op_is_exported() -> None:
    ours = {
        name
        for name, kind in _REGISTRY.items()
        if kind.__module__.startswith("convloom.ops.") and not name.startswith("_")
    }
    assert ours <= set(ops.__all__)


def test_inference_keeps_all_but_dropout() -> None:
    assert ReLU().inference() == ReLU()
    assert Dropout(0.5).inference() is None


def test_text_shows_attributes() -> None:
    assert str(Dropout(0.25, 7)) == "Dropout(p=0.25, rescale=True, stream=7)"


def test_ops_are_values() -> None:
    with pytest.raises(AttributeError):
        Dropout(0.25).p = 0.5  # type: ignore[misc]
    assert len({SGD((1.0,), (1.0,)), SGD((1.0,), (1.0,))}) == 1


def test_an_op_without_gradient_rule_says_so() -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((3,)), Role.INPUT)
    (y,) = builder.add(ReLUGrad(), ("x", "x"))
    builder.declare("dy", TensorSpec((3,)), Role.INPUT)
    with pytest.raises(TypeError, match="ReLUGrad has no gradient; it cannot stand between"):
        differentiate(builder.build(), y, "dy", ["x"])


def test_backward_ops_are_named_after_the_layer() -> None:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((3,)), Role.INPUT)
    (y,) = builder.add(ReLU(), ("x",), layer="features.1")
    builder.declare("dy", TensorSpec((3,)), Role.INPUT)
    assert differentiate(builder.build(), y, "dy", ["x"]).nodes[-1].layer == "features.1"
