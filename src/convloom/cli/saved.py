"""A saved network, given as a run folder or as a file, and data that fits it."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from convloom.cli.errors import UsageError
from convloom.cli.images import square_of, views_of, whole_side
from convloom.cli.runs import load_data, require_exists
from convloom.cli.terminal import Output, dims
from convloom.convnet import border_of
from convloom.data import (
    ArrayDataset,
    catalog,
    is_image_folder,
    nine_views,
    ten_crops,
    ten_views,
)
from convloom.ir import ConvloomError
from convloom.nn import CrossEntropyLoss, LossSum, Module
from convloom.ops.precision import FP32, PRECISIONS
from convloom.training import History, checkpoint, load
from convloom.training.checkpoint import BEST, LAST, CheckpointError
from convloom.training.config import CONFIG_NAME, ConfigError, load_config
from convloom.training.views import Views

#: How a checkpoint writes down its loss.
_SMOOTHED = re.compile(r"CrossEntropyLoss\(label_smoothing=([0-9.e+-]+)\)")


@dataclass(frozen=True)
class Origin:
    """What an evaluation takes from the run that made a network.

    Attributes:
        data: None if unknown.
        resize: side of the squares that a folder's images became; None for other data sets.
        on_bad_image: what was done with those that cannot be decoded.
        border: pixels that the network's input leaves on each side of an image.
    """

    data: str | None = None
    data_dir: str | None = None
    label_smoothing: float = 0.0
    resize: int | None = None
    on_bad_image: str = "error"
    precision: str = FP32
    border: int = 0


@dataclass(frozen=True)
class Saved:
    """A network, the file it came from, and the run that made it."""

    model: Module
    path: Path
    origin: Origin

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images it takes. Raises ConvloomError if it takes no images."""
        shape = self.model.input_shape
        if shape is None or len(shape) != 3:
            raise ConvloomError(f"{self.path} takes inputs of shape {shape}, not images")
        channels, height, width = shape
        return channels, height, width

    def views(self, path: Path, *, ten: bool = False) -> tuple[np.ndarray, tuple[str, ...]]:
        """What the network is shown of an image file, and notes; see ``views_of``."""
        origin = self.origin
        return views_of(path, self.image_shape, origin.resize, ten=ten, border=origin.border)

    @property
    def loss(self) -> CrossEntropyLoss | LossSum:
        """What the network was trained on: the costs of its file, or cross-entropy."""
        from convloom import convnet

        smoothing = self.origin.label_smoothing
        return convnet.loss_of(self.model) or CrossEntropyLoss(label_smoothing=smoothing)

    def data(self, asked: str | None) -> str:
        """The data set that was asked for, else the run's own.

        Raises:
            UsageError: neither is known.
        """
        name = asked or self.origin.data
        if name is None:
            raise UsageError(f"{self.path} does not say which data set to take; give --data NAME")
        return name

    def fitted(self, dataset: ArrayDataset) -> ArrayDataset:
        """The data set, normalised as the network was trained.

        Raises:
            ConvloomError: images or classes of another kind than the network was made for.
        """
        classes, normalization = self.model.classes, self.model.normalization
        if dataset.shape != self.image_shape:
            larger = self.origin == Origin() and dataset.shape[1] > self.image_shape[1]
            hint = "; if it was trained with --crop-border, give its run folder" if larger else ""
            raise ConvloomError(
                f"{self.path} takes images of {dims(self.image_shape)}, those of {dataset.name} "
                f"are {dims(dataset.shape)}{hint}"
            )
        if classes is not None and tuple(classes) != tuple(dataset.classes):
            raise ConvloomError(
                f"{self.path} was trained for other classes ({_few(classes)}) than those of "
                f"{dataset.name} ({_few(dataset.classes)})"
            )
        if normalization is None or not dataset.mean:
            return dataset
        mean, std = normalization
        image = self.model.mean_image
        return replace(dataset, mean=tuple(mean), std=tuple(std), mean_image=image)


@dataclass(frozen=True)
class Images:
    """The images of a data set for a saved network.

    Attributes:
        asked: the data set's name, as it was asked for.
        whole: the images as they were decoded.
        folder: whether they are image files of a folder.
        side: of the squares that the network takes of larger ones; None where it takes them whole.
        dataset: what the network takes, normalised as it was trained.
    """

    asked: str
    folder: bool
    whole: ArrayDataset
    side: int | None
    dataset: ArrayDataset


