"""Renaming, dead code, order and the rewriter."""

from __future__ import annotations

import pytest

from convloom.compiler.rewrite import Rewriter, ordered, renamed, without_dead_code
from convloom.ir import Graph, GraphBuilder, Node, Role, TensorSpec
from convloom.ops import Add, ReLU


def diamond() -> Graph:
    builder = GraphBuilder()
    builder.declare("x", TensorSpec((2,)), Role.INPUT)
    builder.add(ReLU(), ("x",), names=["a"])
    builder.add(ReLU(), ("x",), names=["b"])
    builder.add(Add(), ("a", "b"), names=["y"])
    builder.add(ReLU(), ("a",), names=["dead"])
    builder.outputs.append("y")
    return builder.build()


def test_dead_code_goes_and_outputs_stay() -> None:
    graph = without_dead_code(diamond())
    assert [node.outputs[0] for node in graph.nodes] == ["a", "b", "y"]
    assert "dead" not in graph.specs


def test_renaming_reaches_every_place() -> None:
    graph = renamed(diamond(), {"a": "left", "y": "result", "x": "image"})
    assert graph.outputs == ("result",)
    assert graph.nodes[2].inputs == ("left", "b")
    assert set(graph.roles) == {"image"}
    assert "a" not in graph.specs


def test_order_is_repaired_and_otherwise_kept() -> None:
    nodes = diamond().nodes
    assert ordered(nodes) == nodes
    shuffled = (nodes[2], nodes[1], nodes[3], nodes[0])
    assert [node.outputs[0] for node in ordered(shuffled)] == ["b", "a", "y", "dead"]


def test_a_circle_is_named() -> None:
    one = Node(ReLU(), ("b",), ("a",), "first")
    two = Node(ReLU(), ("a",), ("b",), "second")
    with pytest.raises(ValueError, match=r"first .*second"):
        ordered((one, two))


def test_the_rewriter_keeps_producers_and_readers_current() -> None:
    graph = diamond()
    rewriter = Rewriter(graph)
    old = graph.nodes[0]
    new = Node(ReLU(), ("b",), ("a",), "moved")
    rewriter.replace((old,), (new,))
    assert not rewriter.present(old)
    assert rewriter.present(new)
    assert rewriter.producer("a") is new
    assert new in rewriter.readers("b")
    assert [node.outputs[0] for node in rewriter.result().nodes] == ["b", "a", "y"]


def test_an_output_has_no_sole_reader() -> None:
    rewriter = Rewriter(diamond())
    assert rewriter.sole_reader("y") is None
    assert rewriter.sole_reader("a") is None
    assert rewriter.sole_reader("b") is not None
