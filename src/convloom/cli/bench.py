"""``convloom bench``: what each idea buys, and how PyTorch does on the same network."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.plan import _images_of, _shape
from convloom.cli.terminal import Output, plain, rate

if TYPE_CHECKING:
    from convloom.backends import Backend
    from convloom.inspection.ladder import Ladder, Row
    from convloom.inspection.workload import Workload
    from convloom.training.config import RunConfig

Model = Annotated[
    str, typer.Argument(metavar="MODEL", show_default=False, help=f"{options.NETWORKS}.")
]
DataName = Annotated[
    str | None,
    typer.Option(
        "--data",
        metavar="NAME",
        show_default=options.RECIPE,
        help="Data set whose image shape and classes to take; its files are not needed.",
    ),
]
InputShape = Annotated[
    str | None,
    typer.Option(
        metavar="C,H,W",
        show_default="as --data says",
        help="Channels, height and width of an image, in pixels.",
    ),
]
Seconds = Annotated[
    float, typer.Option(metavar="S", min=0.0, help="About how many seconds a turn lasts.")
]


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
    )(ladder)
    app.add_typer(group, name="bench")


def bench(context: typer.Context) -> None:
    """Measure whole training steps on this machine."""
    if context.invoked_subcommand is None:
        print(context.get_help())


def ladder(
    model: Model,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    data: DataName = None,
    input_shape: InputShape = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of each row; the median counts.")
    ] = 7,
    seconds: Seconds = 0.2,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Run one step of each row and time nothing.")
    ] = False,
    csv: Annotated[
        Path | None,
        typer.Option(metavar="FILE", show_default=False, help="Write the rows as CSV."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            show_default=False,
            help="Draw bars and a roofline, as PNG, SVG or PDF by the suffix; needs matplotlib.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default=False,
            help="Write ladder.json, ladder.csv and ladder.png into this folder.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Measure what each idea buys, on the whole training step.

    One row a rung of the device's kernels, then one a way to feed and launch them; each adds one
    idea to the row before. Below them, the whole with one idea taken out. Columns: kernels of a
    step, microseconds a step (median of the rounds), images a second, bytes and floating-point
    operations a second, the share of the limit that is reached (the larger of FLOPs over peak
    rate and bytes over bandwidth, of the plan that needs least; both peaks are measured in the same
    run), and the gain
    over the row before.
    """
    options.use_threads(threads)
    config = _config(model, batch_size, data, device)
    _refuse_simulator(config, dry_run=dry_run)
    if (plot is not None or out is not None) and not dry_run:
        from convloom.inspection.plots import require_matplotlib

        require_matplotlib()
    found = _study(config, _shape(input_shape), rounds=0 if dry_run else rounds, seconds=seconds)
    _write(found, csv, plot, out)
    Output(as_json).result(found.to_json(), "")
    if not as_json:
        _print(found)


def _config(model: str, batch_size: int | None, data: str | None, device: str | None) -> RunConfig:
    from convloom.cli.runs import check_names
    from convloom.training.config import resolve

    flags = {"network": model, "batch_size": batch_size, "data": data, "device": device}
    with as_usage():
        config = resolve({}, flags)
        check_names(config)
    return config


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
    workload = _workload(config, shape)
    wanted = entries(backend, threads=default_threads() if device == "cpu" else None)
    peaks = None
    if rounds:
        rows, peaks = climbed(
            backend, workload, wanted, rounds=rounds, seconds=seconds, tell=_teller()
        )
    else:
        rows = tried(backend, workload, wanted)
    return Ladder(
        network=config.network,
        device=device,
        batch_size=config.batch_size,
        rounds=rounds,
        rows=tuple(rows),
        peaks=peaks,
        environment=environment(device, _gpu_name(backend)),
    )


