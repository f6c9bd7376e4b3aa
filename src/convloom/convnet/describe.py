"""A network file as rows, to read or to compare: what every layer gives, and what it learns."""

from __future__ import annotations

from pathlib import Path

from convloom.convnet.network import Classes, Layer, Network, read_network
from convloom.convnet.rules import read_rules
from convloom.convnet.tree import TreeSource

#: [layer, type, channels or outputs, height, width, parameters]
Row = list[str | int | None]


def describe(
    layers: str | Path,
    params: str | Path | None = None,
    input_size: int = 224,
    *,
    classes: Classes = None,
    tree: TreeSource | None = None,
    strict: bool = False,
) -> list[Row]:
    """A network file as rows: [layer, type, channels or outputs, height, width, parameters].

    They stand in file order. Height and width are None for vectors; the number of parameters is
    None for a treefc without its class tree. Neurons are no rows.

    Args:
        layers: a layer file.
        params: its parameter file, to have it checked as well.
        input_size: height and width of the images, in pixels.
        classes: classes of the data set, their names or how many, which outputs are checked
            against; only a treefc needs them.
        tree: how the classes of a treefc lie together; see ``class_tree``.

    Raises:
        ConfigError: either file breaks a rule.
        TreeError: a tree in Python that is none, or not of these classes.
    """
    network = read_network(layers, input_size, classes=classes, tree=tree, strict=strict)
    if params is not None:
        read_rules(params, network, strict=strict)
    return rows(network)


def rows(network: Network) -> list[Row]:
    """The rows of a network that is read already."""
    return [_row(layer) for layer in network.layers]


def _row(layer: Layer) -> Row:
    extent = layer.extent
    if extent.channels:
        return [layer.name, layer.type, extent.channels, extent.side, extent.side, layer.parameters]
    return [layer.name, layer.type, extent.count, None, None, layer.parameters]
