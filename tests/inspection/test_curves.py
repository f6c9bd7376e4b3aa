"""Training curves: which points are drawn, for how many runs."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from convloom.inspection.curves import CurveError, curve, known_costs, plot_costs
from convloom.training import History
from convloom.training.history import EpochRow, StepRow

pytest.importorskip("matplotlib", reason="pip install 'convloom[plot]'")


def history(epochs: int, *, tested: bool = True, logged: int = 0) -> History:
    """Losses 1, 1/2, 1/3 …, the test set's twice as high."""
    rows = [
        EpochRow(
            epoch=n,
            step=10 * n,
            lr=0.1,
            loss=1 / n,
            accuracy=1 - 1 / n,
            val_loss=2 / n if tested else None,
            val_accuracy=0.5 if tested else None,
            seconds=1.0,
            images_per_second=100.0,
        )
        for n in range(1, epochs + 1)
    ]
    steps = [StepRow(n, 1, 0.1, 1 / n, 0.5) for n in range(1, logged + 1)]
    return History(rows, steps)


def test_costs_are_those_of_the_history() -> None:
    assert known_costs()[:2] == ("loss", "accuracy")
    assert {"lr", "seconds", "images_per_second"} == set(known_costs()[2:])
    found = curve(history(3), "loss")
    assert found.training == ((1, 1), (2, 1 / 2), (3, 1 / 3))
    assert found.test == ((1, 2), (2, 1), (3, 2 / 3))


def test_steps_take_the_step_log_where_it_says_more() -> None:
    found = curve(history(2, logged=3), "loss", "steps")
    assert found.training == ((1, 1), (2, 1 / 2), (3, 1 / 3))
    assert found.test == ((10, 2), (20, 1))
    assert curve(history(2, logged=1), "loss", "steps").training == ((10, 1), (20, 1 / 2))
    assert curve(history(2, logged=3), "seconds", "steps").training == ((10, 1), (20, 1))


def test_costs_by_name_are_curves_too() -> None:
    named = history(2, logged=3)
    for rows in (named.epochs, named.steps):
        rows[:] = [replace(row, costs={"logprob": 3.0 + i}) for i, row in enumerate(rows)]
    named.epochs[1] = replace(named.epochs[1], val_costs={"logprob": 7.0})
    assert known_costs(named)[:3] == ("loss", "accuracy", "logprob")
    found = curve(named, "logprob")
    assert found.training == ((1, 3), (2, 4))
    assert found.test[1] == (2, 7)
    assert math.isnan(found.test[0][1])
    assert curve(named, "logprob", "steps").training == ((1, 3), (2, 4), (3, 5))
    figure = plot_costs({"a": named, "b": history(2)})
    assert [axes.get_title() for axes in figure.axes] == ["loss", "accuracy", "logprob"]
    with pytest.raises(CurveError, match="a history has no 'probs'; it has loss, accuracy, logpr"):
        curve(named, "probs")


def lines(axes: Any) -> list[tuple[str, list[float]]]:
    return [(line.get_linestyle(), list(line.get_ydata())) for line in axes.lines]


def test_a_picture_for_each_cost() -> None:
    figure = plot_costs({"runs/a": history(2)})
    loss, accuracy = figure.axes
    assert (loss.get_title(), accuracy.get_title()) == ("loss", "accuracy")
    assert loss.get_xlabel() == "epoch"
    assert lines(loss) == [("--", [1, 1 / 2]), ("-", [2, 1])]
    assert figure.get_suptitle() == "runs/a"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["training", "test"]


def test_runs_are_overlaid_in_colours_of_their_own() -> None:
    given = {"_a": history(2), "b$x$": history(4), "c": history(3, tested=False)}
    figure = plot_costs(given, ["loss", "loss"], by="steps")
    (axes,) = figure.axes
    assert [style for style, _ in lines(axes)] == ["--", "-", "--", "-", "--"]
    assert list(axes.lines[2].get_xdata()) == [10, 20, 30, 40]
    assert len({line.get_color() for line in axes.lines}) == 3
    assert axes.lines[0].get_color() == axes.lines[1].get_color()
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == ["training", "test", "_a", "b$x$", "c"]
    figure.savefig("/dev/null", format="svg")


def test_many_costs_have_rows_of_three() -> None:
    figure = plot_costs({"a": history(2)}, known_costs())
    places = [axes.get_subplotspec().get_topmost_subplotspec() for axes in figure.axes]
    assert [axes.get_title() for axes in figure.axes] == list(known_costs())
    assert [(spec.rowspan.start, spec.colspan.start) for spec in places] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
    ]


def test_many_runs_have_many_colours() -> None:
    (axes,) = plot_costs({str(n): history(2, tested=False) for n in range(14)}, ["lr"]).axes
    assert len({line.get_color() for line in axes.lines}) == 14


def test_a_loss_that_was_not_finite_is_a_gap() -> None:
    broken = history(3)
    broken.epochs[1] = EpochRow(**{**vars(broken.epochs[1]), "loss": math.nan})
    (axes,) = plot_costs({"a": broken}, ["loss"]).axes
    assert [math.isfinite(value) for value in axes.lines[0].get_ydata()] == [True, False, True]


def test_what_cannot_be_drawn() -> None:
    with pytest.raises(CurveError, match="no run to draw"):
        plot_costs({})
    with pytest.raises(CurveError, match="a has finished no epoch yet; by='steps' shows"):
        plot_costs({"a": history(0, logged=3)})
    assert len(plot_costs({"a": history(0, logged=3)}, by="steps").axes) == 2
    with pytest.raises(CurveError, match="no 'los'; it has loss, accuracy"):
        plot_costs({"a": history(1)}, ["los"])
    with pytest.raises(CurveError, match="by='days' must be epochs or steps"):
        plot_costs({"a": history(1)}, by="days")
