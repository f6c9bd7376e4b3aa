"""The studies on a real GPU."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from convloom.ops.precision import PRECISIONS
from tests.cli.running import environment, invoke, words

pytestmark = pytest.mark.gpu


def test_every_row_of_the_ladder_works() -> None:
    result = invoke("bench", "ladder", "lenet", *words("--device cuda --dry-run --json"))
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["rows"]
    names = [row["name"] for row in rows]
    assert {"naive", "fused", "pinned", "stream", "resident", "graph", "unrolled"} <= set(names)


def test_the_ladder_is_measured() -> None:
    given = words("--device cuda --rounds 3 --seconds 0.02 --json")
    result = invoke("bench", "ladder", "lenet", *given)
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert "measured on NVIDIA" in document["peaks"]["source"]
    assert document["environment"]["hardware"]["gpu"]
    assert all(row["of_limit"] > 0 for row in document["rows"])


@pytest.fixture
def torch_on_gpu() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")


def test_layers_are_measured_beside_pytorch(tmp_path: Path, torch_on_gpu: None) -> None:
    """Forward and backward of every layer can be captured, dropout and batch norm included."""
    out = tmp_path / "layers.json"
    script = Path(__file__).resolve().parents[2] / "benchmarks" / "layers_vs_pytorch.py"
    given = words("--network alexnet,resnet20 --batch-size 8 --rounds 1 --out")
    run = subprocess.run([sys.executable, script, *given, out], env=environment())
    document = json.loads(out.read_text())
    assert document["failed"] == []
    assert run.returncode == 0
    for found in document["networks"]:
        assert sum(row["pytorch_us"] for row in found["rows"] if row["direction"] == "backward") > 0


@pytest.mark.parametrize("precision", PRECISIONS)
def test_pytorch_is_measured(precision: str, tmp_path: Path, torch_on_gpu: None) -> None:
    given = words("--device cuda --rounds 1 --seconds 0.3 --workers 0,2 --skip compile")
    result = invoke(
        "bench", "pytorch", "lenet", *given, "--precision", precision, "--out", tmp_path
    )
    assert result.exit_code == 0, result.output
    document = json.loads((tmp_path / "pytorch.json").read_text())
    rows = document["rows"]
    assert (document["precision"], document["notes"]) == (precision, [])
    assert [row["note"] for row in rows] == [""] * len(rows)
    assert {"plain", "stream", "resident", "graph"} <= {row["name"] for row in rows}
