"""From settings to a run: its data, its network, its folder, and the training itself."""

from __future__ import annotations

import errno
import itertools
import os
import shlex
import time
import traceback
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import convloom
from convloom.backends import get_backend, resolve_device
from convloom.backends.feeding import Crops, has_device_input
from convloom.cli import images, report
from convloom.cli.errors import INTERRUPTED, SUCCESS, as_usage
from convloom.cli.progress import LiveLine, TrainingDisplay
from convloom.cli.terminal import Output, say
from convloom.compiler.select import check_rung
from convloom.data import ArrayDataset, catalog, load
from convloom.ir import ConvloomError
from convloom.nn import CrossEntropyLoss, Module, models
from convloom.training import Callback, Moment, Trainer
from convloom.training.checkpoint import BEST, LAST
from convloom.training.config import CONFIG_NAME, RunConfig, load_config, read_toml, resolve
from convloom.training.feeding import check_input
from convloom.training.optim import Optimizer
from convloom.training.protocols import StepResults

#: The history's files, beside the checkpoints.
HISTORY_CSV, HISTORY_JSON = "history.csv", "history.json"
_OWN_FILES = (CONFIG_NAME, LAST, BEST, HISTORY_CSV, HISTORY_JSON)
_ROOT = Path("runs")
#: Settings that networks of 2012 alone have, beside --params.
_OF_LAYER_FILES = (
    "init_from",
    "tree",
    "crop_border",
    "scalar_mean",
    "batch_file",
    "wupdate_freq",
)
_PACKAGE = Path(convloom.__file__).parent


@dataclass(frozen=True)
class Run:
    """All that training needs."""

    config: RunConfig
    model: Module
    train: ArrayDataset
    test: ArrayDataset

    @property
    def folder(self) -> Path:
        """The run folder, once it is claimed."""
        assert self.config.out is not None
        return Path(self.config.out)


def settings(model: str, flags: dict[str, Any]) -> RunConfig:
    """The settings of ``convloom train MODEL``; MODEL may be a file of settings.

    Raises:
        UsageError: an unknown name, an impossible value, or a wrong entry of the file.
        OSError: there is no such file.
    """
    is_file = model.endswith(".toml")
    if is_file:
        require_exists(Path(model))
    with as_usage():
        if is_file:
            read = read_toml(model)
            config = resolve(read, flags, source=model)
        else:
            read = {}
            config = resolve({}, {**flags, "network": model})
        asked = {*read, *(key for key, value in flags.items() if value is not None)}
        config = images.with_sizes(config, asked)
        check_names(config)
    if catalog.find(config.data) is None:  # a folder; the run may be resumed from elsewhere
        config = replace(config, data=os.path.abspath(os.path.expanduser(config.data)))
    return config


def check_names(config: RunConfig, *, needs_files: bool = True) -> None:
    """Look up every name before any work begins. Raises ConvloomError for what cannot be.

    Args:
        needs_files: the data set's files will be read; else its shape alone must be known.
    """
    if config.params is None:
        if config.network.endswith(".cfg"):
            raise ConvloomError(
                f"{config.network} is a layer file, and needs its parameter file: "
                f"convloom train --layers {config.network} --params params.cfg"
            )
        usual = RunConfig(config.network)
        for name in _OF_LAYER_FILES:
            if getattr(config, name) != getattr(usual, name):
                raise ConvloomError(f"--{name.replace('_', '-')} is for layer files, --layers")
        if not models.is_file(config.network):
            models.get(config.network)
    else:
        _check_layer_files(config)
    if needs_files or config.data != catalog.IMAGENET:
        check_data(config.data)
    backend = get_backend(resolve_device(config.device))
    check_rung(backend, config.kernels)
    check_input(config.input, backend.name, has_device_input(backend))
    images.augmentation(config)


def _check_layer_files(config: RunConfig) -> None:
    """Raises ConvloomError for files of a network of 2012 that are none, before data is fetched."""
    from convloom import convnet

    assert config.params is not None
    if config.network in models.names() or config.network.partition(":")[0].endswith(".py"):
        raise ConvloomError(f"--params is for a layer file, --layers; {config.network} is none")
    for file in (config.network, config.params):
        convnet.syntax.read(file)
    if config.tree is not None:
        convnet.class_tree(config.tree)


def check_data(name: str) -> None:
    """Raises DataError where neither a data set nor a folder has that name."""
    if not Path(name).expanduser().is_dir():
        catalog.get(name)


def prepare(config: RunConfig, output: Output, *, resumed: bool = False) -> Run:
    """Load the data, make the network, and say what will be trained.

    Args:
        resumed: a checkpoint will bring the weights.
    """
    train, test = load_data(
        config.data,
        config.data_dir,
        output,
        resize=config.resize,
        on_bad_image=config.on_bad_image,
    )
    config, train, test = images.fed(config, train, test)
    train, test = images.cropped(config, train, test)
    shape = images.network_shape(config, train)
    model = network_of(config, shape, train.classes, output, resumed=resumed)
    run = Run(config, model, train, test)
    _learning(run)  # what cannot learn is refused before a folder is claimed, and its old run gone
    for line in report.headline(config, run.model, train, test):
        output.note(line)
    return run


