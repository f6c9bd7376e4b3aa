from __future__ import annotations

import json
from pathlib import Path

import pytest

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


def trained(folder: Path, *more: object) -> Path:
    """A run of one epoch on the digits."""
    layers = written(folder, "layers.cfg", edited(SMALL, "channels=3", "channels=1"))
    params = written(folder, "params.cfg", RULES)
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    result = invoke("train", *words, "--device", "cpu", "--out", folder / "run", *more)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_network_file_trains_and_is_saved_whole(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (tmp_path / "layers.cfg").unlink()
    result = invoke("eval", run, "--data", "digits", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["accuracy"] > 0.3


def test_an_edited_parameter_file_counts_from_a_resume_on(tmp_path: Path) -> None:
    run = trained(tmp_path)
    settings = (run / "run.toml").read_text()
    (run / "run.toml").write_text(edited(settings, "epochs = 1\n", "epochs = 2\n"))
    written(tmp_path, "params.cfg", edited(RULES, "epsW=0.01", "epsW=0.001"))
    with pytest.warns(UserWarning, match="from now on") as told:
        result = invoke("resume", run)
    assert result.exit_code == 0, result.output
    changes = [str(one.message).partition(": ")[2] for one in told]
    assert "conv1.weights.0: eps was 0.01, it is 0.001 from now on" in changes
    assert not [change for change in changes if "fc10" in change or "biases" in change]


def test_rates_beside_a_parameter_file_are_refused(tmp_path: Path) -> None:
    words = ("--layers", "l.cfg", "--params", "p.cfg")
    assert "--lr is not for --layers: p.cfg says" in refused(2, "train", *words, "--lr", 0.1)
    assert "give a MODEL, or --layers and --params" in refused(2, "train")
    assert "a layer file needs its parameter file" in refused(2, "train", "--layers", "l.cfg")


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", SMALL)
    params = written(tmp_path, "params.cfg", RULES)
    words = ("--layers", layers, "--params", params, "--data", "digits")
    message = refused(1, "train", *words, "--out", tmp_path / "run")
    assert "takes images of shape (3, 8, 8), the data set has (1, 8, 8)" in message
