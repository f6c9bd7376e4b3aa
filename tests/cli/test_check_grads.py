from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from convloom.ops import Conv2dWgrad
from tests.cli.running import invoke, refused
from tests.convnet.files import RULES, SMALL, edited


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """A command that checks a small network by NumPy alone."""
    layers, params = tmp_path / "layers.cfg", tmp_path / "params.cfg"
    layers.write_text(SMALL)
    params.write_text(RULES)
    sizes = ("--size", 12, "--divide", 4, "--device", "reference")
    return ["check-grads", layers, params, *sizes, "--entries", 2]


def test_one_table_and_one_document(words: list[object]) -> None:
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    lines = [line.split() for line in result.stdout.splitlines()]
    assert lines[0][:3] == ["layer", "type", "tensor"]
    assert [line[:3] for line in lines if line[:1] == ["conv1"]] == [
        ["conv1", "conv", tensor] for tensor in ("output", "biases", "weights.0")
    ]
    assert "no gradient is wrong" in result.stdout
    document = json.loads(invoke(*words, "--json").stdout)
    assert document["ok"] is True
    assert document["device"] == "reference"
    assert {row["verdict"] for row in document["rows"]} == {"ok"}
    assert document["rows"][0].keys() >= {"layer", "tensor", "checked", "skipped", "error"}


def test_a_wrong_gradient_is_exit_code_1(
    words: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Conv2dWgrad.reference

    def wrong(self: Conv2dWgrad, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        return (np.float32(1.01) * right(self, *inputs)[0],)

    monkeypatch.setattr(Conv2dWgrad, "reference", wrong)
    result = invoke(*words)
    assert result.exit_code == 1
    assert "1 of 7 gradients are wrong" in result.stdout
    (row,) = (line for line in result.stdout.splitlines() if "wrong" in line.split())
    assert row.split()[:3] == ["conv1", "conv", "weights.0"]


def test_a_contrast_normalisation_is_told(words: list[object], tmp_path: Path) -> None:
    norm = "\n[norm1]\ntype=cnorm\ninputs=conv1\nchannels=8\nsize=3\n"
    text = edited(SMALL, "\n[pool1]", f"{norm}\n[pool1]")
    (tmp_path / "layers.cfg").write_text(
        edited(text, "pool=max\ninputs=conv1", "pool=max\ninputs=norm1")
    )
    (tmp_path / "params.cfg").write_text(RULES + "\n[norm1]\nscale=0.5\npow=0.75\n")
    result = invoke(*words)
    assert result.exit_code == 0, result.output
    (row,) = (line for line in result.stdout.splitlines() if line.startswith("norm1"))
    assert row.endswith("ok, not a true gradient")
    assert "[norm1] not a true gradient: the means of the windows are held" in result.stdout


def test_wrong_usage(words: list[object], tmp_path: Path) -> None:
    assert "leave --entries out" in refused(2, *words, "--all")
    (tmp_path / "layers.cfg").write_text(edited(SMALL, "stride=2", "stride=x"))
    assert "[pool1] stride=x must be a whole number" in refused(2, *words)
    assert "unknown device" in refused(1, "check-grads", *_files(tmp_path), "--device", "tpu")


def _files(folder: Path) -> list[object]:
    (folder / "layers.cfg").write_text(SMALL)
    return [folder / "layers.cfg", folder / "params.cfg", "--size", 12]
