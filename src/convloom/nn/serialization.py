"""Networks in files: safetensors with the weights, and the forward graph as JSON metadata.

The tensors are the ``state_dict()`` (a shared parameter once), so any safetensors reader can take
the weights. The metadata entry ``convloom`` is JSON:

    version        1
    input_shape    [C, H, W]
    graph          [{"op": {"op": name, attribute: value, …}, "inputs", "outputs", "layer"}, …]
    further        names of the tensors that are outputs behind "output"; absent if there are none
    parameters     names of the tensors that are parameters, in the order of state_dict()
    buffers        names of those that are not learnt, running means say
    aliases        {second name of a shared parameter: its first name}
    classes        names in the order of the logits, or null
    normalization  {"mean": […], "std": […]}, or null
    mean_image     {"shape": [C, H, W], "data": little-endian float32 in base64}, or null
    extra          anything else that was given to save

Checkpoints of a Trainer hold this entry too, beside one of their own, and further tensors.
Nothing in a file is ever executed: there is no pickle, and ops are looked up by name.
"""

from __future__ import annotations

import json
import os
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import safetensors
import safetensors.numpy

from convloom import files
from convloom.files import FileError
from convloom.ir import ConvloomError, Graph, Node
from convloom.nn.graphmodule import GraphModule, SavedNode
from convloom.nn.module import Module
from convloom.nn.parameter import Buffer, Parameter
from convloom.ops import Op, from_json, to_json

_Path = str | os.PathLike[str]

KEY = "convloom"
VERSION = 1

#: How files begin that are something else: (first bytes, what they are).
_MAGIC = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it, holding a Python pickle"),
    (b"\x80", "a Python pickle"),
    (b"(dp", "a Python pickle"),
    (b"\x1f\x8b", "gzip data"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"<", "a web page or XML"),
)
_FLOATS = frozenset({"F16", "F32", "F64"})


