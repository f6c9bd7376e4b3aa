"""``convloom train``: from a name to a trained, saved and tested network."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError
from convloom.cli.options import RECIPE, examples
from convloom.cli.terminal import Output

_T = TypeVar("_T")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "train",
        epilog=examples(
            "convloom train lenet --data fashion-mnist --epochs 5",
            "convloom train lenet --data mnist --schedule cosine:final=0,warmup=1 --seed 1",
            "convloom train path/net.py:make_model --data cifar10 --augment --out runs/mine",
            "convloom train alexnet --data DIR --image-size 224 --epochs 90",
            "convloom train --layers layers.cfg --params params.cfg --data cifar10 --epochs 10",
            "convloom train --layers layers.cfg --params params.cfg --data cifar10 --crop-border 4",
            "convloom train run.toml --lr 0.02",
        ),
    )(train)


def train(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            show_default=False,
            help=f"{options.NETWORKS}; or run.toml, a file of these same options, over which "
            "flags win.",
        ),
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="none",
            help="In place of MODEL: a network file of 2012, layers.cfg. It is fed as then: pixels "
            "from 0 to 255 less the mean image, minibatches of 128 in the order of batch files.",
        ),
    ] = None,
    params: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="none",
            help="How the layers of --layers learn, params.cfg: its rates and schedules take the "
            "place of --optimizer, --lr, --momentum, --weight-decay and --schedule.",
        ),
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="initW and initB instead",
            help="What the layers of --layers with initWFunc=initw.makew(LAYER), makeb and makec "
            "copy their initial weights, biases and connections from: a run folder, a checkpoint, "
            "or a safetensors or npz file.",
        ),
    ] = None,
    tree: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="a stand-in",
            help="The class tree of a treefc in --layers: JSON, {class: group, group: root} or an "
            "array of parents by node number.",
        ),
    ] = None,
    data: options.Data = None,
    data_dir: options.DataDir = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    optimizer: options.Optimizer = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            show_default=f"{RECIPE}, else 0.01 (adamw 0.001)",
            help="Learning rate per step; the peak of a one-cycle schedule.",
        ),
    ] = None,
    momentum: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            show_default=f"{RECIPE}, else 0.9",
            help="SGD's momentum, from 0 to below 1.",
        ),
    ] = None,
    nesterov: Annotated[
        bool | None,
        typer.Option(
            "--nesterov/--no-nesterov",
            show_default=f"{RECIPE}, else off",
            help="Nesterov's form of the momentum.",
        ),
    ] = None,
    weight_decay: Annotated[
        float | None,
        typer.Option(
            metavar="RATE",
            show_default=f"{RECIPE}, else 0 (adamw 0.01)",
            help="L2 penalty of SGD, decoupled decay of AdamW.",
        ),
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            show_default=f"{RECIPE}, else constant",
            help="How the rate changes: constant, step:every=10,gamma=0.1, cosine:final=0 or "
            "one-cycle:pct=0.3; add warmup=2 for a warm-up. Lengths are in epochs; "
            "'500 steps' and '5%' will do too.",
        ),
    ] = None,
    clip_norm: Annotated[
        float | None,
        typer.Option(
            metavar="NORM",
            show_default="no clipping",
            help="Largest norm of all gradients taken together.",
        ),
    ] = None,
    label_smoothing: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            show_default=f"{RECIPE}, else 0",
            help="Share of the target that is spread over all classes, from 0 to below 1.",
        ),
    ] = None,
    augment: Annotated[
        bool | None,
        typer.Option(
            "--augment/--no-augment",
            show_default=f"{RECIPE}, else off",
            help="Random crops (4 pixels of padding) and mirroring of the training images; none "
            "of either, nor colour noise, with --no-augment.",
        ),
    ] = None,
    crop: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            show_default=f"as --augment says, else {RECIPE}",
            help="Padding of the random crop; 0 for none.",
        ),
    ] = None,
    flip: Annotated[
        bool | None,
        typer.Option(
            "--flip/--no-flip",
            show_default=f"as --augment says, else {RECIPE}",
            help="Mirror every other image, chosen at random.",
        ),
    ] = None,
    resize: options.Resize = None,
    image_size: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            min=1,
            show_default=f"{RECIPE}; for a folder of image files else 7/8 of --resize",
            help="Side of the part of each image that the network is given: at random where "
            "training images are augmented in any way, else the middle.",
        ),
    ] = None,
    colour_noise: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            show_default=f"{RECIPE}, else 0",
            help="Noise along the axes of the training pixels' colours, in their deviations; "
            "AlexNet's is 0.1.",
        ),
    ] = None,
    shuffle: Annotated[
        bool | None,
        typer.Option(
            "--shuffle/--no-shuffle",
            show_default="on; off for --layers",
            help="A new order of the training images every epoch. Without it they come as they "
            "lie, image files of a folder in one random order.",
        ),
    ] = None,
    crop_border: Annotated[
        int | None,
        typer.Option(
            metavar="PIXELS",
            show_default="16 of 256 for a folder of image files, else 0",
            help="For --layers: what the network's input leaves on each side of an image. Training "
            "takes parts of that size anywhere and mirrors half of them (--no-flip: none), one "
            "draw for 32 images of a folder; tests take the middle.",
        ),
    ] = None,
    scalar_mean: Annotated[
        bool | None,
        typer.Option(
            "--scalar-mean",
            show_default=False,
            help="For --layers: subtract the mean of the mean image, one number.",
        ),
    ] = None,
    batch_file: Annotated[
        int | None,
        typer.Option(
            metavar="IMAGES",
            show_default="the data set's own files, else 10000",
            help="For --layers: images of a batch file. Each is cut into minibatches by itself, "
            "and schedules count them.",
        ),
    ] = None,
    wupdate_freq: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="1",
            help="For --layers: minibatches whose gradients, averaged, make one update.",
        ),
    ] = None,
    on_bad_image: options.OnBadImage = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            show_default="0",
            help="Of initial weights, order, augmentation and dropout; the same seed gives the "
            "same bits.",
        ),
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
            show_default="runs/MODEL-DATA-N, the first N that is free",
            help="Folder for the run: settings, checkpoints, history.",
        ),
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the run that --out holds already.")
    ] = False,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            metavar="STEPS",
            show_default="0, at the end of epochs only",
            help="Steps between two checkpoints within an epoch, written however long they take.",
        ),
    ] = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Train a network and test it after each epoch.

    What is not given is taken from the network's recipe, settings that are known to train it well,
    and else from the defaults below.

    Ctrl-C finishes the step, saves a checkpoint and says how to resume; a second Ctrl-C stops at
    once.

    A checkpoint, last.safetensors and the best epoch's best.safetensors, is also written at the end
    of the run and of each epoch. At epochs that are short beside the time it takes to write one, it
    is left out until ten times that time has gone by; the best epoch's weights are kept meanwhile.
    """
    flags: dict[str, Any] = {
        "params": params,
        "init_from": init_from,
        "tree": tree,
        "data": data,
        "data_dir": data_dir,
        "epochs": epochs,
        "batch_size": batch_size,
        "optimizer": optimizer,
        "lr": lr,
        "momentum": momentum,
        "nesterov": nesterov,
        "weight_decay": weight_decay,
        "schedule": schedule,
        "clip_norm": clip_norm,
        "label_smoothing": label_smoothing,
        "crop": _augmented(augment, crop, 4, 0),
        "flip": _augmented(augment, flip, True, False),
        "resize": resize,
        "image_size": image_size,
        "shuffle": shuffle,
        "crop_border": crop_border,
        "scalar_mean": scalar_mean,
        "batch_file": batch_file,
        "wupdate_freq": wupdate_freq,
        "colour_noise": 0.0 if augment is False and colour_noise is None else colour_noise,
        "on_bad_image": on_bad_image,
        "seed": seed,
        "device": device,
        "kernels": kernels,
        "precision": precision,
        "input": input,
        "out": out,
        "checkpoint_every": checkpoint_every,
    }
    output = Output(as_json, quiet)
    options.use_threads(threads)
    from convloom.cli import runs

    with output.alone_on_stdout():
        config = runs.settings(_network(model, layers, flags), flags)
        runs.check_folder(config, overwrite=overwrite)
        run = runs.claim_folder(runs.prepare(config, output))
        raise typer.Exit(runs.train(run, output))


