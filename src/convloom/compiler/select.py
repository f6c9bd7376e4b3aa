"""Ask the backend what runs each node, and count what each step costs."""

from __future__ import annotations

from collections.abc import Sequence

from convloom.backends.base import Backend
from convloom.compiler.layout import is_view
from convloom.ir import ConvloomError, Graph, Step
from convloom.ops.base import Op


def select_kernels(graph: Graph, backend: Backend, kernels: str) -> tuple[Step, ...]:
    """One step for every node that is not a view.

    Raises:
        ConvloomError: ``kernels`` is not a rung of this backend, or no kernel serves a node.
    """
    check_rung(backend, kernels)
    steps: list[Step] = []
    for node in graph.nodes:
        if is_view(graph, node):
            continue
        selection = backend.select(node, graph.specs, kernels)
        if selection is None:
            shapes = ", ".join(str(graph.specs[name]) for name in node.inputs)
            raise ConvloomError(
                f"the {backend.name} backend has no kernel for {node.title} with inputs {shapes}"
            )
        assert isinstance(node.op, Op)
        inputs = [graph.specs[name] for name in node.inputs]
        outputs = [graph.specs[name] for name in node.outputs]
        steps.append(
            Step(
                node=node,
                selection=selection,
                flops=node.op.flops(inputs, outputs),
                nbytes=node.op.nbytes(inputs, outputs),
                workspace=f"{node.outputs[0]}.workspace" if selection.workspace else None,
            )
        )
    return tuple(steps)


def check_rung(backend: Backend, kernels: str) -> None:
    """Raises ConvloomError unless ``kernels`` is ``auto`` or a rung of the backend's ladder."""
    known: Sequence[str] = ("auto", *backend.rungs)
    if kernels not in known:
        raise ConvloomError(
            f"kernels={kernels!r} is not a rung of the {backend.name} backend; "
            f"choose one of {', '.join(known)}"
        )
