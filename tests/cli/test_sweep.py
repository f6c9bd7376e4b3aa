"""convloom sweep."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom.training.config import load_config
from tests.cli.running import invoke, refused, words

COMMON = words("lenet --data digits --epochs 1 --device cpu --batch-size 128")


def test_a_grid_of_rates_and_seeds(tmp_path: Path) -> None:
    out = tmp_path / "a"
    flags = words("--grid lr=0.02,0.1 --grid weight-decay=0.001 --seeds 2 --seed 5")
    result = invoke("sweep", *COMMON, *flags, "--out", out, "--json")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    assert document == json.loads((out / "sweep.json").read_text())
    configs = [member["config"] for member in document["members"]]
    assert configs == [
        {"lr": lr, "weight_decay": 0.001, "seed": seed} for lr in (0.02, 0.1) for seed in (5, 6)
    ]
    accuracies = [member["val_accuracy"] for member in document["members"]]
    assert accuracies[document["best"]] == max(accuracies)
    assert [group["count"] for group in document["groups"]] == [2, 2]
    assert document["ensemble"]["n"] == 360
    best = cl.load(out / "best.safetensors").state_dict()
    member = cl.load(out / "members" / f"{document['best']:03}.safetensors").state_dict()
    assert all(np.array_equal(best[name], value) for name, value in member.items())
    assert load_config(out).lr == configs[document["best"]]["lr"]
    result = invoke("eval", out, "--best", "--device", "cpu", "--json")
    assert json.loads(result.stdout)["accuracy"] == pytest.approx(max(accuracies))


def test_a_member_is_what_train_makes_alone(tmp_path: Path) -> None:
    flags = words("--grid lr=0.03 --seed 2")
    result = invoke("sweep", *COMMON, *flags, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "averaged prediction of 1 members: accuracy" in result.stdout
    assert "best: lr=0.03 seed=2" in result.stdout
    invoke("train", *COMMON, *words("--lr 0.03 --seed 2"), "--out", tmp_path / "b")
    ours = cl.load(tmp_path / "a" / "members" / "000.safetensors").state_dict()
    theirs = cl.load(tmp_path / "b" / "last.safetensors").state_dict()
    for name, value in theirs.items():
        assert ours[name].tobytes() == value.tobytes(), name


def test_members_that_diverge_are_told_and_saved_nowhere(tmp_path: Path) -> None:
    common = words("lenet --data digits --epochs 2 --device cpu --batch-size 128")
    flags = words("--grid lr=1e20,0.05 --seeds 2")
    result = invoke("sweep", *common, *flags, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "lr=1e+20 seed=0 (diverged at step" in result.stdout
    assert "2 (2 diverged)" in result.stdout
    assert "averaged prediction of 2 members" in result.stdout
    assert sorted(p.name for p in (tmp_path / "a" / "members").iterdir()) == [
        "002.safetensors",
        "003.safetensors",
    ]
    document = json.loads((tmp_path / "a" / "sweep.json").read_text())
    assert "lower the learning rate" in document["members"][0]["error"]
    result = invoke("sweep", *common, *words("--grid lr=1e20"), "--out", tmp_path / "b")
    assert result.exit_code == 1
    assert "every member diverged" in result.stderr
    document = json.loads((tmp_path / "b" / "sweep.json").read_text())
    assert (document["best"], document["ensemble"]) == (None, None)


@pytest.mark.skipif(shutil.which("g++") is None, reason="the simulator needs g++")
def test_how_members_run_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "convloom")
    (tmp_path / "net.py").write_text(
        "from convloom import nn\n"
        "def make():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    common = words("--data digits --epochs 1 --device cuda-sim --batch-size 512 --seeds 2")
    given = (f"{tmp_path / 'net.py'}:make", *common)
    result = invoke("sweep", *given, "--precision", "bf16", "--out", tmp_path / "a")
    assert result.exit_code == 0, result.output
    assert "2 members train together, two launches a step for all" in caplog.text
    result = invoke("sweep", *given, "--out", tmp_path / "b")
    assert result.exit_code == 0, result.output
    assert "members that train apart: 2, because only a step that runs on chip" in caplog.text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--grid batch-size=1,2", "--grid takes KEY=V,V,… with one of lr, momentum"),
        ("--grid lr", "--grid takes KEY=V,V,… with one of lr, momentum"),
        ("--grid lr=0.1,fast", "'fast' is not a number"),
        ("--grid lr=0.1 --grid lr=0.2", "--grid lr is given twice"),
        ("--grid lr=-1", "--grid lr must be a number of at least 0"),
        ("--grid momentum=0", "nesterov needs a momentum above 0"),
    ],
)
def test_impossible_grids(flags: str, message: str) -> None:
    assert message in refused(2, "sweep", "lenet", "--data", "digits", *words(flags))


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    assert "is not an empty folder" in refused(2, "sweep", *COMMON, "--out", tmp_path)
