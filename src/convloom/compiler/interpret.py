"""Evaluate a graph with the NumPy references alone, in the dtype of the given arrays.

This is the oracle: no plan, no layouts, no fusion, nothing shared with the compiled kernels.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convloom.ir import Graph
from convloom.ops.base import Op


def interpret(graph: Graph, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors of the graph, given those that come from outside.

    Raises:
        KeyError: an input, parameter, state or control without a value.
    """
    known = dict(values)
    missing = [name for name in graph.roles if name not in known]
    if missing:
        raise KeyError(f"no value was given for {', '.join(missing)}")
    for node in graph.nodes:
        assert isinstance(node.op, Op)
        results = node.op.reference(*(known[name] for name in node.inputs))
        known.update(zip(node.outputs, results, strict=True))
    return known
