"""Checkpoints: one safetensors file with weights, optimiser states, settings and history.

A run folder holds ``last.safetensors``, from which a run is resumed, and ``best.safetensors``, the
weights of the best epoch. Both are networks that ``convloom.load`` reads (nn/serialization.py); a
second metadata entry, ``convloom.training``, is JSON:

    version    1
    settings   what must be the same to resume: data, batch size, seed, optimiser, schedule …
    made_by    versions, device and the kernels of the training step's plan
    record     where the run stands: progress, sums of the unfinished epoch, history

Files are replaced as a whole (convloom.files), so a killed writer leaves the old one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from convloom import __version__, files
from convloom.files import FileError
from convloom.ir import ConvloomError
from convloom.nn import serialization
from convloom.nn.losses import LossSum
from convloom.ops.precision import FP32
from convloom.training.history import finite
from convloom.training.protocols import Dataset

if TYPE_CHECKING:
    from convloom.nn import Module
    from convloom.training.trainer import Trainer

#: File names in a run folder.
LAST, BEST = "last.safetensors", "best.safetensors"

KEY = "convloom.training"
VERSION = 1

#: Settings that older checkpoints do not name, as their runs had them.
_NEWER = {"precision": FP32, "shuffle": True, "batch_files": []}

_STATE_FREE = "it holds weights only"


class CheckpointError(FileError):
    """A checkpoint that cannot be read; the message names the file."""


class ResumeError(ConvloomError, ValueError):
    """A checkpoint of another run than the one to go on with; the message names what differs."""


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds.

    Attributes:
        path: the file.
        state: tensors by name: parameters, and for a resume optimiser states and the counter.
        settings: see ``describe``.
        record: see ``Loop.record``.
        made_by: versions, device and kernels.
        network: ``nn.serialization.describe``'s text.
    """

    path: Path
    state: Mapping[str, np.ndarray]
    settings: Mapping[str, Any]
    record: Mapping[str, Any]
    made_by: Mapping[str, Any] = field(default_factory=dict)
    network: str = ""