def load_data(
    name: str,
    data_dir: str | os.PathLike[str] | None,
    output: Output,
    *,
    resize: int | None = None,
    on_bad_image: str = "error",
) -> tuple[ArrayDataset, ArrayDataset]:
    """A data set's two parts; a download is shown while it runs.

    Args:
        resize: side of the squares that a folder's image files become.
        on_bad_image: what to do with such files that cannot be decoded.

    Raises:
        UsageError: no data set and no folder has that name.
    """
    with as_usage():
        check_data(name)
    with Download(output) as download:
        return load(name, data_dir, resize=resize, on_bad_image=on_bad_image, progress=download)


class Download:
    """Shows on a terminal how a download comes along."""

    def __init__(self, output: Output) -> None:
        self._line = LiveLine(output)

    def __enter__(self) -> Download:
        return self

    def __exit__(self, *_: object) -> None:
        self._line.close()

    def __call__(self, name: str, done: int, total: int) -> None:
        if self._line.due():
            megabytes = f"{done / 1e6:.1f} of {total / 1e6:.1f} MB"
            self._line.draw(name, done / max(total, 1), [megabytes])


def network_of(
    config: RunConfig,
    shape: tuple[int, int, int],
    classes: Sequence[str],
    output: Output,
    *,
    resumed: bool = False,
) -> Module:
    """The network of the settings; what its files had remedied is said.

    Args:
        classes: the names of the data set's classes.
        resumed: a checkpoint will bring the weights.

    Raises:
        ConvloomError: as ``make_network``, or images that are not what a layer file takes.
    """
    if config.params is None:
        return make_network(config.network, shape, len(classes))
    from convloom import convnet

    if shape[1] != shape[2]:
        raise ConvloomError(f"{config.network} takes square images, these are {shape}")
    known: dict[str, Any] = {"classes": tuple(classes), "tree": config.tree}
    if resumed:
        network = convnet.read_network(config.network, shape[1], **known)
        net = convnet.Net(network, convnet.read_rules(config.params, network), config.crop_border)
    else:
        net = convnet.load(
            config.network,
            config.params,
            shape[1],
            init_from=config.init_from,
            border=config.crop_border,
            **known,
        )
    for note in net.notes:
        output.remark(note)
    if net.images != shape:
        raise ConvloomError(
            f"{config.network} takes images of shape {net.images}, the data set has {shape}"
        )
    return net


def make_network(spec: str, shape: tuple[int, int, int], classes: int) -> Module:
    """A network for images of ``shape`` (C, H, W), found to take them.

    Raises:
        ConvloomError: no such network, shapes that cannot fit, or an error in a person's own
            file, with its place.
    """
    model = models.build(spec, num_classes=classes, in_channels=shape[0], image_size=shape[1:])
    try:
        model.trace(shape)
    except ConvloomError:
        raise
    except Exception as error:
        outside = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not Path(frame.filename).is_relative_to(_PACKAGE)
        ]
        if not outside:
            raise
        place = f"{os.path.relpath(outside[-1].filename)}:{outside[-1].lineno}"
        raise ConvloomError(f"{place}: {type(error).__name__}: {error}") from error
    return model


def check_folder(config: RunConfig, *, overwrite: bool) -> None:
    """See to it, before any work begins, that ``--out`` can be taken.

    Raises:
        ConvloomError: the folder holds something already that may not be replaced.
    """
    if config.out is None:
        return
    folder = Path(config.out)
    if folder.exists() and not folder.is_dir():
        raise ConvloomError(f"{folder} is a file, not a folder; choose another --out")
    if not folder.is_dir() or not any(folder.iterdir()):
        return
    if not (folder / CONFIG_NAME).is_file():
        raise ConvloomError(f"{folder} is not empty and holds no run; choose another --out")
    if not overwrite:
        raise ConvloomError(
            f"{folder} holds a run already; go on with it by convloom resume "
            f"{shlex.quote(str(folder))}, replace it with --overwrite, or choose another --out"
        )


def claim_folder(run: Run) -> Run:
    """The run with a folder of its own, which now holds its settings and nothing of another run.

    Raises:
        ConvloomError: another run has taken the folder meanwhile.
    """
    if run.config.out is None:
        folder = new_folder(run.config)
    else:
        folder = Path(run.config.out)
        folder.mkdir(parents=True, exist_ok=True)
        _remove_own_files(folder)
    try:
        (folder / CONFIG_NAME).touch(exist_ok=False)
    except FileExistsError:
        raise ConvloomError(
            f"another run has just begun in {folder}; choose another --out"
        ) from None
    run = replace(run, config=replace(run.config, out=str(folder)))
    run.config.save(folder)
    return run


def reopen(folder: Path, data_dir: Path | None, output: Output) -> Run:
    """The run that a folder holds, to go on with it."""
    require_exists(folder)
    config = replace(load_config(folder), out=str(folder))
    if not (folder / LAST).is_file():
        raise ConvloomError(
            f"{folder} has no {LAST} to go on from; begin again with "
            f"convloom train {folder / CONFIG_NAME} --overwrite"
        )
    if data_dir is not None:
        config = replace(config, data_dir=str(data_dir))
    return prepare(config, output, resumed=True)


