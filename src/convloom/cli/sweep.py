"""``convloom sweep``: one network trained with many rates and seeds; the best, and all averaged."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.errors import FAILURE, INTERRUPTED, SUCCESS, UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.terminal import Output, duration, percent, say, table

if TYPE_CHECKING:
    from convloom.cli.runs import Run
    from convloom.training import Ensemble, Member
    from convloom.training.config import RunConfig

#: What ``--grid`` may vary: rates, which compiled kernels read from memory.
_RATES = ("lr", "momentum", "weight_decay", "beta1", "beta2", "eps")
#: Rows of the table that a person reads; the rest is in sweep.json.
_SHOWN = 20
_JSON, _BEST, _MEMBERS = "sweep.json", "best.safetensors", "members"


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "sweep",
        epilog=examples(
            "convloom sweep lenet --grid lr=0.02,0.05,0.1 --seeds 8 --data mnist --epochs 5",
            "convloom sweep run.toml --grid lr=0.003,0.01 --grid momentum=0.9,0.95 --out sweeps/a",
        ),
    )(sweep)


def sweep(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help=f"{options.NETWORKS}; or run.toml, a file of convloom train's options.",
        ),
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=V,V,…",
            show_default="no rates varied",
            help="A rate and its values: lr, momentum, weight-decay, beta1, beta2 or eps; given "
            "several times, every combination is trained.",
        ),
    ] = None,
    seeds: Annotated[
        int,
        typer.Option(metavar="N", min=1, help="Members for each combination, --seed and on."),
    ] = 1,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    optimizer: options.Optimizer = None,
    seed: Annotated[
        int | None,
        typer.Option(metavar="N", show_default="0", help="The first member's seed."),
    ] = None,
    device: options.Device = None,
    kernels: options.Kernels = None,
    precision: options.Precision = None,
    input: options.Input = None,
    threads: options.Threads = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="runs/MODEL-DATA-sweep-N, the first N that is free",
            help="Folder for the table, the best network and all others; must be new or empty.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a network with many rates and seeds, and compare.

    Prints a table, the best first, means over the seeds, and the accuracy of all members'
    averaged prediction. Each member has the same bits as when convloom train trains it alone, but
    for the order of sums in small batches on chip, where two blocks share an image then. One that
    diverges ends early and counts for nothing. The best is chosen by its accuracy on the test set,
    which therefore flatters it a little.

    On a GPU two launches make a step of all members, of as many as fit in its memory, where a step
    runs on chip as a whole; else several are trained at a time. It says which, and why.
    """
    flags: dict[str, Any] = {
        "data": data,
        "data_dir": data_dir,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "seed": seed,
        "device": device,
        "kernels": kernels,
        "precision": precision,
        "input": input,
        "out": out,
    }
    output = Output(as_json, quiet)
    options.use_threads(threads)
    from convloom.cli import runs

    with output.alone_on_stdout():
        config = runs.settings(model, flags)
        with as_usage():
            points = _points(config, grid or [], seeds)
        folder = _claimed(config)
        raise typer.Exit(_run(runs.prepare(config, output), points, folder, output))


def _points(config: RunConfig, grid: Sequence[str], seeds: int) -> list[dict[str, Any]]:
    """What each member sets, by the keys of ``RunConfig``. Raises UsageError or ConvloomError."""
    from dataclasses import replace

    from convloom.training.config import checked

    axes: dict[str, list[Any]] = {}
    for text in grid:
        written, equals, values = text.partition("=")
        key = written.strip().replace("-", "_")
        if not equals or key not in _RATES:
            known = ", ".join(rate.replace("_", "-") for rate in _RATES)
            raise UsageError(f"--grid takes KEY=V,V,… with one of {known}, not {text!r}")
        if key in axes:
            raise UsageError(f"--grid {written} is given twice")
        axes[key] = [
            checked(key, _number(value, text), f"--grid {written}") for value in values.split(",")
        ]
    axes["seed"] = [*range(config.seed, config.seed + seeds)]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    for point in points:
        replace(config, **point).make_optimizer()
    return points


def _number(text: str, whole: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"--grid {whole}: {text!r} is not a number") from None


