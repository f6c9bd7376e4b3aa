"""``convloom bench``: what each idea buys, and how PyTorch does on the same network."""

from __future__ import annotations

import typer

from convloom.cli.bench import ladder, pytorch
from convloom.cli.options import examples


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(
        rich_markup_mode=None,
        epilog=examples(
            "convloom bench ladder lenet --device cuda", "convloom bench pytorch lenet"
        ),
    )
    group.callback(invoke_without_command=True)(bench)
    group.command(
        "ladder",
        epilog=examples(
            "convloom bench ladder lenet --batch-size 64",
            "convloom bench ladder lenet --device cuda --csv ladder.csv --plot ladder.png",
            "convloom bench ladder lenet --device cuda-sim --batch-size 2 --dry-run",
        ),
    )(ladder.ladder)
    group.command(
        "pytorch",
        epilog=examples(
            "convloom bench pytorch lenet --device cuda",
            "convloom bench pytorch lenet --device cpu --skip compile --workers 0,2 --json",
        ),
    )(pytorch.pytorch)
    app.add_typer(group, name="bench")


def bench(context: typer.Context) -> None:
    """Measure whole training steps on this machine."""
    if context.invoked_subcommand is None:
        print(context.get_help())
