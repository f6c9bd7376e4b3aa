"""``convloom version``: what is installed, for bug reports."""

from __future__ import annotations

import typer

from convloom.cli.options import Json, examples
from convloom.cli.terminal import Output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command("version", epilog=examples("convloom version --json"))(version)


def version(as_json: Json = False) -> None:
    """Print what is installed, for bug reports."""
    import platform

    import numpy as np

    import convloom

    document = {
        "convloom": convloom.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": platform.system(),
        "machine": platform.machine(),
    }
    lines = [f"{name} {value}" for name, value in document.items()]
    Output(as_json).result(document, "\n".join(lines))


def show() -> None:
    """``convloom --version``: one line, and nothing of weight imported."""
    import convloom

    print(f"convloom {convloom.__version__}")
