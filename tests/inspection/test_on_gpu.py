"""The studies on a real GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.running import invoke, words

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


def test_pytorch_is_measured(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("this PyTorch sees no GPU")
    given = words("--device cuda --rounds 1 --seconds 0.3 --workers 0,2 --skip compile")
    result = invoke("bench", "pytorch", "lenet", *given, "--out", tmp_path)
    assert result.exit_code == 0, result.output
    rows = json.loads((tmp_path / "pytorch.json").read_text())["rows"]
    assert [row["note"] for row in rows] == [""] * len(rows)
    assert {"plain", "stream", "resident", "graph"} <= {row["name"] for row in rows}
