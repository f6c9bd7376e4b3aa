"""``convloom show``: filters, curves, predictions and feature maps, as plots."""

from __future__ import annotations

import typer

from convloom.cli.options import examples, group
from convloom.cli.show import costs, filters, maps, preds


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    show = group(
        app,
        "show",
        "Draw filters, curves, predictions and maps by matplotlib.",
        "convloom show filters runs/a",
        "convloom show costs runs/a runs/b",
        "convloom show preds runs/a --data mnist --only-errors",
        "convloom show maps runs/a shirt.png --layer 0",
    )
    show.command(
        "filters",
        epilog=examples(
            "convloom show filters runs/a",
            "convloom show filters runs/a --layer conv2 --first 64 --out conv2.svg",
            "convloom show filters runs/a --channels each --scale filter --window",
        ),
    )(filters.filters)
    show.command(
        "costs",
        epilog=examples(
            "convloom show costs runs/a",
            "convloom show costs runs/a runs/b --cost loss --cost lr --by steps --out curves.png",
        ),
    )(costs.costs)
    show.command(
        "preds",
        epilog=examples(
            "convloom show preds runs/a --data mnist",
            "convloom show preds net.safetensors --data mnist --only-errors --seed 1 --out e.png",
        ),
    )(preds.preds)
    show.command(
        "maps",
        epilog=examples(
            "convloom show maps runs/a shirt.png",
            "convloom show maps runs/a shirt.png --layer 4 --scale map --out maps.png",
        ),
    )(maps.maps)
