"""What a person sees while a network trains: a live line on a terminal, and one row an epoch.

Without a terminal only the rows are printed, so that a log holds no control codes.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from convloom.cli.terminal import Output, costs_in_words, duration, percent, rate
from convloom.training.callbacks import Callback, Moment
from convloom.training.history import EpochRow
from convloom.training.metrics import Totals
from convloom.training.protocols import StepResults

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

#: Seconds between two redraws of the live line.
_REDRAW = 0.1
#: Columns that words and figures take beside the bar, when all are shown.
_FIGURES = 70
_COLUMNS = ("epoch", "loss", "accuracy", "test loss", "test accuracy", "images/s", "time")
_WIDTHS = (7, 8, 9, 9, 13, 9, 8)
#: Columns before the names of costs.
_INDENT = 10


class LiveLine:
    """One line at the bottom of the terminal that is drawn again and again; nothing elsewhere."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._live: Live | None = None
        self._drawn = 0.0
        if output.live:
            _preload()

    def due(self) -> bool:
        """Whether it is time to draw again; always False without a terminal."""
        return self._output.live and time.monotonic() - self._drawn >= _REDRAW

    def draw(self, head: str, share: float, figures: list[str]) -> None:
        """Show a bar of which ``share`` is full, with words before and figures behind it."""
        self._drawn = time.monotonic()
        if self._live is None:
            self._live = _start_live(self._output)
        self._live.update(bar(head, share, figures, self._live.console.width), refresh=True)

    def close(self) -> None:
        """Take the line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class TrainingDisplay(Callback):
    """Watches a Trainer and shows what it does."""

    may_lag = True

    def __init__(self, output: Output) -> None:
        self._output = output
        self._line = LiveLine(output)
        self._clock = Clock()
        self._totals = Totals()
        self._headed = False

    def on_start(self, moment: Moment) -> None:
        self._clock.start(moment)
        if moment.history:  # a resumed run
            self._head()
        for row in moment.history:
            self._show(row, moment)

    def on_steps(self, moment: Moment, results: StepResults) -> None:
        self._head()
        self._totals.add_all(results)
        self._clock.count(moment, results)
        if self._line.due():
            progress, means = moment.progress, self._totals.means()
            figures = [
                f"loss {means['loss']:.4f}",
                f"accuracy {100 * means['accuracy']:4.1f} %",
            ]
            if speed := self._clock.images_per_second:
                figures.append(f"{rate(speed):>5} images/s")
                figures.append(f"{duration(self._clock.left(moment)):>6} left")
            self._line.draw(_epoch(moment), progress.batch / progress.batches, figures)

    def on_validation(self, moment: Moment, done: int, total: int) -> None:
        if self._line.due():
            self._line.draw(_epoch(moment), done / total, ["testing"])

    def on_epoch(self, moment: Moment) -> None:
        assert moment.row is not None
        self._clock.count_validation(moment)
        self._line.close()
        self._head()
        self._show(moment.row, moment)
        self._clock.start_epoch()
        self._totals = Totals()

    def on_end(self, moment: Moment) -> None:
        self._line.close()

    def _show(self, row: EpochRow, moment: Moment) -> None:
        """An epoch's line, and one more for each part whose costs have names."""
        self._output.note(_row(row, moment.progress.epochs))
        for part, costs in (("training", row.costs), ("test", row.val_costs)):
            if costs:
                self._output.note(f"{part.rjust(_INDENT)}: {costs_in_words(costs)}")

    def _head(self) -> None:
        """The table's header, once; before the first step kernels may be compiled."""
        if not self._headed:
            self._headed = True
            self._output.note(_aligned(_COLUMNS))


class Clock:
    """Speed and time left, from what this process has done so far."""

    def __init__(self) -> None:
        self._first_step = 0
        self._steps = 0
        self._seconds = 0.0
        self._validation = 0.0
        self._epoch_images = 0
        self._epoch_seconds = 0.0
        self._last = 0.0

    def start(self, moment: Moment) -> None:
        """Before the first step."""
        self._first_step = moment.progress.step

    def count(self, moment: Moment, results: StepResults) -> None:
        """After steps. Kernels are compiled before the first one: time begins after it."""
        if moment.progress.step - self._first_step > len(results):
            self._steps += len(results)
            self._seconds += moment.seconds - self._last
            self._epoch_images += results.n * len(results)
            self._epoch_seconds += moment.seconds - self._last
        self._last = moment.seconds

    def count_validation(self, moment: Moment) -> None:
        """After the validation that ends an epoch."""
        self._validation = moment.seconds - self._last
        self._last = moment.seconds

    def start_epoch(self) -> None:
        """Measure the speed of the next epoch."""
        self._epoch_images, self._epoch_seconds = 0, 0.0

    @property
    def images_per_second(self) -> float:
        """This epoch's speed, without compilation and validation; 0 while it is not known."""
        return self._epoch_images / self._epoch_seconds if self._epoch_seconds else 0.0

    def left(self, moment: Moment) -> float:
        """Seconds until the last epoch ends: steps, and validations as long as the last one."""
        progress = moment.progress
        step = self._seconds / self._steps if self._steps else 0.0
        epochs = progress.epochs - (progress.epoch - progress.first_epoch)
        return step * (progress.total_steps - progress.done_steps) + self._validation * epochs


def _epoch(moment: Moment) -> str:
    progress = moment.progress
    return f"epoch {progress.epoch - progress.first_epoch + 1}/{progress.epochs}"


def _row(row: EpochRow, epochs: int) -> str:
    return _aligned(
        (
            f"{row.epoch}/{epochs}",
            f"{row.loss:.4f}",
            percent(row.accuracy),
            "" if row.val_loss is None else f"{row.val_loss:.4f}",
            "" if row.val_accuracy is None else percent(row.val_accuracy),
            rate(row.images_per_second),
            duration(row.seconds),
        )
    )


def _aligned(cells: tuple[str, ...]) -> str:
    shown = (cell.rjust(width) for cell, width in zip(cells, _WIDTHS, strict=True))
    return "  ".join(shown).rstrip()


def _preload() -> None:
    """Load what draws the line now: it takes longer than many a training step."""
    import rich.live
    import rich.progress_bar
    import rich.table  # noqa: F401


def _start_live(output: Output) -> Live:
    from rich.console import Console
    from rich.live import Live

    console = Console(file=output.stream, highlight=False)
    live = Live(console=console, auto_refresh=False, transient=True)
    live.start()
    return live


def bar(head: str, share: float, figures: list[str], width: int) -> RenderableType:
    """Head, bar and figures in one line; the last figures go first where the terminal is narrow.

    Some columns stay free for the ``^C`` of a terminal that echoes it: a line that it broke could
    not be taken away.
    """
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    room = width - len("^C")
    length = max(4, min(24, room - _FIGURES))
    shown = list(figures)
    while shown and len(head) + 2 + length + sum(2 + len(figure) for figure in shown) > room:
        shown.pop()
    grid = Table.grid(padding=(0, 2, 0, 0))
    cells: list[RenderableType] = [
        head,
        ProgressBar(total=1.0, completed=share, width=length),
        *shown,
    ]
    for _ in cells:
        grid.add_column(no_wrap=True)
    grid.add_row(*cells)
    return grid
