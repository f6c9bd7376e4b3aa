"""convloom show: plots of trained runs, from the command line to the file."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from PIL import Image

import convloom as cl
from tests.cli.running import invoke, refused
from tests.cli.test_convnet import trained as trained_of_2012

pytest.importorskip("matplotlib", reason="pip install 'convloom[plot]'")

NET = """
from convloom import nn

def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plots lie in the folder where the command runs."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown(*given: object) -> str:
    """What ``convloom show GIVEN`` prints; it must succeed."""
    result = invoke("show", *given)
    assert result.exit_code == 0, result.output
    return result.stdout


def is_plot(path: Path) -> bool:
    with Image.open(path) as image:
        return min(image.size) > 100


def test_filters(trained: Path, here: Path) -> None:
    assert shown("filters", trained) == (
        "0 (Conv2d): 16 filters of 1×3×3\nsaved in filters-0.png\n"
    )
    assert is_plot(here / "filters-0.png")
    words = ("--layer", 6, "--scale", "filter", "--count", 4, "--out", "fc.svg", "--best")
    document = json.loads(shown("filters", trained, *words, "--json"))
    assert document == {
        "model": str(trained / "best.safetensors"),
        "layer": "6",
        "kind": "Linear",
        "input": 0,
        "shape": [10, 32, 2, 2],
        "place": None,
        "file": "fc.svg",
    }
    assert (here / "fc.svg").read_text().startswith("<?xml")


def test_filters_of_a_network_of_2012(here: Path) -> None:
    run = trained_of_2012(here)
    assert "conv1 (Conv2d): 8 filters of 1×5×5" in shown("filters", run)
    assert "fc10 (Linear): 10 filters of 8×4×4" in shown("filters", run, "--layer", "fc10")
    assert is_plot(here / "filters-fc10.png")


def test_filters_of_a_module_of_one_s_own(here: Path) -> None:
    (here / "net.py").write_text(NET)
    given = ("net.py:make_model", "--data", "digits", "--epochs", 1, "--out", "run")
    assert invoke("train", *given).exit_code == 0
    assert "1 (Linear): 10 filters of 1×8×8" in shown("filters", "run")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        (("--layer", "conv9"), "no layer 'conv9' has filters; those that have are 0 (Conv2d), 2"),
        (("--input", 1), "0 has filters for 1 input"),
        (("--channels", "rgb"), "colours need filters over 3 channels"),
        (("--channels", "grey"), "channels='grey' must be rgb or each"),
        (("--scale", "layer"), "scale='layer'"),
        (("--place", "1"), "--place must be a row and a column such as 3,4, not '1'"),
        (("--place", "0,0"), "the same filters at every place"),
        (("--first", 16), "0 has filters 0 to 15, 16 is not there"),
        (("--out", "plot"), "plot: a figure is written as its file's suffix says"),
        (("--out", "a.xyz"), "suffix .xyz names no such format"),
    ],
)
def test_filters_that_cannot_be_shown(
    trained: Path, here: Path, given: tuple[object, ...], part: str
) -> None:
    assert part in refused(2, "show", "filters", trained, *given)
    assert not list(here.iterdir())


def test_costs(trained: Path, here: Path) -> None:
    copy = here / "copy"
    shutil.copytree(trained, copy)
    text = shown("costs", trained, copy, "--cost", "loss", "--cost", "lr")
    assert text == f"loss, lr of {trained}, {copy}\nsaved in costs.png\n"
    assert is_plot(here / "costs.png")
    history = json.loads((trained / "history.json").read_text())
    document = json.loads(shown("costs", trained / "history.json", "--json", "--by", "steps"))
    assert document["by"] == "steps"
    (run,) = document["runs"]
    epoch = history["epochs"][0]
    assert run["costs"]["loss"]["test"] == [[epoch["step"], epoch["val_loss"]]]
    assert set(run["costs"]) == {"loss", "accuracy"}


def test_costs_that_cannot_be_shown(trained: Path, here: Path) -> None:
    assert "a history has no 'los'; it has loss" in refused(
        2, "show", "costs", trained, "--cost", "los"
    )
    assert "by='days'" in refused(2, "show", "costs", trained, "--by", "days")
    assert "no such file" in refused(1, "show", "costs", here / "none")
    assert "not a run folder" in refused(1, "show", "costs", here)
    (here / "history.json").write_text('{"epochs": 1}')
    assert "its history is damaged" in refused(1, "show", "costs", here / "history.json")
    (here / "history.json").write_text('{"epochs": [], "steps": []}')
    assert "has finished no epoch" in refused(2, "show", "costs", here / "history.json")
    cl.load(trained / "last.safetensors").save(here / "net.safetensors")
    assert "has no history of its training" in refused(
        1, "show", "costs", trained, here / "net.safetensors"
    )


def test_preds(trained: Path, here: Path) -> None:
    text = shown("preds", trained, "--count", 3)
    assert text == "3 images of the digits test set\nsaved in preds.png\n"
    assert is_plot(here / "preds.png")
    words = ("preds", trained, "--count", 3, "--top", 2, "--seed", 1, "--json")
    document = json.loads(shown(*words))
    assert json.loads(shown(*words)) == document
    _, test = cl.data.load("digits")
    model = cl.load(trained / "last.safetensors")
    for image in document["images"]:
        assert image["label"] == test.classes[test.labels[image["index"]]]
        (row,) = model.predict(test.images[image["index"]])
        assert len(image["top"]) == 2
        assert image["top"][0]["index"] == row.argmax()
        assert image["top"][0]["probability"] == pytest.approx(row.max(), rel=1e-5)


def test_preds_of_errors_alone(trained: Path) -> None:
    words = ("--only-errors", "--data", "digits", "--json")
    document = json.loads(
        shown("preds", trained / "last.safetensors", "--count", 7, *words, "--out", "e.pdf")
    )
    assert len({image["index"] for image in document["images"]}) == 7
    assert all(image["top"][0]["class"] != image["label"] for image in document["images"])


def test_preds_that_cannot_be_shown(trained: Path, here: Path) -> None:
    net = here / "net.safetensors"
    shutil.copy(trained / "last.safetensors", net)
    assert "give --data NAME" in refused(2, "show", "preds", net)
    assert "did you mean digits?" in refused(2, "show", "preds", net, "--data", "digit")
    assert "--count" in refused(2, "show", "preds", trained, "--count", 0)


def test_maps(trained: Path, pictures: list[Path], here: Path) -> None:
    assert shown("maps", trained, pictures[0]) == "0 of 0.png: 16×6×6\nsaved in maps-0.png\n"
    assert is_plot(here / "maps-0.png")
    words = ("--layer", "4", "--scale", "map", "--out", "m.png", "--json")
    document = json.loads(shown("maps", trained, pictures[0], *words))
    assert (document["layer"], document["shape"], document["file"]) == ("4", [32, 2, 2], "m.png")
    assert "there is no layer 'x'; there are 0, 1" in refused(
        2, "show", "maps", trained, pictures[0], "--layer", "x"
    )


def test_without_matplotlib(trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for what in ("filters", "costs", "preds"):
        assert "pip install 'convloom[plot]'" in refused(1, "show", what, trained)
    assert not list(here.iterdir())


def test_a_window_needs_a_display(
    trained: Path, here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    result = invoke("show", "filters", trained, "--window")
    assert result.exit_code == 1
    assert "no window can be opened" in result.stderr
    assert not list(here.iterdir())


def test_help_lists_what_can_be_shown() -> None:
    text = shown()
    assert all(f"\n  {name} " in text for name in ("filters", "costs", "preds", "maps"))
