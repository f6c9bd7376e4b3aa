"""Runs one op, or a small graph, through selection, memory and a backend's executable.

    (y,) = run_op(ReLU(), x)                       # best kernel, channels-last images
    compare(Conv2d(padding=(1, 1)), x, w, exact=True)   # kernel against the op's reference

Arrays are logical (NCHW, KCRS) in and out. The compiler takes no part: every tensor has its own
place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from convloom.backends.base import Backend, Executable, get_backend
from convloom.ir import (
    NHWC,
    PERSISTENT,
    ROW_MAJOR,
    TRANSIENT,
    Buffer,
    Graph,
    GraphBuilder,
    Layout,
    Node,
    Plan,
    Role,
    Step,
    TensorSpec,
)
from convloom.ops.base import Op

#: A layout for each tensor of the node, inputs then outputs; None takes the default.
Layouts = Sequence[Layout | None] | None


@dataclass(frozen=True)
class Outcome:
    """What a run gave, and how it was run."""

    outputs: tuple[np.ndarray, ...]
    plan: Plan
    executable: Executable

    @property
    def rung(self) -> str:
        """The rung of the (first) step."""
        return self.plan.steps[0].selection.rung


def run_op(op: Op, *inputs: np.ndarray, **options: object) -> tuple[np.ndarray, ...]:
    """The op's outputs; options are those of ``outcome``."""
    return outcome(op, *inputs, **options).outputs  # type: ignore[arg-type]


def outcome(
    op: Op,
    *inputs: np.ndarray,
    kernels: str = "auto",
    layouts: Layouts = None,
    threads: int = 2,
    backend: Backend | None = None,
    require: str | None = None,
) -> Outcome:
    """Run one op.

    Args:
        layouts: memory order of inputs and outputs; by default rank 4 is channels-last (the same
            order is KRSC for filters) and everything else row-major.
        require: fail unless this rung was taken.
    """
    backend = backend or get_backend("cpu")
    graph = one_node(op, inputs, layouts)
    executable = bind(graph, backend, kernels, threads)
    for name, value in zip(graph.named(Role.INPUT), inputs, strict=True):
        executable.write(name, value)
    executable.run()
    outputs = tuple(executable.read(name) for name in graph.nodes[0].outputs)
    result = Outcome(outputs, executable.plan, executable)
    if require is not None:
        assert result.rung == require, f"{op} ran on {result.rung}, not on {require}"
    return result


def one_node(op: Op, inputs: Sequence[np.ndarray], layouts: Layouts = None) -> Graph:
    """A graph of one node whose inputs are x0, x1, … and whose outputs are y0, y1, …"""
    builder = GraphBuilder()
    wished = list(layouts or ())
    for i, value in enumerate(inputs):
        spec = TensorSpec(value.shape, str(value.dtype))
        builder.declare(f"x{i}", spec.with_layout(_layout(wished, i, spec)), Role.INPUT)
    names = [f"x{i}" for i in range(len(inputs))]
    arity = len(op.infer(*(builder.spec(name) for name in names)))
    made = builder.add(op, names, layer="test", names=[f"y{i}" for i in range(arity)])
    builder.outputs = list(made)
    graph = builder.build()
    specs = dict(graph.specs)
    for i, name in enumerate(made, start=len(inputs)):
        specs[name] = specs[name].with_layout(_layout(wished, i, specs[name]))
    return graph.replacing(specs=specs)


def bind(graph: Graph, backend: Backend, kernels: str = "auto", threads: int = 2) -> Executable:
    """Select, place and bind a graph as it is."""
    plan = plan_of(graph, backend, kernels)
    executable = backend.executable(plan, backend.storage(plan))
    if hasattr(executable, "set_num_threads"):
        executable.set_num_threads(threads)
    return executable


