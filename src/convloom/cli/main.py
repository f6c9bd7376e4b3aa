"""The ``convloom`` command. Modules that compute are imported by the command that needs them."""

from __future__ import annotations

from typing import Annotated

import typer

from convloom.cli import (
    bench,
    build,
    check_grads,
    convnet,
    data,
    evaluate,
    features,
    plan,
    predict,
    resume,
    show,
    sweep,
    train,
    version,
)
from convloom.cli.errors import OneLineErrors
from convloom.cli.options import examples
from convloom.cli.terminal import replace_closed_streams, speak_in_lines, tolerate_any_encoding

_HELP = {"help_option_names": ["--help", "-h"], "max_content_width": 100}

app = typer.Typer(
    name="convloom",
    cls=OneLineErrors,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=_HELP,
    epilog=examples(
        "convloom train lenet --data fashion-mnist --epochs 5",
        "convloom eval runs/lenet-fashion-mnist-1 --data fashion-mnist",
        "convloom predict runs/lenet-fashion-mnist-1 shirt.png",
    ),
)


@app.callback(invoke_without_command=True)
def convloom(
    context: typer.Context,
    show_version: Annotated[
        bool, typer.Option("--version", help="Print convloom's version and stop.")
    ] = False,
) -> None:
    """Train convolutional networks on real images, on any machine.

    Exit codes: 0 done; 1 failed; 2 wrong usage; 130 stopped early by Ctrl-C.
    """
    if show_version:
        version.show()
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())


for _module in (
    train,
    resume,
    sweep,
    evaluate,
    predict,
    features,
    show,
    data,
    plan,
    build,
    bench,
    check_grads,
    convnet,
    version,
):
    _module.register(app)


def run() -> None:
    """The console entry point. Ends the process with the command's exit code."""
    replace_closed_streams()
    tolerate_any_encoding()
    speak_in_lines()
    app(prog_name="convloom")
