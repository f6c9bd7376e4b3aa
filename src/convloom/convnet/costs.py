"""Costs as losses: what a cost makes of the network's output and the labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import EltSum, Softmax
from convloom.convnet.network import Data, Layer, Network
from convloom.convnet.rules import Rules
from convloom.nn import CrossEntropyLoss
from convloom.nn.losses import PointwiseLoss


@dataclass(frozen=True)
class Cost:
    """The loss of a network, and the layer whose output it reads.

    Attributes:
        output: name of the layer.
        with_neuron: whether the layer's neuron comes before the loss, or is part of it.
        loss: summed over outputs, averaged over cases.
        coefficient: what its gradient is multiplied by.
    """

    output: str
    with_neuron: bool
    loss: Any
    coefficient: float


def cost_of(layer: Layer, network: Network, rules: Rules) -> Cost:
    """The cost that a layer stands for.

    Raises:
        ConfigError: inputs that the cost cannot compare.
    """
    coefficient = rules.layers[layer.name].coefficient if layer.name in rules.layers else None
    found = {
        "cost.logreg": _logreg,
        "cost.crossent2": _crossent2,
        "cost.rflickr": _rflickr,
        "cost.sum2": _sum2,
    }[layer.type](layer, network)
    return Cost(*found, 1.0 if coefficient is None else coefficient)


def _logreg(layer: Layer, network: Network) -> tuple[str, bool, Any]:
    _, probabilities = _pair(layer, network)
    if not isinstance(probabilities.definition, Softmax):
        raise _error(layer, network, f"needs a softmax layer, {probabilities.name} is none")
    return probabilities.inputs[0], True, CrossEntropyLoss()


def _crossent2(layer: Layer, network: Network) -> tuple[str, bool, Any]:
    """Logarithms of the logistic function, taken before it where it feeds this cost alone."""
    _, predicted = _pair(layer, network)
    readers = [one for one in network.layers if predicted.name in one.inputs]
    if predicted.neuron.kind == "logistic" and len(readers) == 1:
        return predicted.name, False, PointwiseLoss("bce_logits", "batchmean")
    return predicted.name, True, PointwiseLoss("bce", "batchmean", 50.0)


def _rflickr(layer: Layer, network: Network) -> tuple[str, bool, Any]:
    _, predicted = _pair(layer, network)
    return predicted.name, True, PointwiseLoss("log_square", "batchmean")


def _sum2(layer: Layer, network: Network) -> tuple[str, bool, Any]:
    """The squares of a layer, or of its difference from the labels."""
    squared = network[layer.inputs[0]]
    labels = [name for name in squared.inputs if _is_labels(network[name])]
    if not labels:
        return squared.name, True, PointwiseLoss("square", "batchmean")
    difference = isinstance(squared.definition, EltSum) and sorted(
        squared.definition.coefficients
    ) == [-1.0, 1.0]
    if len(labels) != 1 or not difference or squared.neuron.kind != "ident":
        raise _error(layer, network, f"needs {squared.name} to be the difference from the labels")
    (output,) = (name for name in squared.inputs if name not in labels)
    return output, True, PointwiseLoss("mse", "batchmean")


def _pair(layer: Layer, network: Network) -> tuple[Layer, Layer]:
    labels, predicted = (network[name] for name in layer.inputs)
    if not _is_labels(labels):
        raise _error(layer, network, f"needs labels as its first input, {labels.name} is none")
    return labels, predicted


def _is_labels(layer: Layer) -> bool:
    return isinstance(layer.definition, Data) and layer.definition.index != 0


def _error(layer: Layer, network: Network, rule: str) -> ConfigError:
    return ConfigError(rule, network.file, layer.name, line=layer.line)
