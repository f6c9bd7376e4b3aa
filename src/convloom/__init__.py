"""convloom: a convolutional network engine whose whole training step is compiled.

The names below are loaded when first used, so that ``import convloom`` and the command line's
help cost next to nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from convloom import convnet, data, inspection, nn, optim
    from convloom.ir.errors import ConvloomError, ShapeError
    from convloom.nn import concat
    from convloom.training import (
        Trainer,
        compile,
        features,
        load,
        multiview,
        train_many,
        vjp,
        write_features,
    )

__version__ = "0.1.0"

#: {public name: the module that defines it}; a submodule is public under its own name.
_HOMES = {
    "ConvloomError": "convloom.ir.errors",
    "ShapeError": "convloom.ir.errors",
    "Trainer": "convloom.training",
    "compile": "convloom.training",
    "concat": "convloom.nn",
    "features": "convloom.training",
    "load": "convloom.training",
    "multiview": "convloom.training",
    "train_many": "convloom.training",
    "vjp": "convloom.training",
    "write_features": "convloom.training",
}
_SUBMODULES = frozenset({"convnet", "data", "inspection", "nn", "optim"})

__all__ = [
    "ConvloomError",
    "ShapeError",
    "Trainer",
    "__version__",
    "compile",
    "concat",
    "convnet",
    "data",
    "features",
    "inspection",
    "load",
    "multiview",
    "nn",
    "optim",
    "train_many",
    "vjp",
    "write_features",
]


def __getattr__(name: str) -> Any:
    if name in _SUBMODULES:
        if name in ("convnet", "nn"):
            importlib.import_module("convloom.training")  # what Module.predict runs on
        return importlib.import_module(f"convloom.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'convloom' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
