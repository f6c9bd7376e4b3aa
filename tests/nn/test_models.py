"""Networks by name, and from a person's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from convloom import nn
from convloom.ir import ShapeError
from convloom.nn import models


def test_lenet_is_the_seed_network() -> None:
    model = models.get("lenet")()
    shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
    assert shapes == {
        "0.weight": (16, 1, 3, 3),
        "0.bias": (16,),
        "2.weight": (32, 16, 3, 3),
        "2.bias": (32,),
        "6.weight": (10, 4608),
        "6.bias": (10,),
    }
    assert sum(parameter.numel() for parameter in model.parameters()) == 50_890


def test_vgg_small() -> None:
    model = models.get("VGG_small")()
    shapes = [parameter.shape for name, parameter in model.named_parameters() if "weight" in name]
    assert shapes == [
        (64, 3, 3, 3),
        (64, 64, 3, 3),
        (128, 64, 3, 3),
        (128, 128, 3, 3),
        (10, 8192),
    ]
    assert model.trace((3, 32, 32), 2).specs["output"].shape == (2, 10)


@pytest.mark.parametrize("name", models.names())
def test_they_fit_any_data_set(name: str) -> None:
    shape = (2, 90, 70) if "alexnet" in name else (2, 40, 33) if name == "vgg16" else (2, 20, 13)
    model = models.build(name, num_classes=100, in_channels=2, image_size=shape[1:])
    assert model.trace(shape, 3).specs["output"].shape == (3, 100)


@pytest.mark.parametrize("name", ["lenet", "lenet5", "vgg-small", "vgg16", "alexnet"])
def test_images_that_are_too_small(name: str) -> None:
    with pytest.raises(ShapeError, match="layer '"):
        models.build(name, image_size=1 if name == "vgg-small" else 3)


def test_their_start_can_be_chosen() -> None:
    assert not models.lenet(init="constant(0)").state_dict()["6.weight"].any()
    assert models.vgg_small(init="pytorch").state_dict()["0.bias"].any()


def test_unknown_names() -> None:
    with pytest.raises(models.ModelError, match=r"'lennet'; did you mean lenet\? Known are lenet,"):
        models.build("lennet")
    with pytest.raises(
        models.ModelError, match=r"unknown network 'gpt'; known are lenet, lenet5, vgg-s"
    ):
        models.get("gpt")


# ---- a person's own

NET = """
from dataclasses import dataclass
from sibling import WIDTH
from convloom import nn

@dataclass
class Settings:
    width: int = WIDTH

class Net(nn.Module):
    def __init__(self, num_classes, in_channels=1, *, depth=2):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, Settings().width, 3)
        self.head = nn.Linear(Settings().width, num_classes)

    def forward(self, x):
        x = self.conv(x)
        return self.head(nn.max_pool2d(x, x.shape[2:]).flatten(1))

def make_model(num_classes=10, in_channels=1):
    return Net(num_classes, in_channels)

def sized(image_size, **options):
    assert options == {"num_classes": 7, "in_channels": 2}, options
    return nn.Sequential(nn.Flatten(), nn.Linear(2 * image_size[0] * image_size[1], 7))

def plain():
    return ready

def forgets():
    Net(3)

def fails(num_classes):
    return nn.Linear(num_classes, -1)

def needy(num_classes, hidden):
    return Net(num_classes)

def torch_net():
    import torch
    return torch.nn.Sequential()

ready = Net(10)
text = "no network"
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "sibling.py").write_text("WIDTH = 6\n")
    path = tmp_path / "net.py"
    path.write_text(NET)
    return path


def build(spec: str) -> nn.Module:
    return models.build(spec, num_classes=7, in_channels=2, image_size=9)


@pytest.mark.parametrize("name", ["", ":make_model", ":Net", ":sized"])
def test_functions_are_given_what_they_take(file: Path, name: str) -> None:
    assert models.is_file(f"{file}{name}")
    assert build(f"{file}{name}").trace((2, 9, 9), 4).specs["output"].shape == (4, 7)


@pytest.mark.parametrize("name", ["plain", "ready"])
def test_networks_made_already(file: Path, name: str) -> None:
    assert build(f"{file}:{name}").trace((1, 9, 9)).specs["output"].shape == (1, 10)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("make_modell", r"net\.py defines no 'make_modell'; did you mean make_model\? It defines"),
        ("forgets", r"net\.py:forgets gave NoneType, not a .*is a return missing\?"),
        ("fails", r"net\.py:34: fails\(\) failed: ShapeError: Linear\(7, -1\): out_features"),
        ("needy", r"net\.py:needy needs hidden, which convloom does not give"),
        ("text", r"net\.py:text gave str, not a convloom.nn.Module"),
    ],
)
def test_errors_say_where(file: Path, name: str, says: str) -> None:
    with pytest.raises(models.ModelError, match=says):
        build(f"{file}:{name}")


def test_pytorch_networks_are_recognised(file: Path) -> None:
    pytest.importorskip("torch")
    with pytest.raises(models.ModelError, match=r"gave Sequential.*that is PyTorch's"):
        build(f"{file}:torch_net")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("def f(:\n", r"broken\.py:1: importing it failed: SyntaxError"),
        ("\n\nimport nothing_like_this\n", r"broken\.py:3: importing it failed: ModuleNotFound"),
        ("x = 1\ny = 1 / 0\n", r"broken\.py:2: importing it failed: ZeroDivisionError"),
        ("x = 1\n", r"broken\.py defines no 'make_model'; It defines nothing"),
        ("import sys\nsys.exit(3)\n", r"broken\.py:2: importing it failed: SystemExit"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "broken.py"
    path.write_text(text)
    with pytest.raises(models.ModelError, match=says):
        models.from_file(str(path))


def test_missing_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(models.ModelError, match=r"there is no file .*/none\.py; a network is"):
        models.from_file(f"{tmp_path}/none.py:make_model")
    with pytest.raises(models.ModelError, match=r"there is no file"):
        models.from_file(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert not models.is_file("lenet")
    Path("notes.txt").write_text("x = 1")
    with pytest.raises(models.ModelError, match=r"notes\.txt is no Python file"):
        models.from_file("notes.txt:f")


def test_the_path_is_left_as_it_was(file: Path) -> None:
    import sys

    before: list[Any] = list(sys.path)
    build(str(file))
    assert sys.path == before
