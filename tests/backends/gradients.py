"""The ops that run a case forward and backward, with inputs as a network would give them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from convloom.compiler.autodiff import differentiate
from convloom.ir import GraphBuilder, Role, TensorSpec
from tests.backends.harness import integers
from tests.zoo import Case


def pool_and_gradient(case: Case) -> Iterator[tuple[Any, ...]]:
    """(op, its inputs) of a pool of integers, then of its gradient."""
    x = case.integers()[0]
    builder = GraphBuilder()
    builder.declare("x", TensorSpec(x.shape), Role.INPUT)
    made = builder.add(case.op, ("x",), layer="pool")
    dy = integers(builder.spec(made[0]).shape, 1)
    builder.declare("dy", TensorSpec(dy.shape), Role.INPUT)
    graph = differentiate(builder.build(), made[0], "dy", ["x"])
    values: dict[str, np.ndarray] = {"x": x, "dy": dy}
    for node in graph.nodes:
        inputs = [values[name] for name in node.inputs]
        yield node.op, *inputs
        values.update(zip(node.outputs, node.op.reference(*inputs), strict=True))
