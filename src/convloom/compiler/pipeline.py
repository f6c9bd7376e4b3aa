"""The passes in order: layout, fuse, select, memory.

Autodiff and updates come before: training/graphs.py puts whole training steps together.
"""

from __future__ import annotations

from collections.abc import Mapping

from convloom.backends.base import Backend
from convloom.compiler.fuse import fuse
from convloom.compiler.layout import choose_layouts
from convloom.compiler.memory import assign_memory
from convloom.compiler.rewrite import without_dead_code
from convloom.compiler.select import check_rung, select_kernels
from convloom.ir import Graph, Plan, TensorSpec


def compile_graph(
    graph: Graph,
    backend: Backend,
    kernels: str = "auto",
    held: Mapping[str, TensorSpec] | None = None,
) -> Plan:
    """The plan that runs ``graph`` on ``backend``.

    Args:
        kernels: ``auto``, or the highest rung of the backend's ladder that may be used.
        held: a storage's tensors, if the plan is to run on one that another plan made.

    Raises:
        ConvloomError: an unknown rung, or a node that no kernel serves.
    """
    check_rung(backend, kernels)
    graph = choose_layouts(without_dead_code(graph), backend.layout_policy, held or {})
    graph = fuse(graph, backend, kernels)
    steps = select_kernels(graph, backend, kernels)
    memory = assign_memory(graph, steps)
    return Plan(
        graph=graph,
        steps=steps,
        buffers=memory.buffers,
        arenas=memory.arenas,
        transient_bound=memory.transient_bound,
        backend=backend.name,
        kernels=kernels,
        notes=tuple(
            f"{step.node.title}: {step.selection.note}" for step in steps if step.selection.note
        ),
    )
