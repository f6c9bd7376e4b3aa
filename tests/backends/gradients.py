"""The ops that run a case forward and backward, with inputs as a network would give them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from convloom.compiler.autodiff import differentiate
from convloom.ir import GraphBuilder, Role, TensorSpec
from convloom.ops import Local2d, Local2dDgrad, Local2dWgrad
from tests.backends.harness import integers
from tests.zoo import Case


def op_and_gradient(case: Case) -> Iterator[tuple[Any, ...]]:
    """(op, its inputs) of an op on integers, then of its gradient."""
    x = case.integers()[0]
    builder = GraphBuilder()
    builder.declare("x", TensorSpec(x.shape), Role.INPUT)
    made = builder.add(case.op, ("x",), layer="layer")
    dy = integers(builder.spec(made[0]).shape, 1)
    builder.declare("dy", TensorSpec(dy.shape), Role.INPUT)
    graph = differentiate(builder.build(), made[0], "dy", ["x"])
    values: dict[str, np.ndarray] = {"x": x, "dy": dy}
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        yield node.op, *inputs
        values.update(zip(node.outputs, node.op.reference(*inputs), strict=True))


def local_and_gradients(
    case: Case, make: Callable[[tuple[int, ...], int], np.ndarray]
) -> Iterator[tuple[Any, ...]]:
    """(op, its inputs) of a locally connected layer, then of its gradients."""
    op = case.op
    assert isinstance(op, Local2d)
    geometry = (op.stride, op.padding, op.dilation, op.groups)
    x, w = (make(shape, i) for i, shape in enumerate(case.shapes))
    dy = make(op.infer(*case.specs())[0].shape, 2)
    yield op, x, w
    yield Local2dDgrad(*geometry, size=(x.shape[2], x.shape[3])), dy, w
    yield Local2dWgrad(*geometry, kernel=(w.shape[2], w.shape[3])), x, dy
