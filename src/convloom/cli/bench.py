"""``convloom bench``: what each idea buys, and how PyTorch does on the same network."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.plan import _images_of, _shape
from convloom.cli.terminal import Output, plain, rate

if TYPE_CHECKING:
    from rich.table import Table

    from convloom.backends import Backend
    from convloom.inspection.ladder import Ladder, Row
    from convloom.inspection.versus import Candidate, OurTraining, Versus
    from convloom.inspection.workload import Workload
    from convloom.interop.torch.peers import Kind, Peer
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
    group.command(
        "pytorch",
        epilog=examples(
            "convloom bench pytorch lenet --device cuda",
            "convloom bench pytorch lenet --device cpu --skip compile --workers 0,2 --json",
        ),
    )(pytorch)
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


def pytorch(
    model: Model,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    data: DataName = None,
    input_shape: InputShape = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of each row; the median counts.")
    ] = 3,
    seconds: Seconds = 1.0,
    workers: Annotated[
        str, typer.Option(metavar="N,…", help="Worker processes of PyTorch's DataLoader to try.")
    ] = "0,1,2,4,8",
    skip: Annotated[
        str,
        typer.Option(
            metavar="WORD,…",
            show_default="none",
            help="Leave out rows whose name has one of these words, such as compile.",
        ),
    ] = "",
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            show_default="none",
            help="Write pytorch.json and pytorch.csv into this folder.",
        ),
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Train the same network in PyTorch, beside convloom, on the same random data.

    Rows of kind "step" take batches that lie on the device already. Rows of kind "end to end" begin
    with the data set in the host's memory: convloom's ways of input, and PyTorch's DataLoader with
    some worker processes, with and without pinned memory, behind the step that needs no compiling
    (a CUDA graph on a GPU, eager on a CPU). Columns: microseconds a step, images a second, the
    share of the time in which the GPU was busy, and how many times as fast convloom is as the
    fastest row of PyTorch of that kind.
    """
    options.use_threads(threads)
    config = _config(model, batch_size, data, device)
    words = tuple(word for word in skip.split(",") if word)
    found = _versus(config, _shape(input_shape), _numbers(workers), words, rounds, seconds)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        _write_json(out / "pytorch.json", found.to_json())
        (out / "pytorch.csv").write_text(found.to_csv())
    Output(as_json).result(found.to_json(), "")
    if not as_json:
        _print_versus(found)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() for part in parts):
        raise UsageError(f"--workers must be whole numbers such as 0,2,4, not {text!r}")
    return [int(part) for part in parts]


def _versus(
    config: RunConfig,
    shape: tuple[int, int, int] | None,
    workers: list[int],
    skip: tuple[str, ...],
    rounds: int,
    seconds: float,
) -> Versus:
    from convloom.backends import get_backend, resolve_device
    from convloom.inspection.environment import environment
    from convloom.inspection.versus import Versus, compared

    device = resolve_device(config.device)
    if device not in ("cpu", "cuda"):
        raise UsageError(f"PyTorch has no device {device}; use --device cpu or cuda")
    _require_torch(device)
    backend = get_backend(device)
    candidates = [
        candidate
        for candidate in _candidates(config, device, shape, workers)
        if not any(word in candidate.name for word in skip)
    ]
    rows = compared(
        candidates,
        batch_size=config.batch_size,
        rounds=rounds,
        seconds=seconds,
        gpu=device == "cuda",
        tell=_teller(),
    )
    return Versus(
        network=config.network,
        device=device,
        batch_size=config.batch_size,
        rounds=rounds,
        seconds=seconds,
        rows=tuple(rows),
        environment=environment(device, _gpu_name(backend)),
    )


def _require_torch(device: str) -> None:
    from convloom.backends.cpu.pool import default_threads
    from convloom.ir import ConvloomError

    try:
        import convloom.interop.torch.peers as peers
    except ImportError as error:
        raise ConvloomError(
            f"the comparison needs PyTorch ({error}); pip install torch, as pytorch.org says for "
            "this machine"
        ) from None
    peers.check(device, default_threads())


