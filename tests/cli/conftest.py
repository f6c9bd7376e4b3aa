"""A finished run and some pictures, for the tests of all commands."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import convloom as cl
from tests.cli.running import invoke


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run: one epoch of lenet on digits."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    result = invoke("train", "lenet", "--data", "digits", "--epochs", "1", "--out", folder)
    assert result.exit_code == 0, result.output
    return folder


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three test images as PNG files."""
    folder = tmp_path_factory.mktemp("pictures")
    _, test = cl.data.load("digits")
    paths = []
    for i in range(3):
        paths.append(folder / f"{i}.png")
        Image.fromarray(test.images[i, 0]).save(paths[-1])
    return paths


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three classes of JPEGs, each of a colour of its own, of different sizes."""
    root, draw = tmp_path_factory.mktemp("images"), np.random.default_rng(0)
    for part, count in (("train", 6), ("val", 3)):
        for channel, name in enumerate(("red", "green", "blue")):
            for number in range(count):
                path = root / part / name / f"{number}.JPEG"
                path.parent.mkdir(parents=True, exist_ok=True)
                size = (int(draw.integers(12, 20)), int(draw.integers(12, 20)), 3)
                pixels = draw.integers(0, 120, size).astype(np.uint8)
                pixels[..., channel] += 100
                Image.fromarray(pixels).save(path, "JPEG")
    return root
