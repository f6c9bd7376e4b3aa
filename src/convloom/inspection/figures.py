"""matplotlib, which is an extra: figures are made, written and shown here.

Figures stand alone, without pyplot, so making many keeps none alive. A notebook shows one that ends
a cell once ``%matplotlib inline`` was said, or pyplot imported.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from convloom import files
from convloom.ir import ConvloomError

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure  # for those who may not import matplotlib

#: Blue for what is usual, orange for what is to be seen, grey for the rest; told apart by all eyes.
BLUE, ORANGE, GREY = "#4472a8", "#e07b2a", "#8a8a8a"
#: Between patches: no grey, red or blue, and not so strong that it draws the eye.
PAPER = "#f4ecb9"
#: Not a number, or infinite: no map of colours has it.
NOT_FINITE = "#ff00ff"
_DPI = 150


def require_matplotlib() -> None:
    """Raises ConvloomError where matplotlib is missing; says how to get it."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ConvloomError(
            f"plots need matplotlib ({error}); pip install 'convloom[plot]'"
        ) from None


def new_figure(width: float, height: float, *, arranged: bool = True) -> Figure:
    """An empty figure of this size in inches.

    Args:
        arranged: its parts make room for each other, which takes long where there are many.

    Raises:
        ConvloomError: matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained" if arranged else None)
    if arranged:
        engine: Any = figure.get_layout_engine()
        engine.set(w_pad=0.08, h_pad=0.08)
    return figure


def check_format(path: str | os.PathLike[str]) -> None:
    """Raises ConvloomError for a file whose suffix names no format that matplotlib writes."""
    require_matplotlib()
    from matplotlib.backend_bases import FigureCanvasBase

    known = FigureCanvasBase.get_supported_filetypes()
    suffix = Path(path).suffix
    if suffix.removeprefix(".").lower() not in known:
        problem = f"its suffix {suffix} names no such format" if suffix else "it has no suffix"
        raise ConvloomError(
            f"{os.fspath(path)}: a figure is written as its file's suffix says, and {problem}; "
            f"known are {', '.join(sorted(known))}"
        )


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure, in the format of the file's suffix (PNG, SVG, PDF …), as a whole.

    Raises:
        ConvloomError: an unknown format.
        FileError: the file cannot be written; an old file is unchanged.
    """
    check_format(path)
    content = io.BytesIO()
    figure.savefig(content, dpi=_DPI, format=Path(path).suffix[1:].lower())
    files.write_bytes(path, content.getvalue())


def open_window(figure: Figure) -> None:
    """Show a figure in a window; returns when it was closed.

    Raises:
        ConvloomError: there is no display, or nothing that draws windows is installed.
    """
    from matplotlib import get_backend, pyplot

    made: Any = lambda **_: figure  # noqa: E731 - pyplot asks for a class and calls it
    try:
        shown = pyplot.figure(FigureClass=made)
    except ImportError as error:
        raise _no_window(str(error)) from None
    if shown.canvas.required_interactive_framework is None:
        pyplot.close(shown)
        raise _no_window(f"matplotlib's backend here is {get_backend()}")
    pyplot.show()


def _no_window(reason: str) -> ConvloomError:
    return ConvloomError(
        f"no window can be opened ({reason}): that takes a display, and a toolkit such as Qt or "
        "Tk; write the figure to a file instead"
    )