def _candidates(
    config: RunConfig, device: str, shape: tuple[int, int, int] | None, workers: list[int]
) -> list[Candidate]:
    """Steps of PyTorch and ours, then training from end to end of ours and PyTorch."""
    workload = _workload(config, shape)
    return [
        *_peer_steps(workload, device),
        *_our_rows(config, workload, device),
        *_peer_loaders(workload, device, workers),
    ]


def _peer_steps(workload: Workload, device: str) -> list[Candidate]:
    from convloom.inspection.versus import STEP, Candidate
    from convloom.interop.torch.peers import kinds

    return [
        Candidate(kind.name, "pytorch", STEP, partial(_peer, workload, device, kind), {})
        for kind in kinds(device)
    ]


def _peer(workload: Workload, device: str, kind: Kind) -> Peer:
    from convloom.inspection.workload import RATE
    from convloom.interop.torch.peers import Peer

    return Peer(kind, workload.forward, workload.weights, workload.batches, device=device, lr=RATE)


def _our_rows(config: RunConfig, workload: Workload, device: str) -> list[Candidate]:
    from convloom.backends import get_backend
    from convloom.backends.feeding import has_device_input
    from convloom.inspection.versus import END_TO_END, STEP, Candidate, OurSteps

    backend = get_backend(device)
    kinds = ("plain", "stream", "resident") if has_device_input(backend) else ("plain",)
    return [
        Candidate("auto", "convloom", STEP, partial(OurSteps, backend, workload), {}),
        *(
            Candidate(
                kind, "convloom", END_TO_END, partial(_training, config, workload, device, kind), {}
            )
            for kind in kinds
        ),
    ]


def _training(config: RunConfig, workload: Workload, device: str, kind: str) -> OurTraining:
    from convloom.cli.runs import make_network
    from convloom.data import from_arrays
    from convloom.inspection.versus import OurTraining
    from convloom.inspection.workload import RATE
    from convloom.nn import CrossEntropyLoss
    from convloom.training.engine import Engine
    from convloom.training.optim import SGD

    shape = (workload.channels, *workload.images.shape[2:])
    names = [str(number) for number in range(workload.classes)]
    dataset = from_arrays(
        workload.images, workload.labels, classes=names, mean=workload.mean, std=workload.std
    )
    engine = Engine(
        make_network(config.network, shape, workload.classes),
        loss=CrossEntropyLoss(),
        optimizer=SGD(lr=RATE, momentum=0.9),
        input_shape=shape,
        device=device,
    )
    batches = dataset.batches(workload.batch_size, shuffle=True, prefetch=2)
    return OurTraining(engine, batches, kind)


def _peer_loaders(workload: Workload, device: str, workers: list[int]) -> list[Candidate]:
    from convloom.inspection.versus import END_TO_END, Candidate
    from convloom.interop.torch.peers import EAGER, GRAPH, Loading

    kind = GRAPH if device == "cuda" else EAGER
    peer = cache(lambda: _peer(workload, device, kind))

    def load(count: int, pin: bool) -> Loading:
        return Loading(
            peer(),
            workload.images,
            workload.labels,
            workload.mean,
            workload.std,
            batch_size=workload.batch_size,
            workers=count,
            pin_memory=pin,
        )

    return [
        Candidate(
            f"DataLoader, {kind.name}",
            "pytorch",
            END_TO_END,
            partial(load, count, pin),
            {"workers": count, "pin_memory": "on" if pin else "off"},
        )
        for count in workers
        for pin in ((False, True) if device == "cuda" else (False,))
    ]


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
        _write_json(out / "ladder.json", found.to_json())
        csv = csv or out / "ladder.csv"
        plot = plot or out / "ladder.png"
    if csv is not None:
        csv.write_text(found.to_csv())
    if plot is not None and found.peaks is not None:
        plot_ladder(found, plot)


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n")


