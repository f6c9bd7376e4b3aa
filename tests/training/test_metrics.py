"""Sums over batches, and the tables made of them."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from convloom.ops import TopKCorrect
from convloom.training.history import EpochRow, History, StepRow, score
from convloom.training.metrics import Totals, measured
from convloom.training.protocols import Progress, StepResult


def row(epoch: int = 1, **changes: float | None) -> EpochRow:
    values: dict[str, float | None] = {
        "lr": 0.01,
        "loss": 0.5,
        "accuracy": 0.8,
        "val_loss": 0.6,
        "val_accuracy": 0.75,
        "seconds": 2.0,
        "images_per_second": 1234.5,
    }
    return EpochRow(epoch=epoch, step=10 * epoch, **{**values, **changes})  # type: ignore[arg-type]


def test_a_short_last_batch_counts_by_its_samples() -> None:
    """Ten samples in batches of 4, 4, 2, only the last two wrong."""
    totals = Totals()
    totals.add(StepResult(loss=0.5, correct=4, correct5=4, n=4))
    totals.add(StepResult(loss=0.25, correct=4, correct5=4, n=4))
    totals.add(StepResult(loss=3.0, correct=0, correct5=1, n=2))
    assert totals.means() == {
        "loss": (0.5 * 4 + 0.25 * 4 + 3.0 * 2) / 10,
        "accuracy": 0.8,
        "top5": 0.9,
        "n": 10,
    }
    assert Totals.from_json(json.loads(json.dumps(totals.to_json()))) == totals


def test_no_samples_have_no_mean() -> None:
    means = Totals().means()
    assert means["n"] == 0
    assert math.isnan(means["loss"])
    assert math.isnan(means["accuracy"])


def test_history_as_text() -> None:
    history = History([row(1), row(2, val_loss=None, val_accuracy=None)])
    lines = str(history).splitlines()
    assert " ".join(lines[0].split()) == (
        "epoch step lr loss accuracy val loss val accuracy seconds images/s"
    )
    assert " ".join(lines[2].split()) == "1 10 0.01 0.5000 80.00 % 0.6000 75.00 % 2.0 1,234"
    assert " ".join(lines[3].split()) == "2 20 0.01 0.5000 80.00 % – – 2.0 1,234"
    assert len({len(line) for line in lines}) == 1


def test_history_as_csv(tmp_path: Path) -> None:
    history = History([row(1), row(2, val_accuracy=None)])
    text = history.to_csv(tmp_path / "history.csv")
    assert (tmp_path / "history.csv").read_text() == text
    first, second = csv.DictReader(io.StringIO(text))
    assert float(first["val_accuracy"]) == 0.75
    assert int(first["step"]) == 10
    assert second["val_accuracy"] == ""


def test_history_survives_json(tmp_path: Path) -> None:
    history = History([row(1, val_loss=1 / 3)], [StepRow(5, 1, 0.1, 0.2, 0.3)])
    data = history.to_json(tmp_path / "history.json")
    assert History.from_json(json.loads(json.dumps(data))) == history
    assert json.loads((tmp_path / "history.json").read_text()) == data


def test_json_holds_no_nan(tmp_path: Path) -> None:
    History([row(1, loss=math.nan)]).to_json(tmp_path / "h.json")
    data = json.loads((tmp_path / "h.json").read_text())
    assert data["epochs"][0]["loss"] is None
    assert math.isnan(History.from_json(data)[0].loss)


def test_the_best_epoch() -> None:
    rows = [row(1, val_accuracy=0.7), row(2, val_accuracy=0.9), row(3, val_accuracy=0.9)]
    assert History(rows).best() is rows[1]
    rows[2] = row(3, val_accuracy=0.9, val_loss=0.1)
    assert History(rows).best() is rows[2]
    assert History().best() is None


def test_without_validation_the_loss_decides_and_nan_never_wins() -> None:
    def plain(epoch: int, loss: float) -> EpochRow:
        return row(epoch, loss=loss, val_loss=None, val_accuracy=None)

    rows = [plain(1, 0.5), plain(2, 0.3), plain(3, math.nan)]
    assert History(rows).best() is rows[1]
    assert score(row(val_loss=math.nan)) < score(row(val_loss=9.0))


def test_columns_and_rows() -> None:
    history = History([row(1), row(2)])
    assert len(history) == 2
    assert history.column("epoch") == [1, 2]
    assert [each.epoch for each in history] == [1, 2]
    assert history[-1].epoch == 2


@pytest.mark.parametrize(
    ("progress", "text"),
    [
        (Progress(0, 3, 3, 0, 0, 5, 10), "step 3 (epoch 1 of 5, batch 3 of 10)"),
        (Progress(1, 0, 10, 0, 0, 5, 10), "step 10 (epoch 1 of 5, batch 10 of 10)"),
        (Progress(5, 0, 50, 0, 0, 5, 10), "step 50 (epoch 5 of 5, batch 10 of 10)"),
        (Progress(6, 2, 62, 5, 50, 5, 10), "step 62 (epoch 2 of 5, batch 2 of 10)"),
    ],
)
def test_progress_in_words(progress: Progress, text: str) -> None:
    assert progress.describe() == text


def test_probabilities_are_measured_as_logits_are() -> None:
    """Ranks are those of TopKCorrect: equal ones before the label count against it."""
    p = np.array(
        [
            [0.5, 0.3, 0.2, 0, 0, 0],
            [0.4, 0.4, 0.2, 0, 0, 0],
            [0.4, 0.4, 0.2, 0, 0, 0],
            [0.5, 0.1, 0.1, 0.1, 0.1, 0.1],
            [0.5, 0.1, 0.1, 0.1, 0.2, 0],
        ],
        np.float32,
    )
    labels = np.array([0, 1, 0, 5, 5])
    result = measured(p, labels)
    ranks = TopKCorrect().reference(p, labels)[0]
    assert (result.correct, result.correct5) == (2, 3) == tuple(ranks)
    own = [0.5, 0.4, 0.4, 0.1, np.finfo(np.float32).tiny]
    assert result.loss == pytest.approx(-np.log(own).mean())
    assert result.n == 5
