"""The options that commands share, each with its help, unit and default said once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

#: Where a default depends on the network.
RECIPE = "the recipe's"

# What to work on.
NETWORKS = (
    "lenet, lenet5, vgg-small, vgg16, alexnet, alexnet-torchvision, resnet18, resnet20, resnet56, "
    "mobilenet-v1-small, or path/net.py:function (a function that returns a network)"
)
Model = Annotated[str, typer.Argument(metavar="MODEL", show_default=False, help=f"{NETWORKS}.")]
Saved = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        show_default=False,
        help="A run folder, or a saved model.safetensors.",
    ),
]

Best = Annotated[
    bool,
    typer.Option(
        "--best",
        help="Of a run folder, take the epoch that did best on the test set, not the last one.",
    ),
]

# Data.
DATA_HELP = (
    "mnist, fashion-mnist, cifar10, cifar100, digits, a folder with files like theirs or batch "
    "files of cuda-convnet, or a folder of image files: train/CLASS/*.jpg and val/CLASS/*.jpg."
)
Data = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        show_default=f"{RECIPE}, else fashion-mnist",
        help=DATA_HELP,
    ),
]
SavedData = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        show_default="the run's own; needed for a file",
        help=DATA_HELP,
    ),
]
TrainSet = Annotated[
    bool, typer.Option("--train-set", help="Take the training images, not the test images.")
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        metavar="DIR",
        show_default="$CONVLOOM_DATA/NAME, then the cache, then a download",
        help="Folder that holds the data set's files.",
    ),
]
Resize = Annotated[
    int | None,
    typer.Option(
        metavar="PIXELS",
        min=1,
        show_default="8/7 of the network's input: 256 for 224",
        help="Side of the squares that the image files of a folder become: the shorter side is "
        "resized, the middle of the longer one kept.",
    ),
]
OnBadImage = Annotated[
    str | None,
    typer.Option(
        "--on-bad-image",
        metavar="WHAT",
        show_default="error",
        help="What to do with image files that cannot be decoded: error names them, skip leaves "
        "them out and says so.",
    ),
]
Multiview = Annotated[
    bool,
    typer.Option(
        "--multiview",
        help="Average over views of each image, for networks that take less than all of it: ten of "
        "image files (corners, middle, and mirrored), else nine (no mirrored ones).",
    ),
]
ShapeOf = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        show_default=RECIPE,
        help="Data set whose image shape and classes to take; its files are not needed.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        "--input-shape",
        metavar="C,H,W",
        show_default="as --data says",
        help="Channels, height and width of an image, in pixels.",
    ),
]

# Where and how it runs.
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="NAME",
        show_default="auto",
        help="What computes: cpu; cuda, the NVIDIA GPU; cuda-sim, its kernels on this machine "
        "without a GPU (slow); reference, plain NumPy (slow). auto is cuda where it can be used, "
        "else cpu.",
    ),
]
Kernels = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        metavar="RUNG",
        show_default="auto",
        help="Highest rung of kernels to use: reference, dense, sparse or winograd on the cpu; "
        "naive, fused, tiled, warp, async, direct, sparse or onchip on cuda; auto takes the best "
        "for each step.",
    ),
]
Precision = Annotated[
    str | None,
    typer.Option(
        "--precision",
        metavar="NAME",
        show_default="fp32",
        help="What operands of convolutions and Linear layers are rounded to: fp32, tf32 or bf16. "
        "tf32 and bf16 are for networks that a GPU keeps on chip; layers elsewhere are computed in "
        "fp32, and a warning names them. Sums, weights and updates are always fp32.",
    ),
]
Input = Annotated[
    str | None,
    typer.Option(
        "--input",
        metavar="WAY",
        show_default="auto",
        help="How images reach a GPU: resident keeps them all in its memory, stream copies each "
        "batch while the steps before it run. auto is resident where they take at most 70 % of "
        "the free memory, else stream; on the cpu it is all there is. The results are the same "
        "bits.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "--threads",
        metavar="N",
        min=1,
        show_default="$CONVLOOM_NUM_THREADS, else all usable cores",
        help="CPU threads; the results are the same bits for any number.",
    ),
]
Epochs = Annotated[
    int | None,
    typer.Option(
        metavar="N", show_default=f"{RECIPE}, else 5", help="Passes over the training images."
    ),
]
Optimizer = Annotated[
    str | None,
    typer.Option(metavar="NAME", show_default=f"{RECIPE}, else sgd", help="sgd or adamw."),
]
BatchSize = Annotated[
    int | None,
    typer.Option(
        "--batch-size",
        "-b",
        metavar="N",
        show_default=f"{RECIPE}, else 64",
        help="Images in one training step.",
    ),
]

AtATime = Annotated[
    int, typer.Option("--batch-size", "-b", metavar="N", min=1, help="Images at a time.")
]

# How a script or a person reads the output.
Top = Annotated[int, typer.Option(metavar="K", min=1, help="Classes to show for each image.")]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON document on stdout; all else on stderr.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the result and errors.")]


def examples(*lines: str) -> str:
    """The end of a command's help: examples, kept line by line, and what every command takes."""
    shown = "\n".join(f"  {line}" for line in lines)
    return (
        f"\b\nExamples:\n{shown}\n\n"
        "If a command fails, add --traceback (or set CONVLOOM_TRACEBACK=1) to see where."
    )


def group(app: typer.Typer, name: str, about: str, *lines: str) -> typer.Typer:
    """A group of commands, added to the application; alone it prints its help.

    Args:
        about: the first line of its help.
        lines: examples.
    """
    made = typer.Typer(rich_markup_mode=None, help=about, epilog=examples(*lines))
    made.callback(invoke_without_command=True)(_help_if_alone)
    app.add_typer(made, name=name)
    return made


def _help_if_alone(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        print(context.get_help())


def use_threads(threads: int | None) -> None:
    """Make the CPU backend, which is not loaded yet, use this many threads."""
    if threads is not None:
        os.environ["CONVLOOM_NUM_THREADS"] = str(threads)
