from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import numpy as np
import pytest

from convloom.data import DataError, cifar, load
from tests.data.tiny import cifar_bytes, place, sha256, tar_gz


def write(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_known_record(tmp_path: Path) -> None:
    pixels = np.arange(3072) % 256
    record = bytes([7, *pixels.astype(np.uint8)])
    records = cifar.read(write(tmp_path / "a.bin", record * 2), (10,))
    assert records.images.shape == (2, 3, 32, 32)
    assert records.images.dtype == np.uint8
    np.testing.assert_array_equal(records.labels, [[7], [7]])
    # The red plane comes first, row by row.
    assert records.images[1, 0, 1, 2] == 34
    assert records.images[1, 2, 31, 31] == 3071 % 256
    assert records.digest == sha256(record * 2)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_coarse_and_fine(tmp_path: Path, pack: object) -> None:
    content = cifar_bytes(5, (20, 100), seed=3)
    records = cifar.read(write(tmp_path / "train.bin", pack(content)), (20, 100))  # type: ignore[operator]
    raw = np.frombuffer(content, np.uint8).reshape(5, 3074)
    np.testing.assert_array_equal(records.labels, raw[:, :2])
    np.testing.assert_array_equal(records.images.reshape(5, -1), raw[:, 2:])


def test_an_archive_reads_as_its_files(tmp_path: Path) -> None:
    files = {f"{name}.bin": cifar_bytes(3, (10,), seed) for seed, name in enumerate("ab")}
    path = write(tmp_path / "set.tar.gz", tar_gz({"readme.html": b"<html>", **files}))
    found = cifar.read_archive(path, (10,), ("a.bin", "b.bin"))
    for name, content in files.items():
        alone = cifar.read(write(tmp_path / name, content), (10,))
        np.testing.assert_array_equal(found[name].images, alone.images)
        np.testing.assert_array_equal(found[name].labels, alone.labels)
        assert found[name].digest == alone.digest


def test_damage(tmp_path: Path) -> None:
    content = cifar_bytes(4, (10,))
    for bad, words in (
        (content[:-1], "the 12,291 bytes are 3 records and 3,072 bytes more"),
        (b"\x0a" + content[1:], "expected labels 0 to 9, record 0 has 10"),
        (gzip.compress(content)[:-2000], "cut short"),
        (b"<html>not found</html>", "a page of HTML"),
        (b"", "empty"),
    ):
        path = write(tmp_path / "data_batch_1.bin", bad)
        with pytest.raises(DataError, match=words) as caught:
            cifar.read(path, (10,))
        assert caught.value.path == str(path)


def test_damaged_archives(tmp_path: Path) -> None:
    whole = tar_gz({"a.bin": cifar_bytes(30, (10,))})
    for bad, words in (
        (whole[: len(whole) // 2], "damaged or cut short"),
        (b"<html>not found</html>", "a page of HTML"),
        (tar_gz({"other.bin": b"x"}), "lacks a.bin"),
        (b"no archive at all" * 99, "damaged or cut short"),
    ):
        path = write(tmp_path / "set.tar.gz", bad)
        with pytest.raises(DataError, match=words) as caught:
            cifar.read_archive(path, (10,), ("a.bin",))
        assert str(path) in str(caught.value)


@pytest.mark.parametrize("packing", ["folder", "subfolder", "gz", "archive"])
def test_load_a_placed_set(tmp_path: Path, packing: str) -> None:
    names = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
    files = {name: cifar_bytes(4, (10,), seed) for seed, name in enumerate(names)}
    folder = tmp_path / "given" / "cifar10"
    if packing == "archive":
        folder.mkdir(parents=True)
        write(folder / "cifar-10-binary.tar.gz", tar_gz(files, "cifar-10-batches-bin"))
    else:
        inner = folder / "cifar-10-batches-bin" if packing == "subfolder" else folder
        place(inner, files, ".gz" if packing == "gz" else "")
    train, test = load("cifar-10", tmp_path / "given")
    raw = [np.frombuffer(files[name], np.uint8).reshape(4, 3073) for name in names]
    np.testing.assert_array_equal(train.labels, np.concatenate(raw[:5])[:, 0])
    np.testing.assert_array_equal(train.images.reshape(20, -1), np.concatenate(raw[:5])[:, 1:])
    np.testing.assert_array_equal(test.images.reshape(4, -1), raw[5][:, 1:])
    assert train.classes[9] == "truck"
    assert (train.name, train.split, test.split) == ("cifar10", "train", "test")


def test_fine_and_coarse_labels(tmp_path: Path) -> None:
    files = {
        name: cifar_bytes(4, (20, 100), seed) for seed, name in enumerate(("train.bin", "test.bin"))
    }
    place(tmp_path / "cifar100", files)
    raw = np.frombuffer(files["train.bin"], np.uint8).reshape(4, 3074)
    fine, _ = load("cifar100", tmp_path)
    coarse, _ = load("cifar100", tmp_path, coarse=True)
    np.testing.assert_array_equal(fine.labels, raw[:, 1])
    np.testing.assert_array_equal(coarse.labels, raw[:, 0])
    assert (len(fine.classes), len(coarse.classes)) == (100, 20)
    with pytest.raises(DataError, match="digits has no coarse classes"):
        load("digits", coarse=True)
