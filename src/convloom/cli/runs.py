"""From settings to a run: its data, its network, its folder, and the training itself."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from convloom.backends import get_backend, resolve_device
from convloom.cli.errors import INTERRUPTED, SUCCESS, UsageError, as_usage
from convloom.cli.progress import LiveLine, TrainingDisplay
from convloom.cli.terminal import Output, percent, say
from convloom.compiler.select import check_rung
from convloom.data import ArrayDataset, Augmentation, catalog, load
from convloom.ir import ConvloomError
from convloom.nn import CrossEntropyLoss, Module, models
from convloom.training import Trainer, TrainingInterrupted
from convloom.training.checkpoint import BEST, LAST
from convloom.training.config import CONFIG_NAME, RunConfig, load_config, read_toml, resolve
from convloom.training.history import EpochRow

#: Files that the history is written to, beside the checkpoints.
HISTORY_CSV, HISTORY_JSON = "history.csv", "history.json"
_ROOT = Path("runs")


@dataclass(frozen=True)
class Run:
    """All that training needs. ``folder`` is where it is kept."""

    config: RunConfig
    model: Module
    train: ArrayDataset
    test: ArrayDataset

    @property
    def folder(self) -> Path:
        """The run folder."""
        assert self.config.out is not None
        return Path(self.config.out)


def settings(model: str, flags: dict[str, Any]) -> RunConfig:
    """The settings of ``convloom train MODEL``; MODEL may be a file of settings.

    Raises:
        UsageError: an unknown name, an impossible value, or a wrong entry of the file.
        OSError: there is no such file.
    """
    is_settings = model.endswith(".toml")
    if is_settings:
        require_file(model)
    else:
        flags = {**flags, "network": model}
    with as_usage():
        config = resolve(read_toml(model) if is_settings else {}, flags, source=model)
        check_names(config)
    return config


def check_names(config: RunConfig) -> None:
    """Look every name up before any work begins. Raises ConvloomError for an unknown one."""
    if not models.is_file(config.network):
        models.get(config.network)
    if not Path(config.data).is_dir():
        catalog.get(config.data)
    check_rung(get_backend(resolve_device(config.device)), config.kernels)


def prepare(config: RunConfig, output: Output) -> Run:
    """Load the data, make the network, and say what will be trained."""
    train, test = load_data(config.data, config.data_dir, output)
    channels, height, width = train.shape
    model = models.build(
        config.network,
        num_classes=len(train.classes),
        in_channels=channels,
        image_size=(height, width),
    )
    run = Run(config, model, train, test)
    for line in _headline(run):
        output.note(line)
    return run


def load_data(
    name: str, data_dir: str | os.PathLike[str] | None, output: Output
) -> tuple[ArrayDataset, ArrayDataset]:
    """A data set's two parts; a download is shown while it runs.

    Raises:
        UsageError: no data set and no folder has that name.
    """
    if not Path(name).is_dir():
        with as_usage():
            catalog.get(name)
    download = Download(output)
    try:
        return load(name, data_dir, progress=download)
    finally:
        download.close()


class Download:
    """Shows how a download comes along, on a terminal."""

    def __init__(self, output: Output) -> None:
        self._line = LiveLine(output)

    def __call__(self, name: str, done: int, total: int) -> None:
        if self._line.due():
            megabytes = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
            self._line.draw(name, done / max(total, 1), [megabytes])

    def close(self) -> None:
        """Take the display away."""
        self._line.close()


def claim_folder(run: Run, *, overwrite: bool) -> Run:
    """The run with a folder of its own, which now holds its settings.

    Raises:
        ConvloomError: the folder holds something already that may not be replaced.
    """
    if run.config.out is None:
        folder = _new_folder(run.config)
    else:
        folder = Path(run.config.out)
        if folder.is_dir() and any(folder.iterdir()):
            _make_room(folder, overwrite=overwrite)
        folder.mkdir(parents=True, exist_ok=True)
    run = replace(run, config=replace(run.config, out=str(folder)))
    run.config.save(folder)
    return run


def reopen(folder: Path, data_dir: Path | None, output: Output) -> Run:
    """The run that a folder holds, to go on with it."""
    require_exists(folder)
    config = replace(load_config(folder), out=str(folder))
    if data_dir is not None:
        config = replace(config, data_dir=str(data_dir))
    return prepare(config, output)


def train(run: Run, output: Output, *, resume: bool = False) -> int:
    """Train, print the result, and return the exit code."""
    config = run.config
    trainer = Trainer(
        run.model,
        config.make_optimizer(),
        CrossEntropyLoss(label_smoothing=config.label_smoothing),
        batch_size=config.batch_size,
        device=config.device,
        kernels=config.kernels,
        seed=config.seed,
        schedule=config.make_schedule(),
        clip_norm=config.clip_norm,
        augment=_augmentation(config),
        callbacks=[TrainingDisplay(output)],
        out=run.folder,
        checkpoint_every=config.checkpoint_every,
        log_every=config.log_every,
    )
    stopped: KeyboardInterrupt | None = None
    try:
        trainer.fit(run.train, config.epochs, run.test, resume=resume)
    except KeyboardInterrupt as stop:
        stopped = stop
    if trainer.history:
        trainer.history.to_csv(run.folder / HISTORY_CSV)
        trainer.history.to_json(run.folder / HISTORY_JSON)
    if stopped is not None:
        say(_farewell(run.folder, stopped))
    output.result(
        _report(run, trainer, finished=stopped is None), "\n".join(_summary(run, trainer))
    )
    if stopped is None:
        return SUCCESS
    asked = getattr(stopped, "signal", None)
    return INTERRUPTED if asked is None else 128 + int(asked)


def model_file(saved: Path, *, best: bool = False) -> Path:
    """The network's file, given itself or its run folder.

    Raises:
        OSError: there is no such file or folder.
        ConvloomError: a folder that holds no network.
    """
    require_exists(saved)
    if not saved.is_dir():
        return saved
    path = saved / (BEST if best else LAST)
    if path.is_file():
        return path
    if (saved / CONFIG_NAME).is_file():
        raise ConvloomError(f"the run {saved} has saved no network yet; train it for longer")
    raise ConvloomError(f"{saved} is not a run folder: it has no {LAST}")


def own_settings(saved: Path) -> RunConfig | None:
    """The settings of the run that a folder or a file in it belongs to, if it has any."""
    folder = saved if saved.is_dir() else saved.parent
    return load_config(folder) if (folder / CONFIG_NAME).is_file() else None


def require_exists(path: Path) -> None:
    """Raises FileNotFoundError, as the system does, for a path that does not exist."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


