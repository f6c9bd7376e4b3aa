"""An image file as a network's input: uint8 (C, H, W), decoded by Pillow.

Orientation (EXIF) is applied, then ``convert("RGB")`` or ``convert("L")``, as Pillow does them:
an alpha channel is left out, not laid over a background. Images of 16 bits are brought to 8 by
their high byte. Another size is resampled (bilinear, over the whole source area): without keeping
the proportions by ``decode_image``, keeping them by ``decode_square``.
"""

from __future__ import annotations

import os
import struct
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from convloom.data.errors import DataError

#: Larger images are refused before any memory is taken for them (Pillow's own limit for warnings).
MOST_PIXELS = 89_478_485
_MODES = {1: "L", 3: "RGB"}
_ALPHA = ("LA", "PA", "La", "RGBA", "RGBa")


@dataclass(frozen=True, eq=False)
class DecodedImage:
    """An image and what was done to it.

    Attributes:
        path: the file.
        pixels: (C, H, W) uint8.
        notes: what a person should know, such as a change of size; often empty.
    """

    path: str
    pixels: np.ndarray
    notes: tuple[str, ...] = ()


def decode_image(path: str | os.PathLike[str], shape: tuple[int, int, int]) -> DecodedImage:
    """A file as an image of ``shape`` (C, H, W), C being 1 or 3. Never runs or fetches anything.

    Raises:
        DataError: not an image, damaged, cut short, or too large; names the file.
    """
    channels, height, width = shape
    if channels not in _MODES:
        raise DataError(
            f"the network takes images of {channels} channels, image files give 1 or 3; pass "
            "arrays to it in Python instead"
        )
    notes: list[str] = []
    with quietly(), _opened(path, _MODES[channels], notes) as image:
        if image.size != (width, height):
            notes.append(f"resized from {image.width}×{image.height} to {width}×{height}")
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = _planes(image)
    return DecodedImage(os.fspath(path), pixels, tuple(notes))


def decode_square(path: str | os.PathLike[str], side: int) -> DecodedImage:
    """A file as an RGB square (3, side, side): its shorter side becomes ``side``, and the middle
    of the longer one is kept, both rounded as torchvision's Resize and CenterCrop do.

    To be called inside ``quietly()``; many threads may be at once.

    Raises:
        DataError: as ``decode_image``.
    """
    notes: list[str] = []
    with _opened(path, "RGB", notes) as image:
        width, height = image.size
        shorter = min(width, height)
        size = (side * width // shorter, side * height // shorter)
        if size[0] * size[1] > MOST_PIXELS:
            raise DataError(
                f"the image is {width}×{height}: too narrow to have a shorter side of {side} "
                "pixels; crop it",
                path,
            )
        left, top = (round((extent - side) / 2) for extent in size)
        if size != image.size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        pixels = _planes(image.crop((left, top, left + side, top + side)))
    return DecodedImage(os.fspath(path), pixels, tuple(notes))


def _planes(image: Image.Image) -> np.ndarray:
    """(C, H, W) uint8."""
    pixels = np.asarray(image, np.uint8).reshape(image.height, image.width, -1)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


@contextmanager
def _opened(path: str | os.PathLike[str], mode: str, notes: list[str]) -> Iterator[Image.Image]:
    """A file's image, upright and in ``mode``; errors, those of the block included, name it."""
    with _explained(path), Image.open(path) as opened:
        _check_size(path, opened)
        opened.load()
        yield _converted(_upright(opened, notes), mode, notes)


@contextmanager
def quietly() -> Iterator[None]:
    """Pillow's warnings are not shown in the block, and its warning of too large images raises.

    Python's filters of warnings belong to the process, so a block may hold many threads, but
    threads may not each have a block of their own.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # The size is checked here, with a limit that no setting of Pillow's can lift.
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        yield


def _check_size(path: str | os.PathLike[str], image: Image.Image) -> None:
    if image.width * image.height > MOST_PIXELS:
        raise DataError(
            f"the image has {image.width}×{image.height} pixels, at most {MOST_PIXELS:,} are "
            "decoded; make it smaller",
            path,
        )


def _upright(image: Image.Image, notes: list[str]) -> Image.Image:
    try:
        return ImageOps.exif_transpose(image)
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, struct.error):
        notes.append("its EXIF data is damaged and was left out")
        return image


def _converted(image: Image.Image, mode: str, notes: list[str]) -> Image.Image:
    if image.mode in _ALPHA or "transparency" in image.info:
        notes.append("its transparency was left out")
    if image.mode.startswith("I;16") or image.mode == "I":
        # Pillow's own conversion clips at 255 instead.
        wide = np.asarray(image).astype(np.int64)
        image = Image.fromarray((np.clip(wide, 0, 65_535) >> 8).astype(np.uint8))
        notes.append("its 16 bits were brought to 8")
    return image if image.mode == mode else image.convert(mode)


@contextmanager
def _explained(path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns whatever a decoder raises on a damaged file into a DataError that names the file."""
    try:
        yield
    except DataError:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        raise DataError(f"the image is too large to be decoded: {error}", path) from error
    except FileNotFoundError as error:
        raise DataError("there is no such file", path) from error
    except IsADirectoryError as error:
        raise DataError("it is a folder; give image files", path) from error
    except UnidentifiedImageError as error:
        raise DataError(f"not an image that can be read ({_beginning(path)})", path) from error
    except MemoryError as error:
        raise DataError("the image does not fit into memory", path) from error
    except Exception as error:  # decoders raise OSError, SyntaxError, ValueError, zlib.error …
        reason = getattr(error, "strerror", None) or error or type(error).__name__
        raise DataError(f"cannot be decoded: {reason}", path) from error


def _beginning(path: str | os.PathLike[str]) -> str:
    with Path(path).open("rb") as file:
        head = file.read(8)
    return f"it begins {head.hex(' ')}" if head else "it is empty"
