"""A network file as PyTorch computes it, read by Python's own parser.

Written after the rules of 2012 alone; nothing is shared with convloom. A function a layer type,
images (N, C, H, W) in float64, weights in the layouts of 2012. Dropout only scales
(``enable=false``), and the means of a cnorm have no gradient.
"""

from __future__ import annotations

import configparser
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

Tensor = torch.Tensor


@dataclass
class Section:
    """A layer's keys, those of the parameter file behind them."""

    name: str
    keys: dict[str, str]

    def __getitem__(self, key: str) -> str:
        return self.keys[key.lower()]

    def get(self, key: str, default: str) -> str:
        return self.keys.get(key.lower(), default)

    def number(self, key: str, default: float | None = None) -> float:
        return float(self[key] if default is None else self.get(key, str(default)))

    def whole(self, key: str, at: int = 0, default: int | None = None) -> int:
        parts = (self[key] if default is None else self.get(key, str(default))).split(",")
        return int(parts[at if len(parts) > 1 else 0])

    def flag(self, key: str, default: bool, at: int = 0) -> bool:
        parts = self.get(key, str(default)).split(",")
        return parts[at if len(parts) > 1 else 0].strip().lower() in ("1", "true", "yes", "on")


class Peer:
    """The layers of a file, and what each computes.

    Args:
        layers, params: the texts of the two files.
        weights: {``conv1/weights/0``: matrix}, as the files of 2012 hold them.
    """

    def __init__(self, layers: str, params: str, weights: dict[str, Any]) -> None:
        rules = sections(params)
        self.sections = {
            name: Section(name, {**rules.get(name, {}), **keys})
            for name, keys in sections(layers).items()
        }
        self.weights = {
            name: torch.tensor(value, dtype=torch.float64, requires_grad="connections" not in name)
            for name, value in weights.items()
        }

    def cost(self, images: Tensor, labels: Tensor) -> Tensor:
        """The file's cost, a mean over the cases; ``labels`` are class numbers.

        What compares number by number is given rows of 0 with a 1 at the class.
        """
        values: dict[str, Tensor] = {}
        for name, section in self.sections.items():
            kind = section["type"]
            if kind == "data":
                values[name] = images if section.whole("dataIdx") == 0 else labels
                continue
            inputs = [values[one.strip()] for one in section["inputs"].split(",")]
            if kind == "eltsum" or kind == "cost.crossent2":
                inputs = as_rows(inputs, labels)
            if kind.startswith("cost."):
                return COSTS[kind](*inputs).sum() / len(images)
            made = LAYERS[kind](self, section, inputs)
            values[name] = NEURONS[section.get("neuron", "ident")](made)
        raise AssertionError("there is no cost")

    def matrix(self, section: Section, at: int) -> Tensor:
        return self.weights[f"{section.name}/weights/{at}"]

    def biases(self, section: Section) -> Tensor:
        return self.weights[f"{section.name}/biases"]


def sections(text: str) -> dict[str, dict[str, str]]:
    parser = configparser.RawConfigParser(inline_comment_prefixes=(";",), strict=False)
    parser.read_string(text)
    return {name: dict(parser[name]) for name in parser.sections()}


def as_rows(inputs: list[Tensor], labels: Tensor) -> list[Tensor]:
    """Class numbers among the inputs as rows as wide as the others."""
    width = max(flat(x).shape[1] for x in inputs if x is not labels)
    rows = functional.one_hot(labels, width).double()
    return [rows if x is labels else x for x in inputs]


def flat(x: Tensor) -> Tensor:
    return x.reshape(len(x), -1)


