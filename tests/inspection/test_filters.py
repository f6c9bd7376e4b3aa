"""Filters as pictures: which weights lie where, and which layers have any."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from convloom import nn
from convloom.inspection.figures import PAPER
from convloom.inspection.filters import (
    FilterError,
    Filters,
    filters_of,
    layers_with_filters,
    plot_filters,
)

colors = pytest.importorskip("matplotlib.colors", reason="pip install 'convloom[plot]'")


def filters(count: int, channels: int, size: int = 2) -> Filters:
    """Filters whose weights are 0, 1, 2 …"""
    shape = (count, channels, size, size)
    return Filters("a", "Conv2d", 0, 1, np.arange(np.prod(shape), dtype=np.float32).reshape(shape))


def picture(figure: Any) -> np.ndarray:
    """The numbers that the figure's one image shows."""
    (axes, *_) = figure.axes
    (image,) = axes.images
    return np.ma.filled(image.get_array(), np.nan)


def patch(figure: Any, row: int, column: int, size: int, zoom: int) -> np.ndarray:
    """One filter of a drawn mosaic, each weight once."""
    cell = size * zoom + 1
    y, x = row * cell + 1, column * cell + 1
    drawn = picture(figure)[y : y + size * zoom, x : x + size * zoom]
    once = drawn[::zoom, ::zoom]
    np.testing.assert_array_equal(once.repeat(zoom, 0).repeat(zoom, 1), drawn)
    return once


def test_filters_of_one_channel_lie_in_a_grid() -> None:
    made = filters(6, 1)
    figure = plot_filters(made)
    axes, bar = figure.axes
    assert figure.get_suptitle() == "a (Conv2d): 6 filters of 1×2×2"
    assert picture(figure).shape == (2 * 11 + 1, 3 * 11 + 1)
    np.testing.assert_array_equal(patch(figure, 1, 2, 2, 5), made.weights[5, 0])
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["0", "3"]
    assert axes.images[0].get_clim() == (0, 23)
    assert bar.get_ylim() == (0, 23)


def test_filters_over_three_channels_are_coloured_together() -> None:
    made = filters(4, 3)
    figure = plot_filters(made)
    assert len(figure.axes) == 1
    assert picture(figure).shape == (2 * 11 + 1, 2 * 11 + 1, 3)
    expected = made.weights[3].transpose(1, 2, 0) / made.weights.max()
    np.testing.assert_allclose(patch(figure, 1, 1, 2, 5), expected, rtol=1e-6)
    np.testing.assert_allclose(picture(figure)[0, 0], colors.to_rgb(PAPER), rtol=1e-6)


def test_each_filter_may_have_a_range_of_its_own() -> None:
    figure = plot_filters(filters(4, 3), scale="filter")
    parts = [patch(figure, row, column, 2, 5) for row in (0, 1) for column in (0, 1)]
    for part in parts:
        assert (part.min(), part.max()) == (0, 1)
        np.testing.assert_allclose(part, parts[0], rtol=1e-6)
    assert len(plot_filters(filters(4, 1), scale="filter").axes) == 1, "no bar: numbers differ"


@pytest.mark.parametrize(("channels", "given"), [(3, "each"), (5, None)])
def test_other_channels_have_a_row_each(channels: int, given: str | None) -> None:
    made = filters(4, channels)
    figure = plot_filters(made, channels=given)
    axes = figure.axes[0]
    assert axes.get_ylabel() == "channel"
    assert axes.get_xlabel() == "filter"
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2", "3"]
    for channel, filter in ((0, 3), (channels - 1, 1)):
        got = patch(figure, channel, filter, 2, 5)
        np.testing.assert_array_equal(got, made.weights[filter, channel])


def test_single_pixels_are_a_matrix() -> None:
    figure = plot_filters(filters(4, 5, size=1))
    assert picture(figure).shape == (50, 40)
    assert picture(figure)[49, 39] == 19


def test_a_part_of_many_filters() -> None:
    figure = plot_filters(filters(100, 1), first=90, count=20)
    axes = figure.axes[0]
    assert figure.get_suptitle().endswith("\nfilters 90 to 99 of 100")
    assert [tick.get_text() for tick in axes.get_yticklabels()] == ["90", "95"]
    many = plot_filters(filters(700, 700, size=1))
    assert many.get_suptitle().endswith("\nfilters 0 to 399 of 700, channels 0 to 399 of 700")
    assert picture(many).shape == (400, 400)


