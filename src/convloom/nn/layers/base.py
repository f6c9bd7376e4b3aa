"""What all layers share: they are called by their constructor's text in errors."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from convloom.ir import ConvloomError, ShapeError
from convloom.nn.arguments import ArgumentError
from convloom.nn.module import Module


class Layer(Module):
    """A module whose nodes are named by its path alone."""

    is_layer = True


@contextlib.contextmanager
def named(layer: str) -> Iterator[None]:
    """Errors of the arguments begin with the layer as it was written: ``Conv2d(6, 8, 3)``."""
    try:
        yield
    except ShapeError as error:
        raise ShapeError(f"{layer}: {error.message}") from None
    except ConvloomError as error:
        raise ArgumentError(f"{layer}: {error}") from None