def open_images(
    network: Saved,
    data: str | None,
    data_dir: Path | None,
    output: Output,
    *,
    train_set: bool,
    resize: int | None,
    on_bad_image: str | None,
) -> Images:
    """A part of the data set that was asked for, else of the run's own.

    Raises:
        UsageError: no data set is known, or none has that name.
        ConvloomError: images or classes that the network was not made for.
    """
    origin, name = network.origin, network.data(data)
    if data_dir is None and name == origin.data and origin.data_dir:
        data_dir = Path(origin.data_dir)
    folder = is_image_folder(name)
    if folder:
        resize = resize or origin.resize
        resize = resize or whole_side(square_of(network.image_shape), origin.border)
    parts = load_data(
        name, data_dir, output, resize=resize, on_bad_image=on_bad_image or origin.on_bad_image
    )
    whole = parts[0] if train_set else parts[1]
    shape, side = network.image_shape, None
    if resize is not None or origin.border:
        side = square_of(shape, 3 if folder else shape[0])
    if side is not None and origin.border and not folder:
        _check_border(network, whole, side)
    fitted = network.fitted(whole if side is None else whole.centre_crop(side))
    return Images(name, folder, whole, side, fitted)


def _check_border(network: Saved, whole: ArrayDataset, side: int) -> None:
    """Raises ConvloomError for images of which the network's border leaves another size."""
    border = network.origin.border
    size = side + 2 * border
    if whole.shape[1:] != (size, size):
        raise ConvloomError(
            f"{network.path} takes what a border of {border} leaves of images of {size}×{size} "
            f"pixels, those of {whole.name} are {dims(whole.shape)}"
        )


def views_for(images: Images, *, ten_crop: bool, multiview: bool) -> Views | None:
    """The views of each image that were asked for; None for the middle alone.

    Raises:
        UsageError: both were asked for, or the network takes whole images.
    """
    if not (ten_crop or multiview):
        return None
    if ten_crop and multiview:
        raise UsageError("give --ten-crop or --multiview, not both")
    side = images.side
    if ten_crop and side is None:
        raise UsageError(f"--ten-crop is for folders of image files, {images.asked} is none")
    if side is None or images.whole.shape[1:] == (side, side):
        raise UsageError(
            f"--multiview is for networks that take a part of each image (--crop-border, or a "
            f"folder's --image-size); this one takes all of those of {images.asked}"
        )
    if ten_crop:
        return lambda part: ten_crops(part, side)
    views = ten_views if images.folder else nine_views
    return lambda part: views(part, side)


def open_saved(path: Path, output: Output, *, best: bool) -> Saved:
    """The network in a file, or the last or best one of a run folder.

    Where the folder's settings are missing or damaged, the checkpoint's own take their place, and
    a remark says so.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder without a network, or a file that holds none.
    """
    is_run, path = path.is_dir(), file_of(path, BEST if best else LAST)
    folder = path.parent
    has_settings = (folder / CONFIG_NAME).is_file()
    model = load(path)
    border = border_of(model)
    if not has_settings and not is_run:
        return Saved(model, path, Origin(border=border))
    try:
        config = load_config(folder)
    except ConfigError as error:
        reason = str(error) if has_settings else f"{folder} has no {CONFIG_NAME}"
        output.remark(f"{reason}; the settings are taken from {path.name}")
        return Saved(model, path, replace(_told_by_checkpoint(path), border=border))
    origin = Origin(
        config.data,
        config.data_dir,
        config.label_smoothing,
        config.resize,
        config.on_bad_image,
        config.precision,
        config.crop_border,
    )
    return Saved(model, path, origin)


def file_of(path: Path, name: str) -> Path:
    """The file itself, or the one of that name in a run folder.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder without it.
    """
    require_exists(path)
    if not path.is_dir():
        return path
    if not (path / name).is_file():
        begun = (path / CONFIG_NAME).is_file()
        what = "has saved no network yet" if begun else "is not a run folder"
        raise ConvloomError(f"{path} {what}: it has no {name}")
    return path / name


def history_of(path: Path) -> History:
    """What happened in the training of a run, a checkpoint, or a history.json.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder that is no run, or a file without a history.
    """
    path = file_of(path, LAST)
    try:
        if path.suffix == ".json":
            data = json.loads(path.read_bytes())
        else:
            data = checkpoint.load(path).record["history"]
        return History.from_json(data)
    except CheckpointError as error:
        raise ConvloomError(f"{path} has no history of its training: {error}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise ConvloomError(f"{path}: its history is damaged ({error!r})") from error


def _told_by_checkpoint(path: Path) -> Origin:
    """What a checkpoint says of its run; nothing where it holds weights alone."""
    try:
        settings = checkpoint.load(path).settings
    except checkpoint.CheckpointError:
        return Origin()
    data = settings.get("data")
    name = data.get("name") if isinstance(data, dict) else None
    known = isinstance(name, str) and catalog.find(name) is not None
    loss = _SMOOTHED.fullmatch(str(settings.get("loss")))
    precision = settings.get("precision")
    return Origin(
        name if known else None,
        label_smoothing=float(loss.group(1)) if loss else 0.0,
        precision=precision if precision in PRECISIONS else FP32,
    )


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" … {len(names)} in all" if len(names) > 3 else "")
