"""How images come to the size that a network takes, in training and in tests.

Images of a folder are decoded as squares of ``resize`` pixels, of which the network is given
``image_size``: a random part where training augments, else the middle, or ten parts in a ten-crop
test. A network of a layer file is given what ``crop_border`` leaves of images of any data set, less
their mean image.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import numpy as np

from convloom.cli.terminal import dims
from convloom.convnet.feeding import SHARED, cropped_side
from convloom.data import (
    ArrayDataset,
    Augmentation,
    centre_crop,
    decode_image,
    decode_square,
    is_image_folder,
    quietly,
    ten_crops,
)
from convloom.data.loader import ONCE
from convloom.ir import ConvloomError
from convloom.normalise import middle_of
from convloom.training.config import RunConfig

#: Sizes of the ImageNet habit: a 224 crop of 256.
_CROP, _WHOLE = 224, 256


def with_sizes(config: RunConfig, asked: Collection[str]) -> RunConfig:
    """The settings with the sizes of a folder's images; without them for other data sets.

    What the sizes of a layer file's images are is known when they are; see ``fed``.

    Args:
        asked: the settings that a person gave; a recipe's sizes are meant for folders alone.
    """
    folder = is_image_folder(config.data)
    if config.params is not None:
        resize = (config.resize or _WHOLE) if folder else config.resize
        border = config.crop_border
        if folder and "crop_border" not in asked:
            border = round(resize * (_WHOLE - _CROP) / (2 * _WHOLE)) if resize else 0
        flip = config.flip if "flip" in asked else border > 0
        return replace(config, resize=resize, image_size=None, crop_border=border, flip=flip)
    if not folder:
        kept = {key: getattr(config, key) for key in ("resize", "image_size") if key in asked}
        return replace(config, **{"resize": None, "image_size": None, **kept})
    resize, size = config.resize, config.image_size
    if "resize" in asked and "image_size" not in asked:
        size = None
    elif "image_size" in asked and "resize" not in asked:
        resize = None
    if resize is None:
        resize = default_resize(size or _CROP)
    return replace(config, resize=resize, image_size=size or max(1, round(resize * _CROP / _WHOLE)))


def default_resize(size: int) -> int:
    """The side of the squares of which crops of ``size`` are taken: 256 for 224."""
    return round(size * _WHOLE / _CROP)


def whole_side(size: int, border: int) -> int:
    """The side of the squares of which a network takes ``size`` pixels and leaves a border on each
    side; without one, ``default_resize``."""
    return size + 2 * border if border else default_resize(size)


def augmentation(config: RunConfig) -> Augmentation | None:
    """What the settings do to training images."""
    if not (config.crop or config.flip or config.colour_noise or config.crop_border):
        return None
    cropped = config.image_size is not None and config.image_size != config.resize
    layers, folder = config.params is not None, config.resize is not None
    return Augmentation(
        padding=config.crop,
        flip=config.flip,
        size=config.image_size if cropped else None,
        noise=config.colour_noise,
        damped=layers and config.colour_noise > 0,
        shared=SHARED if layers and folder else 1,
    )


def fed(
    config: RunConfig, train: ArrayDataset, test: ArrayDataset
) -> tuple[RunConfig, ArrayDataset, ArrayDataset]:
    """The settings and the two parts as the network's file wants them fed.

    Raises:
        ConvloomError: a crop border that leaves nothing.
    """
    if config.params is None:
        return config, train, test
    side = cropped_side(min(train.shape[1:]), config.crop_border)
    config = replace(config, image_size=side if config.crop_border else None)
    centred = train.centred(scalar=config.scalar_mean)
    return config, centred, test.centred(train, scalar=config.scalar_mean)


def shuffling(config: RunConfig) -> bool | str:
    """How training images are ordered; image files lie sorted by class, so once at least."""
    return config.shuffle or (ONCE if config.resize is not None else False)


def cropped(
    config: RunConfig, train: ArrayDataset, test: ArrayDataset
) -> tuple[ArrayDataset, ArrayDataset]:
    """The two parts as the network is given them; training images stay whole where crops of them
    are drawn."""
    size = config.image_size
    if size is None or size == config.resize:
        return train, test
    whole = augmentation(config) is not None
    return train if whole else train.centre_crop(size), test.centre_crop(size)


def network_shape(config: RunConfig, train: ArrayDataset) -> tuple[int, int, int]:
    """(C, H, W) of the network's input."""
    drawn = augmentation(config)
    return train.shape if drawn is None else drawn.shape(train.shape)


def views_of(
    path: Path, shape: tuple[int, int, int], resize: int | None, *, ten: bool, border: int = 0
) -> tuple[np.ndarray, tuple[str, ...]]:
    """What of an image file a network of (C, H, W) inputs is shown, (views, C, H, W), and notes.

    Args:
        resize: as the network was trained; None for a network that takes images whole, to which
            any file is resampled.
        ten: ten crops in place of one view.
        border: what such a network leaves on each side of an image.

    Raises:
        ConvloomError: a file that cannot be decoded, or crops for a network that takes no squares.
    """
    if resize is None and not ten:
        channels, height, width = shape
        decoded = decode_image(path, (channels, height + 2 * border, width + 2 * border))
        return middle_of(decoded.pixels[None], (height, width)), decoded.notes
    size = square_of(shape)
    with quietly():
        decoded = decode_square(path, resize or whole_side(size, border))
    whole = decoded.pixels[None]
    views = ten_crops(whole, size) if ten else (centre_crop(whole, size),)
    return np.concatenate(views), decoded.notes


def square_of(shape: tuple[int, int, int], channels: int = 3) -> int:
    """The side of a network's inputs. Raises ConvloomError unless they are squares of so many
    channels, RGB by default."""
    own, height, width = shape
    if own != channels or height != width:
        raise ConvloomError(
            f"crops are taken for networks of square inputs of {channels} channels, this one "
            f"takes {dims(shape)}"
        )
    return height
