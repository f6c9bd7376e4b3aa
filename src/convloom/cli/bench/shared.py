"""What the commands of ``convloom bench`` share: their options, their work, and how they speak."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli.errors import as_usage
from convloom.cli.plan import _images_of
from convloom.cli.terminal import is_terminal, plain

if TYPE_CHECKING:
    from rich.table import Table

    from convloom.backends import Backend
    from convloom.inspection.ladder import Ladder
    from convloom.inspection.versus import Versus
    from convloom.inspection.workload import Workload
    from convloom.training.config import RunConfig

Seconds = Annotated[
    float, typer.Option(metavar="S", min=0.0, help="About how many seconds a turn lasts.")
]


def settings(
    model: str,
    batch_size: int | None,
    data: str | None,
    device: str | None,
    precision: str | None = None,
) -> RunConfig:
    """The settings that the flags mean; names are looked up. Raises UsageError."""
    from convloom.cli.runs import check_names
    from convloom.training.config import resolve

    flags = {
        "network": model,
        "batch_size": batch_size,
        "data": data,
        "device": device,
        "precision": precision,
    }
    with as_usage():
        config = resolve({}, flags)
        check_names(config, needs_files=False)
    return config


def make_work(config: RunConfig, shape: tuple[int, int, int] | None) -> Workload:
    """The training step of the network that is to be measured, with random data."""
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
        precision=config.precision,
    )


def gpu_name(backend: Backend) -> str | None:
    """The GPU of a backend; None for one without."""
    from convloom.backends.cuda import measure
    from convloom.backends.cuda.backend import CudaBackend

    return measure.gpu_of(backend).name if isinstance(backend, CudaBackend) else None


def teller() -> Callable[[str], None]:
    """Shows on a terminal's stderr what is being done, on one line."""
    live = is_terminal(sys.stderr)

    def tell(text: str) -> None:
        if live:
            print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    return tell


def write_json(path: Path, document: dict[str, Any]) -> None:
    """Write a document as JSON has it."""
    path.write_text(json.dumps(plain(document), indent=2, ensure_ascii=False) + "\n")


def new_table(columns: Sequence[str], *, left: Sequence[str], wraps: str) -> Table:
    """A table; columns are right-aligned but for ``left``, and only ``wraps`` takes more lines."""
    from rich.table import Table

    made = Table(box=None, header_style="bold", pad_edge=False)
    for name in columns:
        made.add_column(name, justify="left" if name in left else "right", no_wrap=name != wraps)
    return made


def show(shown: Table, footer: str) -> None:
    """Print a table and what is to be said below it; wide where nobody's terminal is narrow."""
    from rich.console import Console

    wide = None if sys.stdout.isatty() else 160
    console = Console(file=sys.stdout, width=wide, highlight=False, markup=False)
    console.print(shown)
    console.print(footer)


def number(value: float | None, text: str) -> str:
    """A number in a format; empty where there is none."""
    return "" if value is None else text.format(value)


def origin(found: Ladder | Versus) -> str:
    """Network, batch, precision, hardware, date and versions, in one line."""
    from convloom.inspection.environment import origin as described

    what = f"{found.network}, batch {found.batch_size}, {found.precision}"
    return f"{what}, on {described(found.environment)}"