def save(
    model: Module,
    path: _Path,
    *,
    input_shape: Sequence[int] | None = None,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Write a network to a file, atomically; ``Module.save`` is the door to this.

    Raises:
        ConvloomError: no input shape is known, or ``extra`` is not JSON.
        FileError: the file cannot be written; an old file is unchanged.
    """
    shape = input_shape or model.input_shape or model.__dict__.get("_traced_shape")
    if shape is None:
        raise ConvloomError(
            f"{type(model).__name__} was never trained or traced, so its input shape is not "
            "known; pass save(path, input_shape=(C, H, W))"
        )
    graph = model.trace(shape, 1)
    metadata = describe(model, graph, tuple(int(extent) for extent in shape), extra)
    state = model.state_dict()
    weights = {name: state[name] for name, _ in model.named_variables()}
    files.write_bytes(path, safetensors.numpy.save(weights, {KEY: metadata}))


def describe(
    model: Module, graph: Graph, input_shape: tuple[int, ...], extra: Mapping[str, Any] | None
) -> str:
    """The metadata of a network, as JSON text; checkpoints store it too."""
    first = {id(variable): name for name, variable in model.named_variables()}
    both = list(model.named_variables(remove_duplicate=False))
    normalization = model.normalization
    data = {
        "version": VERSION,
        "input_shape": input_shape,
        "graph": [_node_json(node) for node in graph.nodes],
        **({"further": graph.outputs[1:]} if len(graph.outputs) > 1 else {}),
        "parameters": [name for name, _ in model.named_parameters()],
        "buffers": [name for name, _ in model.named_buffers()],
        "aliases": {name: first[id(v)] for name, v in both if name != first[id(v)]},
        "classes": model.classes,
        "normalization": normalization and normalization._asdict(),
        "mean_image": _packed(model.mean_image),
        "extra": {**model.__dict__.get("_extra", {}), **(extra or {})},
    }
    try:
        return json.dumps(data, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConvloomError(f"extra must be plain JSON data: {error}") from None


def load(path: _Path) -> GraphModule:
    """The network that ``Module.save`` wrote: same parameter names, any batch size.

    It has ``classes``, ``normalization``, ``mean_image``, ``input_shape`` and ``extra`` as they
    were saved.

    Raises:
        FileError: no such file; not a network of convloom; truncated or damaged; a pickle.
    """
    tensors, metadata = read_tensors(path)
    if KEY not in metadata:
        raise FileError(
            f"{os.fspath(path)} holds weights but no network; build the model and use "
            "model.load_state_dict(convloom.nn.load_weights(path))"
        )
    return rebuild(metadata[KEY], tensors, path)


def load_weights(path: _Path) -> dict[str, np.ndarray]:
    """{name: array} of any safetensors file, for ``Module.load_state_dict``.

    Arrays are float32, apart from buffers of whole numbers.

    Raises:
        FileError: no such file; truncated or damaged; a pickle.
    """
    tensors, metadata = read_tensors(path)
    if KEY not in metadata:
        return {name: np.asarray(value, np.float32) for name, value in tensors.items()}
    data = _parsed(metadata[KEY], path)
    try:
        return {name: variable.data for name, variable in _variables(data, tensors).items()}
    except (KeyError, TypeError, AttributeError) as error:
        raise FileError(f"{os.fspath(path)}: its description is damaged ({error!r})") from None


def read_tensors(path: _Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """All tensors of a safetensors file, as they are stored, and its metadata.

    Raises:
        FileError: no such file; not safetensors; truncated or damaged.
    """
    _check_start(path)
    try:
        with safetensors.safe_open(path, framework="np") as file:
            metadata = dict(file.metadata() or {})
            tensors = {}
            for name in file.keys():  # noqa: SIM118 - it is not a dict
                kind = file.get_slice(name).get_dtype()
                if kind not in _FLOATS and kind[:1] not in "IU":
                    raise FileError(
                        f"{os.fspath(path)}: tensor {name!r} is {kind}, which convloom does not "
                        "read; convert it to F32"
                    )
                tensors[name] = file.get_tensor(name)
    except safetensors.SafetensorError as error:
        raise FileError(
            f"{os.fspath(path)} is no whole safetensors file ({error}); it may be truncated or "
            "damaged"
        ) from None
    except OSError as error:
        _unreadable(path, error)
    return tensors, metadata


def rebuild(text: str, tensors: Mapping[str, np.ndarray], path: _Path) -> GraphModule:
    """The network that ``describe`` described, with these weights.

    Raises:
        FileError: metadata of a newer version, or that describe no network.
    """
    data = _parsed(text, path)
    try:
        further = [str(name) for name in data.get("further", ())]
        nodes = [_node(item) for item in data["graph"]]
        module = GraphModule(nodes, _variables(data, tensors), further)
        module.input_shape = data["input_shape"]
        module.classes = data.get("classes")
        normalization = data.get("normalization")
        if normalization is not None:
            module.normalization = (normalization["mean"], normalization["std"])
        module.mean_image = _unpacked(data.get("mean_image"))
        module.extra = data.get("extra") or {}
        module.trace(data["input_shape"], 1)
    except Exception as error:  # whatever a damaged description makes the ops' rules do
        what = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise FileError(f"{os.fspath(path)}: its network is damaged: {what}") from error
    return module


def _variables(
    data: Mapping[str, Any], tensors: Mapping[str, np.ndarray]
) -> dict[str, Parameter | Buffer]:
    own: dict[str, Parameter | Buffer] = {n: Parameter(tensors[n]) for n in data["parameters"]}
    own.update({name: Buffer(tensors[name]) for name in data.get("buffers", ())})
    return {**own, **{name: own[of] for name, of in data["aliases"].items()}}


def _packed(image: np.ndarray | None) -> dict[str, Any] | None:
    if image is None:
        return None
    return {"shape": image.shape, "data": b64encode(image.astype("<f4").tobytes()).decode()}


def _unpacked(data: Mapping[str, Any] | None) -> np.ndarray | None:
    if data is None:
        return None
    return np.frombuffer(b64decode(data["data"], validate=True), "<f4").reshape(data["shape"])


def _node_json(node: Node) -> dict[str, Any]:
    assert isinstance(node.op, Op)
    inputs, outputs = list(node.inputs), list(node.outputs)
    return {"op": to_json(node.op), "inputs": inputs, "outputs": outputs, "layer": node.layer}


def _node(data: Mapping[str, Any]) -> SavedNode:
    inputs, outputs = (tuple(str(name) for name in data[key]) for key in ("inputs", "outputs"))
    return SavedNode(from_json(data["op"]), inputs, outputs, str(data["layer"]))


def _parsed(text: str, path: _Path) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_no_constant)
        version = data["version"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FileError(f"{os.fspath(path)}: its description is damaged ({error})") from None
    if version != VERSION:
        raise FileError(
            f"{os.fspath(path)} was saved in format {version!r}, this convloom reads {VERSION}; "
            "use a newer convloom"
        )
    return dict(data)


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _check_start(path: _Path) -> None:
    """Refuse what is certainly something else, above all pickles; nothing of it is run."""
    try:
        if Path(path).is_dir():
            raise FileError(f"{os.fspath(path)} is a folder, not a file")
        with open(path, "rb") as file:
            start = file.read(16)
            size = os.fstat(file.fileno()).st_size
    except FileError:
        raise
    except OSError as error:
        _unreadable(path, error)
    for magic, what in _MAGIC:
        # A safetensors file begins with its header's length, eight bytes, then "{".
        if start.startswith(magic) and start[8:9] != b"{":
            hint = (
                "convloom never loads pickles, since they can run code; in PyTorch, write the "
                "weights with safetensors.torch.save_file(model.state_dict(), path)"
                if "pickle" in what
                else "convloom reads safetensors files"
            )
            raise FileError(f"{os.fspath(path)} is {what}; {hint}")
    if size < 8:
        raise FileError(f"{os.fspath(path)} is no safetensors file: it has {size} bytes")
    length = int.from_bytes(start[:8], "little")
    if length > size - 8:
        raise FileError(
            f"{os.fspath(path)} is no whole safetensors file: its header claims {length} bytes, "
            f"the file has {size}; it is truncated or something else"
        )


def _unreadable(path: _Path, error: OSError) -> NoReturn:
    failure = FileError(f"cannot read {os.fspath(path)}: {error.strerror or error}")
    failure.errno = error.errno
    raise failure from None
