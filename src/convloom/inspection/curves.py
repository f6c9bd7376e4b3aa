"""What happened in training, as curves: each cost over epochs or steps, for several runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from convloom.inspection.figures import new_figure
from convloom.ir import ConvloomError
from convloom.training.history import EpochRow, History, StepRow

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: How far a run has come is counted in these.
UNITS = ("epochs", "steps")
_TEST = "val_"
#: Columns that say where a row stands, and those of costs by name; all others are curves.
_PLACES, _NAMED = ("epoch", "step"), ("costs", "val_costs")
#: What logged steps have too.
_LOGGED = tuple(field.name for field in fields(StepRow))
#: All that every epoch has.
_COLUMNS = tuple(field.name for field in fields(EpochRow))
#: Up to how many points each is marked, and pictures that stand side by side.
_MARKED, _ABREAST = 40, 3


class CurveError(ConvloomError, ValueError):
    """No history, or no such cost; the message names what there is."""


@dataclass(frozen=True)
class Curve:
    """One cost of one run: ``(place, value)`` of its training and of its test set.

    Either may be empty. Places are epochs or steps.
    """

    training: tuple[tuple[float, float], ...]
    test: tuple[tuple[float, float], ...]


def known_costs(*histories: History) -> tuple[str, ...]:
    """Names of all that histories have curves of; those with a test curve first."""
    columns = [name for name in _COLUMNS if name not in (*_PLACES, *_NAMED)]
    own = [name for name in columns if not name.startswith(_TEST)]
    own.sort(key=lambda name: _TEST + name not in columns)
    rows: list[EpochRow | StepRow] = []
    for history in histories:
        rows += [*history.epochs, *history.steps]
    named = dict.fromkeys(name for row in rows for name in row.costs)
    tested = sum(_TEST + name in columns for name in own)
    return (*own[:tested], *named, *own[tested:])


def usual_costs(*histories: History) -> tuple[str, ...]:
    """The costs that the test set has too."""
    known = known_costs(*histories)
    return tuple(name for name in known if _TEST + name in _COLUMNS or name not in _COLUMNS)


def curve(history: History, cost: str, by: str = "epochs") -> Curve:
    """One cost of a history.

    Over steps the training curve has a point for each logged step, where these are more than the
    epochs.

    Raises:
        CurveError: no such cost or by.
    """
    _check_known((cost,), known_costs(history))
    if by not in UNITS:
        raise CurveError(f"by={by!r} must be {' or '.join(UNITS)}")
    place = by.removesuffix("s")
    rows: Sequence[EpochRow | StepRow] = history.epochs
    logged = cost in _LOGGED or cost not in _COLUMNS
    if by == "steps" and logged and len(history.steps) > len(rows):
        rows = history.steps
    return Curve(_points(rows, place, cost, ""), _points(history.epochs, place, cost, _TEST))


def plot_costs(
    histories: Mapping[str, History], costs: Sequence[str] = (), *, by: str = "epochs"
) -> Figure:
    """A figure with a picture for each cost, and in each the curves of all runs.

    Args:
        histories: {what to call a run: its history}.
        costs: their names (``loss``, ``lr``); by default those that the test set has too.
        by: ``epochs`` or ``steps``.

    Raises:
        CurveError: no such cost, no run, or a run whose history is empty.
    """
    if not histories:
        raise CurveError("there is no run to draw curves of")
    for name, history in histories.items():
        if not history.epochs and not (by == "steps" and history.steps):
            hint = "; by='steps' shows the steps that it logged" if history.steps else ""
            raise CurveError(f"{name} has finished no epoch yet{hint}")
    names = tuple(dict.fromkeys(costs)) or usual_costs(*histories.values())
    _check_known(names, known_costs(*histories.values()))
    columns = min(len(names), _ABREAST)
    rows = -(-len(names) // columns)
    figure = new_figure(max(6.0, 5.0 * columns), 3.4 * rows + 0.8)
    colours = _colours(len(histories))
    for place, cost in enumerate(names, start=1):
        axes = figure.add_subplot(rows, columns, place)
        _prepare(axes, cost, by.removesuffix("s"))
        for colour, history in zip(colours, histories.values(), strict=True):
            if cost in known_costs(history):
                _draw(axes, curve(history, cost, by), colour)
    _explain(figure, list(histories), colours)
    return figure


def _prepare(axes: Any, title: str, below: str) -> None:
    axes.set_title(title, size=11, parse_math=False)
    axes.set_xlabel(below)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)


def _check_known(costs: Sequence[str], known: Sequence[str]) -> None:
    for cost in costs:
        if cost not in known:
            raise CurveError(f"a history has no {cost!r}; it has {', '.join(known)}")


def _points(
    rows: Sequence[EpochRow | StepRow], place: str, cost: str, part: str
) -> tuple[tuple[float, float], ...]:
    """Of the training set, or with the prefix ``part`` of another."""
    values = []
    for row in rows:
        value = getattr(row, part + cost, None)
        if cost not in _COLUMNS:
            value = getattr(row, f"{part}costs").get(cost)
        values.append((getattr(row, place), math.nan if value is None else value))
    return tuple(values)


def _draw(axes: Any, found: Curve, colour: Any) -> None:
    for points, style in ((found.training, "--"), (found.test, "-")):
        if any(math.isfinite(value) for _, value in points):
            marker = "." if len(points) <= _MARKED else ""
            at, values = zip(*points, strict=True)
            axes.plot(at, values, style, marker=marker, color=colour, linewidth=1.4)


def _colours(count: int) -> list[Any]:
    """A colour for each run: those of matplotlib's cycle, or more from a map where these end."""
    from matplotlib import colormaps

    if count <= 10:
        return [colormaps["tab10"](i) for i in range(count)]
    return [colormaps["turbo"](0.05 + 0.9 * i / (count - 1)) for i in range(count)]


def _explain(figure: Any, names: Sequence[str], colours: Sequence[Any]) -> None:
    """A legend below: which line is which part, and which colour which run."""
    from matplotlib.lines import Line2D

    plain = "black" if len(names) > 1 else colours[0]
    lines = [Line2D([], [], color=plain, linestyle=style) for style in ("--", "-")]
    texts = ["training", "test"]
    if len(names) > 1:
        lines += [Line2D([], [], color=colour, linewidth=3) for colour in colours]
        texts += names
    else:
        figure.suptitle(names[0], size=11, parse_math=False)
    widest = max(map(len, texts))
    columns = max(1, min(len(texts), int(figure.get_figwidth() * 12 / (widest + 8))))
    legend = figure.legend(lines, texts, loc="outside lower center", ncols=columns, fontsize=9)
    for text in legend.get_texts():
        text.set_parse_math(False)
