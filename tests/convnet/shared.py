"""The network files of 2012, where the shared cases lie beside the project."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from convloom.convnet import syntax
from convloom.convnet.net import Net
from convloom.convnet.network import parse_network
from convloom.convnet.reduce import reduced
from convloom.convnet.rules import parse_rules
from convloom.convnet.syntax import ConfigFile
from tests import golden

#: {layer file: (its parameter files, side of the images that it is for)}.
_PAIRS: dict[str, tuple[tuple[str, ...], int]] = {
    "layers/layers-120.cfg": (("120",), 224),
    "layers/layers-126.cfg": (("126-2012-full",), 224),
    "layers/layers-137-tree.cfg": (("137-tree",), 224),
    "layers/layers-145.cfg": (("145",), 224),
    "layers/layers-153.cfg": (("170", "153", "165", "170-quant"), 224),
    "layers/layers-178.cfg": (("178",), 224),
    "layers/layers-183-4gpu.cfg": (("183-4gpu",), 224),
    "layers/layers-98-16kinit.cfg": (("98-16kinit",), 224),
    "layers/layers-flickr-102.cfg": (("flickr-102",), 224),
    "layers/layers-flickr-105.cfg": (("flickr-105",), 224),
    "layers-cifar/layers-18pct.cfg": (("18pct-noisylr",), 32),
    "example-layers/layers-18pct.cfg": (("18pct",), 32),
    "example-layers/layers-conv-local-13pct.cfg": (("conv-local-13pct",), 24),
    "example-layers/layers-example.cfg": (("example",), 32),
    "example-layers/layers.gc.cfg": (("gc",), 8),
}


def files(only: tuple[str, ...] = ("",), without: tuple[str, ...] = ()) -> list[Any]:
    """The layer files, or some by how their names begin, for ``parametrize``."""
    if golden.folder() is None:
        return golden.left_out()
    return [name for name in _PAIRS if name.startswith(only) and not name.startswith(without)]


def shapes() -> dict[str, list[list[Any]]]:
    """{layer file: [layer, type, channels or outputs, height, width, parameters] of its layers}."""
    found: dict[str, list[list[Any]]] = json.loads((_folder() / "shapes.json").read_text())
    return found


def size(name: str) -> int:
    """The side of the images that a layer file is for."""
    return _PAIRS[name][1]


def params(name: str) -> list[ConfigFile]:
    """The parameter files of a layer file."""
    folder = (_folder() / name).parent
    separator = "." if name.endswith("layers.gc.cfg") else "-"
    return [
        syntax.read(folder / f"layer-params{separator}{which}.cfg") for which in _PAIRS[name][0]
    ]


def layers(name: str, divide: int = 1) -> ConfigFile:
    """A layer file, its channels divided."""
    file = syntax.read(_folder() / name)
    return reduced(file, parse_network(file, size(name)), divide)


def net(name: str, divide: int = 1) -> Net:
    """The network of a layer file and the first of its parameter files."""
    network = parse_network(layers(name, divide), size(name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "(?s).*stand-in is taken")  # of a class tree
        return Net(network, parse_rules(params(name)[0], network))


def text(file: ConfigFile) -> str:
    """A file's text, without comments."""
    return "\n".join(
        f"[{section.name}]\n" + "\n".join(f"{k}={e.text}" for k, e in section.entries.items())
        for section in file.sections.values()
    )


def _folder() -> Path:
    folder = golden.folder()
    assert folder is not None
    return folder / "convnet"
