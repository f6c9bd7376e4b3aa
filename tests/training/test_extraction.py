"""What layers make of images, as rows and as files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import convloom as cl
from convloom import nn
from convloom.compiler.interpret import interpret
from convloom.files import FileError
from convloom.ir import ShapeError
from convloom.training import FeatureError, LayerError
from convloom.training.graphs import prediction_graph


class Net(nn.Module):
    """Layers that fusion swallows, dropout, a block of layers, and one layer at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.relu = nn.ReLU()
        self.drop = nn.Dropout(0.5)
        self.quiet = nn.Dropout(0.5, rescale=False)
        self.fc = nn.Linear(36, 5)

    def forward(self, x: Any) -> Any:
        x = self.relu(self.quiet(self.relu(self.block(x))))
        return self.fc(nn.functional.flatten(self.drop(x)))


IMAGES = np.random.default_rng(0).integers(0, 256, (7, 1, 8, 8), dtype=np.uint8)
DATA = cl.data.from_arrays(IMAGES, np.arange(7) % 5)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made = Net().initialize(1)
    made.input_shape, made.normalization = (1, 8, 8), ((0.5,), (0.25,))
    return made


def wanted(model: nn.Module, tensor: str) -> np.ndarray:
    graph = prediction_graph(model.trace((1, 8, 8), 7))
    values = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    made = interpret(graph, {**values, "input": (IMAGES / 255 - 0.5) / 0.25})
    return made[tensor].reshape(7, -1)


@pytest.mark.parametrize("device", ["cpu", "cuda-sim", "reference"])
@pytest.mark.parametrize(
    ("layer", "tensor", "width"),
    [
        ("block.0", "block.0.out", 144),
        ("block.1", "block.1.out", 144),
        ("block", "block.2.out", 36),
        ("quiet", "quiet.out", 36),
        ("drop", "relu.out#2", 36),
        ("relu.out", "relu.out", 36),
        ("fc", "output", 5),
    ],
)
def test_rows_are_those_of_the_reference(
    model: nn.Module, layer: str, tensor: str, width: int, device: str
) -> None:
    found = cl.features(model, IMAGES, layer, device=device, batch_size=3)
    assert (found.dtype, found.shape) == (np.float32, (7, width))
    np.testing.assert_allclose(found, wanted(model, tensor), rtol=1e-4, atol=1e-5)


def test_saved_networks_have_their_layers_names(model: nn.Module, tmp_path: Path) -> None:
    model.save(tmp_path / "net")
    for layer in ("block", "quiet", "fc"):
        np.testing.assert_array_equal(
            cl.features(cl.load(tmp_path / "net"), IMAGES, layer, device="cpu"),
            cl.features(model, IMAGES, layer, device="cpu"),
        )


def test_layers_that_there_are_not(model: nn.Module) -> None:
    names = "block.0, block.1, block.2, relu, quiet, drop, flatten, fc$"
    with pytest.raises(LayerError, match=rf"no layer 'blok'; did you mean block.\d\? .* {names}"):
        cl.features(model, IMAGES, "blok")
    with pytest.raises(LayerError, match=rf"no layer 'x'; there are {names}"):
        cl.features(model, IMAGES, "x")
    with pytest.raises(LayerError, match=r"relu runs at several places.* relu.out, relu.out#2$"):
        cl.features(model, IMAGES, "relu")
    with pytest.raises(ShapeError, match=r"\(N, 1, 8, 8\)"):
        cl.features(model, IMAGES[:, :, :6], "fc", device="cpu")
    with pytest.raises(ShapeError, match=r"images \(N, C, H, W\), not \(8, 8\)"):
        cl.features(model, IMAGES[0, 0], "fc")


def read(path: Path) -> dict[str, np.ndarray]:
    if path.suffix == ".npz":
        with np.load(path) as file:
            return {name: file[name] for name in ("features", "labels")}
    return safetensors.numpy.load_file(path)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_hold_the_rows_and_labels(model: nn.Module, tmp_path: Path, suffix: str) -> None:
    path, told = tmp_path / f"a{suffix}", []
    shape = cl.write_features(
        path, model, DATA, "block", batch_size=3, device="cpu",
        progress=lambda done, total: told.append((done, total)),
    )  # fmt: skip
    found = read(path)
    assert shape == (7, 36)
    assert told == [(3, 7), (6, 7), (7, 7)]
    np.testing.assert_array_equal(found["features"], cl.features(model, IMAGES, "block"))
    np.testing.assert_array_equal(found["labels"], DATA.labels)
    first = path.read_bytes()
    cl.write_features(path, model, DATA, "block", batch_size=3, device="cpu")
    assert path.read_bytes() == first
    cl.write_features(path, model, DATA.take(0), "block", device="cpu")
    assert read(path)["features"].shape == (0, 36)


def test_rows_are_written_as_they_come(model: nn.Module, tmp_path: Path) -> None:
    """When the second batch is made, the first lies in the file that is not there yet."""
    sizes = []

    def progress(done: int, total: int) -> None:
        (partial,) = [name for name in os.listdir(tmp_path) if name.endswith(".partial")]
        sizes.append((tmp_path / partial).stat().st_size)

    many = DATA.subset(np.arange(4200) % 7)
    path = tmp_path / "a.safetensors"
    cl.write_features(path, model, many, "block.0", batch_size=1400, progress=progress)
    assert len(sizes) == 3
    assert sizes[0] > 700_000
    assert sizes[1] - sizes[0] > 700_000


def test_files_that_cannot_be(model: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(FeatureError, match=r"\.npz or \.safetensors files, not to .*a\.pkl"):
        cl.write_features(tmp_path / "a.pkl", model, DATA, "fc")
    with pytest.raises(FileError, match="does not exist"):
        cl.write_features(tmp_path / "none" / "a.npz", model, DATA, "fc", device="cpu")
    (tmp_path / "a.npz").write_text("old")
    with pytest.raises(LayerError):
        cl.write_features(tmp_path / "a.npz", model, DATA, "none", device="cpu")
    assert os.listdir(tmp_path) == ["a.npz"]
    assert (tmp_path / "a.npz").read_text() == "old"
