"""A saved network, given as a run folder or as a file, and data that fits it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from convloom.cli.errors import UsageError
from convloom.cli.runs import require_exists
from convloom.cli.terminal import dims
from convloom.data import ArrayDataset
from convloom.ir import ConvloomError
from convloom.nn import Module
from convloom.training import load
from convloom.training.checkpoint import BEST, LAST
from convloom.training.config import CONFIG_NAME, RunConfig, load_config


@dataclass(frozen=True)
class Saved:
    """A network, the file it came from, and the settings of the run that made it, if known."""

    model: Module
    path: Path
    config: RunConfig | None

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
        if asked is None and self.config is None:
            raise UsageError(f"{self.path} does not say which data set to take; give --data NAME")
        return asked or (self.config.data if self.config else "")

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
        return replace(dataset, mean=tuple(mean), std=tuple(std))


def open_saved(path: Path, *, best: bool) -> Saved:
    """The network in a file, or the last or best one of a run folder.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder without a network, or a file that holds none.
    """
    require_exists(path)
    folder = path if path.is_dir() else path.parent
    config = load_config(folder) if (folder / CONFIG_NAME).is_file() else None
    if path.is_dir():
        path = folder / (BEST if best else LAST)
        if not path.is_file():
            what = "has saved no network yet" if config else "is not a run folder"
            raise ConvloomError(f"{folder} {what}: it has no {path.name}")
    return Saved(load(path), path, config)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" … {len(names)} in all" if len(names) > 3 else "")
