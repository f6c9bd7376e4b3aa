"""Which compiled kernel runs an op: one module an op family, each with a function ``select``.

``select(node, specs, kernels)`` returns the Selection of the best kernel that serves these specs
and is no higher than the rung ``kernels``, or None. It looks at the op and the specs only.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import cache

from convloom.backends.cpu.selectors.winograd import select_winograd
from convloom.backends.selecting import OP_FAMILIES
from convloom.ir import Node, Selection, TensorSpec

Selector = Callable[[Node, Mapping[str, TensorSpec], str], Selection | None]

#: {module of this package: the ops it serves}.
FAMILIES = {
    **OP_FAMILIES,
    "conv2d": (*OP_FAMILIES["conv2d"], "BiasGrad"),
    "update": (*OP_FAMILIES["update"], "GradientNorm"),
}


def select_kernel(node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
    """The compiled kernel for ``node``, or None when no family serves it."""
    if kernels in ("auto", "winograd"):
        selection = select_winograd(node, specs)
        if selection is not None:
            return selection
    selector = _selector(node.op.name)
    return selector(node, specs, kernels) if selector else None


@cache
def _selector(op: str) -> Selector | None:
    for family, ops in FAMILIES.items():
        if op in ops:
            selector: Selector = importlib.import_module(f"{__name__}.{family}").select
            return selector
    return None