def maps(x: Tensor, channels: int) -> Tensor:
    side = math.isqrt(x[0].numel() // channels)
    return x.reshape(len(x), channels, side, side)


def patches(peer: Peer, section: Section, at: int, x: Tensor) -> tuple[Tensor, int]:
    """What the filters of input ``at`` read: (N, groups, channels * size * size, places)."""
    channels, size = section.whole("channels", at), section.whole("filterSize", at)
    stride, padding = section.whole("stride", at, 1), section.whole("padding", at, 0)
    groups = section.whole("groups", at, 1)
    x = maps(x, channels)
    if section.flag("randSparse", False, at):
        x = x[:, peer.weights[f"{section.name}/connections/{at}"].long()]
    places = 1 + math.ceil((2 * padding + x.shape[2] - size) / stride)
    far = (places - 1) * stride + size - padding - x.shape[2]
    x = functional.pad(x, (padding, max(far, 0), padding, max(far, 0)))
    read = functional.unfold(x, size, stride=stride).reshape(len(x), groups, -1, places**2)
    return read, places


def conv(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    total: Any = 0
    for at, x in enumerate(inputs):
        read, places = patches(peer, section, at, x)
        filters = peer.matrix(section, at)  # rows channel, row, column
        by_group = filters.reshape(read.shape[2], read.shape[1], -1)
        y = torch.einsum("ngrp,rgf->ngfp", read, by_group)
        total = total + y.reshape(len(x), -1, places, places)
    bias = peer.biases(section)
    shared = section.flag("sharedBiases", True)
    return total + (bias[:, None, None] if shared else bias.reshape(total.shape[1:]))


def local(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    total: Any = 0
    for at, x in enumerate(inputs):
        read, places = patches(peer, section, at, x)
        filters = peer.matrix(section, at).reshape(places**2, read.shape[2], read.shape[1], -1)
        y = torch.einsum("ngrp,prgf->ngfp", read, filters)
        total = total + y.reshape(len(x), -1, places, places)
    return total + peer.biases(section).reshape(total.shape[1:])


def fc(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    products = [flat(x) @ peer.matrix(section, at) for at, x in enumerate(inputs)]
    return sum(products, peer.biases(section))


def pool(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    x = maps(inputs[0], section.whole("channels"))
    size, stride, start = (section.whole(key, 0, 0) for key in ("sizeX", "stride", "start"))
    outputs = section.whole("outputsX", 0, 0)
    outputs = outputs or 1 + math.ceil((x.shape[2] - start - size) / stride)
    kind = section["pool"]
    if kind == "rand":
        assert section.flag("doMax", False)
    spans = [(max(start + i * stride, 0), start + i * stride + size) for i in range(outputs)]
    rows = []
    for top, bottom in spans:
        cells = [x[:, :, top:bottom, left:right] for left, right in spans]
        rows.append([c.mean((2, 3)) if kind == "avg" else c.amax((2, 3)) for c in cells])
    return torch.stack([torch.stack(row, -1) for row in rows], -2)


def around(x: Tensor, size: int) -> Tensor:
    """The sum over each pixel's window in its map, zeros outside."""
    low, high = size // 2, size - 1 - size // 2
    return functional.avg_pool2d(functional.pad(x, (low, high, low, high)), size, 1) * size**2


def rnorm(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    x = maps(inputs[0], section.whole("channels"))
    size = section.whole("size" if "size" in section.keys else "sizeX")
    centred = x
    if section["type"] == "cnorm":
        mean = around(x, size) / around(torch.ones_like(x), size)
        centred = x - mean.detach()
    scale = section.number("scale") / size**2
    return x * (1 + scale * around(centred.square(), size)) ** -section.number("pow")


def cmrnorm(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    x = maps(inputs[0], section.whole("channels"))
    size = section.whole("size")
    squares = functional.pad(x.square(), (0, 0, 0, 0, size // 2, size - 1 - size // 2))
    sums = squares.unfold(1, size, 1).sum(-1)
    base = section.number("minDiv", 1.0) + section.number("scale") / size * sums
    return x * base ** -section.number("pow")


def blur(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    x, size = maps(inputs[0], section.whole("channels")), section.whole("filterSize")
    at = torch.arange(size, dtype=x.dtype) - size // 2
    taps = torch.exp(-at.square() / (2 * section.number("stdev") ** 2))
    taps = taps / taps.sum()
    filters = torch.outer(taps, taps).expand(x.shape[1], 1, size, size)
    return functional.conv2d(x, filters, padding=size // 2, groups=x.shape[1])


def nailbed(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    x, stride = maps(inputs[0], section.whole("channels")), section.whole("stride")
    start = (x.shape[2] - stride * (math.ceil(x.shape[2] / stride) - 1)) // 2
    return x[:, :, start::stride, start::stride]


def eltsum(peer: Peer, section: Section, inputs: list[Tensor]) -> Tensor:
    factors = [float(c) for c in section.get("coeffs", ",".join("1" * len(inputs))).split(",")]
    return sum((c * flat(x) for c, x in zip(factors, inputs, strict=True)), torch.tensor(0.0))


LAYERS: dict[str, Callable[[Peer, Section, list[Tensor]], Tensor]] = {
    "conv": conv,
    "local": local,
    "fc": fc,
    "pool": pool,
    "rnorm": rnorm,
    "cnorm": rnorm,
    "cmrnorm": cmrnorm,
    "blur": blur,
    "nailbed": nailbed,
    "href": lambda peer, section, inputs: maps(inputs[0], section.whole("channels")).flip(3),
    "hs": lambda peer, section, inputs: section.number("keep") * inputs[0],
    "eltsum": eltsum,
    "concat": lambda peer, section, inputs: torch.cat([flat(x) for x in inputs], 1),
    "softmax": lambda peer, section, inputs: flat(inputs[0]).softmax(1),
}
NEURONS: dict[str, Callable[[Tensor], Tensor]] = {
    "ident": lambda x: x,
    "relu": torch.relu,
    "logistic": torch.sigmoid,
}
COSTS: dict[str, Callable[..., Tensor]] = {
    "cost.logreg": lambda labels, p: -p.gather(1, labels[:, None]).log(),
    "cost.crossent2": lambda t, y: -(t * y.log() + (1 - t) * (1 - y).log()),
    "cost.sum2": torch.square,
}
