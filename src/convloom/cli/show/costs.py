"""``convloom show costs``: training and test curves of runs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import as_usage
from convloom.cli.show.shared import Window, check_out, deliver, out_option
from convloom.cli.terminal import Output


def costs(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            show_default=False,
            help="Run folders, or their last.safetensors or history.json.",
        ),
    ],
    cost: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            show_default="all that the test set has too",
            help="What to draw: loss, accuracy, lr, seconds …; may be given several times.",
        ),
    ] = None,
    by: Annotated[
        str,
        typer.Option(
            metavar="UNIT",
            help="How far training has come: in epochs, or in steps, with a point for each row "
            "of the step log.",
        ),
    ] = "epochs",
    out: Annotated[Path | None, out_option("costs.png")] = None,
    window: Window = False,
    as_json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Draw the curves of runs, one picture a cost.

    Those of the training set are dashed, those of the test set solid.
    """
    from convloom.cli.saved import history_of
    from convloom.inspection.curves import curve, known_costs, plot_costs, usual_costs

    output = Output(as_json, quiet)
    check_out(out)
    histories = {str(run): history_of(run) for run in runs}
    names = tuple(dict.fromkeys(cost or usual_costs(*histories.values())))
    with as_usage():
        figure = plot_costs(histories, names, by=by)
    document = {
        "by": by,
        "runs": [
            {
                "run": run,
                "costs": {
                    name: asdict(curve(history, name, by))
                    for name in names
                    if name in known_costs(history)
                },
            }
            for run, history in histories.items()
        ],
    }
    deliver(
        figure,
        out,
        "costs.png",
        output,
        window=window,
        document=document,
        text=f"{', '.join(names)} of {', '.join(histories)}",
    )