def train(run: Run, output: Output, *, resume: bool = False) -> int:
    """Train, print the result, and return the exit code."""
    first_step = _FirstStep()
    trainer = _trainer(run, [TrainingDisplay(output), _HistoryFiles(run.folder), first_step])
    stopped: KeyboardInterrupt | None = None
    try:
        trainer.fit(run.train, run.config.epochs, run.test, resume=resume)
    except KeyboardInterrupt as stop:
        stopped = stop
    finally:
        if not (run.folder / LAST).is_file():  # nothing came of it: leave nothing behind
            _remove_own_files(run.folder)
            with suppress(OSError):  # it holds a person's own files
                run.folder.rmdir()
    document = report.document(run.config, trainer, len(run.test), finished=stopped is None)
    times = report.times(output.began, first_step.at)
    document |= times
    if stopped is None:
        output.result(document, report.summary(run.folder, trainer.history))
        output.note(report.times_in_words(times))
        if resume and first_step.at is None:
            output.note(report.nothing_left(run.config))
        output.note(report.next_steps(run.config))
        return SUCCESS
    output.result(document, "")
    say(report.farewell(run.folder, stopped))
    asked = getattr(stopped, "signal", None)
    return INTERRUPTED if asked is None else 128 + int(asked)


def require_exists(path: Path) -> None:
    """Raises FileNotFoundError, as the system does, for a path that does not exist."""
    if not path.exists():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))


class _HistoryFiles(Callback):
    """Writes the history after each epoch, for whoever plots it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def on_start(self, moment: Moment) -> None:
        # A run that was killed may have told of epochs behind its last checkpoint.
        if moment.history and not moment.progress.finished:
            self.on_epoch(moment)

    def on_epoch(self, moment: Moment) -> None:
        moment.history.to_csv(self._folder / HISTORY_CSV)
        moment.history.to_json(self._folder / HISTORY_JSON)


class _FirstStep(Callback):
    """Notes when the first step was done."""

    may_lag = True
    at: float | None = None

    def on_steps(self, moment: Moment, results: StepResults) -> None:
        if self.at is None:
            self.at = time.perf_counter()


def _trainer(run: Run, callbacks: Iterable[Callback]) -> Trainer:
    config = run.config
    optimizer, loss = _learning(run)
    return Trainer(
        run.model,
        optimizer,
        loss,
        batch_size=config.batch_size,
        device=config.device,
        kernels=config.kernels,
        precision=config.precision,
        input=config.input,
        seed=config.seed,
        schedule=config.make_schedule(),
        clip_norm=config.clip_norm,
        augment=images.augmentation(config),
        shuffle=images.shuffling(config),
        batch_files=_batch_files(run),
        callbacks=callbacks,
        out=run.folder,
        checkpoint_every=config.checkpoint_every,
        log_every=config.log_every,
    )


def _learning(run: Run) -> tuple[Optimizer, Any]:
    """The update rule and the loss: the settings', or those of a network file."""
    config = run.config
    if config.params is None:
        return config.make_optimizer(), CrossEntropyLoss(label_smoothing=config.label_smoothing)
    from convloom import convnet

    assert isinstance(run.model, convnet.Net)
    files = convnet.updates(_batch_files(run), config.batch_size)
    steps = config.epochs * sum(files)
    if config.wupdate_freq > steps:
        raise ConvloomError(
            f"--wupdate-freq {config.wupdate_freq} updates nothing: the training has {steps:,} "
            f"minibatches in all; give at most {steps}, or more epochs"
        )
    rule = convnet.optimizer_of(
        run.model, steps=steps, files=files, seed=config.seed, every=config.wupdate_freq
    )
    return rule, run.model.cost.loss


def _batch_files(run: Run) -> tuple[int, ...]:
    """Images of each batch file of a layer file's run; empty for other networks."""
    if run.config.params is None:
        return ()
    from convloom.convnet import batch_files

    return batch_files(run.train, run.config.batch_file)


def crops_of(config: RunConfig) -> Crops | None:
    """The settings' augmentation as a GPU makes it of images as large as the network takes; None
    where there is none, or images are larger."""
    drawn = images.augmentation(config)
    if drawn is None or drawn.size is not None or drawn.noise:
        return None
    return Crops(drawn.padding, drawn.reflect)


def new_folder(config: RunConfig, kind: str = "") -> Path:
    """``runs/lenet-mnist-3``: made now, so that two runs that begin together get two folders.

    Args:
        kind: what comes before the number.
    """
    network = config.network.rpartition(":")[0] or config.network
    data = catalog.find(config.data)
    stem = f"{Path(network).stem}-{data.name if data else Path(config.data).resolve().name}"
    _ROOT.mkdir(parents=True, exist_ok=True)
    for number in itertools.count(1):
        folder = _ROOT / f"{stem}{kind}-{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("there is always a next number")


def _remove_own_files(folder: Path) -> None:
    for name in _OWN_FILES:
        (folder / name).unlink(missing_ok=True)
