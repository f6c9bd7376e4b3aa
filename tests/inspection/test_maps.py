"""Feature maps of the layers of a network that predicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.compiler.interpret import interpret
from convloom.inspection.maps import MapError, feature_maps, plot_maps
from convloom.ir import ShapeError
from convloom.training.graphs import prediction_graph

pytest.importorskip("matplotlib", reason="pip install 'convloom[plot]'")


class Twice(nn.Module):
    """A convolution that fusion swallows, with its ReLU and pool; one ReLU at two places."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)
        self.norm = nn.BatchNorm2d(4)
        self.fc = nn.Linear(36, 5)

    def forward(self, x: Any) -> Any:
        x = self.norm(self.pool(self.relu(self.conv(x))))
        return self.fc(nn.functional.flatten(self.relu(x)))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made = Twice().initialize(1)
    made.normalization = ((0.5,), (0.25,))
    return made


IMAGES = np.random.default_rng(0).integers(0, 256, (2, 1, 8, 8), dtype=np.uint8)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize(
    ("layer", "tensor"),
    [
        ("conv", "conv.out"),
        ("relu.out", "relu.out"),
        ("pool", "pool.out"),
        ("norm", "norm.out"),
        ("relu.out#2", "relu.out#2"),
        ("fc", "output"),
    ],
)
def test_maps_are_those_of_the_reference(
    model: nn.Module, layer: str, tensor: str, device: str
) -> None:
    found = feature_maps(model, IMAGES, layer, device=device)
    graph = prediction_graph(model.trace((1, 8, 8), 2))
    x = (IMAGES / 255 - 0.5) / 0.25
    values = {name: value.astype(np.float64) for name, value in model.state_dict().items()}
    expected = interpret(graph, {**values, "input": x})[tensor]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_maps_and_gradients_of_a_training_step(model: nn.Module) -> None:
    """What docs/learn.md shows: a training step's tensors are read, then drawn."""
    names = ("pool.out", "relu.out.grad")
    loss, rule = nn.CrossEntropyLoss(), cl.optim.SGD(lr=0.1)
    step = cl.compile(
        model, loss, rule, batch_size=2, input_shape=(1, 8, 8), device="cpu", watch=names
    )
    step((IMAGES / 255).astype(np.float32), np.array([1, 3]))
    for name, side in zip(names, (3, 6), strict=True):
        maps = step.read(name)
        assert maps.shape == (2, 4, side, side)
        shown = plot_maps(maps[1], name).axes[0].images[0].get_array()
        assert np.float32(maps[1, 0, 0, 0]) in shown


def test_unknown_layers(model: nn.Module) -> None:
    with pytest.raises(MapError, match=r"no layer 'cnov'; did you mean conv\? .* pool, norm, .*fc"):
        feature_maps(model, IMAGES, "cnov", device="cpu")
    with pytest.raises(MapError, match=r"relu runs at several places.* relu.out, relu.out#2$"):
        feature_maps(model, IMAGES, "relu", device="cpu")
    with pytest.raises(ShapeError):
        feature_maps(model, IMAGES[:, :, :5], "conv", device="cpu")


def test_maps_of_both_signs_are_red_and_blue() -> None:
    maps = np.arange(-8, 8).reshape(4, 2, 2)
    figure = plot_maps(maps, "a")
    axes, _ = figure.axes
    assert figure.get_suptitle() == "a"
    (image,) = axes.images
    assert image.get_clim() == (-8, 8)
    assert image.get_cmap().name == "RdBu_r"
    assert image.get_array()[1, 1] == -8
    assert image.get_array()[-2, -2] == 7
    grey = plot_maps(maps + 8.0).axes[0].images[0]
    assert (grey.get_clim(), grey.get_cmap().name) == ((0, 15), "gray")


def test_each_map_may_have_a_range_of_its_own() -> None:
    figure = plot_maps(np.arange(-8, 8).reshape(4, 2, 2), scale="map")
    (axes,) = figure.axes
    values = axes.images[0].get_array()
    assert values[1, 1] == values[1, 12] == 0
    assert values[-2, -2] == 1


def test_vectors_and_many_maps() -> None:
    assert plot_maps(np.arange(6)).axes[0].images[0].get_array().shape == (20, 30)
    figure = plot_maps(np.zeros((300, 2, 2)), "a")
    assert figure.get_suptitle() == "a; maps 0 to 255 of 300"


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(MapError, match=r"not shape \(2, 3, 4, 5\)"):
        plot_maps(np.zeros((2, 3, 4, 5)))
    with pytest.raises(MapError, match="scale='one' must be all or map"):
        plot_maps(np.zeros((2, 3, 4)), scale="one")
