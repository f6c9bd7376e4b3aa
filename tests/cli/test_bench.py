"""convloom bench: what it prints and writes; how long anything takes is never looked at."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from convloom.backends.cuda import device
from tests.cli.running import DROPOUT_NET, invoke, refused, words

QUICK = words("--batch-size 2 --device cpu --rounds 1 --seconds 0")


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    """A network of one layer."""
    path = tmp_path / "net.py"
    path.write_text(
        "from convloom import nn\n"
        "def make_model():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    return f"{path}:make_model"


def test_ladder_is_a_table(tiny: str) -> None:
    result = invoke("bench", "ladder", tiny, "--data", "digits", *QUICK)
    assert result.exit_code == 0, result.output
    head, first, *_ = result.stdout.splitlines()
    assert head.split()[:4] == ["row", "kernels", "µs/step", "images/s"]
    assert first.split()[0] == "reference"
    assert "no fusion" in result.stdout
    assert "batch 2" in result.stdout
    assert "TFLOP/s, measured on" in result.stdout


def test_ladder_writes_what_it_found(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["convloom", "bench", "ladder"])
    out, table = tmp_path / "new" / "folder", tmp_path / "rows.csv"
    given = ("ladder", tiny, "--data", "digits", *QUICK, "--csv", table, "--json")
    result = invoke("bench", *given)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert (document["bench"], document["device"], document["batch_size"]) == ("ladder", "cpu", 2)
    assert document["environment"]["command"] == "convloom bench ladder"
    rows = list(csv.DictReader(table.open()))
    assert [row["name"] for row in rows] == [row["name"] for row in document["rows"]]
    assert all(row["images_per_second"] > 0 for row in document["rows"])
    pytest.importorskip("matplotlib")
    assert invoke("bench", *given[:-3], "--out", out).exit_code == 0
    assert sorted(p.name for p in out.iterdir()) == ["ladder.csv", "ladder.json", "ladder.png"]
    assert json.loads((out / "ladder.json").read_text())["rows"]


def test_the_simulator_is_tried_not_timed(tiny: str) -> None:
    given = ("bench", "ladder", tiny, "--data", "digits", "--batch-size", 2, "--device", "cuda-sim")
    assert "says nothing of a GPU; add --dry-run" in refused(2, *given)
    result = invoke(*given, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["peaks"] is None
    assert document["rounds"] == 0
    names = [row["name"] for row in document["rows"]]
    assert {"naive", "fused", "resident", "unrolled", "no fusion"} <= set(names)
    assert {row["us"] for row in document["rows"]} == {None}
    losses = [row["loss"] for row in document["rows"]]
    assert losses == pytest.approx([losses[0]] * len(losses), rel=1e-4)


def test_plots_need_matplotlib(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    given = ("bench", "ladder", tiny, "--data", "digits", *QUICK)
    assert "pip install 'convloom[plot]'" in refused(1, *given, "--plot", "x.png")
    assert "pip install 'convloom[plot]'" in refused(1, *given, "--out", "x")


def test_without_a_gpu(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda: "this machine has no NVIDIA driver")
    given = ("bench", "ladder", tiny, "--data", "digits", "--device", "cuda")
    if device.find().error is None:
        assert "no NVIDIA driver" in refused(1, *given)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("ladder lenett", "did you mean lenet?"),
        ("ladder lenet --batch-size 0", "--batch-size must be"),
        ("ladder lenet --rounds 0", "--rounds"),
        ("ladder lenet --input-shape 3", "--input-shape must be"),
        ("ladder lenet --device tpu", "unknown device 'tpu'"),
        ("climb", "no such command"),
    ],
)
def test_wrong_usage(given: str, part: str) -> None:
    assert part in refused(2, "bench", *words(given))


def test_pytorch_beside_convloom(
    tiny: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("CONVLOOM_NUM_THREADS", "1")
    given = words("--data digits --batch-size 8 --device cpu --skip compile --workers 0")
    quick = words("--rounds 1 --seconds 0.01")
    result = invoke("bench", "pytorch", tiny, *given, *quick, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "ratio" in result.stdout.splitlines()[0]
    document = json.loads((tmp_path / "pytorch.json").read_text())
    rows = {(row["engine"], row["what"], row["name"]): row for row in document["rows"]}
    assert set(rows) == {
        ("pytorch", "step", "eager"),
        ("convloom", "step", "auto"),
        ("convloom", "end to end", "plain"),
        ("pytorch", "end to end", "DataLoader, eager"),
    }
    for row in rows.values():
        assert row["note"] == ""
        assert row["images_per_second"] > 0
    assert rows["convloom", "step", "auto"]["ratio"] > 0
    assert len((tmp_path / "pytorch.csv").read_text().splitlines()) == 5


def test_pytorch_beside_convloom_in_bf16(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    given = words("--data cifar10 --batch-size 2 --device cpu --precision bf16")
    quick = words("--skip compile,DataLoader --rounds 1 --seconds 0")
    result = invoke("bench", "pytorch", DROPOUT_NET, *given, *quick, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    text = " ".join(result.stdout.split())
    assert "make_model, batch 2, bf16, on" in text
    document = json.loads((tmp_path / "pytorch.json").read_text())
    assert document["precision"] == "bf16"
    assert [(row["name"], row["note"]) for row in document["rows"]] == [
        ("eager", ""),
        ("eager, channels_last", ""),
        ("auto", ""),
        ("plain", ""),
    ]
    (note,) = document["notes"]
    assert "only on-chip segments compute in bf16; in fp32: 0 (Conv2d)" in note
    assert note in text


def test_both_engines_get_the_precision() -> None:
    pytest.importorskip("torch")
    from convloom.cli.bench import pytorch, shared

    config = shared.settings("lenet", 2, "digits", "cuda-sim", "bf16")
    workload = shared.make_work(config, None)
    training = pytorch._training(config, workload, "cuda-sim", "plain")
    assert training._engine.precision == workload.precision == "bf16"
    peers = pytorch._peer_steps(config, workload, "cpu")
    assert {candidate.make().kind.precision for candidate in peers[:1]} == {"bf16"}
    (loader,) = pytorch._peer_loaders(config, workload, "cpu", [0])
    assert loader.name == "DataLoader, eager, channels_last"
    eager = loader.make()
    try:
        assert eager._peer.kind.channels_last
        assert eager._peer.kind.precision == "bf16"
    finally:
        eager.close()


def test_pytorch_is_needed(tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "convloom.interop.torch.peers", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    given = ("bench", "pytorch", tiny, "--data", "digits", "--device", "cpu")
    assert "pip install torch" in refused(1, *given)


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("--workers 0,x", "--workers must be"),
        ("--device cuda-sim", "PyTorch has no device cuda-sim"),
        ("--batch-size 0", "--batch-size must be"),
        ("--precision fp16", "--precision must be 'fp32' or 'tf32' or 'bf16'"),
    ],
)
def test_pytorch_wrong_usage(given: str, part: str) -> None:
    assert part in refused(2, "bench", "pytorch", "lenet", *words(given))


def test_a_precision_is_that_of_the_rungs_that_have_it() -> None:
    given = words("lenet --data digits --batch-size 4 --device reference --precision bf16")
    result = invoke("bench", "ladder", *given, "--dry-run", "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document["precision"] == "bf16"
    rows = {row["name"]: row for row in document["rows"] if row["kind"] == "rung"}
    assert rows["onchip"]["rungs"] == {"onchip": 1}
    assert "onchip" not in rows["reference"]["rungs"]
    assert 0 < abs(rows["onchip"]["loss"] - rows["reference"]["loss"]) < 0.05
