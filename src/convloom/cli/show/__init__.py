"""``convloom show``: filters, curves, predictions and feature maps, as plots."""

from __future__ import annotations

import typer

from convloom.cli.options import examples
from convloom.cli.show import costs, filters, maps, preds


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    group = typer.Typer(
        rich_markup_mode=None,
        epilog=examples(
            "convloom show filters runs/a",
            "convloom show costs runs/a runs/b",
            "convloom show preds runs/a --data mnist --only-errors",
            "convloom show maps runs/a shirt.png --layer 0",
        ),
    )
    group.callback(invoke_without_command=True)(show)
    group.command(
        "filters",
        epilog=examples(
            "convloom show filters runs/a",
            "convloom show filters runs/a --layer conv2 --first 64 --out conv2.svg",
            "convloom show filters runs/a --channels each --scale filter --window",
        ),
    )(filters.filters)
    group.command(
        "costs",
        epilog=examples(
            "convloom show costs runs/a",
            "convloom show costs runs/a runs/b --cost loss --cost lr --by steps --out curves.png",
        ),
    )(costs.costs)
    group.command(
        "preds",
        epilog=examples(
            "convloom show preds runs/a --data mnist",
            "convloom show preds net.safetensors --data mnist --only-errors --seed 1 --out e.png",
        ),
    )(preds.preds)
    group.command(
        "maps",
        epilog=examples(
            "convloom show maps runs/a shirt.png",
            "convloom show maps runs/a shirt.png --layer 4 --scale map --out maps.png",
        ),
    )(maps.maps)
    app.add_typer(group, name="show")


def show(context: typer.Context) -> None:
    """Draw what a network has learnt, by matplotlib (pip install 'convloom[plot]')."""
    if context.invoked_subcommand is None:
        print(context.get_help())
