"""The tensor that a layer's name stands for."""

from __future__ import annotations

import difflib

from convloom.ir import ConvloomError, Graph


class LayerError(ConvloomError, ValueError):
    """No such layer, or one that runs at several places; the message names what there is."""


def tensor_of(graph: Graph, layer: str) -> str:
    """The last tensor that a layer makes, the layers within it included; or the tensor itself.

    Args:
        layer: a layer's name, ``fc7`` or ``features.2``; or a tensor's, ``relu.out#2``.

    Raises:
        LayerError: no such layer, or one that runs at several places.
    """
    if layer in graph.producers():
        return layer
    made: list[str] = []
    before = False
    for node in graph.nodes:
        inside = node.layer == layer or node.layer.startswith(f"{layer}.")
        if inside and before:
            made.pop()
        if inside:
            made.append(node.outputs[0])
        before = inside
    if not made:
        raise LayerError(_unknown(layer, list(dict.fromkeys(node.layer for node in graph.nodes))))
    if len(made) > 1:
        raise LayerError(
            f"{layer} runs at several places; name what it makes there: {', '.join(made)}"
        )
    return made[0]


def _unknown(layer: str, layers: list[str]) -> str:
    near = difflib.get_close_matches(layer, layers, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"there is no layer {layer!r}; {hint}there are {', '.join(layers)}"
