"""A finished run and some pictures, for the tests of all commands."""

from __future__ import annotations

from pathlib import Path

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
