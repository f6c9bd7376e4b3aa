"""``convloom predict``: the classes that a saved network sees in image files."""

from __future__ import annotations

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
    top: Annotated[
        int, typer.Option(metavar="K", min=1, help="Classes to show for each image.")
    ] = 3,
    best: options.Best = False,
    device: options.Device = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Print the most likely classes of images, with their probabilities."""
    options.use_threads(threads)
    import numpy as np

    from convloom.cli.saved import open_saved
    from convloom.data import decode_image

    output = Output(as_json, quiet)
    network = open_saved(saved, best=best)
    if network.note:
        output.remark(network.note)
    decoded = [decode_image(image, network.image_shape) for image in images]
    for image in decoded:
        for note in image.notes:
            output.remark(f"{image.path}: {note}")
    pixels = np.stack([image.pixels for image in decoded])
    probabilities = network.model.predict(pixels, device=device or "auto")
    names = network.model.classes or tuple(map(str, range(probabilities.shape[1])))
    found = [
        {"image": image.path, "top": _top(row, names, top), "notes": list(image.notes)}
        for image, row in zip(decoded, probabilities, strict=True)
    ]
    document = {"model": str(network.path), "images": found}
    output.result(document, _table(found))


def _top(row: Any, names: tuple[str, ...], count: int) -> list[dict[str, Any]]:
    """The ``count`` largest probabilities, largest first; equal ones in the classes' order."""
    order = (-row).argsort(kind="stable")[:count]
    return [
        {"class": names[i], "index": int(i), "probability": float(row[i])} for i in order.tolist()
    ]


def _table(images: list[dict[str, Any]]) -> str:
    rows = [
        (image["image"] if rank == 0 else "", entry["class"], percent(entry["probability"]))
        for image in images
        for rank, entry in enumerate(image["top"])
    ]
    return table(("image", "class", "probability"), rows, left=(0, 1))
