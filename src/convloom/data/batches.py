"""Batch files as cuda-convnet reads them: Python pickles, of which nothing is executed.

A folder holds ``batches.meta``, a dictionary that names the classes (``label_names``), and
``data_batch_1``, ``data_batch_2`` …, each a dictionary with ``data``, uint8, one image a row, or
one a column where cuda-convnet made it, and ``labels``. An image is its red, green and blue plane
(or one plane of grey), rows then columns, square. The test images are those of ``test_batch``, else
of the data batch with the highest number. Sources: Krizhevsky,
https://www.cs.toronto.edu/~kriz/cifar.html ("Python version"), and
https://code.google.com/archive/p/cuda-convnet.

A pickle is a program that calls what it names. Here the few names that plain arrays need stand for
stand-ins of this module, which keep what they are given; every other name is an error.
"""

from __future__ import annotations

import io
import logging
import math
import pickle
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from convloom.data.content import opened
from convloom.data.errors import DataError

_log = logging.getLogger("convloom.data")

META, TEST = "batches.meta", "test_batch"
_BATCH = re.compile(r"data_batch_(\d+)")
#: Names that pickles of arrays have called numpy's modules by.
_NUMPY = tuple(
    f"numpy{core}.{part}" for core in (".core", "._core") for part in ("multiarray", "numeric")
)
_CODE = re.compile(r"[buif][1248]")


@dataclass(frozen=True)
class BatchFile:
    """One file's images.

    Attributes:
        images: (N, C, side, side) uint8.
        labels: (N,) int64.
        digest: SHA-256 of the decompressed file.
    """

    images: np.ndarray
    labels: np.ndarray
    digest: str


def find(folder: Path) -> dict[str, Path]:
    """{name: path} of the files of such a set in a folder, training batches in order of number."""
    if not (folder / META).is_file():
        return {}
    batches = {
        int(match[1]): path
        for path in folder.iterdir()
        if (match := _BATCH.fullmatch(path.name)) and path.is_file()
    }
    found = {META: folder / META, **{batches[i].name: batches[i] for i in sorted(batches)}}
    if (folder / TEST).is_file():
        found[TEST] = folder / TEST
    return found


def parts(names: Mapping[str, Path], folder: Path) -> tuple[list[str], str]:
    """The names of the training batches, and of the test batch.

    Raises:
        DataError: too few batches for both.
    """
    training = [name for name in names if name not in (META, TEST)]
    if TEST in names and training:
        return training, TEST
    if len(training) < 2:
        raise DataError(
            f"it needs data_batch_1 and {TEST} or data_batch_2 beside {META}; there are "
            f"{', '.join(training) or 'none'}",
            folder,
        )
    _log.info("%s has no %s: %s is taken for it", folder, TEST, training[-1])
    return training[:-1], training[-1]


def read_classes(path: Path) -> tuple[str, ...]:
    """The names of the classes in ``batches.meta``; empty where it has none.

    Raises:
        DataError: a file that is no plain dictionary.
    """
    meta, _ = read_plain(path)
    names = meta.get("label_names", [])
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise DataError("its label_names must be a list of names", path)
    return tuple(names)


def read(path: Path) -> BatchFile:
    """The images and labels of one batch file.

    Raises:
        DataError: a file that is no plain dictionary, or does not hold labelled square images.
    """
    batch, digest = read_plain(path)
    labels, pixels = _labels(batch.get("labels", batch.get("fine_labels")), path), batch.get("data")
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 2:
        shown = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else "missing"
        raise DataError(f"its data must be uint8 pixels of two axes; they are {shown}", path)
    if list(pixels.shape).count(len(labels)) != 1:
        raise DataError(
            f"its data, {pixels.shape}, must have one axis for the {len(labels):,} images that its "
            "labels are of, and one for their pixels",
            path,
        )
    if len(pixels) != len(labels):
        pixels = pixels.T
    images = np.ascontiguousarray(pixels).reshape(len(labels), *_square(pixels.shape[1], path))
    return BatchFile(images, labels.astype(np.int64), digest)


