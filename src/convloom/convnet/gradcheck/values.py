"""Values to check gradients at: signals that neither vanish nor saturate, drawn with a seed.

A file's own initial weights make gradients so small in its lower layers that differences cannot
tell them from rounding. So each layer's weights are scaled, from the images up, until what it
computes has a size set here (Mishkin and Matas, "All you need is a good init", 2016). All values
are exact in float32, so that every device computes with the same ones.
"""

from __future__ import annotations

import math

import numpy as np

from convloom import random
from convloom.convnet.net import Net
from convloom.convnet.network import Layer, Network
from convloom.ir import ConvloomError, Graph, Role
from convloom.ops import Op
from convloom.ops.control import counter_vector

_STREAM = "convnet-gradients"
#: Standard deviations: of images and of what most layers compute, large enough for response
#: normalisations to matter; of what feeds a cost or a neuron that saturates; of biases.
_LARGE, _SMALL, _BIAS = 10.0, 1.0, 0.5
#: Neurons that do not saturate.
_STRAIGHT = ("ident", "relu", "abs", "linear")

Arrays = dict[str, np.ndarray]


def drawn(net: Net, graph: Graph, seed: int) -> Arrays:
    """Every tensor of the graph that comes from outside, what is real in float64.

    Args:
        graph: the network in training, up to its loss.

    Raises:
        ConvloomError: a layer that makes NaN or infinities of such values.
    """
    buffers = dict(net.named_buffers())
    values = {
        name: _kept(buffers[name].data) if name in buffers else _first(graph, name, seed)
        for name in graph.roles
    }
    known = dict(values)
    scaled: set[str] = set()
    layer, layers = "", {one.module: one for one in net.network.layers}
    for node in graph.nodes:
        layer = layers[node.layer].name if node.layer in layers else layer
        assert isinstance(node.op, Op)
        outputs = node.op.reference(*(known[name] for name in node.inputs))
        for name in node.inputs[1:]:
            if _is_matrix(graph, name) and name not in scaled:
                scaled.add(name)
                wanted = _size(net.network, layers[name.partition(".")[0]])
                factor = wanted / float(outputs[0].std() or 1.0)
                values[name] = known[name] = _exact(factor * known[name])
                outputs = node.op.reference(*(known[name] for name in node.inputs))
        if not all(np.isfinite(array).all() for array in outputs):
            raise ConvloomError(
                f"[{layer}] or its neuron makes NaN or infinities of numbers drawn at random, so "
                "no gradient can be checked"
            )
        known.update(zip(node.outputs, outputs, strict=True))
    return values


def _kept(value: np.ndarray) -> np.ndarray:
    """A buffer, in float64 if it is real."""
    return value.astype(np.float64) if value.dtype.kind == "f" else value


def _first(graph: Graph, name: str, seed: int) -> np.ndarray:
    """A tensor before it is scaled."""
    spec = graph.specs[name]
    if name == "counter":
        return counter_vector(seed, 0)
    if name == "target":
        return _target(graph, seed)
    draw = random.normal(seed, f"{_STREAM}:{name}", spec.shape)
    if name == "input":
        return _exact(_LARGE * draw)
    if _is_matrix(graph, name):
        return _exact(draw / math.sqrt(math.prod(spec.shape[1:])))
    return _exact(_BIAS * draw)


def _target(graph: Graph, seed: int) -> np.ndarray:
    """Class numbers, or numbers that are 0 or 1."""
    spec = graph.specs["target"]
    if spec.dtype == "int64":
        classes = graph.specs["output"].shape[1]
        return random.integers(seed, f"{_STREAM}:target", 0, 0, spec.size, classes)
    numbers = random.integers(seed, f"{_STREAM}:target", 0, 0, spec.size, 2)
    return numbers.reshape(spec.shape).astype(np.float64)


def _is_matrix(graph: Graph, name: str) -> bool:
    return graph.role(name) is Role.PARAMETER and not name.endswith("biases")


def _exact(values: np.ndarray) -> np.ndarray:
    """Rounded to float32, as float64."""
    return np.asarray(values, np.float32).astype(np.float64)


def _size(network: Network, layer: Layer) -> float:
    """The standard deviation that a layer's products shall have."""
    if layer.neuron.kind not in _STRAIGHT or _feeds_cost(network, layer):
        return _SMALL
    return _LARGE


def _feeds_cost(network: Network, layer: Layer) -> bool:
    """Whether a cost reads the layer, with no other weights in between."""
    readers = [one for one in network.layers if layer.name in one.inputs]
    return any(
        one.is_cost or (not one.definition.weighted and _feeds_cost(network, one))
        for one in readers
    )
