"""Many ops in one plan, so that their kernels compile together.

trials = [Trial(ReLU(), (x,)), Trial(Add(), (a, b), exact=True)]
check(trials, get_backend("cuda-sim"), "naive")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from convloom.backends.base import Backend
from convloom.ir import GraphBuilder, Node, Role, TensorSpec
from convloom.ops.base import Op
from tests.backends.harness import Layouts, _layout, assert_close, bind


@dataclass(frozen=True)
class Trial:
    """An op, its inputs, and how closely its kernels must follow its reference.

    Attributes:
        exact: bit for bit (but for the sign of zero); else the reference is taken in float64, and
            ``tolerance`` is relative to the largest magnitude of each output.
        layouts: memory order of inputs, then outputs; by default rank 4 is channels-last.
    """

    op: Op
    inputs: tuple[np.ndarray, ...]
    exact: bool = False
    tolerance: float = 1e-5
    layouts: Layouts = None

    def wanted(self) -> tuple[np.ndarray, ...]:
        """What the reference gives."""
        wide = [
            v if self.exact or v.dtype != np.float32 else v.astype(np.float64) for v in self.inputs
        ]
        return self.op.reference(*wide)

    def check(self, got: Sequence[np.ndarray]) -> None:
        """Raises AssertionError, naming the op, unless the outputs are right."""
        try:
            for y, reference in zip(got, self.wanted(), strict=True):
                assert y.shape == reference.shape
                if self.exact or y.dtype.kind != "f":
                    np.testing.assert_array_equal(y, reference)
                else:
                    assert_close(y, reference, self.tolerance)
        except AssertionError as error:
            shapes = ", ".join(str(v.shape) for v in self.inputs)
            raise AssertionError(f"{self.op} of {shapes}: {error}") from None


def check(trials: Sequence[Trial], backend: Backend, rung: str, every: bool = False) -> int:
    """Run the trials that have a kernel on exactly this rung; returns how many there were.

    With ``every``, trials whose best kernel up to the rung is a lower one run too.
    """
    builder = GraphBuilder()
    layouts: dict[str, TensorSpec] = {}
    chosen: list[tuple[Trial, Node]] = []
    for at, trial in enumerate(trials):
        names = [f"t{at}.x{i}" for i in range(len(trial.inputs))]
        specs = [TensorSpec(v.shape, str(v.dtype)) for v in trial.inputs]
        made = [f"t{at}.y{i}" for i in range(len(trial.op.infer(*specs)))]
        node = Node(trial.op, tuple(names), tuple(made), f"t{at}")
        laid = {
            name: spec.with_layout(_layout(list(trial.layouts or ()), i, spec))
            for i, (name, spec) in enumerate(
                zip([*names, *made], [*specs, *trial.op.infer(*specs)], strict=True)
            )
        }
        selection = backend.select(node, laid, rung)
        if selection is None or (selection.rung != rung and not every):
            continue
        for name in names:
            builder.declare(name, laid[name], Role.INPUT)
        builder.add(trial.op, names, layer=f"t{at}", names=made)
        builder.outputs.extend(made)
        layouts.update(laid)
        chosen.append((trial, node))
    if not chosen:
        return 0
    graph = builder.build()
    graph = graph.replacing(
        specs={n: replace(s, layout=layouts[n].layout) for n, s in graph.specs.items()}
    )
    executable = bind(graph, backend, rung)
    for trial, node in chosen:
        for name, value in zip(node.inputs, trial.inputs, strict=True):
            executable.write(name, value)
    executable.run()
    for trial, node in chosen:
        trial.check([executable.read(name) for name in node.outputs])
    return len(chosen)
