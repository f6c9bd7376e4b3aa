"""convloom eval and predict on a saved network."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import convloom as cl
from tests.cli.running import invoke, refused


def test_eval_agrees_with_training(trained: Path) -> None:
    text = invoke("eval", trained, "--data", "digits")
    assert text.exit_code == 0, text.output
    assert text.stdout.startswith("digits test set, 360 images: accuracy ")
    document = json.loads(invoke("eval", trained, "--json").stdout)
    history = json.loads((trained / "history.json").read_text())
    assert document["n"] == 360
    assert document["accuracy"] == history["epochs"][-1]["val_accuracy"]
    np.testing.assert_allclose(document["loss"], history["epochs"][-1]["val_loss"], rtol=1e-6)
    assert document["top5"] >= document["accuracy"]
    assert document["model"] == str(trained / "last.safetensors")


@pytest.mark.parametrize("settings", [None, "network = ", "epochs = 'many'"])
def test_a_run_without_sound_settings_still_works(
    trained: Path, tmp_path: Path, pictures: list[Path], settings: str | None
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    (run / "run.toml").unlink()
    if settings is not None:
        (run / "run.toml").write_text(settings)
    ours = invoke("eval", run, "--json")
    assert ours.exit_code == 0, ours.output
    (note,) = ours.stderr.splitlines()
    assert "run.toml" in note
    assert note.endswith("; the settings are taken from last.safetensors")
    theirs = json.loads(invoke("eval", trained, "--json").stdout)
    assert json.loads(ours.stdout) == {**theirs, "model": str(run / "last.safetensors")}
    seen = invoke("predict", run, pictures[0], "-q")
    assert (seen.exit_code, seen.stderr) == (0, "")
    assert seen.stdout == invoke("predict", trained, pictures[0]).stdout


def test_a_checkpoint_knows_the_loss_of_its_run(tmp_path: Path) -> None:
    run = tmp_path / "run"
    words = ("--data", "digits", "--epochs", "1", "--label-smoothing", "0.2", "--out", run)
    assert invoke("train", "lenet", *words).exit_code == 0
    before = json.loads(invoke("eval", run, "--json").stdout)
    (run / "run.toml").unlink()
    assert json.loads(invoke("eval", run, "--json").stdout) == before


def test_eval_of_files_and_parts(trained: Path, tmp_path: Path) -> None:
    file = tmp_path / "net.safetensors"
    shutil.copy(trained / "best.safetensors", file)
    assert "--data" in refused(2, "eval", file)
    words = ("eval", file, "--data", "digits", "--json", "--batch-size", "100")
    assert json.loads(invoke(*words).stdout)["n"] == 360
    training = json.loads(invoke(*words, "--train-set").stdout)
    assert (training["n"], training["split"]) == (1437, "train")
    best = json.loads(invoke("eval", trained, "--best", "--json").stdout)
    assert best["model"] == str(trained / "best.safetensors")


def test_eval_on_the_reference(trained: Path) -> None:
    ours = json.loads(invoke("eval", trained, "--json").stdout)
    reference = json.loads(invoke("eval", trained, "--device", "reference", "--json").stdout)
    assert reference["device"] == "reference"
    np.testing.assert_allclose(ours["loss"], reference["loss"], rtol=1e-4)


def test_eval_on_data_that_cannot_fit(trained: Path, tmp_path: Path) -> None:
    model = cl.load(trained / "last.safetensors")
    model.classes = tuple("abcdefghij")
    model.save(tmp_path / "net.safetensors")
    message = refused(1, "eval", tmp_path / "net.safetensors", "--data", "digits")
    assert "other classes (a, b, c … 10 in all)" in message


def test_predict_prints_a_table(trained: Path, pictures: list[Path]) -> None:
    result = invoke("predict", trained, *pictures, "--top", "2")
    assert result.exit_code == 0, result.output
    header, _, *rows = result.stdout.splitlines()
    assert header.split() == ["image", "class", "probability"]
    assert len(rows) == 6
    assert rows[0].startswith(str(pictures[0]))
    assert rows[0].endswith(" %")


def test_predict_json_holds_what_python_gives(trained: Path, pictures: list[Path]) -> None:
    document = json.loads(invoke("predict", trained, *pictures, "--json", "--top", "10").stdout)
    _, test = cl.data.load("digits")
    model = cl.load(trained / "last.safetensors")
    expected = model.predict(test.images[: len(pictures)])
    assert [image["image"] for image in document["images"]] == [str(p) for p in pictures]
    for image, row in zip(document["images"], expected, strict=True):
        found = {entry["index"]: entry["probability"] for entry in image["top"]}
        np.testing.assert_allclose([found[i] for i in range(10)], row, rtol=1e-6)
        assert image["top"][0]["class"] == str(int(row.argmax()))
        ordered = [entry["probability"] for entry in image["top"]]
        assert ordered == sorted(ordered, reverse=True)


def test_predict_notes_what_it_did_to_an_image(trained: Path, tmp_path: Path) -> None:
    Image.new("RGB", (20, 10), "white").save(tmp_path / "wide.png")
    result = invoke("predict", trained, tmp_path / "wide.png")
    assert result.exit_code == 0, result.output
    assert "wide.png: resized from 20×10 to 8×8" in result.stderr
    assert invoke("predict", trained, tmp_path / "wide.png", "-q").stderr == ""


@pytest.mark.parametrize(
    ("name", "content", "part"),
    [
        ("none.png", None, "no such file"),
        ("text.png", b"hello", "not an image"),
        ("empty.png", b"", "not an image"),
        ("cut.png", b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", ""),
    ],
)
def test_wrong_images(
    trained: Path, tmp_path: Path, name: str, content: bytes | None, part: str
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    message = refused(1, "predict", trained, path)
    assert name in message
    assert part in message


@pytest.mark.parametrize("command", ["eval", "predict"])
def test_wrong_networks(command: str, trained: Path, tmp_path: Path, pictures: list[Path]) -> None:
    rest = pictures[:1] if command == "predict" else ["--data", "digits"]
    assert "no such file" in refused(1, command, tmp_path / "none", *rest)
    assert "not a run folder" in refused(1, command, tmp_path, *rest)
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes((trained / "last.safetensors").read_bytes()[:500])
    assert "cut.safetensors" in refused(1, command, cut, *rest)


def test_wrong_usage(trained: Path, pictures: list[Path]) -> None:
    assert "IMAGE" in refused(2, "predict", trained)
    assert "--top" in refused(2, "predict", trained, *pictures, "--top", "0")
    assert "did you mean digits?" in refused(2, "eval", trained, "--data", "digit")
