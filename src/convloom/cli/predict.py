"""``convloom predict``: the classes that a saved network sees in image files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.options import Saved, examples
from convloom.cli.terminal import Output, percent, table


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "predict",
        epilog=examples(
            "convloom predict runs/a img1.png img2.png", "convloom predict runs/a img1.png --json"
        ),
    )(predict)


def predict(
    saved: Saved,
    images: Annotated[
        list[Path],
        typer.Argument(
            metavar="IMAGE",
            show_default=False,
            help="Image files (PNG, JPEG …). They are brought to the network's size and channels.",
        ),
    ],
    top: options.Top = 3,
    best: options.Best = False,
    ten_crop: Annotated[
        bool,
        typer.Option(
            "--ten-crop",
            help="Average the predictions for the corners and the middle of each image, and for "
            "their mirror images.",
        ),
    ] = False,
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Print the likeliest classes of images.

    Each has its probability.
    """
    options.use_threads(threads)
    import numpy as np

    from convloom.cli.saved import open_saved

    output = Output(as_json, quiet)
    network = open_saved(saved, output, best=best)
    shown = [network.views(image, ten=ten_crop) for image in images]
    for image, (_, notes) in zip(images, shown, strict=True):
        for note in notes:
            output.remark(f"{image}: {note}")
    pixels = np.concatenate([views for views, _ in shown])
    each = network.model.predict(pixels, device=device or "auto")
    probabilities = each.reshape(len(images), -1, each.shape[1]).mean(axis=1)
    names = network.model.classes or tuple(map(str, range(probabilities.shape[1])))
    found = [
        {"image": str(image), "top": top_classes(row, names, top), "notes": list(notes)}
        for image, (_, notes), row in zip(images, shown, probabilities, strict=True)
    ]
    document = {"model": str(network.path), "images": found}
    output.result(document, _table(found))


def top_classes(row: Any, names: Sequence[str], count: int) -> list[dict[str, Any]]:
    """The ``count`` largest probabilities, largest first; equal ones in the classes' order."""
    from convloom.inspection.predictions import likeliest

    return [
        {"class": names[i], "index": i, "probability": float(row[i])} for i in likeliest(row, count)
    ]


def _table(images: list[dict[str, Any]]) -> str:
    rows = [
        (image["image"] if rank == 0 else "", entry["class"], percent(entry["probability"]))
        for image in images
        for rank, entry in enumerate(image["top"])
    ]
    return table(("image", "class", "probability"), rows, left=(0, 1))