def plan_of(graph: Graph, backend: Backend, kernels: str = "auto") -> Plan:
    """A plan of a graph whose layouts are already chosen; no two tensors share memory.

    Outputs that an op makes in place lie where its input lies.
    """
    steps = tuple(_step(node, graph, backend, kernels) for node in graph.nodes)
    arenas = {PERSISTENT: 0, TRANSIENT: 0}
    buffers: dict[str, Buffer] = {}

    def place(name: str, nbytes: int, arena: str) -> None:
        buffers[name] = Buffer(arena, arenas[arena], nbytes, 0, len(steps))
        arenas[arena] += -(-nbytes // 64) * 64

    shared = {
        node.outputs[out]: node.inputs[into]
        for node in graph.nodes
        for out, into in node.op.inplace.items()
    }
    for name, spec in graph.specs.items():
        lives = graph.role(name) in (Role.PARAMETER, Role.STATE, Role.CONTROL)
        if name not in shared:
            place(name, spec.nbytes, PERSISTENT if lives else TRANSIENT)
    buffers.update({name: buffers[into] for name, into in shared.items()})
    for step in steps:
        if step.workspace is not None:
            place(step.workspace, step.selection.workspace, TRANSIENT)
    return Plan(graph, steps, buffers, arenas, arenas[TRANSIENT], backend.name, kernels)


def compare(
    op: Op,
    *inputs: np.ndarray,
    exact: bool = False,
    tolerance: float = 1e-5,
    thread_counts: Sequence[int] = (1, 2, 3),
    require: str = "dense",
    **options: object,
) -> None:
    """Kernel against reference (in float64 unless exact), and the same bits for all threads.

    ``tolerance`` is relative to the largest magnitude of each output.
    """
    wide = [v if exact or v.dtype != np.float32 else v.astype(np.float64) for v in inputs]
    wanted = op.reference(*wide)
    first: Mapping[int, np.ndarray] | None = None
    for threads in thread_counts:
        got = outcome(op, *inputs, threads=threads, require=require, **options).outputs  # type: ignore[arg-type]
        for y, reference in zip(got, wanted, strict=True):
            assert y.shape == reference.shape
            if exact or y.dtype.kind != "f":
                np.testing.assert_array_equal(y, reference)
            else:
                assert_close(y, reference, tolerance)
        bits = {i: y.view(np.uint8 if y.ndim else y.dtype).copy() for i, y in enumerate(got)}
        if first is None:
            first = bits
        for i, value in bits.items():
            np.testing.assert_array_equal(value, first[i])


def assert_close(got: np.ndarray, wanted: np.ndarray, tolerance: float) -> None:
    """Equal within ``tolerance`` times the largest finite magnitude; NaN and Inf in place."""
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(np.isfinite(got), finite)
    np.testing.assert_array_equal(got[~finite], wanted[~finite].astype(got.dtype))
    scale = float(np.abs(wanted[finite]).max(initial=0.0))
    error = float(np.abs(got[finite].astype(np.float64) - wanted[finite]).max(initial=0.0))
    assert error <= tolerance * max(scale, 1e-30), f"error {error:.3g} at scale {scale:.3g}"


def integers(shape: Sequence[int], seed: int, low: int = -3, high: int = 4) -> np.ndarray:
    """Small integers as float32: sums of their products are exact in any order."""
    return np.random.default_rng(seed).integers(low, high, shape).astype(np.float32)


def normals(shape: Sequence[int], seed: int) -> np.ndarray:
    """Standard normal float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _layout(wished: Sequence[Layout | None], at: int, spec: TensorSpec) -> Layout:
    chosen = wished[at] if at < len(wished) else None
    if chosen is not None:
        return chosen
    return NHWC if len(spec.shape) == 4 else ROW_MAJOR


def _step(node: Node, graph: Graph, backend: Backend, kernels: str) -> Step:
    selection = backend.select(node, graph.specs, kernels)
    assert selection is not None, f"nothing runs {node.op}"
    workspace = f"{node.outputs[0]}.workspace" if selection.workspace else None
    return Step(node, selection, flops=0, nbytes=0, workspace=workspace)
