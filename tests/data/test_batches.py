"""cuda-convnet's batch files: read as Python 2 and 3 wrote them, and nothing in them run."""

from __future__ import annotations

import gzip
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from convloom import data
from convloom.data import DataError, catalog
from convloom.data.batches import read, read_plain

rng = np.random.default_rng(0)
IMAGES = rng.integers(0, 256, (23, 3, 4, 4)).astype(np.uint8)
LABELS = (np.arange(23) % 3).tolist()
META = {"label_names": ["a", "b", "c"], "num_vis": 48, "num_cases_per_batch": 8}


def written(path: Path, value: Any, protocol: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(value, protocol))
    return path


def folder(root: Path, *, columns: bool = False, test: bool = True) -> Path:
    """23 images in batches of 8, 8 and 7, the last of which are for testing."""
    written(root / "batches.meta", META)
    for number, start in enumerate((0, 8, 16), start=1):
        rows = IMAGES[start : start + 8].reshape(-1, 48)
        batch = {"data": rows.T if columns else rows, "labels": LABELS[start : start + 8]}
        written(root / ("test_batch" if test and number == 3 else f"data_batch_{number}"), batch)
    return root


@pytest.mark.parametrize("columns", [False, True])
@pytest.mark.parametrize("test", [False, True])
@pytest.mark.parametrize("inside", ["", "cifar-10-batches-py"])
def test_a_folder(tmp_path: Path, columns: bool, test: bool, inside: str) -> None:
    folder(tmp_path / inside, columns=columns, test=test)
    train, tested = data.load(tmp_path)
    np.testing.assert_array_equal(train.images, IMAGES[:16])
    np.testing.assert_array_equal(tested.images, IMAGES[16:])
    assert train.labels.tolist() + tested.labels.tolist() == LABELS
    assert train.classes == tested.classes == ("a", "b", "c")
    assert (train.files, tested.files) == ((8, 8), ())


def test_the_python_version_of_cifar10_has_its_name(tmp_path: Path) -> None:
    """Labels 0 to 9 of two batches and a test batch, in place of the binary version."""
    place = tmp_path / "cifar10" / "cifar-10-batches-py"
    names = list(catalog.get("cifar10").classes)
    written(place / "batches.meta", {"label_names": names})
    rows = rng.integers(0, 256, (3, 10, 3072)).astype(np.uint8)
    for name, each in zip(("data_batch_1", "data_batch_2", "test_batch"), rows, strict=True):
        written(place / name, {"data": each, "labels": list(range(10))})
    train, test = data.load("cifar10", tmp_path)
    np.testing.assert_array_equal(train.images, rows[:2].reshape(20, 3, 32, 32))
    assert (train.name, train.files, len(test)) == ("cifar10", (10, 10), 10)
    assert data.load(tmp_path / "cifar10")[0].digest == train.digest
    (place / "data_batch_2").unlink()
    (place / "test_batch").unlink()
    with pytest.raises(DataError, match="it needs data_batch_1 and test_batch"):
        data.load("cifar10", tmp_path)


@pytest.mark.parametrize("protocol", range(6))
def test_every_protocol(tmp_path: Path, protocol: int) -> None:
    """Arrays of every order and labels of every kind, compressed or not."""
    for pixels in (IMAGES.reshape(23, 48), np.asfortranarray(IMAGES.reshape(23, 48).T)):
        for labels in (LABELS, np.array(LABELS, ">i4"), [int(v) for v in LABELS]):
            path = written(tmp_path / "x", {"data": pixels, "labels": labels}, protocol)
            for packed in (False, True):
                if packed:
                    path.write_bytes(gzip.compress(path.read_bytes()))
                found = read(path)
                np.testing.assert_array_equal(found.images, IMAGES)
                assert found.labels.tolist() == LABELS
    value = {"scalar": np.int64(-3), "mean": np.full(5, 0.5), "names": ["x"]}
    plain, _ = read_plain(written(tmp_path / "y", value, protocol))
    assert (plain["scalar"], plain["names"]) == (-3, ["x"])
    np.testing.assert_array_equal(plain["mean"], value["mean"])


