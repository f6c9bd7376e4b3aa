"""Initial values that cuda-convnet took from a person's Python: initWFunc, initBFunc, initCFunc.

A file names ``module.function(parameters)``, and nothing is ever imported or run by that name. All
known files name three functions, which copied from a checkpoint that was never published:

    initw.makew(SRC)    matrix i of layer SRC, for input i
    initw.makeb(SRC)    its biases
    initw.makec(SRC)    its connections (randSparse) of input i

These are done here, from any file that has such a layer: a checkpoint or a saved network of
convloom, or a safetensors or npz file whose arrays are named as ``Net.to_convnet`` names them.
Other functions are those that a caller hands over. Where neither is there, initW and initB stand.
"""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.convnet.errors import ConfigError
from convloom.convnet.layers.base import Initial
from convloom.convnet.modules.base import WeightedPiece
from convloom.convnet.network import Layer, Network, module_name
from convloom.files import FileError
from convloom.ir import ConvloomError
from convloom.nn.parameter import WeightsError
from convloom.nn.serialization import read_tensors
from convloom.training.checkpoint import LAST

if TYPE_CHECKING:
    from convloom.convnet.net import Net

#: ``function(layer, input, shape, params=[...])`` for weights and connections, and
#: ``function(layer, shape, params=[...])`` for biases; shapes are those of ``Net.to_convnet``.
Function = Callable[..., Any]

#: {key: the function that copies, and what it copies}.
_COPIES = {
    "initWFunc": ("initw.makew", "weights"),
    "initBFunc": ("initw.makeb", "biases"),
    "initCFunc": ("initw.makec", "connections"),
}
_FORM = re.compile(r"\s*([A-Za-z_]\w*\.[A-Za-z_]\w*)\s*(?:\((.*)\))?\s*")


@dataclass(frozen=True)
class Wish:
    """One key of one layer.

    Attributes:
        key: ``initWFunc``, say.
        text: its value.
        name: ``module.function``.
        parameters: what stands in the brackets, cut at commas.
    """

    file: str
    layer: Layer
    key: str
    text: str
    name: str
    parameters: tuple[str, ...]

    @classmethod
    def of(cls, file: str, layer: Layer, key: str, text: str) -> Wish:
        """Raises ConfigError for a text of another form."""
        found = _FORM.fullmatch(text)
        if found is None:
            rule = "must be module.function or module.function(parameter,...)"
            raise ConfigError(rule, file, layer.name, key, text, layer.line)
        inner = (found[2] or "").split(",")
        parameters = tuple(one.strip() for one in inner) if found[2] else ()
        return cls(file, layer, key, text, found[1], parameters)

    @property
    def targets(self) -> str:
        """``weights``, ``biases`` or ``connections``."""
        return _COPIES[self.key][1]

    @property
    def source(self) -> str:
        """The layer to copy from. Raises ConfigError unless it is the one parameter."""
        if len(self.parameters) != 1 or not self.parameters[0]:
            raise self.error(f"needs the name of one layer to copy from: {self.name}(conv1)")
        return self.parameters[0]

    def error(self, rule: str) -> ConfigError:
        """What is wrong with the key."""
        return ConfigError(rule, self.file, self.layer.name, self.key, self.text, self.layer.line)


def initialise(
    net: Net,
    init_from: str | os.PathLike[str] | None = None,
    allow_code: Mapping[str, Function] | None = None,
) -> str:
    """Give a network's layers the initial values that its file takes from functions.

    Args:
        init_from: what ``initw.makew(SRC)`` and its like copy from; a run folder stands for its
            last checkpoint.
        allow_code: {``module.function``: the function to call for it}.

    Returns:
        What was left to initW and initB, in a sentence; empty if nothing was.

    Raises:
        ConfigError: values that do not fit, with file, section, key and rule.
        ConvloomError: a file that cannot be read, or that no layer asks for.
    """
    wishes, allowed = list(_wishes(net.network)), dict(allow_code or {})
    file = net.network.file
    if unasked := sorted(allowed.keys() - {wish.name for wish in wishes}):
        raise ConvloomError(f"allow_code has {unasked[0]}, which no layer of {file} names")
    copies = [w for w in wishes if w.name not in allowed and w.name == _COPIES[w.key][0]]
    if init_from is not None and not copies:
        raise ConvloomError(
            f"no layer of {file} copies its initial values (initWFunc=initw.makew(LAYER)), so "
            f"{os.fspath(init_from)} would say nothing; leave it out"
        )
    stock = None if init_from is None else Stock(init_from)
    left = []
    for wish in wishes:
        piece = net.get_submodule(wish.layer.module)
        assert isinstance(piece, WeightedPiece)
        if wish.name in allowed:
            _call(wish, piece, allowed[wish.name])
        elif wish in copies and stock is not None:
            _copy(wish, piece, stock)
        else:
            left.append(wish)
    return _in_words(file, left)


