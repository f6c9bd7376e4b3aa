"""The study of what each idea buys: what its rows are, not how long they take."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from convloom import nn
from convloom.backends import Backend, get_backend
from convloom.backends.cpu.toolchain import find_compiler
from convloom.inspection.environment import environment
from convloom.inspection.ladder import (
    RUNG,
    SWITCH,
    WAY,
    Ladder,
    Row,
    Without,
    agreed,
    climbed,
    entries,
    idea_of,
    noted,
    tried,
    with_gains,
)
from convloom.inspection.peaks import Peaks
from convloom.inspection.plots import plot_ladder
from convloom.inspection.workload import Workload, make_workload
from convloom.ir import ConvloomError, ShapeError
from convloom.optim import SGD, AdamW

SHAPE = (2, 10, 9)


@pytest.fixture(scope="module")
def workload() -> Workload:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(4 * 4 * 3, 5),
    )
    return make_workload(
        model,
        nn.CrossEntropyLoss(),
        SGD(lr=0.1, momentum=0.9),
        input_shape=SHAPE,
        batch_size=3,
        samples=20,
    )


@pytest.fixture
def cpu() -> Backend:
    if find_compiler() is None:
        pytest.skip("no C++ compiler")
    return get_backend("cpu")


def row(name: str, kind: str, us: float | None, loss: float | None = 2.0, rung: str = "a") -> Row:
    return Row(name, kind, "", {rung: 1}, 1, 8, 4, loss, us)


class TestEntries:
    @pytest.mark.parametrize("device", ["cpu", "cuda", "cuda-sim", "reference"])
    def test_every_rung_of_the_backend_is_one(self, device: str) -> None:
        backend = get_backend(device)
        found = [entry for entry in entries(backend) if entry.kind == RUNG]
        assert [entry.kernels for entry in found] == list(backend.rungs)
        assert len({entry.way for entry in found}) == 1
        assert all(entry.idea for entry in found)

    def test_the_gpu_has_every_switch(self) -> None:
        found = entries(get_backend("cuda"))
        ways = [entry.name for entry in found if entry.kind == WAY]
        assert ways == ["pinned", "stream", "resident", "graph", "unrolled"]
        switches = {entry.name for entry in found if entry.kind == SWITCH}
        assert {
            "no fusion",
            "no tiling",
            "no warp sums",
            "no resident data",
            "no graph",
            "no unrolling",
        } <= switches

    def test_threads_are_a_switch_of_the_cpu(self) -> None:
        (found,) = (e for e in entries(get_backend("cpu"), threads=4) if e.name == "no threads")
        assert found.way.threads == 1
        assert "no threads" not in {e.name for e in entries(get_backend("cpu"), threads=1)}

    def test_a_new_rung_has_words(self) -> None:
        assert "sideways" in idea_of("sideways")


class TestWithout:
    def test_a_rung_is_left_out(self, cpu: Backend, workload: Workload) -> None:
        whole, less = (workload.plan(b, "auto") for b in (cpu, Without(cpu, "sparse")))
        assert "sparse" in {step.selection.rung for step in whole.steps}
        assert "sparse" not in {step.selection.rung for step in less.steps}

    def test_what_auto_leaves_to_others_stays_there(self, workload: Workload) -> None:
        """Without a rung, ``auto`` must not take one that it does not take with it."""
        backend = get_backend("cuda")
        taken = {step.selection.rung for step in workload.plan(backend, "auto").steps}
        for rung in backend.rungs[2:]:
            plan = workload.plan(Without(backend, rung), "auto")
            found = {step.selection.rung for step in plan.steps}
            assert rung not in found
            assert "onchip" not in found - taken

    def test_fusion_is_left_out(self, cpu: Backend, workload: Workload) -> None:
        plan = workload.plan(Without(cpu, "fused"), "auto")
        names = {step.node.op.name for step in plan.steps}
        assert not [name for name in names if name.startswith(("Fused", "Pooled"))]
        assert {"ReLU", "MaxPool2d"} <= names


class TestTried:
    def test_on_the_simulator_all_rows_work_and_agree(self, workload: Workload) -> None:
        backend = get_backend("cuda-sim")
        wanted = entries(backend)
        rows = tried(backend, workload, wanted)
        assert [r.name for r in rows] == [entry.name for entry in wanted]
        assert all(r.us is None and r.gain is None for r in rows)
        assert rows[0].rungs == {"naive": rows[0].kernels - extra(rows[0])}
        assert rows[1].kernels < rows[0].kernels

    def test_on_the_reference(self, workload: Workload) -> None:
        layers, chain = (r for r in tried(*study("reference", workload)) if r.kind == RUNG)
        assert layers.rungs == {"reference": layers.kernels}
        assert (layers.failed, chain.failed) == ("", "")
        assert chain.kernels < layers.kernels


def study(device: str, workload: Workload) -> tuple[Backend, Workload, Sequence[object]]:
    backend = get_backend(device)
    return backend, workload, entries(backend)[: len(backend.rungs)]


def extra(found: Row) -> int:
    """Launches beyond one a step."""
    return found.kernels - sum(found.rungs.values())


class TestClimbed:
    def test_rows_of_the_cpu(self, cpu: Backend, workload: Workload) -> None:
        wanted = entries(cpu, threads=2)
        told: list[str] = []
        rows, peaks = climbed(cpu, workload, wanted, rounds=3, seconds=0.002, tell=told.append)
        assert len(rows) == len(wanted)
        for found in rows:
            assert found.us is not None
            assert found.us_low is not None
            assert found.us_high is not None
            assert 0 < found.us_low <= found.us <= found.us_high
            assert found.images_per_second == pytest.approx(3e6 / found.us)
            assert found.gflops_per_second == pytest.approx(found.flops / found.us / 1e3)
            assert found.gbytes_per_second == pytest.approx(found.nbytes / found.us / 1e3)
            assert found.limit_us == rows[0].limit_us
            assert found.of_limit == pytest.approx(rows[0].limit_us / found.us)
        limits = [1e6 * peaks.seconds(found.flops, found.nbytes) for found in rows]
        assert rows[0].limit_us == pytest.approx(min(limits))
        assert rows[0].gain is None
        assert rows[1].gain == pytest.approx(rows[0].us / rows[1].us)
        assert told[0] == "preparing reference"
        assert told[-1] == "round 3 of 3 done"

    def test_a_row_that_fails_leaves_the_others(self, cpu: Backend, workload: Workload) -> None:
        wanted = entries(cpu)[:2]
        broken = replace(wanted[1], name="broken", kernels="nonsense")
        rows, _ = climbed(cpu, workload, [wanted[0], broken, wanted[1]], rounds=1, seconds=0.0)
        assert "'nonsense' is not a rung" in rows[1].failed
        assert [found.us is None for found in rows] == [False, True, False]
        assert [found.gain for found in rows] == [None, None, None]
        assert made(None, rows).failures == (rows[1],)


class TestBookkeeping:
    def test_gains(self) -> None:
        rows = [row("a", RUNG, 80.0), row("b", RUNG, 40.0), row("c", WAY, 10.0)]
        rows += [row("no x", SWITCH, 25.0), row("no y", SWITCH, 10.0)]
        assert [found.gain for found in with_gains(rows)] == [None, 2.0, 4.0, 2.5, 1.0]
        untimed = with_gains([replace(found, us=None) for found in rows])
        assert [found.gain for found in untimed] == [None] * 5

    def test_a_rung_without_kernels_of_its_own_says_so(self) -> None:
        rows = [row("a", RUNG, None), row("b", RUNG, None), row("c", RUNG, None, rung="c")]
        assert [found.note for found in noted(rows)] == ["", "the same kernels as a", ""]

    def test_losses_must_agree(self) -> None:
        losses = (2.0, 2.0001, 2.1, float("nan"), None)
        rows = agreed([row(name, RUNG, None, at) for name, at in zip("abcde", losses, strict=True)])
        assert [bool(found.failed) for found in rows] == [False, False, True, True, False]
        assert "is 2.1, that of a 2.0" in rows[2].failed
        assert "an output is left unmade" in rows[3].failed

    def test_the_limit_is_the_larger_bound(self) -> None:
        peaks = Peaks(bandwidth=10.0, flops=100.0, source="")
        assert peaks.seconds(flops=200, nbytes=10) == 2.0
        assert peaks.seconds(flops=200, nbytes=50) == 5.0


class TestWorkload:
    def test_it_is_the_same_every_time(self, workload: Workload) -> None:
        again = make_workload(
            nn.Sequential(nn.Flatten(), nn.Linear(180, 5)),
            nn.CrossEntropyLoss(),
            AdamW(),
            input_shape=SHAPE,
            batch_size=3,
            samples=20,
        )
        np.testing.assert_array_equal(again.images, workload.images)
        np.testing.assert_array_equal(again.order, workload.order)

    def test_batches_are_those_of_the_order(self, workload: Workload) -> None:
        images, labels = workload.batches[1]
        assert images.dtype == np.float32
        np.testing.assert_array_equal(labels, workload.labels[workload.order[1]])
        assert images.shape == (3, *SHAPE)
        assert abs(images.mean()) < 0.2

    def test_no_images_are_refused(self) -> None:
        with pytest.raises(ShapeError, match="batch_size must be at least 1"):
            make_workload(
                nn.Sequential(nn.Flatten(), nn.Linear(180, 5)),
                nn.CrossEntropyLoss(),
                SGD(lr=0.1),
                input_shape=SHAPE,
                batch_size=0,
            )


def made(peaks: Peaks | None = None, rows: Sequence[Row] = ()) -> Ladder:
    if rows:
        return Ladder("lenet", "cpu", 64, 3, tuple(rows), peaks, environment("cpu"))
    rows = with_gains([row("a", RUNG, 80.0), row("b", WAY, 40.0), row("no x", SWITCH, 50.0)])
    rows = [replace(r, images_per_second=1e3, gflops_per_second=2.0) for r in rows]
    return Ladder("lenet", "cpu", 64, 3, tuple(rows), peaks, environment("cpu"))


class TestResults:
    def test_json_carries_its_origin(self) -> None:
        document = json.loads(json.dumps(made(Peaks(1e9, 1e10, "made up")).to_json()))
        assert document["bench"] == "ladder"
        assert document["peaks"]["source"] == "made up"
        assert [r["name"] for r in document["rows"]] == ["a", "b", "no x"]
        origin = document["environment"]
        assert {"command", "date", "hardware", "versions"} <= set(origin)
        assert origin["hardware"]["cores"] >= 1
        assert {"convloom", "python", "numpy"} <= set(origin["versions"])

    def test_csv_has_a_line_a_row(self) -> None:
        rows = list(csv.DictReader(io.StringIO(made().to_csv())))
        assert [r["name"] for r in rows] == ["a", "b", "no x"]
        assert rows[0]["gain"] == ""
        assert rows[1]["gain"] == "2.0"
        assert rows[0]["rungs"] == "a:1"

    def test_plot(self, tmp_path: object) -> None:
        pytest.importorskip("matplotlib")
        path = f"{tmp_path}/ladder.png"
        plot_ladder(made(Peaks(1e9, 1e10, "made up")), path)
        with open(path, "rb") as file:
            assert file.read(4) == b"\x89PNG"
        with pytest.raises(ConvloomError, match="nothing was timed"):
            plot_ladder(made(), path)
        plot_ladder(made(Peaks(1e9, 1e10, "made up"), [*made().rows, row("f", WAY, None)]), path)
        with pytest.raises(ConvloomError, match="nonsense"):
            plot_ladder(made(Peaks(1e9, 1e10, "made up")), f"{tmp_path}/ladder.nonsense")