def _workload(config: RunConfig, shape: tuple[int, int, int] | None) -> Workload:
    from convloom.cli.runs import make_network
    from convloom.inspection.workload import make_workload
    from convloom.nn import CrossEntropyLoss

    known_shape, classes = _images_of(config)
    shape = shape or known_shape
    return make_workload(
        make_network(config.network, shape, classes),
        CrossEntropyLoss(label_smoothing=config.label_smoothing),
        config.make_optimizer(),
        input_shape=shape,
        batch_size=config.batch_size,
        clip=config.clip_norm is not None,
    )


def _gpu_name(backend: Backend) -> str | None:
    from convloom.backends.cuda import measure
    from convloom.backends.cuda.backend import CudaBackend

    return measure.gpu_of(backend).name if isinstance(backend, CudaBackend) else None


def _teller() -> Any:
    """Shows on a terminal's stderr what is being done, on one line."""
    import sys

    from convloom.cli.terminal import is_terminal

    live = is_terminal(sys.stderr)

    def tell(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return tell


def _write(found: Ladder, csv: Path | None, plot: Path | None, out: Path | None) -> None:
    from convloom.inspection.plots import plot_ladder

    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        text = json.dumps(plain(found.to_json()), indent=2, ensure_ascii=False)
        (out / "ladder.json").write_text(text + "\n")
        csv = csv or out / "ladder.csv"
        plot = plot or out / "ladder.png"
    if csv is not None:
        csv.write_text(found.to_csv())
    if plot is not None and found.peaks is not None:
        plot_ladder(found, plot)


_COLUMNS = ("row", "kernels", "µs/step", "images/s", "GB/s", "GFLOP/s", "of limit", "gain", "idea")


def _print(found: Ladder) -> None:
    """The rows as a table, and where they come from."""
    import sys

    from rich.console import Console
    from rich.table import Table

    shown = Table(box=None, header_style="bold", pad_edge=False)
    for name in _COLUMNS:
        left = name in ("row", "idea")
        shown.add_column(name, justify="left" if left else "right", no_wrap=name != "idea")
    for before, row in zip((None, *found.rows), found.rows, strict=False):
        if before is not None and before.kind != row.kind and row.kind == "switch":
            shown.add_section()
            shown.add_row()
        shown.add_row(*_cells(row))
    wide = None if sys.stdout.isatty() else 160
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False)
    console.print(shown)
    console.print(_footer(found))


def _cells(row: Row) -> list[str]:
    def number(value: float | None, text: str) -> str:
        return "" if value is None else text.format(value)

    kinds = " ".join(f"{count} {rung}" for rung, count in row.rungs.items())
    return [
        row.name,
        str(row.kernels),
        number(row.us, "{:,.1f}"),
        "" if row.images_per_second is None else rate(row.images_per_second),
        number(row.gbytes_per_second, "{:,.1f}"),
        number(row.gflops_per_second, "{:,.0f}"),
        "" if row.of_limit is None else f"{100 * row.of_limit:.1f} %",
        number(row.gain, "×{:.2f}"),
        f"{row.note or row.idea} ({kinds})" if row.kind == "rung" else row.idea,
    ]


def _footer(found: Ladder) -> str:
    where = found.environment
    hardware, versions = where["hardware"], where["versions"]
    device = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['cores']} cores"
    lines = [
        "",
        f"{found.network}, batch {found.batch_size}, on {device}; {where['date']}; "
        + ", ".join(f"{name} {version}" for name, version in versions.items()),
    ]
    if found.peaks is None:
        return "\n".join([*lines, f"all {len(found.rows)} rows work and agree; nothing was timed"])
    peaks = found.peaks
    return "\n".join(
        [
            *lines,
            f"peaks {peaks.bandwidth / 1e9:,.0f} GB/s and {peaks.flops / 1e12:.3g} TFLOP/s, "
            f"{peaks.source}",
            f"median of {found.rounds} rounds that took turns; in a row named no …, the gain is "
            "what the idea is worth to the whole",
        ]
    )
