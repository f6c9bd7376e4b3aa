"""``convloom resume``: go on with a run that was stopped, as if it had not been."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.options import examples
from convloom.cli.terminal import Output


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "resume", epilog=examples("convloom resume runs/a", "convloom resume runs/a --threads 1")
    )(resume)


def resume(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN", show_default=False, help="The run folder that convloom train made."
        ),
    ],
    data_dir: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="as the run began",
            help="Folder that holds the data set's files, if they have moved.",
        ),
    ] = None,
    threads: options.Threads = None,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Go on with a run that was stopped.

    It starts at the last checkpoint, in the middle of an epoch too. The result is
    the same, bit for bit, as if the run had never stopped. All settings are those that the run
    began with, but for the parameter file of a network file: what was edited there (rates, momenta,
    superEps, limits, coeff and topk of costs, scale, pow and minDiv of normalisations, enable of
    hs) counts from here on, and each change is said.

    A finished run goes on for longer where its run.toml is given more epochs.
    """
    output = Output(as_json, quiet)
    options.use_threads(threads)
    from convloom.cli import runs

    with output.alone_on_stdout():
        raise typer.Exit(runs.train(runs.reopen(run, data_dir, output), output, resume=True))
