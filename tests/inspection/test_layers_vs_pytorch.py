"""What benchmarks/layers_vs_pytorch.py puts together; only a GPU has figures for it."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from convloom.backends import get_backend
from convloom.ir import Plan

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module", params=["lenet", "resnet20"])
def found(request: pytest.FixtureRequest) -> tuple[Plan, list[dict[str, Any]], Any]:
    """A network's plan for a GPU, the rows of the table, and what PyTorch timed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        bench = importlib.import_module("layers_vs_pytorch")
        work = importlib.import_module("kernel_times").make_work(request.param, 2)
    plan = work.plan(get_backend("cuda-sim"), "auto")
    theirs = bench.torch_seconds(work, "cpu", lambda call: float(call() is not None))
    steps = [
        {
            "layer": step.node.layer,
            "op": step.node.op.name,
            "rung": step.selection.rung,
            "us": 1.0,
            "limit_us": 0.5,
        }
        for step in plan.steps
    ]
    return plan, bench.joined(plan, steps, theirs), theirs


def test_every_step_of_a_layer_counts_once(found: Any) -> None:
    plan, rows, _ = found
    of_layers = [s for s in plan.steps if s.node.layer not in ("loss", "metrics", "optimizer")]
    assert sum(row["us"] for row in rows) == len(of_layers)
    assert sum(len(row["kernels"]) for row in rows) == len(of_layers)


def test_every_call_of_pytorch_counts_once(found: Any) -> None:
    _, rows, theirs = found
    assert sum(row["pytorch_us"] for row in rows) == pytest.approx(1e6 * sum(theirs.values()))


def test_both_sides_of_a_convolution_share_a_row(found: Any) -> None:
    _, rows, _ = found
    for row in rows:
        if any("Conv2d" in kernel for kernel in row["kernels"]):
            assert row["pytorch_us"] > 0
            assert row["us"] > 0
            backward = any("grad" in kernel.lower() for kernel in row["kernels"])
            assert row["direction"] == ("backward" if backward else "forward")
