"""A layer file as a checked graph of layers, before any weight exists.

The rules of the graph: layers in file order, inputs stand above, costs feed nothing, whatever is
not a cost is read by some layer. What the original would have refused but a person obviously meant
is remedied and noted, unless ``strict``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from numbers import Integral
from pathlib import Path

from convloom.convnet import syntax
from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import (
    READERS,
    UNUSED,
    Cost,
    Definition,
    Extent,
    neuron_of,
    read_treefc,
)
from convloom.convnet.layers.base import Initial
from convloom.convnet.neurons import IDENTITY, Neuron
from convloom.convnet.syntax import ConfigFile
from convloom.convnet.tree import TreeSource, class_tree
from convloom.convnet.values import Values

#: Names of a data set's classes, or how many it has; None where nobody says.
Classes = int | Sequence[str] | None
#: Classes of ImageNet's challenge: what a treefc is given when the data set does not say.
DEFAULT_CLASSES = 1000
#: The matrix of a data set with rows of labels, the last one that there is.
_ROWS = 2
#: Costs and sums whose labels are as wide as what they are compared with.
_WIDE_LABELS = ("cost.crossent2", "cost.rflickr", "eltsum")
#: Keys that files repeat where they say nothing, and that need no note.
_SILENT = ("outputs", "scale", "pow", "sharedbiases", "partialsum")


@dataclass(frozen=True)
class Data(Definition):
    """A matrix of the data provider: images (number 0) or labels."""

    index: int
    size: Extent

    def extent(self, inputs: tuple[Extent, ...]) -> Extent:
        return self.size


@dataclass(frozen=True)
class Layer:
    """One section of a layer file.

    Attributes:
        inputs: names of the layers it reads; it reads what their neurons hand on.
        neuron: the function behind the layer (``ident`` where none is named).
        gpu: the placement asked for, a hint; -1 for data.
        parameters: number of weights and biases; None where it depends on a class tree.
    """

    name: str
    type: str
    inputs: tuple[str, ...]
    definition: Definition
    extent: Extent
    parameters: int | None
    neuron: Neuron
    gpu: int
    line: int

    @property
    def module(self) -> str:
        """What the layer is called as a module, whose names hold no dots."""
        return module_name(self.name)

    @property
    def is_cost(self) -> bool:
        """Whether training makes it small."""
        return isinstance(self.definition, Cost)


def module_name(name: str) -> str:
    """What a layer of this name is called as a module."""
    return name.replace(".", "_")


@dataclass(frozen=True)
class Network:
    """The layers of a file in order, and what was remedied."""

    file: str
    layers: tuple[Layer, ...]
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Layer:
        return next(layer for layer in self.layers if layer.name == name)

    @property
    def gpus(self) -> int:
        """How many GPUs the file spreads its layers over."""
        return max(layer.gpu for layer in self.layers) + 1


def read_network(
    path: str | Path,
    input_size: int = 224,
    *,
    classes: Classes = None,
    tree: TreeSource | None = None,
    strict: bool = False,
) -> Network:
    """The network of a layer file.

    Args:
        input_size: height and width of the images, in pixels.
        classes: classes of the data set, their names or how many, which outputs are checked
            against; only a treefc needs them.
        tree: how the classes of a treefc lie together; see ``class_tree``.
        strict: refuse what the original refused.

    Raises:
        ConfigError: what breaks a rule, with file, section and key.
        TreeError: a tree in Python that is none, or not of these classes.
    """
    file = syntax.read(path, strict=strict)
    return parse_network(file, input_size, classes=classes, tree=tree, strict=strict)


def parse_network(
    file: ConfigFile,
    input_size: int = 224,
    *,
    classes: Classes = None,
    tree: TreeSource | None = None,
    strict: bool = False,
) -> Network:
    """The network of a layer file that is read already; see read_network."""
    if not isinstance(input_size, Integral) or input_size is True or input_size < 1:
        rule = f"input size {input_size!r} must be a whole number of at least 1 pixel"
        raise ConfigError(rule, file.name)
    if isinstance(classes, bool) or not isinstance(classes, int | Sequence | None):
        raise ConfigError(f"needs classes by name or their number, not {classes!r}", file.name)
    if isinstance(classes, int) and classes < 1:
        raise ConfigError(f"cannot be for {classes} classes, there must be some", file.name)
    if not file.sections:
        raise ConfigError("has no [section]; it should name a layer each", file.name)
    network = _Reader(file, input_size, classes, tree, strict).network()
    if tree is not None and not any(layer.type == "treefc" for layer in network.layers):
        raise ConfigError("has no treefc layer, and a class tree is for such alone", file.name)
    return network


class _Reader:
    """Reads sections one after the other, each against those above."""

    def __init__(
        self,
        file: ConfigFile,
        input_size: int,
        classes: Classes,
        tree: TreeSource | None,
        strict: bool,
    ) -> None:
        self._file = file
        self._input_size = input_size
        self._tree = None if tree is None else class_tree(tree, classes)
        self._classes = classes if isinstance(classes, int | None) else len(classes)
        self._strict = strict
        self._layers: dict[str, Layer] = {}
        self._notes = list(file.notes)

    def network(self) -> Network:
        for section in self._file.sections.values():
            values = Values(self._file.name, section, strict=self._strict)
            self._layers[section.name] = self._layer(values)
            self._note_unknown(values)
        self._check_names()
        self._check_all_read()
        self._check_class_numbers()
        self._check_widths()
        return Network(self._file.name, tuple(self._layers.values()), tuple(self._notes))

    def _layer(self, values: Values) -> Layer:
        if "type" not in values and ("epsW" in values or "coeff" in values):
            raise values.error("is missing; is this a parameter file?", "type")
        kind = values.text("type")
        if kind == "data":
            return self._data(values)
        if kind not in READERS and kind != "treefc":
            raise values.error(_unknown_type(kind), "type")
        names = self._inputs(values)
        self._widen_labels(values, kind, names)
        inputs = tuple(self._layers[name].extent for name in names)
        definition = self._definition(values, kind, inputs)
        least, most = definition.inputs
        if not least <= len(inputs) <= most:
            raise values.error(f"must be {least} for {kind}, there are {len(inputs)}", "inputs")
        layer = Layer(
            values.section.name,
            kind,
            names,
            definition,
            definition.extent(inputs),
            definition.parameters(inputs),
            self._neuron(values, definition),
            self._gpu(values, names),
            values.section.line,
        )
        self._check_shared(values, layer)
        return layer

    def _definition(self, values: Values, kind: str, inputs: tuple[Extent, ...]) -> Definition:
        if kind != "treefc":
            return READERS[kind](values, inputs, self._notes)
        if self._tree is not None:
            return read_treefc(values, self._tree.classes, self._tree)
        if self._classes is None:
            self._notes.append(
                f"[{values.section.name}] takes its classes from the data set; "
                f"without one, {DEFAULT_CLASSES} are taken"
            )
        return read_treefc(values, self._classes or DEFAULT_CLASSES, None)

    def _data(self, values: Values) -> Layer:
        index = values.integer("dataIdx", least=0)
        size = Extent(1)
        if index > _ROWS:
            self._notes.append(
                f"[{values.section.name}] dataIdx={index} is read as the labels: a data set has "
                "images (0), and labels as numbers (1) or rows (2)"
            )
        if index == 0:
            size = Extent.image(self._data_channels(values.section.name), self._input_size)
        name, line = values.section.name, values.section.line
        if "inputs" in values:
            raise values.error("is not for data", "inputs")
        return Layer(name, "data", (), Data(index, size), size, 0, IDENTITY, -1, line)

    def _data_channels(self, name: str) -> int:
        """Channels of the images, as their first reader says; 3 where none does."""
        for section in self._file.sections.values():
            inputs = section.entries.get("inputs")
            channels = section.entries.get("channels")
            if inputs is None or channels is None:
                continue
            names = [one.strip() for one in inputs.text.split(",")]
            counts = [one.strip() for one in channels.text.split(",")]
            if name in names and len(counts) in (1, len(names)):
                text = counts[names.index(name) if len(counts) > 1 else 0]
                if re.fullmatch("0*[1-9][0-9]{0,9}", text):
                    return int(text)
        return 3

    def _inputs(self, values: Values) -> tuple[str, ...]:
        names = values.names("inputs")
        for name in names:
            if name not in self._layers:
                raise values.error(self._missing(name), "inputs")
            if self._layers[name].is_cost:
                raise values.error(f"names {name}, a cost, which hands nothing on", "inputs")
        return names

    def _missing(self, name: str) -> str:
        if name in self._file.sections:
            return f"names {name}, which stands below; move [{name}] above this section"
        near = get_close_matches(name, self._layers, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        if self._is_indented(name):
            hint = f"; [{name}] is indented, which continues the value above it"
        return f"names {name}, and there is no such section{hint}"

    def _is_indented(self, name: str) -> bool:
        """Whether the header of a section stands in a value, as its line begins with a blank."""
        entries = (e for section in self._file.sections.values() for e in section.entries.values())
        return any(f"[{name}]" in entry.text.split("\n")[1:] for entry in entries)

    def _widen_labels(self, values: Values, kind: str, names: tuple[str, ...]) -> None:
        """Labels compared number by number are as wide as what they are compared with."""
        if kind not in _WIDE_LABELS:
            return
        labels = [name for name in names if self._is_labels(name)]
        width = max(
            (self._layers[name].extent.count for name in names if name not in labels), default=1
        )
        for name in labels:
            layer = self._layers[name]
            if layer.extent.count not in (1, width):
                raise values.error(
                    f"needs {name} {width} wide, another layer {layer.extent.count}", "inputs"
                )
            assert isinstance(layer.definition, Data)
            definition = replace(layer.definition, size=Extent(width))
            self._layers[name] = replace(layer, definition=definition, extent=Extent(width))

    def _is_labels(self, name: str) -> bool:
        definition = self._layers[name].definition
        return isinstance(definition, Data) and definition.index != 0

    def _neuron(self, values: Values, definition: Definition) -> Neuron:
        if "neuron" not in values or values.text("type") == "neuron":
            return IDENTITY
        if isinstance(definition, Cost):
            raise values.error("is not for costs", "neuron")
        return neuron_of(values)

    def _gpu(self, values: Values, names: tuple[str, ...]) -> int:
        if "gpu" in values:
            return values.integer("gpu", least=0)
        first = self._layers[names[0]].gpu
        if first >= 0:
            return first
        if self._strict:
            raise values.error(f"is required, since the first input, {names[0]}, is data", "gpu")
        self._notes.append(f"[{values.section.name}] names no gpu; 0 is taken")
        return 0

    def _check_shared(self, values: Values, layer: Layer) -> None:
        initial = getattr(layer.definition, "initial", None)
        if not isinstance(initial, Initial):
            return
        for number, source in enumerate(initial.shared):
            if source is None:
                continue
            name, index = source
            if name != layer.name and name not in self._layers:
                raise values.error(self._missing(name), "weightSource")
            if name == layer.name and index >= number:
                raise values.error(
                    f"names input {index} of the layer itself; weights are shared with an input "
                    f"before, and this one is number {number}",
                    "weightSource",
                )
            owner = layer if name == layer.name else self._layers[name]
            self._check_owner(values, layer, number, owner, index)

    def _check_owner(
        self, values: Values, layer: Layer, number: int, owner: Layer, index: int
    ) -> None:
        """Weights are shared by inputs of one type of layer whose weights have one shape."""
        sizes, own = self._weight_sizes(owner), self._weight_sizes(layer)[number]
        if owner.type != layer.type or not index < len(sizes):
            raise values.error(f"needs a {layer.type} with an input {index}", "weightSource")
        if sizes[index] != own:
            raise values.error(
                f"needs weights of the same shape: {owner.name}[{index}] has {sizes[index]}, "
                f"this input {own}",
                "weightSource",
            )
        if owner.gpu != layer.gpu and self._strict:
            raise values.error(f"needs {owner.name} on the same gpu", "weightSource")

    def _weight_sizes(self, layer: Layer) -> list[tuple[int, ...]]:
        """The shapes of a layer's weights, one an input, as far as sharing them is concerned."""
        windows = getattr(layer.definition, "windows", None)
        if windows is None:
            return [(layer.extent.count, self._layers[name].extent.count) for name in layer.inputs]
        places = layer.extent.side if layer.type == "local" else 1
        return [(w.groups * w.filters, w.filter_channels, w.size, places) for w in windows]

    def _check_names(self) -> None:
        """Modules take other names than sections with dots, which must be free."""
        for layer in self._layers.values():
            if layer.module == layer.name:
                continue
            self._notes.append(f"[{layer.name}] is {layer.module} as a module of the network")
            others = [one for one in self._layers.values() if one.module == layer.module]
            if len(others) > 1:
                rule = f"is {layer.module} as a module of the network"
                rule += f", and so is [{next(one.name for one in others if one is not layer)}]"
                rule += "; call one of them otherwise"
                raise ConfigError(rule, self._file.name, layer.name, line=layer.line)

    def _check_all_read(self) -> None:
        read = {name for layer in self._layers.values() for name in layer.inputs}
        for layer in self._layers.values():
            if not layer.is_cost and layer.name not in read:
                raise ConfigError(
                    "is read by no layer; name it in some layer's inputs, or take it out",
                    self._file.name,
                    layer.name,
                    line=layer.line,
                )

    def _check_class_numbers(self) -> None:
        """A cost.logreg wants one number a case; rows for other costs are made of the same."""
        for layer in self._layers.values():
            if layer.type != "cost.logreg" or not self._is_labels(layer.inputs[0]):
                continue
            name, width = layer.inputs[0], self._layers[layer.inputs[0]].extent.count
            if width == 1:
                continue
            if self._strict:
                rule = f"needs labels of one number; {name} has {width}, as another cost reads it"
                raise ConfigError(rule, self._file.name, layer.name, line=layer.line)
            self._notes.append(
                f"[{layer.name}] compares class numbers, and another cost reads {name} as {width} "
                "numbers; both are made of the data set's classes"
            )

    def _check_widths(self) -> None:
        """What labels are compared with needs an output for each class of the data set."""
        classes = self._classes
        if classes is None:
            return
        for layer in self._layers.values():
            labels = [name for name in layer.inputs if self._is_labels(name)]
            others = [name for name in layer.inputs if name not in labels]
            width = max((self._layers[name].extent.count for name in others), default=0)
            if not labels or not others or width == classes:
                continue
            said = f"compares labels of {classes} classes with the {width} outputs of "
            said += ", ".join(others)
            if width < classes or self._strict:
                rule = f"{said}; there must be one for each class"
                raise ConfigError(rule, self._file.name, layer.name, line=layer.line)
            self._notes.append(f"[{layer.name}] {said}; the last ones stand for no class")

    def _note_unknown(self, values: Values) -> None:
        name = values.section.name
        for key in values.unknown():
            if key not in _SILENT:
                self._notes.append(f"[{name}] {key} means nothing to a {values.text('type')} layer")


def _unknown_type(kind: str) -> str:
    known = ", ".join(["data", *READERS, "treefc"])
    if kind in UNUSED:
        return f"is a type that no known network file uses; supported are {known}"
    near = get_close_matches(kind, [*READERS, "data", "treefc"], n=1)
    return f"is no layer type; did you mean {near[0]}?" if near else f"is no layer type; {known}"
