"""A saved network, given as a run folder or as a file, and data that fits it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convloom.cli.errors import UsageError
from convloom.cli.runs import require_exists
from convloom.cli.terminal import dims
from convloom.data import ArrayDataset, catalog
from convloom.ir import ConvloomError
from convloom.nn import Module
from convloom.ops.precision import FP32, PRECISIONS
from convloom.training import checkpoint, load
from convloom.training.checkpoint import BEST, LAST
from convloom.training.config import CONFIG_NAME, ConfigError, load_config

#: How a checkpoint writes down its loss.
_SMOOTHED = re.compile(r"CrossEntropyLoss\(label_smoothing=([0-9.e+-]+)\)")


@dataclass(frozen=True)
class Origin:
    """What an evaluation takes from the run that made a network.

    Attributes:
        data: None if unknown.
        resize: side of the squares that a folder's images became; None for other data sets.
        on_bad_image: what was done with those that cannot be decoded.
    """

    data: str | None = None
    data_dir: str | None = None
    label_smoothing: float = 0.0
    resize: int | None = None
    on_bad_image: str = "error"
    precision: str = FP32


@dataclass(frozen=True)
class Saved:
    """A network, the file it came from, and the run that made it.

    Attributes:
        note: why the run's settings could not be read; empty otherwise.
    """

    model: Module
    path: Path
    origin: Origin
    note: str = ""

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(C, H, W) of the images it takes. Raises ConvloomError if it takes no images."""
        shape = self.model.input_shape
        if shape is None or len(shape) != 3:
            raise ConvloomError(f"{self.path} takes inputs of shape {shape}, not images")
        channels, height, width = shape
        return channels, height, width

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
            raise ConvloomError(
                f"{self.path} takes images of {dims(self.image_shape)}, those of {dataset.name} "
                f"are {dims(dataset.shape)}"
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


def open_saved(path: Path, *, best: bool) -> Saved:
    """The network in a file, or the last or best one of a run folder.

    Where the folder's settings are missing or damaged, the checkpoint's own take their place.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder without a network, or a file that holds none.
    """
    require_exists(path)
    is_run = path.is_dir()
    folder = path if is_run else path.parent
    has_settings = (folder / CONFIG_NAME).is_file()
    if is_run:
        path = folder / (BEST if best else LAST)
        if not path.is_file():
            what = "has saved no network yet" if has_settings else "is not a run folder"
            raise ConvloomError(f"{folder} {what}: it has no {path.name}")
    model = load(path)
    if not has_settings and not is_run:
        return Saved(model, path, Origin())
    try:
        config = load_config(folder)
    except ConfigError as error:
        reason = str(error) if has_settings else f"{folder} has no {CONFIG_NAME}"
        note = f"{reason}; the settings are taken from {path.name}"
        return Saved(model, path, _told_by_checkpoint(path), note)
    origin = Origin(
        config.data,
        config.data_dir,
        config.label_smoothing,
        config.resize,
        config.on_bad_image,
        config.precision,
    )
    return Saved(model, path, origin)


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
