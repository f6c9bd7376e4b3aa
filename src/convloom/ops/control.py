"""Slots of the control tensors: the values that change between steps, so never op attributes.

The host writes them before a run. ``hyper`` is float64, one slot a name of ``HYPER``; ``counter``
is uint64, one slot a name of ``COUNTER``.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convloom.ir import ShapeError, TensorSpec

#: Slots of ``hyper``. ``bias1`` and ``bias2`` are Adam's corrections 1 - beta1**t and
#: 1 - beta2**t, where t counts updates from 1.
HYPER = (
    "lr",
    "momentum",
    "weight_decay",
    "beta1",
    "beta2",
    "eps",
    "max_norm",
    "bias1",
    "bias2",
)

#: Slots of ``counter``: what dropout masks are keyed by.
COUNTER = ("seed", "step")

HYPER_SPEC = TensorSpec((len(HYPER),), "float64")
COUNTER_SPEC = TensorSpec((len(COUNTER),), "uint64")


def hyper_vector(values: Mapping[str, float]) -> np.ndarray:
    """The ``hyper`` vector for named values; slots that are not named are 0.

    Raises KeyError for a name that is not a slot.
    """
    vector = np.zeros(len(HYPER), np.float64)
    for name, value in values.items():
        if name not in HYPER:
            raise KeyError(f"unknown control {name!r}; the slots are {', '.join(HYPER)}")
        vector[HYPER.index(name)] = value
    return vector


def counter_vector(seed: int, step: int) -> np.ndarray:
    """The ``counter`` vector of a step. Both values must be in [0, 2^64)."""
    return np.array([seed, step], np.uint64)


def check_draw(what: str, stream: int, counter: TensorSpec = COUNTER_SPEC) -> None:
    """Raises ShapeError unless an op that draws has a 32-bit stream and reads a counter."""
    if not 0 <= stream < 2**32:
        raise ShapeError(f"{what}'s stream must be in [0, 2^32), it is {stream}")
    if (counter.shape, counter.dtype) != (COUNTER_SPEC.shape, COUNTER_SPEC.dtype):
        raise ShapeError(f"the counter must be {COUNTER_SPEC}, it is {counter}")
