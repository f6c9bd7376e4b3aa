"""What a layer makes of images, as rows to read or to write into a file.

A file holds ``features``, float32 (N, F), and ``labels``, int64 (N,): ``.npz``, which
``numpy.load`` opens, or ``.safetensors``. It is written batch by batch, and takes its name when it
is whole.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Callable, Iterable, Iterator
from os import PathLike, fspath
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np

from convloom import files
from convloom.ir import ConvloomError, ShapeError
from convloom.nn.arguments import whole
from convloom.ops.precision import FP32
from convloom.training.engine import Engine
from convloom.training.layers import tensor_of
from convloom.training.prediction import normalised, softmax
from convloom.training.views import Images, Views, averaged

if TYPE_CHECKING:
    from convloom.nn import Module


#: Under this name a network keeps {softmax: the layer that it reads} of those that its graph leaves
#: to the loss.
SOFTMAX = "softmax"


class FeatureError(ConvloomError, ValueError):
    """Features that cannot be written as asked; the message says what can."""


def features(
    model: Module,
    images: np.ndarray,
    layer: str,
    *,
    views: Views | None = None,
    batch_size: int = 256,
    device: str = "auto",
    precision: str = FP32,
) -> np.ndarray:
    """What a layer makes of images as the network predicts, float32 (N, F).

    A feature map (C, H, W) becomes a row in that order.

    Args:
        images: (N, C, H, W); uint8 is normalised as in training, floats are taken as given.
        layer: its name, ``fc7`` or ``features.2``, for the last tensor that it makes; a layer of a
            layer file is what its section says, before the neuron, and ``fc7_neuron`` is behind
            it; its softmax has the probabilities. Or a tensor's name.
        views: of each image, over which rows are averaged; ``cl.data.ten_views`` makes some.
        batch_size: images at a time.
        device: as ``Module.predict`` has it.

    Raises:
        LayerError: no such layer, or one that runs at several places; names what there is.
        ShapeError: images of another shape than the network takes.
    """
    reader = _Reader(model, images, layer, views, batch_size, device, precision)
    rows = list(reader.rows())
    return np.concatenate(rows) if rows else np.empty((0, reader.width), np.float32)


def write_features(
    path: str | PathLike[str],
    model: Module,
    dataset: Images,
    layer: str,
    *,
    views: Views | None = None,
    batch_size: int = 256,
    device: str = "auto",
    precision: str = FP32,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[int, int]:
    """Write ``features`` of a data set's images and their labels into a file.

    Args:
        path: a file to be, ``.npz`` or ``.safetensors``.
        progress: told the images done, and all of them, after each batch.

    Returns:
        (N, F).

    Raises:
        FeatureError: a file of another kind.
        LayerError, ShapeError: as ``features``.
        FileError: the file cannot be written; an old file is unchanged.
    """
    write = _writer(path)
    reader = _Reader(model, dataset.images, layer, views, batch_size, device, precision)
    shape, done = (len(dataset.images), reader.width), 0

    def told() -> Iterator[np.ndarray]:
        nonlocal done
        for rows in reader.rows():
            yield rows
            done += len(rows)
            progress(done, shape[0])

    with files.replacing(path) as file:
        write(file, told(), shape, np.asarray(dataset.labels, "<i8"), layer)
    return shape


def check_request(path: str | PathLike[str], model: Module, layer: str) -> None:
    """Look, before any work begins, whether ``write_features`` knows the file's kind and the layer.

    Raises:
        FeatureError: a file of another kind.
        LayerError: no such layer of a network whose input is known.
    """
    _writer(path)
    if model.input_shape is not None:
        tensor_of(model.trace(model.input_shape, 1), _read_by(model, layer) or layer)


def _read_by(model: Module, layer: str) -> str | None:
    """The layer that a softmax reads which the graph leaves to the loss; None for other layers."""
    found = model.__dict__.get("_extra", {}).get(SOFTMAX, {}).get(layer)
    return None if found is None else str(found)


class _Reader:
    """Rows of a layer, batch by batch."""

    def __init__(
        self,
        model: Module,
        images: np.ndarray,
        layer: str,
        views: Views | None,
        batch_size: int,
        device: str,
        precision: str,
    ) -> None:
        if images.ndim != 4:
            raise ShapeError(f"features are of images (N, C, H, W), not {images.shape}")
        self._size = whole(batch_size, "batch_size")
        self._model, self._images, self._views = model, images, views
        read = _read_by(model, layer)
        self._is_softmax = read is not None
        channels, height, width = model.input_shape or images.shape[1:]
        self._engine = Engine(
            model,
            input_shape=(channels, height, width),
            device=device,
            precision=precision,
            layer=read or layer,
        )
        self.width = math.prod(self._engine.output.shape[1:])

    def rows(self) -> Iterator[np.ndarray]:
        """Each batch's, float32 (n, width)."""
        for start in range(0, len(self._images), self._size):
            part = self._images[start : start + self._size]
            made = averaged(self._made, part, self._views)
            yield np.ascontiguousarray(made.reshape(len(part), self.width), "<f4")

    def _made(self, images: np.ndarray) -> np.ndarray:
        made = self._engine.predict(normalised(self._model, images))
        return softmax(made.reshape(len(made), -1)) if self._is_softmax else made


def _writer(path: str | PathLike[str]) -> Callable[..., None]:
    write = _WRITERS.get(Path(path).suffix)
    if write is None:
        kinds = " or ".join(_WRITERS)
        raise FeatureError(f"features are written to {kinds} files, not to {fspath(path)}")
    return write


def _write_npz(
    file: IO[bytes],
    rows: Iterable[np.ndarray],
    shape: tuple[int, int],
    labels: np.ndarray,
    layer: str,
) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        with archive.open(zipfile.ZipInfo("features.npy"), "w", force_zip64=True) as member:
            header = {"descr": "<f4", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(member, header)
            for part in rows:
                member.write(part.data)
        for name, array in (("labels", labels), ("layer", np.array(layer))):
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def _write_safetensors(
    file: IO[bytes],
    rows: Iterable[np.ndarray],
    shape: tuple[int, int],
    labels: np.ndarray,
    layer: str,
) -> None:
    end = 4 * shape[0] * shape[1]
    header = {
        "__metadata__": {"layer": layer},
        "features": {"dtype": "F32", "shape": shape, "data_offsets": (0, end)},
        "labels": {
            "dtype": "I64",
            "shape": labels.shape,
            "data_offsets": (end, end + labels.nbytes),
        },
    }
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for part in rows:
        file.write(part.data)
    file.write(labels.data)


_WRITERS = {".npz": _write_npz, ".safetensors": _write_safetensors}
