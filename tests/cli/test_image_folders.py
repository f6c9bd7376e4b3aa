"""Folders of image files on the command line: from training to ten-crop tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom.training.config import load_config
from tests.cli.running import invoke, refused, words

NET = """
from convloom import nn

def make_model(num_classes, in_channels, image_size):
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, stride=2), nn.ReLU(), nn.Flatten(),
        nn.Linear(4 * ((image_size[0] - 1) // 2) * ((image_size[1] - 1) // 2), num_classes),
    )
"""


@pytest.fixture(scope="session")
def folder(image_folder: Path) -> Path:
    return image_folder


@pytest.fixture(scope="session")
def run(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run on it: random 8×8 crops of 10×10, flips and colour noise."""
    place = tmp_path_factory.mktemp("run")
    (place / "net.py").write_text(NET)
    flags = words(
        "--image-size 8 --resize 10 --flip --colour-noise 0.1 --epochs 40 --batch-size 6 --lr 0.02"
    )
    result = invoke(
        "train", f"{place}/net.py:make_model", "--data", folder, *flags, "--out", place / "a"
    )
    assert result.exit_code == 0, result.output
    return place / "a"


def test_train_and_eval(run: Path, folder: Path) -> None:
    config = load_config(run)
    assert (config.resize, config.image_size, config.colour_noise) == (10, 8, 0.1)
    history = json.loads((run / "history.json").read_text())
    document = json.loads(invoke("eval", run, "--json").stdout)
    assert document["n"] == 9
    assert document["accuracy"] == history["epochs"][-1]["val_accuracy"] > 0.8
    assert document["ten_crop"] is False
    other = json.loads(invoke("eval", run, "--resize", "9", "--json").stdout)
    assert other["loss"] != document["loss"]
    assert cl.load(run / "last.safetensors").input_shape == (3, 8, 8)


def test_ten_crop(run: Path, folder: Path) -> None:
    document = json.loads(invoke("eval", run, "--ten-crop", "--batch-size", "4", "--json").stdout)
    model = cl.load(run / "last.safetensors")
    _, test = cl.data.load(folder, resize=10)
    assert model.normalization is not None
    np.testing.assert_allclose(model.normalization[0], test.mean)
    mean = np.mean([model.predict(crop) for crop in cl.data.ten_crops(test.images, 8)], axis=0)
    assert document["accuracy"] == (mean.argmax(1) == test.labels).mean()
    own = mean[np.arange(9), test.labels]
    assert document["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    assert document["ten_crop"] is True


def test_predict(run: Path, folder: Path) -> None:
    path = sorted((folder / "val" / "green").iterdir())[0]
    model = cl.load(run / "last.safetensors")
    with cl.data.quietly():
        square = cl.data.decode_square(path, 10).pixels[None]
    for flags, crops in (
        ((), [cl.data.centre_crop(square, 8)]),
        (("--ten-crop",), cl.data.ten_crops(square, 8)),
    ):
        found = json.loads(invoke("predict", run, path, *flags, "--json").stdout)["images"][0]
        wanted = np.mean([model.predict(crop)[0] for crop in crops], axis=0)
        assert found["top"][0]["class"] == "green"
        assert found["top"][0]["probability"] == pytest.approx(wanted.max(), abs=1e-6)


def test_resume_gives_the_same_bits(run: Path, folder: Path, tmp_path: Path) -> None:
    file = run.parent / "net.py"
    flags = words("--image-size 8 --resize 10 --flip --colour-noise 0.1 --batch-size 6 --lr 0.02")
    common = ("train", f"{file}:make_model", "--data", folder, *flags)
    assert invoke(*common, "--epochs", 2, "--out", tmp_path / "whole").exit_code == 0
    whole = json.loads((tmp_path / "whole" / "history.json").read_text())
    first = json.loads((run / "history.json").read_text())
    for column in ("loss", "val_loss"):
        assert [row[column] for row in whole["epochs"]] == [
            row[column] for row in first["epochs"][:2]
        ]
    text = (tmp_path / "whole" / "run.toml").read_text()
    (tmp_path / "whole" / "run.toml").write_text(text.replace("epochs = 2", "epochs = 3"))
    assert invoke("resume", tmp_path / "whole").exit_code == 0
    resumed = json.loads((tmp_path / "whole" / "history.json").read_text())
    assert resumed["epochs"][2]["loss"] == first["epochs"][2]["loss"]


def test_sizes_that_nobody_gave(folder: Path, tmp_path: Path) -> None:
    """256 and 224, or what follows from the one that was given; no crop without augmentation."""
    (tmp_path / "net.py").write_text(NET)
    for number, (flags, sizes) in enumerate(
        (
            ("--image-size 7", (8, 7)),
            ("--resize 16", (16, 14)),
            ("--resize 9 --image-size 9", (9, 9)),
        )
    ):
        out = tmp_path / str(number)
        result = invoke(
            "train",
            f"{tmp_path}/net.py:make_model",
            "--data",
            folder,
            *words(flags),
            "--epochs",
            1,
            "--out",
            out,
        )
        assert result.exit_code == 0, result.output
        config = load_config(out)
        assert (config.resize, config.image_size) == sizes
        assert cl.load(out / "last.safetensors").input_shape == (3, sizes[1], sizes[1])


def test_bad_images(folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    import shutil

    (tmp_path / "net.py").write_text(NET)
    bad = tmp_path / "images"
    shutil.copytree(folder, bad)
    (bad / "train" / "red" / "x.jpg").write_text("no image")
    common = ("train", f"{tmp_path}/net.py:make_model", "--data", bad, "--resize", "9")
    flags = ("--epochs", 1, "--out", tmp_path / "run")
    assert "x.jpg: not an image that can be read" in refused(1, *common, *flags)
    result = invoke(*common, *flags, "--on-bad-image", "skip")
    assert result.exit_code == 0, result.output
    assert "1 of 19 image files are skipped" in caplog.text
    assert invoke("eval", tmp_path / "run", "--train-set").exit_code == 0


def test_refusals(run: Path, trained: Path) -> None:
    assert "--ten-crop is for folders of image files" in refused(
        2, "eval", trained, "--data", "digits", "--ten-crop"
    )
    assert "only folders of image files are resized" in refused(
        1, "train", "lenet", "--data", "digits", "--resize", "9", "--epochs", "1"
    )
    assert "give the folder that holds it" in refused(2, "train", "lenet", "--data", "imagenet")
    assert "must be 'error' or 'skip'" in refused(
        2, "train", "lenet", "--data", "digits", "--on-bad-image", "ask"
    )
