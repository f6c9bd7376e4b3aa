"""Golden vectors of cuda-convnet's layers, where the shared cases lie beside the project.

Arrays are float64; images are (C,H,W,N) there and (N,C,H,W) here.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

_HERE = Path(__file__).resolve().parents[1]
_PLACES = (_HERE.parent / "shared" / "cases", _HERE / "shared" / "cases")
_MISSING = "the shared cases (../shared/cases/convnet-golden.npz) are not here"


@dataclass(frozen=True)
class Golden:
    """One case: the layer's type, its parameters, and its arrays by name."""

    layer: str
    params: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def images(self, name: str) -> np.ndarray:
        """An array of images as (N,C,H,W)."""
        return np.ascontiguousarray(np.moveaxis(self.arrays[name], -1, 0))


def names(*layers: str) -> list[Any]:
    """The cases of these layers, for ``parametrize``; one that is skipped where there are none."""
    place = folder()
    if place is None:
        return left_out()
    return [name for name, case in _cases(place).items() if case["layer"] in layers]


def left_out() -> list[Any]:
    """Parameters of a test that is skipped where there are no shared cases."""
    return [pytest.param("", marks=pytest.mark.skip(reason=_MISSING), id="left-out")]


def load(name: str) -> Golden:
    """A case by its name."""
    place = folder()
    assert place is not None, _MISSING
    case = _cases(place)[name]
    with np.load(place / "convnet-golden.npz") as file:
        arrays = {
            key.partition("/")[2]: file[key] for key in file.files if key.startswith(f"{name}/")
        }
    return Golden(case["layer"], case["params"], arrays)


def folder() -> Path | None:
    """Where the shared cases lie, if they do."""
    found = [place for place in _PLACES if (place / "convnet-golden.npz").is_file()]
    return found[0] if found else None


@cache
def _cases(folder: Path) -> dict[str, Any]:
    cases: dict[str, Any] = json.loads((folder / "convnet-golden.json").read_text())["cases"]
    return cases
