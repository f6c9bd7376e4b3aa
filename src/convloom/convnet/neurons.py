"""Neurons: the functions that ``neuron=`` puts behind a layer."""

from __future__ import annotations

import re
from dataclasses import dataclass

#: {name: number of parameters}.
NEURONS = {
    "ident": 0,
    "relu": 0,
    "logistic": 0,
    "abs": 0,
    "square": 0,
    "sqrt": 0,
    "softrelu": 0,
    "nrelu": 0,
    "tanh": 2,
    "linear": 2,
    "brelu": 1,
    "drelu": 1,
}

#: What a must be where a formula divides by it, or takes 0 to a for a range.
_FIRST = {"tanh": "other than 0", "drelu": "other than 0", "brelu": "of more than 0"}

_SPEC = re.compile(r"\s*([A-Za-z]+)\s*(?:\[([^]]*)\])?\s*")
# Digits, dot, minus: the original knows no exponent.
_PARAMETER = re.compile(r"-?(?:[0-9]+\.?[0-9]*|\.[0-9]+)")


@dataclass(frozen=True)
class Neuron:
    """A function by name, with its parameters (a and b of ``tanh[a,b]``)."""

    kind: str
    parameters: tuple[float, ...] = ()

    def __str__(self) -> str:
        inner = ",".join(f"{value:g}" for value in self.parameters)
        return f"{self.kind}[{inner}]" if inner else self.kind


IDENTITY = Neuron("ident")


def parse_neuron(text: str) -> Neuron:
    """``relu``, ``tanh[1.7159, .6666]``.

    Raises:
        ValueError: the rule that the text breaks.
    """
    match = _SPEC.fullmatch(text)
    if match is None or match[1] not in NEURONS:
        raise ValueError(f"must be one of {', '.join(map(_form, NEURONS))}")
    kind, inner = match[1], match[2]
    parts = [part.strip() for part in inner.split(",")] if inner is not None else []
    if len(parts) != NEURONS[kind] or not all(_PARAMETER.fullmatch(part) for part in parts):
        raise ValueError(f"must be {_form(kind)} with plain decimal numbers")
    values = tuple(float(part) for part in parts)
    if kind in _FIRST and (values[0] == 0 or (kind == "brelu" and values[0] < 0)):
        raise ValueError(f"must be {_form(kind)} with an a {_FIRST[kind]}")
    return Neuron(kind, values)


def _form(kind: str) -> str:
    letters = ",".join("ab"[: NEURONS[kind]])
    return f"{kind}[{letters}]" if letters else kind
