"""``convloom eval``: loss and accuracy of a saved network on a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.options import Saved, examples
from convloom.cli.terminal import Output, percent


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "eval",
        epilog=examples(
            "convloom eval runs/a --data mnist",
            "convloom eval lenet.safetensors --data mnist --json",
        ),
    )(evaluate)


def evaluate(
    saved: Saved,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            show_default="the run's own; needed for a file",
            help=options.DATA_HELP,
        ),
    ] = None,
    data_dir: options.DataDir = None,
    train_set: Annotated[
        bool, typer.Option("--train-set", help="Take the training images, not the test images.")
    ] = False,
    best: options.Best = False,
    batch_size: Annotated[
        int, typer.Option("--batch-size", "-b", metavar="N", min=1, help="Images at a time.")
    ] = 256,
    device: options.Device = None,
    kernels: options.Kernels = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a saved network on a data set.

    Loss and accuracy are exact means over every image of the test part.
    """
    options.use_threads(threads)
    from convloom.cli.runs import load_data
    from convloom.cli.saved import open_saved
    from convloom.nn import CrossEntropyLoss
    from convloom.optim import SGD
    from convloom.training import Trainer

    output = Output(as_json, quiet)
    network = open_saved(saved, best=best)
    if network.note:
        output.remark(network.note)
    origin, name = network.origin, network.data(data)
    if data_dir is None and name == origin.data and origin.data_dir:
        data_dir = Path(origin.data_dir)
    parts = load_data(name, data_dir, output)
    dataset = network.fitted(parts[0] if train_set else parts[1])
    trainer = Trainer(
        network.model,
        SGD(),
        CrossEntropyLoss(label_smoothing=origin.label_smoothing),
        batch_size=batch_size,
        device=device or "auto",
        kernels=kernels or "auto",
    )
    figures = trainer.evaluate(dataset)
    document = {
        "model": str(network.path),
        "data": dataset.name,
        "split": dataset.split,
        "device": trainer.engine.device,
        **figures,
    }
    text = (
        f"{dataset.name} {dataset.split} set, {figures['n']:,} images: "
        f"accuracy {percent(figures['accuracy'])}, top 5 {percent(figures['top5'])}, "
        f"loss {figures['loss']:.4f}"
    )
    output.result(document, text)
