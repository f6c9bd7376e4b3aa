"""What is said of a run before and after it, in words and as JSON."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from convloom.backends import resolve_device
from convloom.cli.terminal import costs_in_words, dims, duration, percent
from convloom.data import ArrayDataset
from convloom.nn import Module
from convloom.ops.precision import FP32
from convloom.training import History, Trainer, TrainingInterrupted
from convloom.training.checkpoint import BEST, LAST
from convloom.training.config import CONFIG_NAME, RunConfig
from convloom.training.history import EpochRow, row_json


def headline(
    config: RunConfig, model: Module, train: ArrayDataset, test: ArrayDataset
) -> list[str]:
    """What will be trained, on what, and how."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    fed: list[str] = []
    learning = f"{config.optimizer}, lr {config.lr:g}, schedule {config.schedule}"
    if config.params is not None:
        learning = f"rates of {config.params}"
        mean = "their mean" if config.scalar_mean else "the mean image"
        order = "in a new order every epoch" if config.shuffle else "in the order of batch files"
        several = f", {config.wupdate_freq} an update" if config.wupdate_freq > 1 else ""
        fed = [
            f"fed as in 2012: pixels 0 to 255 less {mean}, minibatches {order}{several}",
            *_frozen(model),
        ]
    return [
        f"{config.network}: {parameters:,} parameters",
        f"{train.name}: {len(train):,} training and {len(test):,} test images of "
        f"{dims(train.shape)}, {len(train.classes)} classes",
        f"device {device(config.device)}, batch size {config.batch_size}, {learning}, "
        f"seed {config.seed}"
        + (f", precision {config.precision}" if config.precision != FP32 else ""),
        *fed,
    ]


def _frozen(model: Module) -> list[str]:
    """What a parameter file freezes: those that were saved at the end of a run freeze much."""
    from convloom import convnet

    assert isinstance(model, convnet.Net)
    parts = [
        f"{part} of {listed(layers)} by {key}=0"
        for (key, layers), part in zip(
            convnet.frozen(model.rules).items(), ("weights", "biases"), strict=True
        )
        if layers
    ]
    return [f"frozen: {', '.join(parts)}"] if parts else []


def listed(names: Sequence[str], most: int = 4) -> str:
    """The first few names, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def device(asked: str) -> str:
    """``cpu (2 threads)``: what ``auto`` takes, or what was asked for."""
    name = resolve_device(asked)
    if name != "cpu":
        return name
    from convloom.backends.cpu.pool import default_threads

    threads = default_threads()
    return f"cpu ({threads} thread{'s' if threads > 1 else ''})"


def summary(folder: Path, history: History) -> str:
    """How good the network is, and where it was saved."""
    last, best = history[-1], history.best()
    lines = [
        f"test accuracy {_share(last.val_accuracy)}, loss {last.val_loss:.4f}",
        f"saved in {folder / LAST}",
    ]
    if last.val_costs:
        lines.insert(1, costs_in_words(last.val_costs))
    if best is not None and best.epoch != last.epoch:
        lines.append(
            f"the best epoch on the test set was {best.epoch}, with {_share(best.val_accuracy)}: "
            f"{folder / BEST}"
        )
    return "\n".join(lines)


def times(began: float, first_step: float | None) -> dict[str, float | None]:
    """Seconds since the command began: until its first step was done, and in all."""
    return {
        "seconds_to_first_step": None if first_step is None else first_step - began,
        "seconds": time.perf_counter() - began,
    }


def times_in_words(times: dict[str, float | None]) -> str:
    """``first step after 0.41 s, 3.2 s in all``."""
    first, total = times["seconds_to_first_step"], times["seconds"]
    in_all = f"{duration(total or 0.0)} in all"
    return in_all if first is None else f"first step after {duration(first)}, {in_all}"


def nothing_left(config: RunConfig) -> str:
    """Why resuming a finished run did nothing, and how to go on with it."""
    settings = Path(config.out or "") / CONFIG_NAME
    return (
        f"nothing was left to do: all epochs are done, {config.epochs}; for more, write a larger "
        f"epochs = into {settings} and resume"
    )


def next_steps(config: RunConfig) -> str:
    """What to do with a trained network."""
    folder, data = shlex.quote(config.out or ""), shlex.quote(config.data)
    return f"\nnext:\n  convloom eval {folder} --data {data}\n  convloom predict {folder} IMAGE.png"


def farewell(folder: Path, stopped: KeyboardInterrupt) -> str:
    """Why a run ended early, and how to go on with it."""
    if isinstance(stopped, TrainingInterrupted):
        return str(stopped)
    if (folder / LAST).is_file():
        command = f"convloom resume {shlex.quote(str(folder))}"
        return f"stopped at once; go on from the last checkpoint with {command}"
    return "stopped at once, before the first checkpoint; nothing was saved"


def document(
    config: RunConfig, trainer: Trainer, test_images: int, *, finished: bool
) -> dict[str, Any]:
    """The run as plain data. ``test`` is the last epoch's, ``best`` the best one's on the test set.

    Files that do not exist are null; ``resume`` is the command to go on with, null when finished.
    """
    history, folder = trainer.history, Path(config.out or "")
    last = _existing(folder / LAST)
    return {
        "status": "finished" if finished else "interrupted",
        "run": str(folder) if last else None,
        "model": last,
        "best_model": _existing(folder / BEST),
        "network": config.network,
        "data": config.data,
        "device": resolve_device(config.device),
        "steps": trainer.steps_done,
        "test": _figures(history[-1] if history else None, test_images),
        "best": _figures(history.best(), test_images),
        "epochs": [row_json(row) for row in history],
        "settings": config.to_json(),
        "resume": f"convloom resume {shlex.quote(str(folder))}" if last and not finished else None,
    }


def _figures(row: EpochRow | None, images: int) -> dict[str, Any] | None:
    if row is None:
        return None
    figures = {"epoch": row.epoch, "loss": row.val_loss, "accuracy": row.val_accuracy, "n": images}
    return {**figures, "costs": dict(row.val_costs)} if row.val_costs else figures


def _existing(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _share(value: float | None) -> str:
    return "unknown" if value is None else percent(value)
