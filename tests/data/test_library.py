from __future__ import annotations

import json
import logging
import os
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from convloom import data
from convloom.data import DataError, catalog, load
from convloom.data.catalog import KnownSet
from tests.data.tiny import idx_bytes, idx_contents, known_idx, place

CONTENTS = idx_contents()
Contents = dict[str, bytes]


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> KnownSet:
    """A set of 30 + 10 images that nobody offers."""
    known = known_idx("tiny", CONTENTS, ())
    other = known_idx("other", idx_contents(seed=1), ())
    sets = {"tiny": known, "other": other, "digits": catalog.SETS["digits"]}
    monkeypatch.setattr(catalog, "SETS", sets)
    return known


class TestWhere:
    """The order in which places are looked into."""

    def places(self, tmp_path: Path, cache: Path) -> dict[str, Path]:
        return {
            "--data-dir": tmp_path / "given" / "tiny",
            "$CONVLOOM_DATA": tmp_path / "env" / "tiny",
            "the cache": cache / "tiny",
            "the system's data sets": tmp_path / "system" / "tiny",
        }

    def test_order(self, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        places = self.places(tmp_path, cache)
        monkeypatch.setenv("CONVLOOM_DATA", str(tmp_path / "env"))
        for title, folder in reversed(places.items()):
            place(folder, CONTENTS, ".gz")
            info = data.get("tiny", tmp_path / "given")
            assert (info.place, info.folder) == (title, str(folder))

    def test_the_given_folder_itself(self, tmp_path: Path) -> None:
        place(tmp_path / "anywhere", CONTENTS)
        assert data.info("tiny", tmp_path / "anywhere").folder == str(tmp_path / "anywhere")

    def test_the_variable_names_the_folder_above(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place(tmp_path / "files", CONTENTS)
        monkeypatch.setenv("CONVLOOM_DATA", str(tmp_path / "files"))
        with pytest.raises(DataError, match=f"there is no folder {tmp_path / 'files' / 'tiny'}"):
            data.info("tiny")

    def test_a_given_folder_without_it_is_said(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        place(tmp_path / "system" / "tiny", CONTENTS)
        assert data.info("tiny", tmp_path / "missing").place == "the system's data sets"
        assert f"there is no folder {tmp_path / 'missing' / 'tiny'}" in caplog.text

    def test_some_files_are_an_error_not_a_reason_to_look_elsewhere(self, tmp_path: Path) -> None:
        place(tmp_path / "system" / "tiny", CONTENTS)
        place(tmp_path / "given" / "tiny", dict([*CONTENTS.items()][:3]))
        with pytest.raises(DataError, match="lacks t10k-labels-idx1-ubyte") as caught:
            load("tiny", tmp_path / "given")
        assert caught.value.path == str(tmp_path / "given" / "tiny")

    def test_spellings_of_file_names(self, tmp_path: Path) -> None:
        dotted = {name.replace("-idx", ".idx"): content for name, content in CONTENTS.items()}
        place(tmp_path / "tiny" / "raw", dotted)
        assert len(load("tiny", tmp_path)[0]) == 30

    def test_nowhere(self) -> None:
        with pytest.raises(DataError, match="tiny is not on this machine and could not be fetched"):
            load("tiny")
        with pytest.raises(DataError, match="'convloom data get tiny' fetches it"):
            data.info("tiny")


class TestPlacedFiles:
    """Damage in files that a person placed is always an error that names the file."""

    @pytest.mark.parametrize(
        ("change", "file", "words"),
        [
            (lambda c: c[: len(c) // 2], "train-images-idx3-ubyte", "promises 30 × 6 × 5"),
            (lambda c: c + b"\0", "t10k-images-idx3-ubyte", "bytes too many"),
            (lambda c: c[:3] + b"\x01" + c[4:], "t10k-images-idx3-ubyte", "promises 10 uint8"),
            (
                lambda c: struct.pack("<I", 0x803) + c[4:],
                "train-images-idx3-ubyte",
                "little-endian",
            ),
            (
                lambda c: CONTENTS["train-labels-idx1-ubyte"],
                "train-images-idx3-ubyte",
                "expected images, .* it holds uint8 of rank 1, .* is it a labels file",
            ),
            (
                lambda c: CONTENTS["train-images-idx3-ubyte"],
                "train-labels-idx1-ubyte",
                "expected labels, .* it holds uint8 of rank 3, .* is it an images file",
            ),
            (lambda c: idx_bytes(np.zeros(29, np.uint8)), "train-labels-idx1-ubyte", "29 labels"),
            (
                lambda c: idx_bytes(np.full(30, 10, np.uint8)),
                "train-labels-idx1-ubyte",
                "label 10 of image 0 is outside 0 to 9",
            ),
            (
                lambda c: idx_bytes(np.zeros((10, 5, 5), np.uint8)),
                "t10k-images-idx3-ubyte",
                "they are not of one set",
            ),
        ],
    )
    def test_damage(
        self, tmp_path: Path, change: Callable[[bytes], bytes], file: str, words: str
    ) -> None:
        contents = {**CONTENTS, file: change(CONTENTS[file])}
        for suffix in ("", ".gz"):
            folder = place(tmp_path / f"given{suffix}" / "tiny", contents, suffix)
            with pytest.raises(DataError, match=words) as caught:
                load("tiny", tmp_path / f"given{suffix}")
            assert str(folder) in str(caught.value)
            assert (folder / f"{file}{suffix}").exists()  # a person's file is not deleted

    def test_other_images_of_the_right_form_are_noted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        changed = bytearray(CONTENTS["train-images-idx3-ubyte"])
        changed[99] ^= 1
        folder = place(tmp_path / "tiny", {**CONTENTS, "train-images-idx3-ubyte": bytes(changed)})
        assert len(load("tiny", tmp_path)[0]) == 30
        (record,) = caplog.records
        assert record.levelno == logging.WARNING
        assert f"{folder / 'train-images-idx3-ubyte'} differs from the official" in caplog.text
        files = {file.name: file.official for file in data.info("tiny", tmp_path).files}
        assert files["train-images-idx3-ubyte"] is False
        assert files["t10k-images-idx3-ubyte"] is True

    def test_official_files_are_not_noted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        place(tmp_path / "tiny", CONTENTS, ".gz")
        load("tiny", tmp_path)
        assert caplog.text == ""

    def test_never_another_set(self, tmp_path: Path) -> None:
        place(tmp_path, idx_contents(seed=1))
        with pytest.raises(DataError, match="of tiny, it is train-images-idx3-ubyte of other"):
            load("tiny", tmp_path)
        assert len(load("other", tmp_path)[0]) == 30

    def test_images_of_another_size(self, tmp_path: Path) -> None:
        contents = {
            name: idx_bytes(np.zeros((4, 9, 9) if "images" in name else 4, np.uint8))
            for name in CONTENTS
        }
        place(tmp_path / "tiny", contents)
        with pytest.raises(
            DataError, match=r"images of tiny are \(1, 6, 5\).*these are \(1, 9, 9\)"
        ):
            load("tiny", tmp_path)


class TestOwnFolder:
    def test_idx(self, tmp_path: Path) -> None:
        place(tmp_path / "mine", CONTENTS, ".gz")
        train, test = load(tmp_path / "mine")
        assert (train.name, len(train), len(test), len(train.classes)) == ("mine", 30, 10, 10)
        scaled = train.images / 255.0
        np.testing.assert_allclose(train.mean, [scaled.mean()])
        assert test.mean == train.mean

    def test_color_idx_with_class_names(self, tmp_path: Path) -> None:
        contents = {
            name: idx_bytes(np.ones((4, 3, 2, 2) if "images" in name else 4, np.uint8))
            for name in CONTENTS
        }
        place(tmp_path, {**contents, "classes.txt": "Käfer\nHund\n\n".encode()})
        train, _ = load(str(tmp_path))
        assert train.shape == (3, 2, 2)
        assert train.classes == ("Käfer", "Hund")
        (tmp_path / "classes.txt").write_text("only one\n")
        with pytest.raises(DataError, match=r"label 1 of image 0 is outside 0 to 0 \(1 classes\)"):
            load(tmp_path)

    def test_a_name_in_the_catalog_can_be_a_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place(tmp_path / "tiny", idx_contents(seed=7))
        monkeypatch.chdir(tmp_path)
        assert len(load("./tiny")[0]) == 30
        with pytest.raises(DataError, match="tiny is not on this machine"):
            load("tiny")

    def test_incomplete_or_empty(self, tmp_path: Path) -> None:
        with pytest.raises(DataError, match="there is no data set in this folder"):
            load(tmp_path)
        place(tmp_path, dict([*CONTENTS.items()][:2]))
        with pytest.raises(DataError, match="it lacks t10k-images-idx3-ubyte, t10k-labels"):
            load(tmp_path)


def test_unknown_names() -> None:
    with pytest.raises(DataError, match=r"no data set 'digit' \(did you mean digits\?\)"):
        load("digit")
    with pytest.raises(DataError, match="give one of tiny, other, digits, or a folder"):
        data.info("zzz")


def test_names_are_forgiving(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    for spelling in ("fashion-mnist", "Fashion_MNIST", "fashionmnist"):
        found = catalog.find(spelling)
        assert found is not None
        assert found.name == "fashion-mnist"


def test_list_reads_nothing(tmp_path: Path) -> None:
    place(tmp_path / "tiny", {**CONTENTS, "train-images-idx3-ubyte": b"rubbish"})
    place(tmp_path / "other", dict([*CONTENTS.items()][:1]))
    entries = {entry.name: entry for entry in data.list(tmp_path)}
    assert list(entries) == ["tiny", "other", "digits"]
    assert entries["tiny"].place == "--data-dir"
    assert entries["tiny"].folder == str(tmp_path / "tiny")
    assert "lacks" in entries["other"].problem
    assert entries["digits"].place == "convloom itself"
    assert json.loads(json.dumps(entries["tiny"].as_dict()))["sizes"] == [30, 10]


def test_info_is_plain_data(tmp_path: Path) -> None:
    folder = place(tmp_path / "tiny", CONTENTS)
    info = json.loads(json.dumps(data.info("tiny", tmp_path).as_dict()))
    labels = np.frombuffer(CONTENTS["train-labels-idx1-ubyte"][8:], np.uint8)
    assert info["counts"]["train"] == np.bincount(labels, minlength=10).tolist()
    assert info["sizes"] == {"train": 30, "test": 10}
    assert info["files"][0]["path"] == os.fspath(folder / "train-images-idx3-ubyte")
    assert info["digests"]["test"] == load("tiny", tmp_path)[1].digest


class TestDigits:
    def test_offline(self, caplog: pytest.LogCaptureFixture) -> None:
        train, test = load("digits")
        assert (train.shape, len(train), len(test)) == ((1, 8, 8), 1437, 360)
        assert train.counts == (143, 146, 142, 146, 144, 145, 144, 143, 141, 143)
        assert test.counts == (35, 36, 35, 37, 37, 37, 37, 36, 33, 37)
        assert train.classes == tuple("0123456789")
        assert set(np.unique(train.images)) == {round(v * 255 / 16) for v in range(17)}
        assert caplog.text == ""

    def test_first_image(self) -> None:
        """The 0 that begins the original file, its values 0 to 16."""
        train, _ = load("digits")
        values = np.rint(train.images[0, 0] * (16 / 255)).astype(int)
        assert values[0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
        assert values[7].tolist() == [0, 0, 6, 13, 10, 0, 0, 0]
        assert train.labels[:12].tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]

    def test_the_stated_statistics_are_those_of_the_images(self) -> None:
        train, _ = load("digits")
        mean, std = data.statistics(train.images)
        np.testing.assert_allclose(train.mean, mean, atol=1e-4)
        np.testing.assert_allclose(train.std, std, atol=1e-4)

    def test_the_files_are_the_official_ones(self) -> None:
        assert [file.official for file in data.info("digits").files] == [True, True]

    def test_its_licence_lies_beside_it(self) -> None:
        readme = Path(data.info("digits").folder) / "README.txt"
        assert "CC BY 4.0" in readme.read_text()