def require_file(path: str) -> None:
    """Raises OSError for what is not a file."""
    require_exists(Path(path))
    if not Path(path).is_file():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def described_device(asked: str) -> str:
    """``cpu (2 threads)``, whatever was asked for."""
    device = resolve_device(asked)
    if device != "cpu":
        return device
    from convloom.backends.cpu.pool import default_threads

    threads = default_threads()
    return f"cpu ({threads} thread{'s' if threads > 1 else ''})"


def _headline(run: Run) -> list[str]:
    config, train = run.config, run.train
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    return [
        f"{config.network}: {parameters:,} parameters",
        f"{train.name}: {len(train):,} training and {len(run.test):,} test images of "
        f"{_dims(train.shape)}, {len(train.classes)} classes",
        f"device {described_device(config.device)}, batch size {config.batch_size}, "
        f"{config.optimizer}, lr {config.lr:g}, schedule {config.schedule}, seed {config.seed}",
    ]


def _summary(run: Run, trainer: Trainer) -> list[str]:
    """What a person wants to know at the end: how good, where it is, and what to do with it."""
    history, folder = trainer.history, run.folder
    if not history:
        return []
    last, best = history[-1], history.best()
    lines = [f"test accuracy {_share(last.val_accuracy)}, loss {last.val_loss:.4f}"]
    lines.append(f"saved in {folder / LAST}")
    if best is not None and best.epoch != last.epoch:
        lines.append(
            f"the best epoch on the test set was {best.epoch}, with {_share(best.val_accuracy)}: "
            f"{folder / BEST}"
        )
    if trainer.epochs_done >= run.config.epochs:
        lines += [
            "",
            "next:",
            f"  convloom eval {folder} --data {run.config.data}",
            f"  convloom predict {folder} IMAGE.png",
        ]
    return lines