def _claimed(config: RunConfig) -> Path:
    """The folder of the results, made now. Raises UsageError for one that is in use."""
    from convloom.cli import runs

    if config.out is None:
        return runs.new_folder(config, "-sweep")
    folder = Path(config.out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is not an empty folder; choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _run(run: Run, points: Sequence[dict[str, Any]], folder: Path, output: Output) -> int:
    """Train all members, save and show them; what was done before a Ctrl-C is kept."""
    from convloom.training import Ensemble

    members: list[Member] = []
    stopped = False
    (folder / _MEMBERS).mkdir()
    output.note(f"{len(points)} members")
    try:
        for member in _members(run, points):
            members.append(member)
            if member.error is None:
                member.model.save(folder / _MEMBERS / f"{len(members) - 1:03}.safetensors")
            output.note(f"{len(members):>4}/{len(points)}  {member.describe()}: {_outcome(member)}")
    except KeyboardInterrupt:
        stopped = True
    if not members:
        (folder / _MEMBERS).rmdir()
        folder.rmdir()
        say("stopped before the first member was done; nothing was saved")
        return INTERRUPTED
    ensemble = Ensemble(members, run.config.device, run.config.precision)
    _report(run, points, ensemble, folder, output, stopped=stopped)
    if all(member.error is not None for member in members):
        say("error: every member diverged; try lower learning rates")
        return INTERRUPTED if stopped else FAILURE
    return INTERRUPTED if stopped else SUCCESS


def _outcome(member: Member) -> str:
    """``test accuracy 98.50 %, 3.2 s``, or why training ended."""
    if member.error is not None:
        return str(member.error)
    accuracy = member.last.val_accuracy
    assert accuracy is not None
    return f"test accuracy {percent(accuracy)}, {duration(sum(member.history.column('seconds')))}"


def _members(run: Run, points: Sequence[Mapping[str, Any]]) -> Iterator[Member]:
    from convloom.cli.images import augmentation, shuffling
    from convloom.cli.runs import make_network
    from convloom.nn import CrossEntropyLoss
    from convloom.training.many import each_member

    config, (channels, height, width) = run.config, run.train.shape
    return each_member(
        [_rates(config, point) for point in points],
        run.train,
        model=lambda: make_network(
            config.network, (channels, height, width), len(run.train.classes)
        ),
        optimizer=config.make_optimizer(),
        loss=CrossEntropyLoss(label_smoothing=config.label_smoothing),
        epochs=config.epochs,
        validation=run.test,
        batch_size=config.batch_size,
        device=config.device,
        kernels=config.kernels,
        precision=config.precision,
        input=config.input,
        schedule=config.make_schedule(),
        clip_norm=config.clip_norm,
        augment=augmentation(config),
        shuffle=shuffling(config),
        log_every=config.log_every,
    )


def _rates(config: RunConfig, point: Mapping[str, Any]) -> dict[str, Any]:
    """A point as ``train_many`` takes it: AdamW has both betas in one."""
    rates = {key: value for key, value in point.items() if not key.startswith("beta")}
    if len(rates) < len(point):
        rates["betas"] = tuple(point.get(key, getattr(config, key)) for key in ("beta1", "beta2"))
    return rates


def _report(
    run: Run,
    points: Sequence[Mapping[str, Any]],
    ensemble: Ensemble,
    folder: Path,
    output: Output,
    *,
    stopped: bool,
) -> None:
    import json
    from dataclasses import replace

    from convloom import files

    lost = all(member.error is not None for member in ensemble)
    averaged = None if lost else ensemble.evaluate(run.test)
    document = {
        "finished": not stopped,
        "settings": run.config.to_json(),
        **ensemble.to_json(),
        "ensemble": averaged,
        "folder": str(folder),
    }
    lines = _table(ensemble)
    if averaged is not None:
        best = ensemble.members.index(ensemble.best)
        ensemble.best.model.save(folder / _BEST)
        replace(run.config, **points[best]).save(folder)
        lines += [
            "",
            f"averaged prediction of {len(ensemble.sound)} members: accuracy "
            f"{percent(averaged['accuracy'])}, loss {averaged['loss']:.4f}",
            f"best: {ensemble.best.describe()}, saved in {folder / _BEST}",
        ]
    files.write_text(folder / _JSON, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    output.result(document, "\n".join(lines))


def _table(ensemble: Ensemble) -> list[str]:
    """The best members, and the means over seeds where there are several."""
    rows = [
        (
            member.describe(),
            _shown("{:.4f}".format, member.last.loss),
            _shown("{:.4f}".format, member.last.val_loss),
            _shown(percent, member.last.val_accuracy),
        )
        for member in ensemble.ranked[:_SHOWN]
    ]
    lines = [table(("member", "loss", "test loss", "test accuracy"), rows, left=(0,))]
    if len(ensemble) > _SHOWN:
        lines.append(f"… {len(ensemble) - _SHOWN} more in {_JSON}")
    groups = ensemble.groups()
    if len(groups) < len(ensemble):
        means = [
            (
                " ".join(f"{key}={value}" for key, value in group.config.items()) or "all seeds",
                f"{group.count}" + f" ({group.diverged} diverged)" * (group.diverged > 0),
                _shown(percent, group.mean),
                _shown(percent, group.spread),
            )
            for group in groups[:_SHOWN]
        ]
        lines += ["", table(("rates", "seeds", "mean accuracy", "spread"), means, left=(0,))]
    return lines


def _shown(form: Callable[[float], str], value: float | None) -> str:
    """A figure, or a dash for one that is not there."""
    return "–" if value is None or math.isnan(value) else form(value)
