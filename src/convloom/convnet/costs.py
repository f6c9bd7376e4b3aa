"""Costs as losses: what each makes of a layer and the labels, and their sum."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import EltSum, Softmax
from convloom.convnet.network import Data, Layer, Network
from convloom.convnet.rules import LayerRule, Rules
from convloom.nn import CrossEntropyLoss, LossSum, LossTerm
from convloom.nn.losses import PointwiseLoss


class Read(NamedTuple):
    """What a cost reads: a layer behind its neuron, or before it where that is part of the loss."""

    layer: str
    with_neuron: bool = True


@dataclass(frozen=True)
class Objective:
    """What training makes small: the sum of a network's costs, each times its ``coeff``.

    Attributes:
        outputs: what costs read; the first is the network's output, on which right answers are
            counted: the logits of the first ``cost.logreg``, else what the first cost reads.
        loss: every cost summed over outputs, averaged over cases, by its layer's name.
    """

    outputs: tuple[Read, ...]
    loss: LossSum


def objective(network: Network, rules: Rules) -> Objective:
    """All costs of a network; there is one, since nothing else need not be read.

    Raises:
        ConfigError: inputs that a cost cannot compare.
    """
    costs = [layer for layer in network.layers if layer.is_cost]
    found = [_KINDS[layer.type](layer, network) for layer in costs]
    for layer, (read, _) in zip(costs, found, strict=True):
        _check_read(layer, read, network)
    first = next((i for i, one in enumerate(costs) if one.type == "cost.logreg"), 0)
    outputs = tuple(dict.fromkeys([found[first][0], *(read for read, _ in found)]))
    terms = tuple(
        _term(layer, loss, outputs.index(read), rules.layers.get(layer.name, LayerRule()))
        for layer, (read, loss) in zip(costs, found, strict=True)
    )
    return Objective(outputs, LossSum(terms))


def _term(layer: Layer, loss: Any, output: int, rule: LayerRule) -> LossTerm:
    coefficient = 1.0 if rule.coefficient is None else rule.coefficient
    top = rule.top if layer.type == "cost.logreg" else None
    return LossTerm(layer.name, loss, coefficient, output, top)


def _logreg(layer: Layer, network: Network) -> tuple[Read, Any]:
    _, probabilities = _pair(layer, network)
    if not isinstance(probabilities.definition, Softmax):
        raise _error(layer, network, f"needs a softmax layer, {probabilities.name} is none")
    return Read(probabilities.inputs[0]), CrossEntropyLoss()


def _crossent2(layer: Layer, network: Network) -> tuple[Read, Any]:
    """Logarithms of the logistic function are taken before it, where none overflows."""
    _, predicted = _pair(layer, network)
    if predicted.neuron.kind == "logistic":
        return Read(predicted.name, False), PointwiseLoss("bce_logits", "batchmean")
    return Read(predicted.name), PointwiseLoss("bce", "batchmean", 50.0)


def _rflickr(layer: Layer, network: Network) -> tuple[Read, Any]:
    _, predicted = _pair(layer, network)
    return Read(predicted.name), PointwiseLoss("log_square", "batchmean")


def _sum2(layer: Layer, network: Network) -> tuple[Read, Any]:
    """The squares of a layer, or of its difference from the labels."""
    squared = network[layer.inputs[0]]
    labels = [name for name in squared.inputs if _is_labels(network[name])]
    if not labels:
        return Read(squared.name), PointwiseLoss("square", "batchmean")
    difference = isinstance(squared.definition, EltSum) and sorted(
        squared.definition.coefficients
    ) == [-1.0, 1.0]
    if len(labels) != 1 or not difference or squared.neuron.kind != "ident":
        raise _error(layer, network, f"needs {squared.name} to be the difference from the labels")
    (output,) = (name for name in squared.inputs if name not in labels)
    return Read(output), PointwiseLoss("mse", "batchmean")


_KINDS = {
    "cost.logreg": _logreg,
    "cost.crossent2": _crossent2,
    "cost.rflickr": _rflickr,
    "cost.sum2": _sum2,
}


def _pair(layer: Layer, network: Network) -> tuple[Layer, Layer]:
    labels, predicted = (network[name] for name in layer.inputs)
    if not _is_labels(labels):
        raise _error(layer, network, f"needs labels as its first input, {labels.name} is none")
    return labels, predicted


def _check_read(layer: Layer, read: Read, network: Network) -> None:
    """A cost may compare a layer with the labels, but not one that labels have gone into."""
    above = [read.layer]
    for name in above:
        if _is_labels(network[name]):
            raise _error(
                layer,
                network,
                f"reads {read.layer}, which is made of {name}; labels can only be compared by a "
                "cost, or subtracted in front of cost.sum2",
            )
        above += [one for one in network[name].inputs if one not in above]


def _is_labels(layer: Layer) -> bool:
    return isinstance(layer.definition, Data) and layer.definition.index != 0


def _error(layer: Layer, network: Network, rule: str) -> ConfigError:
    return ConfigError(rule, network.file, layer.name, line=layer.line)
