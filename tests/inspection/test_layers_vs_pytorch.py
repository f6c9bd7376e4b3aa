"""What benchmarks/layers_vs_pytorch.py puts together; only a GPU has figures for it."""

from __future__ import annotations

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from convloom.backends import get_backend
from convloom.compiler.segment import below_segments
from convloom.ir import Plan

pytest.importorskip("torch")
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench() -> Iterator[Any]:
    """The script as a module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("layers_vs_pytorch")


def layers_of(work: Any) -> Plan:
    """The plan that is timed."""
    backend = get_backend("cuda-sim")
    made: Plan = work.plan(backend, below_segments(backend))
    return made


def steps_of(plan: Plan) -> list[dict[str, Any]]:
    """As if each step had taken a microsecond."""
    return [
        {
            "layer": step.node.layer,
            "op": step.node.op.name,
            "rung": step.selection.rung,
            "us": 1.0,
            "limit_us": 0.5,
        }
        for step in plan.steps
    ]


@pytest.fixture(scope="module", params=["lenet", "resnet20"])
def found(
    request: pytest.FixtureRequest, bench: Any
) -> tuple[Plan, list[dict[str, Any]], dict[Any, float]]:
    """A network's plan for a GPU, the rows of the table, and what PyTorch timed."""
    work = bench.make_work(request.param, 2)
    plan = layers_of(work)
    in_torch = importlib.import_module("layers_in_torch")
    theirs = in_torch.torch_seconds(work, "cpu", lambda call: float(call() is not None))
    return plan, bench.joined(plan, steps_of(plan), theirs), theirs


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
        assert row["what"]
        if any("Conv2d" in kernel for kernel in row["kernels"]):
            assert row["pytorch_us"] > 0
            assert row["us"] > 0
            backward = any("grad" in kernel.lower() for kernel in row["kernels"])
            assert row["direction"] == ("backward" if backward else "forward")


def test_rows_say_the_sizes_of_their_layer(bench: Any) -> None:
    sizes = bench.described(layers_of(bench.make_work("mobilenet-v1-small", 2)))
    assert {
        "features.0.0": "3×3, stride 2, 3→16, 224×224",
        "features.0.1": "16×112×112",
        "features.1.0.0": "3×3, depthwise, 16→16, 112×112",
        "features.13.1.0": "1×1, 512→512, 7×7",
        "classifier": "512→1000",
    }.items() <= sizes.items()


def test_pytorch_times_in_a_process_of_its_own(bench: Any) -> None:
    with bench.Peer("lenet", 2, "cpu") as peer:
        seconds = peer.seconds()
    layers = {layer for layer, _ in seconds}
    assert {layer for layer, direction in seconds if direction == "backward"} <= layers
    assert len(seconds) > len(layers)
    assert all(value > 0 for value in seconds.values())


def test_a_process_that_fails_gives_its_whole_traceback(bench: Any) -> None:
    with bench.Peer("nonet", 2, "cpu") as peer, pytest.raises(bench.PeerError) as error:
        peer.seconds()
    first, *lines = str(error.value).splitlines()
    assert first == "PyTorch's process failed"
    assert lines[0] == "Traceback (most recent call last):"
    assert any("make_work" in line for line in lines)
    assert lines[-1] == "KeyError: 'nonet'"


def test_a_process_that_ends_without_a_word_is_told(bench: Any) -> None:
    with bench.Peer("lenet", 2, "cpu") as peer:
        peer._process.kill()
        with pytest.raises(bench.PeerError, match="no figures, exit code -9"):
            peer.seconds()


def test_one_network_that_fails_costs_no_other(
    bench: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = layers_of(bench.make_work("lenet", 2))
    theirs = {(step.node.layer, "forward"): 1e-6 for step in plan.steps}

    def fails() -> Any:
        raise bench.PeerError("an illegal memory access")

    document: dict[str, Any] = {"networks": [], "failed": [], "batch_size": 2}
    bench.add(document, "a", lambda: (plan, steps_of(plan)), fails)
    bench.add(document, "b", fails, lambda: theirs)
    bench.add(document, "c", lambda: (plan, steps_of(plan)), lambda: theirs)
    assert [done["network"] for done in document["networks"]] == ["c"]
    assert [one["network"] for one in document["failed"]] == ["a", "b"]
    told = capsys.readouterr()
    for one in document["failed"]:
        assert one["error"].startswith("Traceback (most recent call last):")
        assert one["error"].endswith("an illegal memory access\n")
        assert f"{one['network']} failed\n{one['error']}" in told.err
    assert told.out.startswith("c, batches of 2\n")
    json.dumps(document)