def make_folder(folder: Path) -> None:
    """Create a run folder. Raises CheckpointError where that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CheckpointError(
            f"cannot make the run folder {folder}: {error.strerror or error}"
        ) from None


def network_text(model: Module, input_shape: tuple[int, int, int]) -> str:
    """The network, its classes and its normalisation as JSON text."""
    return serialization.describe(model, model.trace(input_shape, 1), input_shape, None)


def save(checkpoint: Checkpoint) -> None:
    """Write a checkpoint to its path, atomically.

    Raises:
        FileError: the file cannot be written; an old file is unchanged.
    """
    tensors = {name: np.asarray(value, order="C") for name, value in checkpoint.state.items()}
    training = {
        "version": VERSION,
        "settings": checkpoint.settings,
        "made_by": checkpoint.made_by,
        "record": checkpoint.record,
    }
    metadata = {
        serialization.KEY: checkpoint.network,
        KEY: json.dumps(finite(training), allow_nan=False, ensure_ascii=False),
    }
    files.write_bytes(checkpoint.path, safetensors.numpy.save(tensors, metadata))


def load(path: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint; nothing in it is executed.

    Raises:
        CheckpointError: no such file, truncated, damaged, not a checkpoint, or of a newer version.
    """
    path = Path(path)
    try:
        tensors, metadata = serialization.read_tensors(path)
    except FileError as error:
        raise CheckpointError(str(error)) from None
    text = metadata.get(KEY)
    if text is None or serialization.KEY not in metadata:
        raise CheckpointError(
            f"{path} is no checkpoint: it has no training state; resume needs the {LAST} of a "
            "run folder"
        )
    try:
        data = json.loads(text)
        version = data["version"]
        if version == VERSION:
            return Checkpoint(
                path=path,
                state=tensors,
                settings=dict(data["settings"]),
                record=dict(data["record"]),
                made_by=dict(data["made_by"]),
                network=metadata[serialization.KEY],
            )
    except (ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: its training state is damaged ({error!r})") from None
    raise CheckpointError(
        f"{path} was saved in format {version!r}, this convloom reads {VERSION}; use a newer "
        "convloom"
    )


def describe(trainer: Trainer, train: Dataset, validation: Dataset | None) -> dict[str, Any]:
    """The settings that must be the same to go on with a run, as plain data."""
    return {
        "data": _described(train),
        "validation": None if validation is None else _described(validation),
        "batch_size": trainer.batch_size,
        "seed": trainer.seed,
        "optimizer": trainer.optimizer.to_json(),
        "schedule": str(trainer.schedule),
        "loss": _described_loss(trainer.loss),
        "clip_norm": trainer.clip_norm,
        "augment": None if trainer.augment is None else repr(trainer.augment),
        "shuffle": trainer.shuffle,
        "batch_files": list(trainer.batch_files),
        "kernels": trainer.kernels,
        "precision": trainer.precision,
    }


def made_by(trainer: Trainer) -> dict[str, Any]:
    """Versions, device and the training step's kernels: what the bits of a run depend on."""
    rows = trainer.engine.plan(trainer.batch_size).rows()
    return {
        "convloom": __version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "device": trainer.engine.device,
        "plan": [[row["layer"], row["op"], row["kernel"], row["rung"]] for row in rows],
    }


def require_same(
    saved: Checkpoint, settings: Mapping[str, Any], network: str, held: Mapping[str, np.ndarray]
) -> None:
    """Check that a checkpoint is of this very run.

    Args:
        settings: what ``describe`` says now.
        network: what ``network_text`` says now.
        held: the tensors that the engine keeps between steps.

    Raises:
        ResumeError: naming everything that differs.
    """
    if where := _network_difference(saved, network, held):
        raise ResumeError(
            f"{saved.path} holds another network than the one to train: {where}. Resume with the "
            "network or network file that the run began with (convloom.load gives the network)"
        )
    now = json.loads(json.dumps(settings))
    then = {**_NEWER, **saved.settings}
    differences = [
        _difference(key, then.get(key), now[key]) for key in now if then.get(key) != now[key]
    ]
    if differences:
        raise ResumeError(
            f"{saved.path} is of another run: {'; '.join(differences)}. Resume with the same "
            "settings, or take its weights with convloom.load and train anew"
        )
    if missing := sorted(set(held) - set(saved.state)):
        reason = _STATE_FREE if Path(saved.path).name == BEST else f"it lacks {missing[0]}"
        raise ResumeError(f"{saved.path} cannot be resumed: {reason}; resume from {LAST}")


def plan_differences(saved: Checkpoint, now: Mapping[str, Any], *, edited: bool = False) -> str:
    """Why the same bits cannot be expected of this machine; empty if they can.

    Args:
        edited: the run goes on with other settings, so that other kernels say nothing.
    """
    if saved.made_by.get("device") != now["device"]:
        return f"it was trained on {saved.made_by.get('device')}, this is {now['device']}"
    if not edited and saved.made_by.get("plan") != json.loads(json.dumps(now["plan"])):
        return "this machine or version runs other kernels"
    return ""


def _described_loss(loss: Any) -> Any:
    return loss.to_json() if isinstance(loss, LossSum) else repr(loss)


def _described(dataset: Dataset) -> dict[str, Any]:
    described = {
        "name": dataset.name,
        "samples": len(dataset),
        "digest": dataset.digest,
        "mean": list(dataset.mean),
        "std": list(dataset.std),
    }
    image: np.ndarray | None = getattr(dataset, "mean_image", None)
    if image is not None:
        described["mean_image"] = hashlib.sha256(np.ascontiguousarray(image).data).hexdigest()
    return described


def _graph(text: str) -> tuple[Any, ...]:
    """What makes a network the same: its ops, names and input, not its classes' names."""
    data = json.loads(text)
    return data["graph"], data["aliases"], data["input_shape"]


def _network_difference(saved: Checkpoint, network: str, held: Mapping[str, np.ndarray]) -> str:
    """Where a saved network first differs from one to train; empty if it does not."""
    then, now = _graph(saved.network), _graph(network)
    for old, new in itertools.zip_longest(then[0], now[0]):
        if old is None or new is None or {**old, "outputs": 0} != {**new, "outputs": 0}:
            return _node_difference(old, new)
    if then != now:
        return "it has other names, other shared parameters, or images of another size"
    for name in sorted(held.keys() & saved.state.keys()):
        was, shape = np.shape(saved.state[name]), np.shape(held[name])
        if was != shape:
            return f"{name} has shape {was} there, {shape} here"
    return ""


def _node_difference(old: Mapping[str, Any] | None, new: Mapping[str, Any] | None) -> str:
    """What differs between the nodes at one place of two graphs."""
    if old is None or new is None:
        more = old or new
        assert more is not None
        return f"only {'that' if new is None else 'this'} one has a layer {more['layer']}"
    if (old["layer"], old["op"]["op"]) != (new["layer"], new["op"]["op"]):
        was, is_now = (f"{node['op']['op']} in layer {node['layer']}" for node in (old, new))
        return f"it has {was} where this one has {is_now}"
    if old["op"] == new["op"]:
        return f"layer {old['layer']} reads {old['inputs']} there, {new['inputs']} here"
    return f"layer {old['layer']}, {_difference(old['op']['op'], old['op'], new['op'])}"


def _difference(key: str, saved: Any, now: Any) -> str:
    words = key.replace("_", " ")
    if key in ("data", "validation"):
        words = "the training set" if key == "data" else "the validation set"
        return f"{words} was {_in_words(saved)}, it is {_in_words(now)}"
    if isinstance(saved, dict) and isinstance(now, dict):
        changed = [k for k in {**saved, **now} if saved.get(k) != now.get(k)]
        listed = ", ".join(f"{k} {saved.get(k)} → {now.get(k)}" for k in changed)
        return f"{words}: {listed}"
    return f"{words} was {saved}, it is {now}"


def _in_words(data: Mapping[str, Any] | None) -> str:
    if data is None:
        return "none"
    return f"{data['name']} ({data['samples']:,} samples, digest {data['digest'][:12]})"
