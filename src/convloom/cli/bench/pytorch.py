"""``convloom bench pytorch``: the same network in PyTorch, beside convloom."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.bench import shared
from convloom.cli.bench.shared import number
from convloom.cli.errors import UsageError
from convloom.cli.plan import _shape
from convloom.cli.terminal import Output, rate

if TYPE_CHECKING:
    from convloom.inspection.versus import Candidate, OurTraining, Versus
    from convloom.inspection.workload import Workload
    from convloom.interop.torch.peers import Kind, Loading, Peer
    from convloom.training.config import RunConfig

_VERSUS = ("engine", "row", "settings", "µs/step", "images/s", "GPU busy", "ratio", "note")


def pytorch(
    model: options.Model,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    data: options.ShapeOf = None,
    input_shape: options.InputShape = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="Turns of each row; the median counts.")
    ] = 3,
    seconds: shared.Seconds = 1.0,
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

    Both engines compute in the precision that is asked for. With bf16, PyTorch's forward pass and
    loss run under torch.autocast, its weights and updates stay in fp32; each of its steps is timed
    in NCHW and in channels_last, which PyTorch's manual advises there, and its DataLoader feeds
    the latter. With tf32, its matrix products and convolutions may use TF32. With fp32 they may
    not, save in a row of that name.
    """
    options.use_threads(threads)
    config = shared.settings(model, batch_size, data, device, precision)
    words = tuple(word for word in skip.split(",") if word)
    found = _versus(config, _shape(input_shape), _numbers(workers), words, rounds, seconds)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        shared.write_json(out / "pytorch.json", found.to_json())
        (out / "pytorch.csv").write_text(found.to_csv())
    Output(as_json).result(found.to_json(), "")
    if not as_json:
        _print_versus(found)


def _numbers(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdecimal() for part in parts):
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
    from convloom.training.engine import precision_notes

    device = resolve_device(config.device)
    if device not in ("cpu", "cuda"):
        raise UsageError(f"PyTorch has no device {device}; use --device cpu or cuda")
    backend = get_backend(device)
    gpu = shared.gpu_name(backend)  # before all rows fail for want of one
    _require_torch(device)
    workload = shared.make_work(config, shape)
    candidates = [
        candidate
        for candidate in _candidates(config, workload, device, workers)
        if not any(word in candidate.name for word in skip)
    ]
    tell = shared.teller()
    rows = compared(
        candidates,
        batch_size=config.batch_size,
        rounds=rounds,
        seconds=seconds,
        gpu=device == "cuda",
        tell=tell,
    )
    tell("")
    return Versus(
        network=config.network,
        device=device,
        batch_size=config.batch_size,
        rounds=rounds,
        seconds=seconds,
        rows=tuple(rows),
        environment=environment(device, gpu),
        precision=config.precision,
        notes=precision_notes(workload.plan(backend, "auto")),
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
    config: RunConfig, workload: Workload, device: str, workers: list[int]
) -> list[Candidate]:
    """Steps of PyTorch and ours, then training from end to end of ours and PyTorch."""
    return [
        *_peer_steps(config, workload, device),
        *_our_rows(config, workload, device),
        *_peer_loaders(config, workload, device, workers),
    ]


def _peer_steps(config: RunConfig, workload: Workload, device: str) -> list[Candidate]:
    from convloom.inspection.versus import STEP, Candidate
    from convloom.interop.torch.peers import kinds

    return [
        Candidate(kind.name, "pytorch", STEP, partial(_peer, config, workload, device, kind), {})
        for kind in kinds(device, config.precision)
    ]


def _peer(config: RunConfig, workload: Workload, device: str, kind: Kind) -> Peer:
    from convloom.interop.torch.peers import Peer

    return Peer(
        kind,
        workload.forward,
        workload.weights,
        workload.batches,
        device=device,
        update=config.optimizer,
        options=_optimizer_options(config),
        label_smoothing=config.label_smoothing,
    )


def _optimizer_options(config: RunConfig) -> dict[str, Any]:
    """The optimiser of the settings in PyTorch's words, at the rate of studies."""
    from convloom.inspection.workload import RATE

    options: dict[str, Any] = {"lr": RATE, "weight_decay": config.weight_decay}
    if config.optimizer == "adamw":
        return {**options, "betas": (config.beta1, config.beta2), "eps": config.eps}
    return {**options, "momentum": config.momentum, "nesterov": config.nesterov}


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

    shape = (workload.channels, *workload.images.shape[2:])
    names = [str(number) for number in range(workload.classes)]
    dataset = from_arrays(
        workload.images, workload.labels, classes=names, mean=workload.mean, std=workload.std
    )
    engine = Engine(
        make_network(config.network, shape, workload.classes),
        loss=CrossEntropyLoss(label_smoothing=config.label_smoothing),
        optimizer=replace(config, lr=RATE).make_optimizer(),
        input_shape=shape,
        device=device,
        precision=config.precision,
    )
    batches = dataset.batches(workload.batch_size, shuffle=True, prefetch=2)
    return OurTraining(engine, batches, kind)


def _peer_loaders(
    config: RunConfig, workload: Workload, device: str, workers: list[int]
) -> list[Candidate]:
    from convloom.inspection.versus import END_TO_END, Candidate
    from convloom.interop.torch.peers import EAGER, GRAPH, Loading, in_channels_last
    from convloom.ops.precision import BF16

    kind = replace(GRAPH if device == "cuda" else EAGER, precision=config.precision)
    if config.precision == BF16:
        kind = in_channels_last(kind)
    peer = cache(lambda: _peer(config, workload, device, kind))

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


def _print_versus(found: Versus) -> None:
    """The rows of each kind as a table, and where they come from."""
    shown = shared.new_table(_VERSUS, left=("engine", "row", "settings", "note"), wraps="note")
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
            number(row.us, "{:,.1f}"),
            "" if row.images_per_second is None else rate(row.images_per_second),
            "" if row.busy is None else f"{100 * row.busy:.0f} %",
            number(row.ratio, "×{:.2f}"),
            row.note,
        )
    lines = ["", shared.origin(found), *found.notes]
    lines.append(f"median of {found.rounds} turns of {found.seconds:g} s each, by the host's clock")
    if found.device == "cuda":
        lines.append(f"GPU busy: {found.busy_source}")
    shared.show(shown, "\n".join(lines))
