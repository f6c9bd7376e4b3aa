from __future__ import annotations

import csv
import struct
import tracemalloc
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from convloom.data import DataError, decode_image

CASES = Path(__file__).resolve().parents[3] / "shared" / "cases" / "images"
RNG = np.random.default_rng(3)
RGB = RNG.integers(0, 256, (6, 5, 3)).astype(np.uint8)


def save(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)
    return path


def test_rgb_and_gray(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(RGB))
    decoded = decode_image(path, (3, 6, 5))
    np.testing.assert_array_equal(decoded.pixels, RGB.transpose(2, 0, 1))
    assert decoded.pixels.dtype == np.uint8
    assert decoded.pixels.flags.c_contiguous
    assert decoded.notes == ()
    assert decoded.path == str(path)
    gray = decode_image(path, (1, 6, 5))
    np.testing.assert_array_equal(gray.pixels[0], np.asarray(Image.fromarray(RGB).convert("L")))


def test_gray_file_for_a_color_network(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(RGB[:, :, 0]))
    pixels = decode_image(path, (3, 6, 5)).pixels
    for plane in pixels:
        np.testing.assert_array_equal(plane, RGB[:, :, 0])


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "HSV"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_mode_is_as_pillow_converts_it(tmp_path: Path, mode: str, channels: int) -> None:
    suffix = ".tif" if mode in ("CMYK", "YCbCr", "HSV") else ".png"
    if mode == "HSV":
        suffix = ".webp"
    image = Image.fromarray(RGB).convert(mode)
    if suffix == ".webp":
        image = image.convert("RGB")
    path = save(tmp_path / f"a{suffix}", image)
    with Image.open(path) as reopened:
        expected = np.asarray(reopened.convert("RGB" if channels == 3 else "L"))
    decoded = decode_image(path, (channels, 6, 5))
    np.testing.assert_array_equal(
        decoded.pixels, expected.reshape(6, 5, channels).transpose(2, 0, 1)
    )
    assert any("transparency" in note for note in decoded.notes) == (mode in ("LA", "RGBA"))


def test_16_bits_keep_their_high_byte(tmp_path: Path) -> None:
    wide = np.array([[0, 255, 256], [4660, 65_535, 32_768]], np.uint16)
    decoded = decode_image(save(tmp_path / "a.png", Image.fromarray(wide)), (1, 2, 3))
    np.testing.assert_array_equal(decoded.pixels[0], wide >> 8)
    assert decoded.notes == ("its 16 bits were brought to 8",)


def test_another_size_is_resampled_and_noted(tmp_path: Path) -> None:
    path = save(tmp_path / "a.png", Image.fromarray(RGB))
    decoded = decode_image(path, (3, 3, 10))
    expected = Image.fromarray(RGB).resize((10, 3), Image.Resampling.BILINEAR)
    np.testing.assert_array_equal(decoded.pixels, np.asarray(expected).transpose(2, 0, 1))
    assert decoded.notes == ("resized from 5×6 to 10×3",)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_applied(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = save(tmp_path / "a.png", Image.fromarray(RGB), exif=exif)
    with Image.open(path) as image:
        expected = np.asarray(ImageOps.exif_transpose(image))
    decoded = decode_image(path, (3, *expected.shape[:2]))
    np.testing.assert_array_equal(decoded.pixels, expected.transpose(2, 0, 1))
    if orientation == 6:  # the camera was turned: the first column is the top row, from its end
        np.testing.assert_array_equal(expected[0], RGB[::-1, 0])


def bomb(width: int, height: int) -> bytes:
    """A PNG file that promises more pixels than it has."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        body = kind + content
        return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = chunk(b"IDAT", zlib.compress(bytes(100_000)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + rows + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(10_000, 9_000), (60_000, 60_000), (2**31 - 1, 2**31 - 1)])
def test_bombs_take_no_memory(tmp_path: Path, size: tuple[int, int]) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(bomb(*size))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"bomb\.png: "):
        decode_image(path, (1, 28, 28))
    assert tracemalloc.get_traced_memory()[1] < 4e6
    tracemalloc.stop()


def test_refusals(tmp_path: Path) -> None:
    whole = save(tmp_path / "a.jpg", Image.fromarray(RGB)).read_bytes()
    for name, content, words in (
        ("half.jpg", whole[: len(whole) - 40], "cannot be decoded"),
        ("text.jpg", b"hello there", "not an image that can be read .it begins 68 65 6c 6c"),
        ("empty.png", b"", "it is empty"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=words) as caught:
            decode_image(tmp_path / name, (3, 6, 5))
        assert caught.value.path == str(tmp_path / name)
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match=r"nothing\.png: there is no such file"):
        decode_image(tmp_path / "nothing.png", (3, 6, 5))
    with pytest.raises(DataError, match="it is a folder"):
        decode_image(tmp_path, (3, 6, 5))
    with pytest.raises(DataError, match="takes images of 2 channels"):
        decode_image(tmp_path / "a.jpg", (2, 6, 5))


def as_pillow_reads(path: Path) -> tuple[np.ndarray, str] | None:
    """Pixels (H, W, 3) and the file's mode as Pillow's own calls give them; None if it refuses."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            with Image.open(path) as image:
                image.load()
                mode = image.mode
                try:
                    upright = ImageOps.exif_transpose(image)
                except Exception:  # damaged EXIF data is no reason to refuse the image
                    upright = image
                return np.asarray(upright.convert("RGB")), mode
        except Exception:
            return None


@pytest.mark.skipif(not CASES.is_dir(), reason="there is no ../shared/cases/images here")
def test_difficult_images() -> None:
    """Each is decoded as Pillow decodes it, or refused by its name; nothing else is raised."""
    rows = list(csv.DictReader((CASES / "manifest.csv").open(encoding="utf-8")))
    paths = [CASES / row["set"] / row["file"] for row in rows]
    assert paths
    refused = 0
    for path in paths:
        expected = as_pillow_reads(path)
        if expected is None:
            refused += 1
            with pytest.raises(DataError) as caught:
                decode_image(path, (3, 28, 28))
            assert str(path) in str(caught.value)
            assert "\n" not in str(caught.value)
            continue
        pixels, mode = expected
        decoded = decode_image(path, (3, *pixels.shape[:2]))
        if not mode.startswith("I"):  # convloom keeps the high byte of 16 bits, Pillow clips
            np.testing.assert_array_equal(decoded.pixels, pixels.transpose(2, 0, 1), str(path))
    assert refused < len(paths) / 4
