from __future__ import annotations

import csv
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from convloom import data
from convloom.data import DataError, folders
from convloom.data.images import decode_square, quietly
from tests.data.conftest import official
from tests.data.test_images import CASES, as_pillow_reads

RNG = np.random.default_rng(7)


def put(path: Path, size: tuple[int, int] = (12, 9), color: int | None = None) -> Path:
    """A PNG file; (width, height)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    width, height = size
    pixels = RNG.integers(0, 256, (height, width, 3)).astype(np.uint8)
    if color is not None:
        pixels[:] = color
    with path.open("wb") as file:
        Image.fromarray(pixels).save(file, "PNG")
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Classes a, b and c of which validation lacks a; the colour of an image is its class."""
    for name, color in (("a", 10), ("b", 20), ("c", 30)):
        for number in range(2):
            put(tmp_path / "set" / "train" / name / f"{number}.png", color=color)
        if name != "a":
            put(tmp_path / "set" / "val" / name / "x.png", color=color)
    return tmp_path / "set"


def test_a_folder_becomes_two_sets(folder: Path) -> None:
    train, test = data.load(folder, resize=8)
    assert train.classes == test.classes == ("a", "b", "c")
    assert train.images.shape == (6, 3, 8, 8)
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert (train.name, train.split, test.split) == ("set", "train", "test")
    assert test.mean == train.mean == pytest.approx((20 / 255,) * 3)
    np.testing.assert_array_equal(train.images[:, 0, 0, 0], 10 * (train.labels + 1))


def test_labels_do_not_shift_where_validation_lacks_a_class(folder: Path) -> None:
    _, test = data.load(folder, resize=8)
    assert test.labels.tolist() == [1, 2]
    np.testing.assert_array_equal(test.images[:, 0, 0, 0], [20, 30])


@pytest.mark.parametrize("name", ["valid", "validation", "test"])
def test_names_of_the_second_part(folder: Path, name: str) -> None:
    (folder / "val").rename(folder / name)
    assert len(data.load(folder, resize=8)[1]) == 2