def _labels(value: Any, path: Path) -> np.ndarray:
    """One whole number an image, of a list or an array."""
    if isinstance(value, (list, tuple)) and all(type(label) is int for label in value):
        value = np.array(value, np.int64)
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "iu" or not value.size:
        raise DataError("its labels must be a list of whole numbers, one an image", path)
    if value.ndim == 2 and min(value.shape) > 1:
        raise DataError(
            f"its labels are rows, {value.shape}, and must be whole numbers, one an image; rows "
            "with several classes an image can be learnt from step by step, with cl.compile",
            path,
        )
    return value.reshape(-1)


def _square(values: int, path: Path) -> tuple[int, int, int]:
    """(C, side, side) of an image of so many values."""
    for channels in (3, 1):
        side = math.isqrt(values // channels)
        if side and channels * side * side == values:
            return channels, side, side
    raise DataError(f"its images of {values:,} values are no squares of 3 or 1 channels", path)


def read_plain(path: Path) -> tuple[dict[str, Any], str]:
    """The dictionary in a pickle of plain values and arrays, and the SHA-256 of the file.

    Texts of Python 2 are read as Latin-1.

    Raises:
        DataError: a damaged file, one that names anything but what arrays need, or another value.
    """
    with opened(path) as content:
        data = b"".join(iter(lambda: content.read(1 << 22), b""))
        digest = content.sha256
    try:
        value = _Reader(io.BytesIO(data), encoding="latin1").load()
        if isinstance(value, dict):
            value = {key: _content(item) for key, item in value.items()}
    except DataError as error:
        raise DataError(str(error), path) from None
    except Exception as error:  # whatever damaged content makes the unpickler raise
        reason = f"{type(error).__name__}: {error}"
        raise DataError(f"it is no whole pickle of plain values ({reason})", path) from error
    if not isinstance(value, dict):
        raise DataError(f"it must hold a dictionary, it holds {type(value).__name__}", path)
    return value, digest


class _Reader(pickle.Unpickler):
    """Finds the names that arrays need, which are this module's own, and no others."""

    def find_class(self, module: str, name: str) -> Any:
        found = _STAND_INS.get(name)
        homes = {"ndarray": ("numpy",), "dtype": ("numpy",), "encode": ("_codecs",)}
        if found is None or module not in homes.get(name, _NUMPY):
            raise DataError(
                f"it names {module}.{name}; only plain values and arrays are read, and nothing of "
                "a file is ever run"
            )
        return found


class _Type:
    """A dtype by its code; its state adds the order of bytes."""

    def __init__(self, code: Any = "", *_: Any) -> None:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            raise DataError(f"it has an array of {code!r}; only whole and real numbers are read")
        self.code, self.order = code, "="

    def __setstate__(self, state: Any) -> None:
        if state[1] in "<>|=":
            self.order = str(state[1])

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(f"{self.order}{self.code}")


class _Array:
    """An array as its state says."""

    made: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, fortran, data = state
        self.made = _array(data, kind, shape, "F" if fortran else "C")


def _array(data: Any, kind: Any, shape: Any, order: Any = "C") -> np.ndarray:
    content = data.encode("latin1") if isinstance(data, str) else bytes(data)
    made = np.frombuffer(content, kind.dtype)
    return made.reshape(shape, order=order)


def _reconstructed(*_: Any) -> _Array:
    return _Array()


def _scalar(kind: Any, data: Any) -> Any:
    return _array(data, kind, ()).item()


def _encoded(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes for Python 2."""
    if encoding not in ("latin1", "latin-1"):
        raise DataError(f"it encodes by {encoding!r}; only latin1 is read")
    return text.encode("latin1")


_STAND_INS: Mapping[str, Any] = {
    "ndarray": _Array,
    "dtype": _Type,
    "encode": _encoded,
    "_reconstruct": _reconstructed,
    "_frombuffer": _array,
    "scalar": _scalar,
}


def _content(value: Any) -> Any:
    """What a stand-in stands for; anything else as it is."""
    if isinstance(value, _Array) and value.made is None:
        raise DataError("it has an array without content")
    return value.made if isinstance(value, _Array) else value
