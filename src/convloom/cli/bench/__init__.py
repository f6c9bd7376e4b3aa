"""``convloom bench``: what each idea buys, and how PyTorch does on the same network."""

from __future__ import annotations

import typer

from convloom.cli.bench import ladder, pytorch
from convloom.cli.options import examples, group


def register(app: typer.Typer) -> None:
    """Add the group of commands to the application."""
    bench = group(
        app,
        "bench",
        "Measure whole training steps on this machine.",
        "convloom bench ladder lenet --device cuda",
        "convloom bench pytorch lenet",
    )
    bench.command(
        "ladder",
        epilog=examples(
            "convloom bench ladder lenet --batch-size 64",
            "convloom bench ladder lenet --device cuda --csv ladder.csv --plot ladder.png",
            "convloom bench ladder lenet --device cuda-sim --batch-size 2 --dry-run",
        ),
    )(ladder.ladder)
    bench.command(
        "pytorch",
        epilog=examples(
            "convloom bench pytorch lenet --device cuda",
            "convloom bench pytorch lenet --device cuda --precision bf16 --skip DataLoader",
            "convloom bench pytorch lenet --device cpu --skip compile --workers 0,2 --json",
        ),
    )(pytorch.pytorch)
