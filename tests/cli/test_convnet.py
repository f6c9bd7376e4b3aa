from __future__ import annotations

import json
from pathlib import Path

from tests.cli.running import invoke, refused
from tests.convnet.files import RULES, SMALL, edited


def written(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_describe_prints_rows(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", SMALL)
    params = written(tmp_path, "params.cfg", RULES)
    result = invoke("convnet", "describe", layers, params, "--size", 32, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[2] == ["conv1", "conv", 8, 32, 32, 608]
    shown = invoke("convnet", "describe", layers, "--size", 32).stdout
    assert [line.split() for line in shown.splitlines()][6][:2] == ["fc10", "fc"]


def test_remedies_are_said_on_stderr(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", edited(SMALL, "neuron=relu\ngpu=0\n", ""))
    result = invoke("convnet", "describe", layers, "--size", 32)
    assert result.exit_code == 0
    assert "[conv1] names no gpu; 0 is taken" in result.stderr


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", edited(SMALL, "stride=2", "stride=x"))
    assert "[pool1] stride=x must be a whole number" in refused(2, "convnet", "describe", layers)
    assert "No such file" in refused(2, "convnet", "describe", tmp_path / "none.cfg")
