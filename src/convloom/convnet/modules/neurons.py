"""Neurons as operations."""

from __future__ import annotations

from convloom.convnet.neurons import Neuron
from convloom.nn import functional
from convloom.nn.layers.base import Layer
from convloom.nn.tensor import SymbolicTensor

#: {neuron: kind in ops/activation.py and the parameters that the neuron does not have itself}.
_KINDS: dict[str, tuple[str, tuple[float, ...]]] = {
    "logistic": ("sigmoid", ()),
    "abs": ("abs", (-1.0,)),
    "square": ("square", ()),
    "sqrt": ("sqrt", ()),
    "softrelu": ("softplus", (1.0, 4.0)),
    "tanh": ("tanh", ()),
    "linear": ("linear", ()),
    "drelu": ("drelu", ()),
}


class NeuronLayer(Layer):
    """The neuron behind a layer, which cuda-convnet calls ``NAME_neuron``."""

    def __init__(self, neuron: Neuron) -> None:
        super().__init__()
        self.neuron = neuron

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        return apply_neuron(x, self.neuron)

    def extra_repr(self) -> str:
        return str(self.neuron)


def apply_neuron(x: SymbolicTensor, neuron: Neuron) -> SymbolicTensor:
    """What a neuron makes of a tensor."""
    if neuron.kind == "ident":
        return x
    if neuron.kind == "relu":
        return functional.relu(x)
    if neuron.kind == "nrelu":
        return functional.noisy_relu(x)
    if neuron.kind == "brelu":
        return functional.hardtanh(x, 0.0, neuron.parameters[0])
    kind, fixed = _KINDS[neuron.kind]
    return functional.activation(x, kind, *(fixed or neuron.parameters))
