"""What may be edited between two runs of one training, and a checkpoint in the light of it.

Most settings must stay what they were. Some networks, losses and optimisers say that a run may go
on with values of theirs changed: those of a parameter file of 2012.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.training.checkpoint import Checkpoint, network_text

if TYPE_CHECKING:
    from convloom.training.trainer import Trainer


@dataclass(frozen=True)
class Edits:
    """A run as it is now, with the checkpoint's values in place of those that may be edited.

    Attributes:
        settings: see ``checkpoint.describe``.
        network: see ``checkpoint.network_text``.
        state: the checkpoint's tensors as the run goes on with them: states that are needed only
            now begin at 0, those that are needed no more are gone.
        changes: a line for each value that differs.
    """

    settings: Mapping[str, Any]
    network: str
    state: Mapping[str, np.ndarray]
    changes: tuple[str, ...]


def edits(
    trainer: Trainer,
    saved: Checkpoint,
    settings: Mapping[str, Any],
    input_shape: tuple[int, int, int],
) -> Edits:
    """What network, loss and optimiser allow to differ from a checkpoint, and what does."""
    network, changes = _network_as_saved(trainer, saved, input_shape)
    settings, state = dict(settings), saved.state
    for key, now in (("optimizer", trainer.optimizer), ("loss", trainer.loss)):
        then = saved.settings.get(key)
        if not then or not hasattr(now, "changes_from"):
            continue
        found = now.changes_from(then)
        if found is None:
            continue
        settings[key] = then
        changes += found
        if key == "optimizer":
            state = _continued(trainer, then, saved.state)
    return Edits(settings, network, state, tuple(changes))


def _network_as_saved(
    trainer: Trainer, saved: Checkpoint, input_shape: tuple[int, int, int]
) -> tuple[str, list[str]]:
    """The network's text but for what may be edited, which is as it was saved; and what differs."""
    as_saved = getattr(trainer.model, "as_saved", None)
    if as_saved is None:
        return network_text(trainer.model, input_shape), []
    model, changes = as_saved(json.loads(saved.network).get("extra") or {})
    return network_text(model, input_shape), changes


def _continued(
    trainer: Trainer, optimizer: Mapping[str, Any], state: Mapping[str, np.ndarray]
) -> Mapping[str, np.ndarray]:
    """The state, with zeros for what the update keeps only now, and without what it did before."""
    begun, ended = trainer.optimizer.differing(optimizer)
    held = trainer.engine.state()
    kept = {name: value for name, value in state.items() if name not in ended}
    return kept | {name: np.zeros_like(held[name]) for name in begun if name in held}
