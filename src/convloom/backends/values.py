"""Values that a host hands to a backend."""

from __future__ import annotations

import numpy as np

from convloom.ir import ShapeError, TensorSpec


def checked(name: str, value: np.ndarray, spec: TensorSpec) -> np.ndarray:
    """``value`` as an array that can be stored as tensor ``name``; its dtype may still differ.

    Raises:
        ShapeError: the shape differs, or the dtype cannot be converted (float to integer).
    """
    value = np.asarray(value)
    if value.shape != spec.shape:
        raise ShapeError(f"{name!r} has shape {spec.shape}, the value given has {value.shape}")
    if not np.can_cast(value.dtype, spec.dtype, "same_kind"):
        raise ShapeError(
            f"{name!r} holds {spec.dtype}, the value given is {value.dtype}; convert it first"
        )
    return value
