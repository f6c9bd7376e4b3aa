"""``convloom eval``: loss and accuracy of a saved network on a data set."""

from __future__ import annotations

from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError
from convloom.cli.options import Saved, examples
from convloom.cli.terminal import Output, costs_in_words, percent


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "eval",
        epilog=examples(
            "convloom eval runs/a --data mnist",
            "convloom eval lenet.safetensors --data mnist --json",
            "convloom eval runs/alexnet --data DIR --ten-crop",
            "convloom eval runs/layers --multiview",
        ),
    )(evaluate)


def evaluate(
    saved: Saved,
    data: options.SavedData = None,
    data_dir: options.DataDir = None,
    train_set: options.TrainSet = False,
    best: options.Best = False,
    ten_crop: Annotated[
        bool,
        typer.Option(
            "--ten-crop",
            help="Average the predictions for the corners and the middle of each image, and for "
            "their mirror images; for folders of image files.",
        ),
    ] = False,
    multiview: options.Multiview = False,
    resize: options.Resize = None,
    on_bad_image: options.OnBadImage = None,
    batch_size: options.AtATime = 256,
    device: options.Device = None,
    kernels: options.Kernels = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Measure a saved network on a data set.

    Loss and accuracy are exact means over every image of the test part; a network
    file's costs are given by their names too.
    """
    options.use_threads(threads)
    from convloom.backends import resolve_device
    from convloom.cli.saved import open_images, open_saved, views_for
    from convloom.optim import SGD
    from convloom.training import Trainer
    from convloom.training import multiview as averaged

    output = Output(as_json, quiet)
    network = open_saved(saved, output, best=best)
    images = open_images(
        network,
        data,
        data_dir,
        output,
        train_set=train_set,
        resize=resize,
        on_bad_image=on_bad_image,
    )
    origin, dataset = network.origin, images.dataset
    views = views_for(images, ten_crop=ten_crop, multiview=multiview)
    if views is not None:
        for flag, given in (("--kernels", kernels), ("--precision", precision)):
            if given is not None:
                raise UsageError(f"views are predicted; {flag} is for evaluations of one view")
        figures = averaged(
            network.model,
            images.whole,
            views,
            loss=network.loss,
            batch_size=batch_size,
            device=device or "auto",
        )
        used = resolve_device(device or "auto")
    else:
        trainer = Trainer(
            network.model,
            SGD(),
            network.loss,
            batch_size=batch_size,
            device=device or "auto",
            kernels=kernels or "auto",
            precision=precision or origin.precision,
        )
        figures = trainer.evaluate(dataset)
        used = trainer.engine.device
    document = {
        "model": str(network.path),
        "data": dataset.name,
        "split": dataset.split,
        "device": used,
        "ten_crop": ten_crop,
        "multiview": multiview,
        **figures,
    }
    text = (
        f"{dataset.name} {dataset.split} set, {figures['n']:,} images"
        f"{' in ten crops' if ten_crop else ' in several views' if multiview else ''}: "
        f"accuracy {percent(figures['accuracy'])}, top 5 {percent(figures['top5'])}, "
        f"loss {figures['loss']:.4f}"
    )
    if costs := costs_in_words(figures.get("costs", {})):
        text += f"\n{costs}"
    output.result(document, text)