def test_equal_and_wrong_weights() -> None:
    made = filters(4, 1)
    made.weights[:] = 2
    assert plot_filters(made).axes[0].images[0].get_clim() == (1.5, 2.5)
    made.weights[0, 0, 0, 0], made.weights[1, 0, 0, 0] = np.nan, np.inf
    figure = plot_filters(made)
    assert not np.isfinite(picture(figure)[1, 1])
    assert figure.axes[0].images[0].get_clim() == (1.5, 2.5)
    figure.savefig("/dev/null", format="png")
    made.weights[:] = np.nan
    plot_filters(made).savefig("/dev/null", format="png")
    in_colour = filters(4, 3)
    in_colour.weights[0, 1, 0, 0] = -np.inf
    magenta = picture(plot_filters(in_colour))[1, 1]
    assert magenta.tolist() == [1, 0, 1]
    huge = Filters(
        "a", "Conv2d", 0, 1, np.float32([-3e38, 3e38, 0, 0]).reshape(4, 1, 1, 1).repeat(2, 3)
    )
    assert np.isfinite(picture(plot_filters(huge))).all()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"channels": "grey"}, "channels='grey' must be rgb or each"),
        ({"channels": "rgb"}, "colours need filters over 3 channels, those of a are over 2"),
        ({"scale": "layer"}, "scale='layer' must be all or filter"),
        ({"first": 4}, "a has filters 0 to 3, 4 is not there"),
        ({"count": 0}, "count=0 must be 1 or more"),
    ],
)
def test_what_cannot_be_drawn(given: dict[str, Any], part: str) -> None:
    with pytest.raises(FilterError, match=part):
        plot_filters(filters(4, 2), **given)


class Shared(nn.Module):
    """A convolution that runs twice, a dropout between Flatten and Linear, a filter of a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.local = nn.LocallyConnected2d(3, 2, 3, 6)
        self.up = nn.ConvTranspose2d(2, 5, 2)
        self.drop = nn.Dropout(0.5)
        self.fc1 = nn.Linear(5 * 5 * 5, 7)
        self.fc2 = nn.Linear(7, 7)

    def forward(self, x: Any) -> Any:
        x = self.up(self.local(self.conv(self.conv(x))))
        return self.fc2(self.fc1(self.drop(nn.relu(nn.functional.flatten(x)))))


@pytest.fixture(scope="module")
def model() -> nn.Module:
    made = Shared()
    made.input_shape = (3, 6, 6)
    return made.initialize()


def test_layers_that_share_weights_have_the_same_filters() -> None:
    made = nn.Sequential(nn.Conv2d(3, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 3))
    made[2].weight = made[0].weight
    first, second = (filters_of(made, layer, input_shape=(3, 8, 8)) for layer in "02")
    assert second.layer == "2"
    np.testing.assert_array_equal(first.weights, second.weights)


def test_layers_with_filters(model: nn.Module) -> None:
    assert layers_with_filters(model) == ["conv", "local", "up", "fc1", "fc2"]


@pytest.mark.parametrize(
    ("layer", "kind", "shape"),
    [
        (None, "Conv2d", (3, 3, 3, 3)),
        ("up", "ConvTranspose2d", (2, 5, 2, 2)),
        ("fc1", "Linear", (7, 5, 5, 5)),
        ("fc2", "Linear", (7, 7, 1, 1)),
    ],
)
def test_filters_have_the_shape_of_what_they_read(
    model: nn.Module, layer: str | None, kind: str, shape: tuple[int, ...]
) -> None:
    found = filters_of(model, layer)
    assert (found.kind, found.weights.shape) == (kind, shape)
    assert found.place is None
    weight = model.get_parameter(f"{found.layer}.weight").data
    np.testing.assert_array_equal(found.weights, weight.reshape(shape))


def test_a_place_has_filters_of_its_own(model: nn.Module) -> None:
    weight = model.get_parameter("local.weight").data.reshape(4, 4, 2, 3, 3, 3)
    middle, corner = filters_of(model, "local"), filters_of(model, "local", place=(0, 3))
    assert (middle.place, middle.places) == ((2, 2), (4, 4))
    np.testing.assert_array_equal(middle.weights, weight[2, 2])
    np.testing.assert_array_equal(corner.weights, weight[0, 3])
    assert str(corner).endswith("2 filters of 3×3×3, at row 0, column 3")
    with pytest.raises(FilterError, match=r"4 rows and 4 columns .* no row 4, column 0"):
        filters_of(model, "local", place=(4, 0))
    with pytest.raises(FilterError, match="same filters at every place"):
        filters_of(model, "conv", place=(0, 0))


def test_unknown_layers(model: nn.Module) -> None:
    known = r"conv \(Conv2d\), local \(LocallyConnected2d\), up \(ConvTranspose2d\), fc1 \(Linear\)"
    with pytest.raises(
        FilterError, match=f"no layer 'pool' has filters; those that have .*{known}"
    ):
        filters_of(model, "pool")
    with pytest.raises(FilterError, match="conv has filters for 1 input, counted from 0"):
        filters_of(model, "conv", index=1)
    bare = nn.Sequential(nn.Flatten())
    with pytest.raises(FilterError, match="no layer with filters"):
        filters_of(bare, input_shape=(1, 2, 2))
    with pytest.raises(FilterError, match="input shape is not known"):
        filters_of(bare)
