"""``convloom show preds``: test images with the classes that a network holds likeliest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convloom.cli import options
from convloom.cli.show.shared import Window, check_out, deliver, out_option
from convloom.cli.terminal import Output

if TYPE_CHECKING:
    import numpy as np


def preds(
    saved: options.Saved,
    data: options.SavedData = None,
    data_dir: options.DataDir = None,
    train_set: options.TrainSet = False,
    count: Annotated[int, typer.Option(metavar="N", min=1, help="Images to show.")] = 16,
    top: options.Top = 5,
    only_errors: Annotated[
        bool,
        typer.Option(
            "--only-errors",
            help="Show only images that the network takes for another class than their label's.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of the draw of images.")] = 0,
    best: options.Best = False,
    resize: options.Resize = None,
    on_bad_image: options.OnBadImage = None,
    device: options.Device = None,
    threads: options.Threads = None,
    out: Annotated[Path | None, out_option("preds.png")] = None,
    window: Window = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw images of a data set and their likeliest classes.

    A title is the label, bars are probabilities; that of the label's own class is orange. Images
    are drawn at random from the test part.
    """
    options.use_threads(threads)
    from convloom.cli.predict import top_classes
    from convloom.cli.saved import open_images, open_saved
    from convloom.inspection.predictions import pick, plot_predictions
    from convloom.training import predict

    output = Output(as_json, quiet)
    check_out(out)
    network = open_saved(saved, output, best=best)
    part = open_images(
        network,
        data,
        data_dir,
        output,
        train_set=train_set,
        resize=resize,
        on_bad_image=on_bad_image,
    ).dataset

    def probabilities(indices: np.ndarray) -> np.ndarray:
        return predict(
            network.model,
            part.normalise(part.images[indices]),
            device=device or "auto",
            precision=network.origin.precision,
        )

    found = pick(part.labels, probabilities, count, seed=seed, only_errors=only_errors)
    labels = part.labels[found.indices]
    figure = plot_predictions(
        part.images[found.indices], labels, found.probabilities, part.classes, top=top
    )
    images = [
        {
            "index": int(index),
            "label": part.classes[label],
            "top": top_classes(row, part.classes, top),
        }
        for index, label, row in zip(found.indices, labels, found.probabilities, strict=True)
    ]
    what = ("error" if only_errors else "image") + ("s" if len(images) > 1 else "")
    text = f"{len(images)} {what} of the {part.name} {part.split} set"
    if len(images) < count:
        text += "; there are no more"
    document = {
        "model": str(network.path),
        "data": part.name,
        "split": part.split,
        "images": images,
    }
    deliver(
        figure,
        out,
        "preds.png",
        output,
        window=window,
        document=document,
        text=text,
    )
