"""What happened in training, as tables: a row for each epoch, and steps at some interval."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from convloom import files


@dataclass(frozen=True)
class EpochRow:
    """One epoch. ``val_loss`` and ``val_accuracy`` are None where nothing was validated.

    ``loss`` and ``accuracy`` are means over the epoch's training samples, each as it was before
    its own update. ``seconds`` is training and validation, ``images_per_second`` training alone;
    kernels are compiled before.
    ``lr`` is the rate of the epoch's last step; ``step`` counts steps from the start. ``costs``
    and ``val_costs`` are what a loss of several reports, by name; empty for others.
    """

    epoch: int
    step: int
    lr: float
    loss: float
    accuracy: float
    val_loss: float | None
    val_accuracy: float | None
    seconds: float
    images_per_second: float
    costs: Mapping[str, float] = field(default_factory=dict)
    val_costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class StepRow:
    """One logged step: means over the samples since the row before it."""

    step: int
    epoch: int
    lr: float
    loss: float
    accuracy: float
    costs: Mapping[str, float] = field(default_factory=dict)


_COSTS = ("costs", "val_costs")
#: The columns of every epoch.
_PLAIN_ROW = tuple(column.name for column in fields(EpochRow) if column.name not in _COSTS)


@dataclass
class History:
    """All rows so far. ``print(history)`` shows the epochs as a table.

    Attributes:
        epochs: a row for each finished epoch.
        steps: a row for each logged step.
    """

    epochs: list[EpochRow] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.epochs)

    def __iter__(self) -> Iterator[EpochRow]:
        return iter(self.epochs)

    def __getitem__(self, index: int) -> EpochRow:
        return self.epochs[index]

    def column(self, name: str) -> list[Any]:
        """One value of every epoch, by its name (``val_accuracy``)."""
        return [getattr(row, name) for row in self.epochs]

    def best(self) -> EpochRow | None:
        """The epoch with the best validation accuracy (loss where nothing was validated)."""
        return max(self.epochs, key=score, default=None)

    def to_csv(self, path: str | os.PathLike[str] | None = None) -> str:
        """The epochs as CSV with a header line; also written to ``path`` if one is given.

        Costs have columns of their own behind the others: ``costs.logprob``, ``val_costs.logprob``.
        """
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        rows = [_flat(row) for row in self.epochs]
        names = list(dict.fromkeys(name for row in (_PLAIN_ROW, *rows) for name in row))
        writer.writerow(names)
        for row in rows:
            values = (row.get(name) for name in names)
            writer.writerow(["" if value is None else value for value in values])
        if path is not None:
            files.write_text(path, text.getvalue())
        return text.getvalue()

    def to_json(self, path: str | os.PathLike[str] | None = None) -> dict[str, Any]:
        """Epochs and steps as plain data; also written to ``path`` if one is given."""
        data = {
            "epochs": [row_json(row) for row in self.epochs],
            "steps": [row_json(row) for row in self.steps],
        }
        if path is not None:
            files.write_text(path, json.dumps(finite(data), indent=1, allow_nan=False) + "\n")
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> History:
        """The history that ``to_json`` gave."""
        return cls(
            [EpochRow(**_numbers(row)) for row in data["epochs"]],
            [StepRow(**_numbers(row)) for row in data["steps"]],
        )

    def copy(self) -> History:
        """A history that later rows are not added to."""
        return History(list(self.epochs), list(self.steps))

    def __str__(self) -> str:
        header = tuple(name for name, _, _ in _COLUMNS)
        rows = [tuple(show(getattr(row, name)) for name, _, show in _COLUMNS) for row in self]
        titles = tuple(title for _, title, _ in _COLUMNS)
        widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(header))]
        lines = [
            "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
            for row in (titles, tuple("-" * width for width in widths), *rows)
        ]
        return "\n".join(lines)


def row_json(row: EpochRow | StepRow) -> dict[str, Any]:
    """A row as plain data, without costs where there are none."""
    return {key: value for key, value in asdict(row).items() if value or key not in _COSTS}


def score(row: EpochRow) -> tuple[float, float]:
    """What makes an epoch better than another: validation accuracy, then a lower loss.

    Without validation only the training loss counts. NaN is worse than any number.
    """
    if row.val_accuracy is None:
        return (0.0, -_or_infinite(row.loss))
    accuracy = row.val_accuracy if math.isfinite(row.val_accuracy) else -1.0
    return (accuracy, -_or_infinite(row.val_loss))


def finite(value: Any) -> Any:
    """``value`` with NaN and infinities as None, as strict JSON wants it."""
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _flat(row: EpochRow) -> dict[str, Any]:
    """An epoch's values by column."""
    costs = {f"{kind}.{name}": v for kind in _COSTS for name, v in getattr(row, kind).items()}
    return {name: getattr(row, name) for name in _PLAIN_ROW} | costs


def _or_infinite(loss: float | None) -> float:
    return math.inf if loss is None or math.isnan(loss) else loss


def _numbers(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row from JSON, where a loss that was not finite has become None."""
    optional = {"val_loss", "val_accuracy"}
    return {
        key: _numbers(value)
        if isinstance(value, Mapping)
        else math.nan
        if value is None and key not in optional
        else value
        for key, value in row.items()
    }


def _plain(value: Any) -> str:
    return str(value)


def _decimals(value: float | None) -> str:
    return "–" if value is None else f"{value:.4f}"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.2f} %"


_COLUMNS = (
    ("epoch", "epoch", _plain),
    ("step", "step", _plain),
    ("lr", "lr", "{:.3g}".format),
    ("loss", "loss", _decimals),
    ("accuracy", "accuracy", _percent),
    ("val_loss", "val loss", _decimals),
    ("val_accuracy", "val accuracy", _percent),
    ("seconds", "seconds", "{:.1f}".format),
    ("images_per_second", "images/s", "{:,.0f}".format),
)