def functions(network: Network) -> str:
    """What a layer file takes from functions, in a sentence; empty for most.

    Raises:
        ConfigError: a function's name that is none.
    """
    return _in_words(network.file, list(_wishes(network)))


def _wishes(network: Network) -> Iterator[Wish]:
    for layer in network.layers:
        initial = getattr(layer.definition, "initial", None)
        if not isinstance(initial, Initial):
            continue
        for key, text in initial.sources:
            wish = Wish.of(network.file, layer, key, text)
            own = {name: one for one, (name, _) in _COPIES.items()}
            if own.get(wish.name, key) != key:
                raise wish.error(f"is not what {wish.name} makes; that is {own[wish.name]}")
            yield wish


def _in_words(file: str, left: list[Wish]) -> str:
    if not left:
        return ""
    functions = ", ".join(dict.fromkeys(wish.name for wish in left))
    layers = list(dict.fromkeys(wish.layer.name for wish in left))
    named = ", ".join(layers[:4]) + (f" and {len(layers) - 4} more" if len(layers) > 4 else "")
    return (
        f"{file}: {functions} of {named} are not run, initW and initB are used instead; initw's "
        "copy from a checkpoint with init_from= or --init-from FILE, and allow_code= hands over "
        "functions"
    )


class Stock:
    """The arrays of a file, by layer.

    Raises:
        FileError: no such file; neither safetensors nor npz; damaged.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            self.path = self.path / LAST
        self._arrays = _npz(self.path) if _is_npz(self.path) else read_tensors(self.path)[0]

    def find(self, wish: Wish, layer: str, key: str) -> tuple[np.ndarray, bool]:
        """The array ``weights/0`` of a layer, and whether it is in the layout of 2012.

        Raises:
            ConfigError: there is none.
        """
        own = f"{module_name(layer)}.{key.replace('/', '.')}"
        for name, old in ((f"{layer}/{key}", True), (own, False)):
            if name in self._arrays:
                return self._arrays[name], old
        raise wish.error(
            f"needs {key} of a layer {layer}; {self.path} has none, it has {self._layers()}"
        )

    def _layers(self) -> str:
        """Names of layers that it has, the first few."""
        names = [re.split(r"[./](?=weights|biases|connections)", n)[0] for n in self._arrays]
        first = list(dict.fromkeys(names))
        return ", ".join(first[:8]) + (", …" if len(first) > 8 else "") or "nothing"


def _is_npz(path: Path) -> bool:
    try:
        return zipfile.is_zipfile(path)
    except OSError:
        return False


def _npz(path: Path) -> dict[str, np.ndarray]:
    """Arrays of numbers; nothing else is read, since a pickle could run code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise FileError(f"{path} is no npz file of plain arrays: {error}") from None


def _keys(wish: Wish, piece: WeightedPiece) -> list[str]:
    """The arrays of the layer that a wish is for; weights that another layer owns are not."""
    found = [key for key in piece.own_keys() if key.split("/")[0] == wish.targets]
    if not found:
        raise wish.error(f"is for {wish.targets} of a layer's own, and this one has none")
    return found


def _copy(wish: Wish, piece: WeightedPiece, stock: Stock) -> None:
    source = wish.source
    for key in _keys(wish, piece):
        array, old = stock.find(wish, source, key)
        what = f"{key} of {source} in {stock.path}"
        if not old:
            own = piece.held(key).shape
            if array.shape != own:
                raise wish.error(f"needs {what} to have shape {own}, it has {array.shape}")
            with _explained(wish, what):
                array = piece.to_2012(key, array)
        _take(wish, piece, key, array, what)


def _call(wish: Wish, piece: WeightedPiece, function: Function) -> None:
    """Call a person's function for each array, as cuda-convnet did."""
    for key in _keys(wish, piece):
        number = [int(text) for text in key.split("/")[1:]]  # biases have none
        try:
            made = np.asarray(
                function(wish.layer.name, *number, piece.shape(key), params=list(wish.parameters))
            )
        except Exception as error:
            rule = f"failed for {key}: {type(error).__name__}: {error}"
            raise wish.error(rule) from error
        _take(wish, piece, key, made, f"what it gives for {key}")


def _take(wish: Wish, piece: WeightedPiece, key: str, array: np.ndarray, what: str) -> None:
    """Give a layer one array in the layout of 2012, in which biases are a row or a column."""
    wanted = piece.shape(key)
    if array.shape != wanted and not (len(wanted) == 1 and array.size == wanted[0]):
        raise wish.error(f"needs {what} to have shape {wanted}, it has {array.shape}")
    if array.dtype.kind not in "fiu" or not np.isfinite(array).all():
        raise wish.error(f"needs {what} to be finite numbers")
    with _explained(wish, what):
        piece.take(key, array.reshape(wanted))


@contextlib.contextmanager
def _explained(wish: Wish, what: str) -> Iterator[None]:
    try:
        yield
    except WeightsError as error:
        raise wish.error(f"cannot take {what}: {error}") from None
