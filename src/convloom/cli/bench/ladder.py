"""``convloom bench ladder``: the whole training step, rung by rung and switch by switch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from convloom.cli import options
from convloom.cli.bench import shared
from convloom.cli.bench.shared import number
from convloom.cli.errors import FAILURE, SUCCESS, UsageError
from convloom.cli.plan import _shape
from convloom.cli.terminal import Output, rate, say

if TYPE_CHECKING:
    from convloom.inspection.ladder import Ladder, Row
    from convloom.training.config import RunConfig

_COLUMNS = ("row", "kernels", "µs/step", "images/s", "GB/s", "GFLOP/s", "of limit", "gain", "idea")


def ladder(
    model: options.Model,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    data: options.ShapeOf = None,
    input_shape: options.InputShape = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of each row; the median counts.")
    ] = 7,
    seconds: shared.Seconds = 0.2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run one step of each row and time nothing.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default="none", help="Write the rows as CSV."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default="none",
            help="Draw bars and a roofline, as PNG, SVG or PDF by the suffix; needs matplotlib.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="none",
            help="Write ladder.json, ladder.csv and ladder.png into this folder.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> int:
    """Measure what each idea buys, on the whole training step.

    One row a rung of the device's kernels, then one a way to feed and launch them; each adds one
    idea to the row before. Below them, the whole with one idea taken out. Columns: kernels of a
    step, microseconds a step (median of the rounds), images a second, bytes and floating-point
    operations a second, the share of the limit that is reached (the larger of FLOPs over peak rate
    and bytes over bandwidth, of the plan that needs least; both peaks are measured in the same
    run, arithmetic in fp32), and the gain over the row before. Exit code 1 if a row fails.
    """
    options.use_threads(threads)
    config = shared.settings(model, batch_size, data, device, precision)
    _refuse_simulator(config, dry_run=dry_run)
    if (plot is not None or out is not None) and not dry_run:
        from convloom.inspection.figures import require_matplotlib

        require_matplotlib()
    found = _study(config, _shape(input_shape), rounds=0 if dry_run else rounds, seconds=seconds)
    _write(found, csv, plot, out)
    Output(as_json).result(found.to_json(), "")
    if not as_json:
        _print(found)
    for row in found.failures:
        say(f"error: {row.name}: {row.failed}")
    return FAILURE if found.failures else SUCCESS


def _refuse_simulator(config: RunConfig, *, dry_run: bool) -> None:
    if config.device == "cuda-sim" and not dry_run:
        raise UsageError(
            "device cuda-sim runs CUDA kernels on this machine's CPU, so how long they take says "
            "nothing of a GPU; add --dry-run to try one step of each row"
        )


def _study(
    config: RunConfig, shape: tuple[int, int, int] | None, *, rounds: int, seconds: float
) -> Ladder:
    from convloom.backends import get_backend, resolve_device
    from convloom.backends.cpu.pool import default_threads
    from convloom.inspection.environment import environment
    from convloom.inspection.ladder import Ladder, climbed, entries, tried

    device = resolve_device(config.device)
    backend = get_backend(device)
    gpu = shared.gpu_name(backend)  # before all rows fail for want of one
    workload = shared.make_work(config, shape)
    wanted = entries(backend, threads=default_threads() if device == "cpu" else None)
    peaks = None
    if rounds:
        tell = shared.teller()
        rows, peaks = climbed(backend, workload, wanted, rounds=rounds, seconds=seconds, tell=tell)
        tell("")
    else:
        rows = tried(backend, workload, wanted)
    return Ladder(
        network=config.network,
        device=device,
        batch_size=config.batch_size,
        rounds=rounds,
        rows=tuple(rows),
        peaks=peaks,
        environment=environment(device, gpu),
        precision=config.precision,
    )


def _write(found: Ladder, csv: Path | None, plot: Path | None, out: Path | None) -> None:
    from convloom.inspection.plots import plot_ladder

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        shared.write_json(out / "ladder.json", found.to_json())
        csv = csv or out / "ladder.csv"
        plot = plot or out / "ladder.png"
    if csv is not None:
        csv.write_text(found.to_csv())
    if plot is not None and any(row.us is not None for row in found.rows):
        plot_ladder(found, plot)


def _print(found: Ladder) -> None:
    """The rows as a table, and where they come from."""
    shown = shared.new_table(_COLUMNS, left=("row", "idea"), wraps="idea")
    for before, row in zip((None, *found.rows), found.rows, strict=False):
        if before is not None and before.kind != row.kind and row.kind == "switch":
            shown.add_section()
            shown.add_row()
        shown.add_row(*_cells(row))
    shared.show(shown, _footer(found))


def _cells(row: Row) -> list[str]:
    kinds = ", ".join(f"{count} {rung}" for rung, count in row.rungs.items())
    kinds = f" ({kinds})" if row.kind == "rung" else ""
    return [
        row.name,
        str(row.kernels),
        number(row.us, "{:,.1f}"),
        "" if row.images_per_second is None else rate(row.images_per_second),
        number(row.gbytes_per_second, "{:,.1f}"),
        number(row.gflops_per_second, "{:,.0f}"),
        "" if row.of_limit is None else f"{100 * row.of_limit:.1f} %",
        number(row.gain, "×{:.2f}"),
        "failed" if row.failed else f"{row.note or row.idea}{kinds}",
    ]


def _footer(found: Ladder) -> str:
    lines = ["", shared.origin(found)]
    if found.peaks is None:
        sound = len(found.rows) - len(found.failures)
        lines.append(f"{sound} of {len(found.rows)} rows work and agree; nothing was timed")
        return "\n".join(lines)
    peaks = found.peaks
    lines += [
        f"peaks {peaks.bandwidth / 1e9:,.0f} GB/s and {peaks.flops / 1e12:.3g} TFLOP/s, "
        f"{peaks.source}",
        f"median of {found.rounds} rounds that took turns; in a row named no …, the gain is what "
        "the idea is worth to the whole",
    ]
    return "\n".join(lines)
