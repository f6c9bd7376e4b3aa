"""The passes in order: layout, segment, fuse, watch, select, memory.

Autodiff and updates come before: training/graphs.py puts whole training steps together.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from convloom.backends.base import Backend
from convloom.compiler.fuse import fuse
from convloom.compiler.layout import choose_layouts
from convloom.compiler.memory import assign_memory
from convloom.compiler.rewrite import without_dead_code
from convloom.compiler.segment import computed_in_fp32, segment
from convloom.compiler.select import check_rung, select_kernels
from convloom.compiler.watch import with_taps
from convloom.ir import Graph, Plan, Step, TensorSpec
from convloom.ops.base import Op
from convloom.ops.precision import FP32, check_precision


def compile_graph(
    graph: Graph,
    backend: Backend,
    kernels: str = "auto",
    held: Mapping[str, TensorSpec] | None = None,
    precision: str = FP32,
    watch: Sequence[str] = (),
) -> Plan:
    """The plan that runs ``graph`` on ``backend``.

    Args:
        kernels: ``auto``, or the highest rung of the backend's ladder that may be used.
        held: a storage's tensors, if the plan is to run on one that another plan made.
        precision: what operands of products are rounded to, where a kernel can: on chip. Layers
            elsewhere compute in fp32, and a note of the plan names them.
        watch: further tensors to keep for ``read``, those that fusion never stores included.

    Raises:
        ConvloomError: an unknown rung or precision, a node that no kernel serves, no such tensor
            to watch.
    """
    check_rung(backend, kernels)
    check_precision(precision)
    traced = choose_layouts(without_dead_code(graph), backend.layout_policy, held or {})
    segmented = segment(traced, backend, kernels, precision)
    plain = computed_in_fp32(segmented.graph, precision)
    graph = with_taps(fuse(segmented.graph, backend, kernels), traced, watch)
    steps = select_kernels(graph, backend, kernels)
    memory = assign_memory(graph, steps, backend.layout_policy.apart)
    return Plan(
        graph=graph,
        steps=steps,
        buffers=memory.buffers,
        arenas=memory.arenas,
        transient_bound=memory.transient_bound,
        backend=backend.name,
        kernels=kernels,
        precision=precision,
        notes=(*segmented.notes, *plain, *_gradient_notes(graph), *_kernel_notes(steps)),
    )


def _gradient_notes(graph: Graph) -> list[str]:
    """What is to be known of gradients that this plan makes."""
    if not graph.gradients:
        return []
    return [
        f"{node.title}: {node.op.gradient_note}"
        for node in graph.nodes
        if isinstance(node.op, Op) and node.op.gradient_note
    ]


def _kernel_notes(steps: Sequence[Step]) -> list[str]:
    return [f"{step.node.title}: {step.selection.note}" for step in steps if step.selection.note]
