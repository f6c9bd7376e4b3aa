from __future__ import annotations

import pytest

from convloom.convnet.neurons import Neuron, parse_neuron


@pytest.mark.parametrize(
    ("text", "neuron"),
    [
        ("relu", Neuron("relu")),
        ("tanh[1.7159,0.6666]", Neuron("tanh", (1.7159, 0.6666))),
        ("tanh [ 1.7159 , .6666 ]", Neuron("tanh", (1.7159, 0.6666))),
        ("linear[2,-1]", Neuron("linear", (2.0, -1.0))),
        ("brelu[6]", Neuron("brelu", (6.0,))),
    ],
)
def test_a_neuron_is_a_name_with_parameters(text: str, neuron: Neuron) -> None:
    assert parse_neuron(text) == neuron
    assert parse_neuron(str(neuron)) == neuron


@pytest.mark.parametrize(
    "text",
    [
        "tanh[1]",
        "tanh",
        "relu[1]",
        "Relu",
        "brelu[1e3]",
        "brelu[6",
        "",
        "tanh[0,1]",
        "drelu[0]",
        "brelu[-1]",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must be"):
        parse_neuron(text)
