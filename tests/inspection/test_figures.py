"""matplotlib's doors: files, windows, and what is said where it is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from convloom.files import FileError
from convloom.inspection.figures import (
    check_format,
    new_figure,
    open_window,
    require_matplotlib,
    save_figure,
)
from convloom.ir import ConvloomError

pytest.importorskip("matplotlib", reason="pip install 'convloom[plot]'")


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for door in (require_matplotlib, lambda: new_figure(2, 2), lambda: check_format("a.png")):
        with pytest.raises(ConvloomError, match=r"pip install 'convloom\[plot\]'"):
            door()


def test_inspection_alone_does_not_load_it() -> None:
    code = "import sys, convloom.inspection; print('matplotlib' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


@pytest.mark.parametrize(
    ("name", "start"),
    [("a.png", b"\x89PNG"), ("a.SVG", b"<?xml"), ("a.b.pdf", b"%PDF")],
)
def test_the_suffix_says_the_format(tmp_path: Path, name: str, start: bytes) -> None:
    figure = new_figure(2, 2)
    figure.subplots().plot([1, 2])
    save_figure(figure, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("name", "part"), [("a", "it has no suffix"), ("a.nonsense", "suffix .nonsense names no such")]
)
def test_unknown_formats(tmp_path: Path, name: str, part: str) -> None:
    with pytest.raises(ConvloomError, match=f"{part}.*known are .*png.*svg"):
        save_figure(new_figure(2, 2), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="does not exist"):
        save_figure(new_figure(2, 2), tmp_path / "none" / "a.png")


def test_no_window_without_a_display(monkeypatch: pytest.MonkeyPatch) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    monkeypatch.setattr(pyplot, "show", lambda: pytest.fail("a window was asked for"))
    with pytest.raises(
        ConvloomError, match=r"no window can be opened .* write the figure to a file"
    ):
        open_window(new_figure(2, 2))
    assert pyplot.get_fignums() == []


def test_a_window_shows_the_figure(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a toolkit would: the figure is pyplot's own while the window is open."""
    backend = pytest.importorskip("matplotlib.backend_bases")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    pyplot.switch_backend("agg")
    shown: list[object] = []

    def show() -> None:
        shown.extend(pyplot.figure(number) for number in pyplot.get_fignums())

    monkeypatch.setattr(pyplot, "show", show)
    monkeypatch.setattr(backend.FigureCanvasBase, "required_interactive_framework", "one")
    figure = new_figure(2, 2)
    open_window(figure)
    assert shown == [figure]
    pyplot.close("all")