def test_what_is_skipped_is_said(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(folder / "train" / ".ipynb_checkpoints" / "0.png")
    put(folder / "train" / "b" / ".hidden.png")
    (folder / "train" / "aa_empty").mkdir()
    (folder / "train" / "b" / "notes.txt").write_text("seen")
    put(folder / "train" / "loose.png")
    with caplog.at_level(logging.WARNING, "convloom.data"):
        train, _ = data.load(folder, resize=8)
    assert train.classes == ("a", "b", "c")
    assert len(train) == 6
    text = caplog.text
    assert "hidden folders are skipped: .ipynb_checkpoints" in text
    assert "folders without image files are skipped, they are no classes: aa_empty" in text
    assert "no images of a class are skipped: loose.png, b/notes.txt" in text


def test_one_part_is_both(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "convloom.data"):
        train, test = data.load(folder / "train", resize=8)
    assert "figures of the test set are of these same images" in caplog.text
    np.testing.assert_array_equal(train.images, test.images)
    assert train.classes == ("a", "b", "c")


def test_order_is_by_code_points_and_folders_may_be_deep(tmp_path: Path) -> None:
    for name in ("b", "B", "a10", "a9", "ä"):
        put(tmp_path / name / "deep" / "er" / "1.PNG")
    (tmp_path / "b" / "deep" / "loop").symlink_to(tmp_path / "b")
    train, _ = data.load(tmp_path, resize=4)
    assert train.classes == ("B", "a10", "a9", "b", "ä")
    assert train.counts == (1, 1, 1, 1, 1)


def test_bad_files_are_named_or_skipped(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(4):
        (folder / "train" / "b" / f"bad{number}.jpg").write_bytes(b"hello there")
    with pytest.raises(
        DataError,
        match=r"4 of 10 image files cannot be used: .*bad0\.jpg: not an "
        r".*bad2\.jpg.*; and 1 more\. Mend .*--on-bad-image skip",
    ):
        data.load(folder, resize=8)
    with caplog.at_level(logging.WARNING, "convloom.data"):
        train, _ = data.load(folder, resize=8, on_bad_image="skip")
    assert "4 of 10 image files are skipped" in caplog.text
    assert train.labels.tolist() == [0, 0, 1, 1, 2, 2]
    np.testing.assert_array_equal(train.images[:, 0, 0, 0], 10 * (train.labels + 1))


def test_a_class_whose_images_are_all_bad_keeps_its_number(folder: Path) -> None:
    for path in (folder / "train" / "b").iterdir():
        path.write_bytes(b"")
    train, test = data.load(folder, resize=8, on_bad_image="skip")
    assert train.classes == ("a", "b", "c")
    assert train.labels.tolist() == [0, 0, 2, 2]
    assert test.labels.tolist() == [1, 2]


def test_refusals(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(folder / "val" / "zebra" / "1.png")
    with pytest.raises(DataError, match=r"val: it has images of 1 classes that .* lack \(zebra\)"):
        data.load(folder, resize=8)
    shutil.rmtree(folder / "val" / "zebra")
    with pytest.raises(DataError, match="resized to 1 pixel or more, not to -1"):
        data.load(folder, resize=-1)
    with pytest.raises(DataError, match="'error' or 'skip', not 'ask'"):
        data.load(folder, resize=8, on_bad_image="ask")
    with pytest.raises(DataError, match="no coarse classes"):
        data.load(folder, coarse=True)
    with pytest.raises(DataError, match="only folders of image files are resized"):
        data.load("digits", resize=8)
    (tmp_path / "none" / "train").mkdir(parents=True)
    with pytest.raises(DataError, match=r"none/train: there are no image files in folders"):
        data.load(tmp_path / "none")
    put(folder / "valid" / "1.png")
    (folder / "val").rename(folder / "aside")
    with pytest.raises(DataError, match="move each into the folder of its class"):
        data.load(folder, resize=8)
    monkeypatch.setattr(folders, "_free_memory", lambda: 1000)
    (folder / "aside").rename(folder / "val")
    with pytest.raises(DataError, match=r"its 8 images take 0\.0 GB as 8×8 pixels"):
        data.load(folder, resize=8)


def test_squares_are_torchvisions() -> None:
    """Shorter side to 8, the centre: sizes and offsets as Resize and CenterCrop round them."""
    cases = [(12, 9), (9, 12), (8, 8), (31, 8), (5, 7), (300, 17)]
    for width, height in cases:
        path = put(Path.cwd() / f"{width}x{height}.png", (width, height))
        with Image.open(path) as image:
            shorter = min(width, height)
            size = (int(8 * width / shorter), int(8 * height / shorter))
            whole = np.asarray(image.convert("RGB").resize(size, Image.Resampling.BILINEAR))
        left, top = round((size[0] - 8) / 2), round((size[1] - 8) / 2)
        expected = whole[top : top + 8, left : left + 8].transpose(2, 0, 1)
        with quietly():
            np.testing.assert_array_equal(decode_square(path, 8).pixels, expected)


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_line_of_pixels_takes_no_memory(tmp_path: Path) -> None:
    path = put(tmp_path / "line.png", (60_000, 1))
    with quietly(), pytest.raises(DataError, match=r"line\.png: .*60000×1: too narrow"):
        decode_square(path, 256)


@pytest.mark.skipif(not CASES.is_dir(), reason="there is no ../shared/cases/images here")
def test_difficult_images_in_a_folder(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """All of them at once: those that Pillow reads are there, the others are counted."""
    place = tmp_path / "set" / "all"
    place.mkdir(parents=True)
    readable = []
    rows = list(csv.DictReader((CASES / "manifest.csv").open(encoding="utf-8")))
    for number, row in enumerate(rows):
        source = CASES / row["set"] / row["file"]
        if source.suffix.lower() not in folders.SUFFIXES:
            continue
        (place / f"{number:04d}{source.suffix}").symlink_to(source)
        if as_pillow_reads(source) is not None:
            readable.append(source)
    with caplog.at_level(logging.WARNING, "convloom.data"):
        train, _ = data.load(place.parent, resize=16, on_bad_image="skip")
    count = len(list(place.iterdir()))
    assert len(train) == len(readable)
    assert f"{count - len(readable)} of {count} image files are skipped" in caplog.text


def test_photographs() -> None:
    train, _ = data.load(official("imagenet-sample"), resize=32)
    assert train.images.shape == (100, 3, 32, 32)
    assert train.counts == (1,) * 100
    assert train.classes[0] == "n01443537"