#: What a parameter file says itself.
_IN_PARAMS = (
    "optimizer",
    "lr",
    "momentum",
    "nesterov",
    "weight_decay",
    "schedule",
    "clip_norm",
    "label_smoothing",
)
#: What --crop-border says for a layer file.
_IN_BORDER = ("crop", "image_size")


def _network(model: str | None, layers: Path | None, flags: dict[str, Any]) -> str:
    """MODEL or --layers. Raises UsageError for both or neither, or rates beside --params."""
    if (model is None) == (layers is None):
        raise UsageError("give a MODEL, or --layers and --params, and not both")
    if layers is not None and flags["params"] is None:
        raise UsageError(f"a layer file needs its parameter file: --layers {layers} --params FILE")
    for name in _IN_BORDER if layers is not None else ():
        if flags[name] is not None:
            flag = name.replace("_", "-")
            raise UsageError(
                f"--{flag} and --augment are not for --layers; give --crop-border PIXELS, or --flip"
            )
    if layers is None:
        assert model is not None
        return model
    for name in _IN_PARAMS:
        if flags[name] is not None:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is not for --layers: {flags['params']} says how it learns")
    return str(layers)


def _augmented(augment: bool | None, own: _T | None, on: _T, off: _T) -> _T | None:
    """The value of --crop or --flip: its own flag, else what --augment implies, else not given."""
    if own is not None or augment is None:
        return own
    return on if augment else off
