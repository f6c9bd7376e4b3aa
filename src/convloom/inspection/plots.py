"""Pictures of studies, by matplotlib, which is an extra."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from convloom.inspection.figures import new_figure, save_figure
from convloom.ir import ConvloomError

if TYPE_CHECKING:
    from convloom.inspection.ladder import Ladder, Row

#: {kind of a row: its colour}.
_COLOURS = {"rung": "#4472a8", "way": "#2a9d5c", "switch": "#b0b0b0"}


def plot_ladder(ladder: Ladder, path: str | os.PathLike[str]) -> None:
    """Bars of images a second, and the roofline; the format is that of the file's suffix.

    Raises:
        ConvloomError: matplotlib is missing, nothing was timed, or the format is unknown.
    """
    if ladder.peaks is None or not any(row.kind != "switch" and row.us for row in ladder.rows):
        raise ConvloomError("nothing was timed, so there is nothing to plot")
    figure = new_figure(13, 0.32 * len(ladder.rows) + 2.2)
    bars, roof = figure.subplots(1, 2, width_ratios=(3, 2))
    _bars(bars, ladder)
    _roofline(roof, ladder)
    figure.suptitle(
        f"{ladder.network}, batch {ladder.batch_size}, {_device(ladder)}: the whole training step"
    )
    save_figure(figure, path)


def _device(ladder: Ladder) -> str:
    hardware = ladder.environment.get("hardware", {})
    return str(hardware.get("gpu") or hardware.get("cpu") or ladder.device)


def _bars(axes: Any, ladder: Ladder) -> None:
    rows = [row for row in ladder.rows if row.us is not None]
    places = range(len(rows))
    speeds = [row.images_per_second or 0.0 for row in rows]
    axes.barh(places, speeds, color=[_COLOURS[row.kind] for row in rows])
    axes.set_yticks(places, [row.name for row in rows])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlim(min(speeds) / 2, max(speeds) * 6)
    axes.set_xlabel("images a second")
    for place, row, speed in zip(places, rows, speeds, strict=True):
        axes.annotate(
            _label(row), (speed, place), (4, 0), textcoords="offset points", va="center", size=8
        )
    axes.spines[["top", "right"]].set_visible(False)


def _label(row: Row) -> str:
    speed = f"{row.images_per_second:,.0f}"
    if row.gain is None:
        return speed
    return (
        f"{speed}  (worth ×{row.gain:.2f})"
        if row.kind == "switch"
        else (f"{speed}  (×{row.gain:.2f})")
    )


def _roofline(axes: Any, ladder: Ladder) -> None:
    """FLOP a second over FLOP a byte; the roof is what the device's peaks allow."""
    assert ladder.peaks is not None
    peaks = ladder.peaks
    rows = [row for row in ladder.rows if row.kind != "switch" and row.us is not None]
    intensities = [row.flops / row.nbytes for row in rows]
    ridge = peaks.flops / peaks.bandwidth
    ends = (min(*intensities, ridge) / 4, max(*intensities, ridge) * 4)
    corners = (ends[0], ridge, ends[1])
    axes.plot(
        corners, [min(peaks.flops, x * peaks.bandwidth) / 1e9 for x in corners], color="black"
    )
    for row, intensity in zip(rows, intensities, strict=True):
        rate = row.gflops_per_second
        axes.plot(intensity, rate, "o", color=_COLOURS[row.kind])
        axes.annotate(row.name, (intensity, rate), (5, -3), textcoords="offset points", size=7)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP a byte")
    axes.set_ylabel("GFLOP a second")
    axes.set_title(
        f"roof: {peaks.bandwidth / 1e9:,.0f} GB/s, {peaks.flops / 1e12:.3g} TFLOP/s", size=9
    )
    axes.spines[["top", "right"]].set_visible(False)
