"""The filters of a network's layers, as pictures.

The manner is that of the 2012 program's ``shownet.py``: all filters in one grid, brought to 0 to 1
together, those over three channels in colour.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from convloom.inspection import mosaic
from convloom.inspection.mosaic import Mosaic, Side
from convloom.ir import ConvloomError, Graph, Node, Role
from convloom.ops import (
    Activation,
    BatchNorm,
    Conv2d,
    Conv2dDgrad,
    Dropout,
    Flatten,
    Linear,
    Local2d,
    ReLU,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from convloom.nn import Module

#: {op of a forward graph: how its layer is called}.
_KINDS = {
    Conv2d: "Conv2d",
    Conv2dDgrad: "ConvTranspose2d",
    Local2d: "LocallyConnected2d",
    Linear: "Linear",
}
#: Ops that give a feature for each feature, at its place.
_KEEP_PLACES = (ReLU, Activation, Dropout, BatchNorm)
#: How filters are shown: those over three channels in colour, or a row for each channel.
CHANNELS = ("rgb", "each")
#: What is brought to 0 to 1 together: all filters of the layer, or each filter.
SCALES = ("all", "filter")
_MOST_IN_GRID = 256


class FilterError(ConvloomError, ValueError):
    """A layer, input or place that has no filters; the message names what there is."""


@dataclass(frozen=True, eq=False)
class Filters:
    """The filters of a layer for one of its inputs.

    Attributes:
        layer: its name.
        kind: ``Conv2d``, ``ConvTranspose2d``, ``LocallyConnected2d`` or ``Linear``.
        index, inputs: which of the layer's inputs they are for, and how many it has.
        weights: (filters, channels, height, width). Those of a Linear layer behind a Flatten have
            the map's shape, others are single pixels; of a ConvTranspose2d a filter is what one
            input channel adds to the output.
        place: (row, column) of the output pixel whose filters they are, and ``places`` the rows
            and columns of all, where each has its own; else None.
    """

    layer: str
    kind: str
    index: int
    inputs: int
    weights: np.ndarray
    place: tuple[int, int] | None = None
    places: tuple[int, int] | None = None

    def __str__(self) -> str:
        """``conv1 (Conv2d): 64 filters of 3×5×5``."""
        count, *shape = self.weights.shape
        text = f"{self.layer} ({self.kind}): {count} filters of {'×'.join(map(str, shape))}"
        if self.inputs > 1:
            text += f", input {self.index}"
        if self.place is not None:
            text += f", at row {self.place[0]}, column {self.place[1]}"
        return text


def filters_of(
    model: Module,
    layer: str | None = None,
    *,
    index: int = 0,
    place: tuple[int, int] | None = None,
    input_shape: Sequence[int] | None = None,
) -> Filters:
    """The filters of a layer, by its name; by default of the first convolution.

    Args:
        index: of the input, for a layer that adds up several.
        place: row and column of the output pixel, where each has filters of its own; by default
            in the middle.
        input_shape: (C, H, W) of an image, for a network that does not know it.

    Raises:
        FilterError: no such layer, input or place; names those that there are.
    """
    graph = _traced(model, input_shape)
    layers = _layers(graph)
    node = _chosen(layers, layer, index)
    weights = model.initialize().get_parameter(node.inputs[1]).data
    kind, places = _kind(node), _places(graph, node)
    if places is not None:
        place = _checked_place(place, places, node)
        weights = weights.reshape(*places, -1, *weights.shape[1:])[place]
    elif place is not None:
        raise FilterError(f"{node.layer} ({kind}) has the same filters at every place")
    else:
        weights = weights.reshape(_shape(graph, node))
    return Filters(node.layer, kind, index, len(layers[node.layer]), weights, place, places)


def layers_with_filters(model: Module, *, input_shape: Sequence[int] | None = None) -> list[str]:
    """Names of the layers that ``filters_of`` knows, in the order they run."""
    return list(_layers(_traced(model, input_shape)))


def plot_filters(
    filters: Filters,
    *,
    channels: str | None = None,
    scale: str = "all",
    first: int = 0,
    count: int | None = None,
) -> Figure:
    """A figure of the filters: a grid, or a row for each of their channels.

    NaN and infinite weights are magenta.

    Args:
        channels: ``rgb`` shows filters over three channels in colour, ``each`` every channel in a
            row of its own; by default in colour where there are three.
        scale: ``all`` brings all weights to 0 to 1 together, ``filter`` those of each filter.
        first: number of the first filter to show.
        count: how many to show; by default as many as can be told apart, which the title says.

    Raises:
        FilterError: an argument that cannot be; colour for filters that have none.
    """
    total, depth, height, width = filters.weights.shape
    in_colour = _in_colour(filters, channels)
    _check("scale", scale, SCALES)
    if not 0 <= first < total:
        raise FilterError(f"{filters.layer} has filters 0 to {total - 1}, {first} is not there")
    if count is not None and count < 1:
        raise FilterError(f"count={count!r} must be 1 or more")
    as_grid = in_colour or depth == 1
    most = _MOST_IN_GRID if as_grid else mosaic.most_patches(width)
    last = min(total, first + (most if count is None else count))
    weights, ends = filters.weights, mosaic.limits(filters.weights)
    if in_colour or scale == "filter":
        weights, ends = mosaic.scaled(weights, each=scale == "filter"), (0.0, 1.0)
    picked, rows = weights[first:last], depth if as_grid else mosaic.most_patches(height)
    made = _mosaic(picked[:, :rows], first, in_colour=in_colour)
    parts = _part("filters", first, last, total) + _part("channels", 0, rows, depth)
    title = "\n".join([str(filters), ", ".join(parts)]).rstrip()
    return mosaic.draw(made, title, ends, bar=scale == "all" and not in_colour)


def _mosaic(weights: np.ndarray, first: int, *, in_colour: bool) -> Mosaic:
    count, depth, height, width = weights.shape
    if in_colour:
        return mosaic.grid(weights.transpose(0, 2, 3, 1), "filter", first)
    if depth == 1:
        return mosaic.grid(weights[:, 0], "filter", first)
    patches = weights.swapaxes(0, 1).reshape(-1, height, width)
    below = Side("filter", range(first, first + count))
    return Mosaic(patches, count, Side("channel", range(depth)), below)


def _in_colour(filters: Filters, channels: str | None) -> bool:
    if channels is not None:
        _check("channels", channels, CHANNELS)
    depth = filters.weights.shape[1]
    if channels == "rgb" and depth != 3:
        raise FilterError(
            f"colours need filters over 3 channels, those of {filters.layer} are "
            f"over {depth}; show each channel instead"
        )
    return depth == 3 and channels != "each"


def _check(what: str, given: str, known: tuple[str, ...]) -> None:
    if given not in known:
        raise FilterError(f"{what}={given!r} must be {' or '.join(known)}")


def _part(what: str, first: int, last: int, total: int) -> list[str]:
    """``filters 0 to 63 of 256``; nothing where these are all."""
    if first == 0 and last >= total:
        return []
    return [f"{what} {first} to {last - 1} of {total}"]


def _traced(model: Module, input_shape: Sequence[int] | None) -> Graph:
    shape = input_shape or model.input_shape
    if shape is None:
        raise FilterError(
            f"{type(model).__name__} was never trained, so its input shape is not known; pass "
            "input_shape=(C, H, W)"
        )
    return model.trace(tuple(shape), 1)


def _layers(graph: Graph) -> dict[str, list[Node]]:
    """{layer: its nodes that have learnt filters, one an input; once where it runs twice}."""
    found: dict[str, dict[str, Node]] = {}
    for node in graph.nodes:
        if type(node.op) in _KINDS and graph.role(node.inputs[1]) is Role.PARAMETER:
            found.setdefault(node.layer, {}).setdefault(node.inputs[1], node)
    return {layer: list(nodes.values()) for layer, nodes in found.items()}


def _chosen(layers: dict[str, list[Node]], layer: str | None, index: int) -> Node:
    if not layers:
        raise FilterError("the network has no layer with filters: no convolution and no Linear")
    if layer is None:
        every = [node for nodes in layers.values() for node in nodes[:1]]
        layer = next((n.layer for n in every if not isinstance(n.op, Linear)), every[0].layer)
    if layer not in layers:
        known = ", ".join(f"{name} ({_kind(nodes[0])})" for name, nodes in layers.items())
        raise FilterError(f"no layer {layer!r} has filters; those that have are {known}")
    nodes = layers[layer]
    if not 0 <= index < len(nodes):
        raise FilterError(
            f"{layer} has filters for {len(nodes)} input{'s' if len(nodes) > 1 else ''}, counted "
            f"from 0; there is no input {index}"
        )
    return nodes[index]


def _kind(node: Node) -> str:
    return next(kind for op, kind in _KINDS.items() if type(node.op) is op)


def _shape(graph: Graph, node: Node) -> tuple[int, ...]:
    """(filters, channels, height, width), those of a Linear layer over the map that it reads."""
    shape = graph.specs[node.inputs[1]].shape
    if len(shape) == 4:
        return shape
    makers, name = graph.producers(), node.inputs[0]
    while name in makers:
        before = graph.nodes[makers[name]]
        if isinstance(before.op, Flatten):
            image = graph.specs[before.inputs[0]].shape
            return (shape[0], *image[1:]) if len(image) == 4 else (*shape, 1, 1)
        if not isinstance(before.op, _KEEP_PLACES):
            break
        name = before.inputs[0]
    return (*shape, 1, 1)


def _places(graph: Graph, node: Node) -> tuple[int, int] | None:
    if not isinstance(node.op, Local2d):
        return None
    rows, columns = graph.specs[node.outputs[0]].shape[2:]
    return rows, columns


def _checked_place(
    place: tuple[int, int] | None, places: tuple[int, int], node: Node
) -> tuple[int, int]:
    if place is None:
        return places[0] // 2, places[1] // 2
    if not all(0 <= at < extent for at, extent in zip(place, places, strict=True)):
        raise FilterError(
            f"{node.layer} has filters for {places[0]} rows and {places[1]} columns of places, "
            f"counted from 0; there is no row {place[0]}, column {place[1]}"
        )
    return place