def python2(pixels: np.ndarray, labels: list[int]) -> bytes:
    """A batch as Python 2 wrote CIFAR's: bytes are texts, in protocol 2, put together here."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<i", len(value)) + value

    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01M" + struct.pack("<H", pixels.shape[0]) + b"M" + struct.pack("<H", pixels.shape[1])
        + b"\x86cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff"
        b"\xffK\x00tb\x89" + text(pixels.tobytes()) + b"tb"
    )  # fmt: skip
    rows = b"".join(b"K" + bytes([label]) for label in labels)
    return (
        b"\x80\x02}(U\x04data" + array + b"U\x06labels](" + rows + b"eU\x0bbatch_label"
        b"U\x15training batch 1 of 5u."
    )


def test_what_python_2_wrote(tmp_path: Path) -> None:
    path = tmp_path / "data_batch_1"
    path.write_bytes(python2(IMAGES.reshape(23, 48), LABELS))
    assert pickle.loads(path.read_bytes(), encoding="latin1")["labels"] == LABELS
    found = read(path)
    np.testing.assert_array_equal(found.images, IMAGES)
    assert found.labels.tolist() == LABELS


class Runs:
    """A value whose pickle runs a command when it is loaded as usual."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.called = call, arguments

    def __reduce__(self) -> Any:
        return self.called


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_nothing_is_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    for call in (
        Runs(os.system, f"touch {mark}"),
        Runs(eval, f"open({str(mark)!r}, 'w')"),
        Runs(getattr, "x", "join"),
        Runs(np.load, "x"),
    ):
        path = written(tmp_path / "batches.meta", {"label_names": call}, protocol)
        with pytest.raises(DataError, match=r"it names \S+; only plain values and arrays are read"):
            read_plain(path)
    assert not mark.exists()


def test_types_that_could_hide_addresses(tmp_path: Path) -> None:
    for array in (np.array([{}, None], object), np.zeros(2, "U3"), np.zeros(2, "f4,i4")):
        with pytest.raises(DataError, match="only whole and real numbers are read"):
            read_plain(written(tmp_path / "x", {"data": array}))


def test_what_cannot_be(tmp_path: Path) -> None:
    rows = IMAGES.reshape(23, 48)
    for value, message in (
        ([1], "must hold a dictionary, it holds list"),
        ({"labels": LABELS}, "must be uint8 pixels of two axes; they are missing"),
        ({"data": rows.astype(np.float32), "labels": LABELS}, "they are float32"),
        ({"data": rows}, "labels must be a list of whole numbers"),
        (
            {"data": rows, "labels": np.eye(23, 4, dtype=np.int64)},
            r"labels are rows, \(23, 4\), and",
        ),
        ({"data": rows, "labels": ["a"]}, "labels must be a list of whole numbers"),
        ({"data": rows, "labels": LABELS[:5]}, r"\(23, 48\), must have one axis for the 5 images"),
        ({"data": rows[:, :23], "labels": LABELS}, "must have one axis"),
        ({"data": rows[:, :47], "labels": LABELS}, "47 values are no squares"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            read(written(tmp_path / "x", value))
        assert caught.value.path == str(tmp_path / "x")
    whole = pickle.dumps({"data": rows, "labels": LABELS}, 2)
    for cut in range(2, len(whole), 97):
        (tmp_path / "x").write_bytes(whole[:cut])
        with pytest.raises(DataError, match="no whole pickle"):
            read(tmp_path / "x")


def test_folders_that_lack_something(tmp_path: Path) -> None:
    root = folder(tmp_path)
    (root / "data_batch_2").unlink()
    (root / "test_batch").unlink()
    with pytest.raises(DataError, match="it needs data_batch_1 and test_batch or data_batch_2"):
        data.load(root)
    written(root / "data_batch_2", {"data": IMAGES[:, :, :3, :3].reshape(23, -1), "labels": LABELS})
    with pytest.raises(DataError, match=r"images are \(3, 3, 3\) .* data_batch_1 \(3, 4, 4\)"):
        data.load(root)
