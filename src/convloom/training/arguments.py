"""Checks of what a person hands to training; the messages say what to pass instead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from convloom.ir import ShapeError
from convloom.nn.arguments import ArgumentError, whole
from convloom.nn.losses import LossSum
from convloom.nn.module import Module

_SEEDS = 2**64


def check_model(model: Any) -> None:
    """Raises ArgumentError unless ``model`` is a network (an instance, not its class)."""
    if isinstance(model, type) or not isinstance(model, Module):
        raise ArgumentError(
            f"the model must be an nn.Module, such as nn.Sequential(…), not {_shown(model)}"
        )


def check_loss(loss: Any) -> None:
    """Raises ArgumentError unless ``loss`` is one of ours, made."""
    made = isinstance(loss, LossSum) or callable(getattr(loss, "op", None))
    if isinstance(loss, type) or not made:
        raise ArgumentError(f"the loss must be nn.CrossEntropyLoss(), say, not {_shown(loss)}")


def check_optimizer(optimizer: Any) -> None:
    """Raises ArgumentError unless ``optimizer`` is one of ours, made."""
    made = not isinstance(optimizer, type)
    if not (made and all(hasattr(optimizer, name) for name in ("op", "hyper", "states"))):
        raise ArgumentError(
            f"the optimizer must be cl.optim.SGD(lr=0.01), say, not {_shown(optimizer)}"
        )


def checked_seed(seed: Any) -> int:
    """A seed as an int. Raises ShapeError outside [0, 2^64)."""
    number = whole(seed, "seed", least=0)
    if number >= _SEEDS:
        raise ShapeError(f"seed must be below 2^64, it is {number}")
    return number


def checked_clip_norm(norm: Any) -> float | None:
    """A norm above 0, or None for no clipping. Raises ArgumentError."""
    if norm is None:
        return None
    number = isinstance(norm, (int, float)) and not isinstance(norm, bool)
    if not (number and math.isfinite(norm) and norm > 0):
        raise ArgumentError(f"clip_norm must be above 0, or None for no clipping: {norm!r}")
    return float(norm)


def image_shape(shape: Any) -> tuple[int, int, int]:
    """(C, H, W) of one image. Raises ShapeError."""
    if not isinstance(shape, Sequence) or isinstance(shape, str) or len(shape) != 3:
        raise ShapeError(f"input_shape must be (C, H, W) of one image, it is {shape!r}")
    channels, height, width = (whole(extent, "each extent of input_shape") for extent in shape)
    return channels, height, width


def _shown(value: Any) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} (write {value.__name__}(…))"
    return repr(value) if isinstance(value, str) else type(value).__name__
