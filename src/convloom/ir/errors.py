"""Errors that a person can act on. Every message names the file, layer or value and the remedy."""

from __future__ import annotations


class ConvloomError(Exception):
    """Base of all errors convloom raises on bad input; its message is one complete sentence."""


class ShapeError(ConvloomError, ValueError):
    """Shapes or attributes that cannot fit; names the layer once it is known."""

    def __init__(self, message: str, layer: str = "") -> None:
        self.message = message
        self.layer = layer
        super().__init__(f"layer {layer!r}: {message}" if layer else message)

    def within(self, layer: str) -> ShapeError:
        """The same error, naming ``layer`` unless an inner layer is named already."""
        return self if self.layer or not layer else ShapeError(self.message, layer)
