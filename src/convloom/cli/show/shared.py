"""Where the plots of ``convloom show`` go: into a file, a window, or both."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli.errors import as_usage
from convloom.cli.terminal import Output

if TYPE_CHECKING:
    from convloom.inspection.figures import Figure

Window = Annotated[
    bool,
    typer.Option("--window", help="Show the plot in a window, which takes a display."),
]


def out_option(default: str) -> Any:
    """``--out``, with what the file is called by default."""
    return typer.Option(
        "--out",
        metavar="FILE",
        show_default=f"{default} in this folder; none with --window",
        help="Where to write the plot, as PNG, SVG or PDF by the suffix.",
    )


def check_out(out: Path | None) -> None:
    """See to it, before any work begins, that plots can be drawn, and written to ``--out``.

    Raises:
        UsageError: a suffix that names no format.
        ConvloomError: matplotlib is missing.
    """
    from convloom.inspection.figures import check_format, require_matplotlib

    require_matplotlib()
    if out is not None:
        with as_usage():
            check_format(out)


def deliver(
    figure: Figure,
    out: Path | None,
    default: str,
    output: Output,
    *,
    window: bool,
    document: dict[str, Any],
    text: str,
) -> None:
    """Write and show a plot; print where it is, under ``text``.

    Args:
        default: the file's name, where neither a file nor a window was asked for.
        document: what a script is told; ``file`` is added, null where none was written.
    """
    from convloom.inspection.figures import open_window, save_figure

    if out is None and not window:
        out = Path(re.sub(r"[^\w.#-]+", "-", default))
    if out is not None:
        save_figure(figure, out)
        text = f"{text}\nsaved in {out}"
    output.result({**document, "file": None if out is None else str(out)}, text)
    if window:
        open_window(figure)
