"""``convloom check-grads``: whether every gradient of a network file is right."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convloom.cli import options
from convloom.cli.convnet import Classes, Layers, Size, Tree
from convloom.cli.errors import FAILURE, UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.terminal import Output

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from convloom.convnet.gradcheck import GradientReport, Row

#: Columns where the table does not go to a terminal.
_WIDE = 160


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "check-grads",
        epilog=examples(
            "convloom check-grads layers.cfg params.cfg --size 32",
            "convloom check-grads layers.cfg params.cfg --divide 16 --device cuda-sim",
            "convloom check-grads layers.cfg params.cfg --size 32 --divide 8 --all --json",
        ),
    )(check_grads)


def check_grads(
    layers: Layers,
    params: Annotated[Path, typer.Argument(metavar="PARAMS", help="Its parameter file.")],
    size: Size = 224,
    divide: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=1,
            help="Divide the channels and outputs of every layer by this, to be quick.",
        ),
    ] = 1,
    batch: Annotated[int, typer.Option("--batch", metavar="N", min=1, help="Images.")] = 2,
    device: options.Device = None,
    entries: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            show_default="8",
            help="Entries of each tensor to compare, half of them where the gradient is not 0.",
        ),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Compare every entry; slow.")] = False,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Of everything that is drawn.")] = 0,
    classes: Classes = None,
    tree: Tree = None,
    as_json: options.Json = False,
) -> None:
    """Check every gradient of a network file of 2012.

    What each layer makes and learns is moved a little, in float64, and the change of the loss is
    compared with the gradient; the gradients of one training step on the device are compared with
    float64's. Weights, images and labels are drawn at random; masks of dropout stay. Entries where
    a rectifier or a maximum turns over are skipped and counted. A cnorm has no true gradient: in
    the differences too its means stay, as cuda-convnet's rule has it.

    The exit code is 1 if a gradient is wrong.
    """
    from convloom.convnet.gradcheck import check_net, smaller

    if every and entries is not None:
        raise UsageError("--all compares every entry; leave --entries out")
    output = Output(as_json)
    with as_usage():
        net = smaller(layers, params, size, divide, classes=classes, tree=tree)
    for note in net.notes:
        output.remark(note)
    console = _console(output)
    with console.status("") as status:
        report = check_net(
            net,
            batch=batch,
            device=device or "auto",
            entries=None if every else entries or 8,
            seed=seed,
            tell=status.update,
        )
    if as_json:
        output.result(report.to_json(), "")
    else:
        rows = _table(report)
        # Wider than the terminal rather than with figures cut off.
        wide = console.options.update(width=_WIDE)
        console.width = max(console.width, console.measure(rows, options=wide).maximum)
        console.print(rows)
        console.print("\n".join((*_notes(report), _summary(report))), soft_wrap=True)
    if not report.ok:
        raise typer.Exit(FAILURE)


def _console(output: Output) -> Console:
    from rich.console import Console

    return Console(
        file=output.stream, highlight=False, markup=False, width=None if output.live else _WIDE
    )


def _table(report: GradientReport) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    for head in ("layer", "type", "tensor"):
        table.add_column(head, no_wrap=True)
    for head in ("checked", "skipped", "of", "error", "direction", f"on {report.device}"):
        table.add_column(head, no_wrap=True, justify="right")
    table.add_column("verdict", no_wrap=True)
    for row in report.rows:
        table.add_row(*_cells(row), style="bold red" if row.wrong else "")
    return table


def _cells(row: Row) -> tuple[str, ...]:
    counts = (str(row.checked), str(row.skipped or ""), str(row.size))
    errors = (row.error, row.direction, row.device_error)
    shown = ("" if error is None else f"{error:.1e}" for error in errors)
    short = row.note.partition(":")[0]
    verdict = f"{row.verdict}, {short}" if short else row.verdict
    return (row.layer, row.type, row.tensor, *counts, *shown, verdict)


def _notes(report: GradientReport) -> list[str]:
    return [*report.notes, *(f"[{row.layer}] {row.note}" for row in report.rows if row.note)]


def _summary(report: GradientReport) -> str:
    wrong = sum(row.wrong for row in report.rows)
    unknown = sum(row.verdict == "unknown" for row in report.rows)
    verdict = (
        f"{wrong} of {len(report.rows)} gradients are wrong" if wrong else "no gradient is wrong"
    )
    if unknown:
        verdict += f", of {unknown} nothing is known"
    skipped = sum(row.skipped for row in report.rows)
    return (
        f"{verdict}; allowed are {report.tolerance:g} between gradient and difference, as a share "
        f"of the largest entry, and {report.device_tolerance:g} between {report.device} and "
        f"float64, as a share of the length. {skipped} entries were skipped, at kinks or too small "
        "to tell."
    )