_COLUMNS = ("row", "kernels", "µs/step", "images/s", "GB/s", "GFLOP/s", "of limit", "gain", "idea")


def _print(found: Ladder) -> None:
    """The rows as a table, and where they come from."""
    shown = _table(_COLUMNS, left=("row", "idea"), wraps="idea")
    for before, row in zip((None, *found.rows), found.rows, strict=False):
        if before is not None and before.kind != row.kind and row.kind == "switch":
            shown.add_section()
            shown.add_row()
        shown.add_row(*_cells(row))
    _show(shown, _footer(found))


def _table(columns: Sequence[str], *, left: Sequence[str], wraps: str) -> Table:
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=name != wraps)
    return made


def _show(shown: Table, footer: str) -> None:
    import sys

    from rich.console import Console

    wide = None if sys.stdout.isatty() else 160
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False)
    console.print(shown)
    console.print(footer)


_VERSUS = ("engine", "row", "settings", "µs/step", "images/s", "GPU busy", "ratio", "note")


def _print_versus(found: Versus) -> None:
    """The rows of each kind as a table, and where they come from."""
    shown = _table(_VERSUS, left=("engine", "row", "settings", "note"), wraps="note")
    kind = ""
    for row in found.rows:
        if row.what != kind:
            shown.add_row()
            shown.add_row(f"{row.what}:")
            kind = row.what
        settings = ", ".join(f"{name} {value}" for name, value in row.settings.items())
        shown.add_row(
            row.engine,
            row.name,
            settings,
            _number(row.us, "{:,.1f}"),
            "" if row.images_per_second is None else rate(row.images_per_second),
            "" if row.busy is None else f"{100 * row.busy:.0f} %",
            _number(row.ratio, "×{:.2f}"),
            row.note,
        )
    lines = ["", _origin(found)]
    lines.append(f"median of {found.rounds} turns of {found.seconds:g} s each, by the host's clock")
    if found.device == "cuda":
        lines.append(f"GPU busy: {found.busy_source}")
    _show(shown, "\n".join(lines))


def _number(value: float | None, text: str) -> str:
    return "" if value is None else text.format(value)


def _origin(found: Ladder | Versus) -> str:
    where = found.environment
    hardware, versions = where["hardware"], where["versions"]
    device = hardware.get("gpu") or f"{hardware['cpu']}, {hardware['cores']} cores"
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"{found.network}, batch {found.batch_size}, on {device}; {where['date']}; {named}"


def _cells(row: Row) -> list[str]:
    kinds = " ".join(f"{count} {rung}" for rung, count in row.rungs.items())
    return [
        row.name,
        str(row.kernels),
        _number(row.us, "{:,.1f}"),
        "" if row.images_per_second is None else rate(row.images_per_second),
        _number(row.gbytes_per_second, "{:,.1f}"),
        _number(row.gflops_per_second, "{:,.0f}"),
        "" if row.of_limit is None else f"{100 * row.of_limit:.1f} %",
        _number(row.gain, "×{:.2f}"),
        f"{row.note or row.idea} ({kinds})" if row.kind == "rung" else row.idea,
    ]


def _footer(found: Ladder) -> str:
    lines = ["", _origin(found)]
    if found.peaks is None:
        return "\n".join([*lines, f"all {len(found.rows)} rows work and agree; nothing was timed"])
    peaks = found.peaks
    lines += [
        f"peaks {peaks.bandwidth / 1e9:,.0f} GB/s and {peaks.flops / 1e12:.3g} TFLOP/s, "
        f"{peaks.source}",
        f"median of {found.rounds} rounds that took turns; in a row named no …, the gain is what "
        "the idea is worth to the whole",
    ]
    return "\n".join(lines)