def _report(run: Run, trainer: Trainer, *, finished: bool) -> dict[str, Any]:
    """``--json``: the run as plain data."""
    history, folder = trainer.history, run.folder
    best = history.best()
    return {
        "status": "finished" if finished else "interrupted",
        "run": str(folder),
        "model": _if_file(folder / LAST),
        "best_model": _if_file(folder / BEST),
        "network": run.config.network,
        "data": run.train.name,
        "device": resolve_device(run.config.device),
        "steps": trainer.steps_done,
        "epochs": [asdict(row) for row in history],
        "test": _figures(history[-1] if history else None, len(run.test)),
        "best": _figures(best, len(run.test)),
        "settings": run.config.to_json(),
        "resume": None if finished else f"convloom resume {folder}",
    }


def _figures(row: EpochRow | None, n: int) -> dict[str, Any] | None:
    if row is None:
        return None
    return {"epoch": row.epoch, "loss": row.val_loss, "accuracy": row.val_accuracy, "n": n}


def _if_file(path: Path) -> str | None:
    return str(path) if path.is_file() else None


def _share(value: float | None) -> str:
    return "unknown" if value is None else percent(value)


def _farewell(folder: Path, stopped: KeyboardInterrupt) -> str:
    if isinstance(stopped, TrainingInterrupted):
        return str(stopped)
    if (folder / LAST).is_file():
        return f"stopped at once; go on from the last checkpoint with convloom resume {folder}"
    return "stopped at once, before the first checkpoint; nothing was saved"


def _augmentation(config: RunConfig) -> Augmentation | None:
    if not config.crop and not config.flip:
        return None
    return Augmentation(padding=config.crop, flip=config.flip)


def _new_folder(config: RunConfig) -> Path:
    """``runs/lenet-mnist-3``: made now, so that two runs that begin together get two folders."""
    network = config.network.rpartition(":")[0] or config.network
    data = catalog.find(config.data)
    stem = f"{Path(network).stem}-{data.name if data else Path(config.data).resolve().name}"
    _ROOT.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = _ROOT / f"{stem}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is always a next number")


def _make_room(folder: Path, *, overwrite: bool) -> None:
    """Remove a run's own files from its folder, and nothing else."""
    if not (folder / CONFIG_NAME).is_file():
        raise ConvloomError(f"{folder} is not empty and holds no run; choose another --out")
    if not overwrite:
        raise ConvloomError(
            f"{folder} holds a run already; go on with it by convloom resume {folder}, replace it "
            "with --overwrite, or choose another --out"
        )
    for name in (CONFIG_NAME, LAST, BEST, HISTORY_CSV, HISTORY_JSON):
        (folder / name).unlink(missing_ok=True)


def data_of(asked: str | None, own: RunConfig | None) -> str:
    """The data set to take: the one that was asked for, else the run's own."""
    if asked is not None:
        return asked
    if own is None:
        raise UsageError("a network's file does not say which data set to take; give --data NAME")
    return own.data


def fitted(dataset: ArrayDataset, model: Module, path: Path) -> ArrayDataset:
    """The data set, normalised as the network expects it.

    Raises:
        ConvloomError: images or classes of another kind than the network was made for.
    """
    shape = image_shape(model, path)
    if dataset.shape != shape:
        raise ConvloomError(
            f"{path} takes images of {_dims(shape)}, those of {dataset.name} are "
            f"{_dims(dataset.shape)}"
        )
    if model.classes is not None and tuple(model.classes) != tuple(dataset.classes):
        raise ConvloomError(
            f"{path} was trained for other classes ({_few(model.classes)}) than {dataset.name} has "
            f"({_few(dataset.classes)})"
        )
    if model.normalization is None or not dataset.mean:
        return dataset
    mean, std = model.normalization
    return replace(dataset, mean=mean, std=std)


def image_shape(model: Module, path: Path) -> tuple[int, int, int]:
    """(C, H, W) of the images a saved network takes."""
    shape = model.input_shape
    if shape is None or len(shape) != 3:
        raise ConvloomError(f"{path} takes inputs of shape {shape}, not images")
    channels, height, width = shape
    return channels, height, width


def _dims(shape: Sequence[int]) -> str:
    return "×".join(map(str, shape))


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" … {len(names)} in all" if len(names) > 3 else "")
