"""Images with the classes that a network holds likeliest."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.inspection.figures import BLUE, ORANGE
from convloom.inspection.predictions import PredictionError, pick, plot_predictions, shortened

colors = pytest.importorskip("matplotlib.colors", reason="pip install 'convloom[plot]'")

CLASSES = ("cat", "dog", "$x$", "owl")


def rows(*likeliest: int) -> np.ndarray:
    """Probabilities of 4 classes: 0.7 of one, 0.1 of the others."""
    return np.where(np.eye(4, dtype=bool)[list(likeliest)], 0.7, 0.1).astype(np.float32)


def test_two_parts_for_each_image() -> None:
    images = np.arange(5 * 3 * 4 * 4).reshape(5, 3, 4, 4).astype(np.uint8)
    labels = [0, 1, 2, 3, 3]
    figure = plot_predictions(images, labels, rows(0, 1, 2, 3, 2), CLASSES, top=3)
    assert len(figure.axes) == 2 * 5
    pictures = [axes for axes in figure.axes if axes.images]
    bars = [axes for axes in figure.axes if axes.patches]
    assert [axes.get_title() for axes in pictures] == ["cat", "dog", "$x$", "owl", "owl"]
    np.testing.assert_allclose(
        pictures[4].images[0].get_array(), images[4].transpose(1, 2, 0) / 255, rtol=1e-6
    )
    last = bars[4]
    assert [text.get_text() for text in last.texts] == ["$x$", "cat", "dog"]
    np.testing.assert_allclose([bar.get_width() for bar in last.patches], [0.7, 0.1, 0.1])
    assert last.get_xlim() == (0, 1)
    figure.savefig("/dev/null", format="png")


def test_the_label_s_own_bar_is_orange() -> None:
    images = np.zeros((2, 1, 4, 4), np.uint8)
    figure = plot_predictions(images, [1, 3], rows(2, 0))
    bars = [axes for axes in figure.axes if axes.patches]
    for axes, label in zip(bars, "13", strict=True):
        names = [text.get_text() for text in axes.texts]
        assert len(names) == 4, "no more bars than classes"
        assert [colors.to_hex(bar.get_facecolor()) for bar in axes.patches] == [
            ORANGE if name == label else BLUE for name in names
        ]


def test_numbers_that_are_no_pixels_are_scaled_image_by_image() -> None:
    images = np.array([[[[-1.0, 3.0]]], [[[10.0, 20.0]]]], np.float32)
    figure = plot_predictions(images, [0, 0], rows(0, 0))
    shown = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    np.testing.assert_array_equal(np.array(shown), [[[0, 1]], [[0, 1]]])


def test_long_names_are_shortened() -> None:
    assert shortened("a" * 28) == "a" * 28
    assert shortened("a" * 29) == "a" * 27 + "…"


def test_images_are_drawn_by_the_seed() -> None:
    labels = np.arange(1000) % 4
    every = rows(*labels.tolist())
    first, again, other = (pick(labels, every.__getitem__, 9, seed=s) for s in (1, 1, 2))
    assert len(set(first.indices.tolist())) == 9
    np.testing.assert_array_equal(first.indices, again.indices)
    assert first.indices.tolist() != other.indices.tolist()
    np.testing.assert_array_equal(first.probabilities, every[first.indices])
    assert len(pick(labels[:5], every.__getitem__, 9).indices) == 5


def test_only_errors() -> None:
    labels = np.arange(1000) % 4
    taken_for = labels.copy()
    taken_for[[3, 500, 999]] = (labels[[3, 500, 999]] + 1) % 4
    found = pick(labels, rows(*taken_for.tolist()).__getitem__, 2, only_errors=True)
    assert len(found.indices) == 2
    assert set(found.indices.tolist()) < {3, 500, 999}
    found = pick(labels, rows(*taken_for.tolist()).__getitem__, 9, only_errors=True)
    assert set(found.indices.tolist()) == {3, 500, 999}
    assert (found.probabilities.argmax(axis=1) == taken_for[found.indices]).all()


def test_nothing_to_show() -> None:
    labels = np.arange(8) % 4
    with pytest.raises(PredictionError, match=r"of 8 images none .* taken for their own class"):
        pick(labels, rows(*labels.tolist()).__getitem__, 2, only_errors=True)
    with pytest.raises(PredictionError, match=r"of 0 images none .* there are none"):
        pick(labels[:0], rows(0).__getitem__, 2)
    with pytest.raises(PredictionError, match="count=0 must be 1 or more"):
        pick(labels, rows(0).__getitem__, 0)
    with pytest.raises(PredictionError, match=r"1 or 3 channels.* not those of shape \(1, 2, 4, 4"):
        plot_predictions(np.zeros((1, 2, 4, 4)), [0], rows(0))
    with pytest.raises(PredictionError, match="2 images came with 1 labels"):
        plot_predictions(np.zeros((2, 1, 4, 4)), [0], rows(0, 0))
    with pytest.raises(PredictionError, match="for 4 classes, 1 of which have names"):
        plot_predictions(np.zeros((1, 1, 4, 4)), [0], rows(0), ["cat"])
