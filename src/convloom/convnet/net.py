"""A network file as a network: ``load`` gives a Module that trains as any other."""

from __future__ import annotations

import contextlib
import math
import os
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from convloom.convnet.costs import Read, objective
from convloom.convnet.errors import ConfigError
from convloom.convnet.initial import Function, initialise
from convloom.convnet.layers import Softmax
from convloom.convnet.layers.base import Initial
from convloom.convnet.modules import piece_of
from convloom.convnet.modules.base import Piece, Shared, WeightedPiece, Weights, as_vector
from convloom.convnet.modules.neurons import NeuronLayer
from convloom.convnet.network import Classes, Data, Layer, Network, read_network
from convloom.convnet.rules import LayerRule, Rules, read_rules, reshaped, shaping
from convloom.convnet.tree import TreeSource
from convloom.ir.errors import ConvloomError, ShapeError
from convloom.ir.graph import free_name
from convloom.nn import LossSum, Module, Parameter
from convloom.nn.parameter import WeightsError
from convloom.nn.tensor import SymbolicTensor
from convloom.training.extraction import SOFTMAX
from convloom.training.prediction import LINK, LOGISTIC

#: Under this name a saved network keeps what it knows of its files.
EXTRA = "convnet"


class Net(Module):
    """The network of a layer file; each layer is a module by its section's name (``a_b`` for
    ``a.b``), a neuron by that of its layer with ``_neuron`` behind it.

    The output is what the first ``cost.logreg`` compares with the labels, the input of its softmax;
    without one, what the first cost compares, the input of its logistic neuron for a
    ``cost.crossent2``. What other costs read are further outputs. ``cost.loss`` is the sum of all
    costs, each times its ``coeff``, and reports every one by its name.

    Args:
        border: pixels that the network's input leaves on each side of an image of the data set; a
            saved network keeps it, so that who tests it takes the middle (``border_of``).

    Raises:
        ConfigError: a layer that is not supported, or a cost of what it cannot compare.
        ConvloomError: a border that is none.
    """

    def __init__(self, network: Network, rules: Rules, border: int = 0) -> None:
        super().__init__()
        self.network = network
        self.rules = rules
        self.cost = objective(network, rules)
        self.input_shape = self.images
        if not _is_border(border):
            raise ConvloomError(f"border must be a whole number of pixels, 0 or more: {border!r}")
        own = {"costs": self.cost.loss.to_json(), "rules": shaping(rules), "border": border}
        self.__dict__["_extra"] = {EXTRA: own}
        if not self.cost.outputs[0].with_neuron:
            self.__dict__["_extra"][LINK] = LOGISTIC
        self._pieces: dict[str, Piece] = {}
        self._neurons: dict[str, NeuronLayer] = {}
        for layer in network.layers:
            if not isinstance(layer.definition, Data) and not layer.is_cost:
                with self._named(layer):
                    self._make(layer)
        modules = {name: network[name].module for name in self._pieces}
        behind = {
            name: free_name(f"{modules[name]}_neuron", modules.values()) for name in self._neurons
        }
        for name, neuron in self._neurons.items():
            self.add_module(behind[name], neuron)
        self.__dict__["_extra"][SOFTMAX] = {
            modules[name]: behind.get(read, modules[read]) for name, read in _left_to_costs(network)
        }

    def _make(self, layer: Layer) -> None:
        """The module of a layer and that of its neuron."""
        taken = isinstance(getattr(type(self), layer.module, None), property)
        if taken or layer.module in vars(self):
            raise ConvloomError(
                "cannot have this name, which is taken by the network itself; call the section "
                "another one"
            )
        piece = self._pieces[layer.name] = self._piece(layer)
        self.add_module(layer.module, piece)
        if layer.neuron.kind != "ident":
            self._neurons[layer.name] = NeuronLayer(layer.neuron)

    @contextlib.contextmanager
    def _named(self, layer: Layer) -> Iterator[None]:
        """Let errors name the file and the section."""
        try:
            yield
        except (ConvloomError, ShapeError) as error:
            rule, file = str(error), self.network.file
            raise ConfigError(rule, file, layer.name, line=layer.line) from error

    @property
    def images(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        data = next(one.extent for one in self.network.layers if _is_images(one))
        return data.channels, data.side, data.side

    @property
    def notes(self) -> tuple[str, ...]:
        """What was remedied or ignored in the two files."""
        return (*self.network.notes, *self.rules.notes)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        values: dict[Read, SymbolicTensor] = {}
        for layer in self.network.layers:
            if _is_images(layer):
                values[Read(layer.name)] = x
            elif layer.name in self._pieces:
                self._run(layer, values)
        output, *further = (as_vector(values[read]) for read in self.cost.outputs)
        for value in further:
            x.tracer.also(value)
        return output

    def _run(self, layer: Layer, values: dict[Read, SymbolicTensor]) -> None:
        """One layer and its neuron; layers that labels lead to belong to a cost."""
        inputs = [Read(name) for name in layer.inputs]
        if any(one not in values for one in inputs):
            return
        value = self._pieces[layer.name](*(values[one] for one in inputs))
        values[Read(layer.name, with_neuron=False)] = value
        if layer.name in self._neurons:
            value = self._neurons[layer.name](value)
        values[Read(layer.name)] = value

    def as_saved(self, extra: Mapping[str, Any]) -> tuple[Module, list[str]]:
        """This network with what a saved one's parameter file said of its layers, where a run may
        go on with something else; and a line for each value that differs.

        Args:
            extra: what the saved network keeps beside its weights.
        """
        saved = extra.get(EXTRA, {}).get("rules")
        if not isinstance(saved, dict):
            return self, []
        rules, changes = reshaped(self.rules, saved)
        return (Net(self.network, rules, border_of(self)) if changes else self), changes

    def to_convnet(self) -> dict[str, np.ndarray]:
        """{``conv1/weights/0``: matrix, ``conv1/biases``: vector} in the layouts of 2012."""
        return {
            f"{name}/{key}": array
            for name, piece in self._pieces.items()
            for key, array in piece.export().items()
        }

    def from_convnet(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take parameters as ``to_convnet`` gives them; a matrix may also come with more axes, such
        as (channels, rows, columns, filters).

        Raises:
            WeightsError: arrays that are missing, extra, of another size or no numbers; nothing is
                changed.
        """
        pieces = {n: p for n, p in self._pieces.items() if isinstance(p, WeightedPiece)}
        keys = {name: piece.keys() for name, piece in pieces.items()}
        wanted = {f"{n}/{key}": pieces[n].shape(key) for n in keys for key in keys[n]}
        missing, extra = wanted.keys() - arrays.keys(), arrays.keys() - wanted.keys()
        if missing or extra:
            wrong = [f"the network has no {', '.join(sorted(extra))}"] if extra else []
            wrong += [f"missing are {', '.join(sorted(missing))}"] if missing else []
            raise WeightsError("; ".join(wrong))
        for name, shape in wanted.items():
            given = np.shape(arrays[name])
            if math.prod(given) != math.prod(shape) or (
                len(given) == len(shape) and given != shape
            ):
                raise WeightsError(f"{name} must have shape {shape}, it has {given}")
            if (dtype := np.asarray(arrays[name]).dtype).kind not in "fiub":
                raise WeightsError(f"{name} must be an array of numbers, it is {dtype}")
        self._check_one_matrix(arrays)
        own = {
            name: {key: np.asarray(arrays[f"{name}/{key}"]) for key in keys[name]} for name in keys
        }
        for name, piece in pieces.items():
            piece.check(own[name])
        for name, piece in pieces.items():
            piece.restore(own[name])

    def _check_one_matrix(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Raises WeightsError for matrices of layers that share one, unless they are equal."""
        first: dict[int, str] = {}
        for name, piece in self._pieces.items():
            for key in piece.keys() if isinstance(piece, WeightedPiece) else ():
                owner, own = first.setdefault(id(piece.held(key)), f"{name}/{key}"), f"{name}/{key}"
                pair = np.ravel(arrays[owner]), np.ravel(arrays[own])
                if owner != own and not np.array_equal(*pair, equal_nan=True):
                    raise WeightsError(f"{owner} and {own} are one matrix, and must be equal")

    def owners(self) -> dict[tuple[str, int], tuple[str, int]]:
        """{(layer, input): the layer and input whose weights it takes}; those of its own are left
        out. Where that one shares too, it is the last in the row."""
        found: dict[tuple[str, int], tuple[str, int]] = {}
        for layer in self.network.layers:
            initial = getattr(layer.definition, "initial", None)
            for i, source in enumerate(initial.shared if isinstance(initial, Initial) else ()):
                if source is not None:
                    found[layer.name, i] = found.get(source, source)
        return found

    def _piece(self, layer: Layer) -> Piece:
        network = self.network
        initial = getattr(layer.definition, "initial", None)
        shared = self._shared(layer, initial) if isinstance(initial, Initial) else []
        inputs = tuple(network[name].extent for name in layer.inputs)
        rule = self.rules.layers.get(layer.name, LayerRule())
        return piece_of(layer, inputs, rule, shared)

    def _shared(self, layer: Layer, initial: Initial) -> list[Shared]:
        """Whose weights the inputs of a layer take."""
        found: list[Shared] = []
        for source in initial.shared:
            if source is None:
                found.append(None)
            else:
                found.append(source[1] if source[0] == layer.name else self._weight(*source))
        return found

    def _weight(self, name: str, index: int) -> Parameter:
        weights = self._pieces[name].get_submodule("weights")
        assert isinstance(weights, Weights)
        return weights[index]


def load(
    layers: str | Path,
    params: str | Path,
    input_size: int = 224,
    *,
    classes: Classes = None,
    tree: TreeSource | None = None,
    init_from: str | os.PathLike[str] | None = None,
    allow_code: Mapping[str, Function] | None = None,
    border: int = 0,
    strict: bool = False,
) -> Net:
    """The network of a layer file and its parameter file.

    What was remedied or ignored in the files is in ``notes`` of the network. Nothing that a file
    names is ever run. Where its layers take initial values from functions
    (initWFunc, initBFunc, initCFunc) and neither ``init_from`` nor ``allow_code`` provides them,
    initW and initB are used, and a warning says so.

    Args:
        input_size: height and width of the images, in pixels.
        classes: classes of the data set, their names or how many, which outputs are checked
            against; only a treefc needs them.
        tree: how the classes of a treefc lie together: the parents of all nodes, by name
            (``{"beagle": "dog", "dog": "animal", …}``) or by number, or a JSON file of either; see
            ``class_tree``. Without one a stand-in is taken, and a warning says so.
        init_from: what layers with ``initWFunc=initw.makew(SRC)`` (makeb, makec) copy weights
            (biases, connections) from: a checkpoint, a run folder, a saved network, or a
            safetensors or npz file with the arrays of ``Net.to_convnet``.
        allow_code: functions for the names that layers ask for, ``{"module.function": function}``;
            each is called as in 2012: ``function(layer, input, shape, params=[...])`` for weights
            and connections, ``function(layer, shape, params=[...])`` for biases.
        border: pixels that ``input_size`` leaves on each side of an image of the data set, which a
            saved network keeps; how images are fed is the trainer's to say.
        strict: refuse what the original refused.

    Raises:
        ConfigError: what breaks a rule or is not supported, or initial values that do not fit, with
            file, section and key.
        TreeError: a tree in Python that is none, or not of these classes.
        ConvloomError: an ``init_from`` that cannot be read or that no layer asks for.
    """
    network = read_network(layers, input_size, classes=classes, tree=tree, strict=strict)
    net = Net(network, read_rules(params, network, strict=strict), border)
    if left := initialise(net, init_from, allow_code):
        warnings.warn(left, stacklevel=2)
    return net


def loss_of(model: Module) -> LossSum | None:
    """The costs of a network file, where ``model`` is one, loaded from a file too; else None.

    Raises:
        ConvloomError: a file whose description of them is damaged.
    """
    saved = _kept(model)
    if saved is None:
        return None
    try:
        return LossSum.from_json(saved["costs"])
    except (KeyError, TypeError, ValueError) as error:
        raise ConvloomError(f"what the network says of its costs is damaged ({error!r})") from None


def border_of(model: Module) -> int:
    """Pixels that the input of a network file's network leaves on each side of an image; 0 for
    other networks.

    Raises:
        ConvloomError: a file whose border is damaged.
    """
    saved = _kept(model)
    border = saved.get("border", 0) if isinstance(saved, Mapping) else 0
    if not _is_border(border):
        raise ConvloomError(f"what the network says of its border is damaged ({border!r})")
    return int(border)


def _is_border(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _kept(model: Module) -> Any:
    """What a saved network keeps of its files; None for those that were made otherwise."""
    return model.__dict__.get("_extra", {}).get(EXTRA)


def _left_to_costs(network: Network) -> Iterator[tuple[str, str]]:
    """(softmax, what it reads) of those that nothing reads but a cost, which takes them itself."""
    read = {name for one in network.layers if not one.is_cost for name in one.inputs}
    for layer in network.layers:
        if isinstance(layer.definition, Softmax) and layer.name not in read:
            source = network[layer.inputs[0]]
            if not isinstance(source.definition, Data):
                yield layer.name, source.name


def _is_images(layer: Layer) -> bool:
    return isinstance(layer.definition, Data) and layer.definition.index == 0
