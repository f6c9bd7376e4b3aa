"""Weights from elsewhere: which key goes to which parameter, and what does not fit."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from convloom.nn.parameter import Variable, WeightsError

#: What DataParallel puts before every key.
PREFIX = "module."


class Matched(NamedTuple):
    """Arrays by parameter name, and the names that only one side has."""

    arrays: dict[str, np.ndarray]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def match(
    state: Mapping[str, Any], own: Mapping[str, Variable], *, strict: bool, title: str
) -> Matched:
    """Check weights against a network's parameters; see ``Module.load_state_dict``.

    Raises:
        WeightsError: naming every key that is missing, unexpected or of another shape.
    """
    given = _without_prefix(state, own)
    missing = tuple(name for name in own if name not in given)
    unexpected = tuple(str(key) for key in given if key not in own)
    if own and len(missing) == len(own):
        raise WeightsError(
            f"{title}: no key matches; the network has {_listed(own, 6)}, the weights have "
            f"{_listed(given, 6)}"
        )
    arrays = {
        name: variable.converted(given[name], f"the value of {name!r}")
        for name, variable in own.items()
        if name in given
    }
    faults = [
        f"{name!r} has shape {array.shape}, the network needs {own[name].shape}"
        for name, array in arrays.items()
        if array.shape != own[name].shape
    ]
    if strict and missing:
        faults.append(f"missing {_listed(missing)}")
    if strict and unexpected:
        faults.append(f"unexpected {_listed(unexpected)}")
    if faults:
        raise WeightsError(f"{title}: the weights do not fit: {'; '.join(faults)}")
    return Matched(arrays, missing, unexpected)


def _without_prefix(state: Mapping[str, Any], own: Mapping[str, Variable]) -> dict[str, Any]:
    """The weights, with ``module.`` stripped once from keys that fit only so."""
    if not isinstance(state, Mapping):
        raise WeightsError(f"load_state_dict takes a dict of arrays, not {type(state).__name__}")
    stripped = {
        key: inner
        for key in state
        if key not in own
        and (inner := str(key).removeprefix(PREFIX)) != key
        and inner in own
        and inner not in state
    }
    if stripped:
        warnings.warn(
            f"{len(stripped)} keys begin with {PREFIX!r} (as saved from DataParallel); they were "
            "loaded without it",
            stacklevel=4,
        )
    return {stripped.get(key, key): value for key, value in state.items()}


def _listed(names: Iterable[object], most: int | None = None) -> str:
    shown = [repr(name) for name in names]
    more = f" and {len(shown) - most} more" if most is not None and len(shown) > most else ""
    return (", ".join(shown[:most]) or "no keys") + more
