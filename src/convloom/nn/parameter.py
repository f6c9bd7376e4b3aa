"""A learnt tensor: float32 in NumPy, drawn when first needed, or living in a compiled step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from convloom.ir import ConvloomError
from convloom.nn.init import Initialiser


class WeightsError(ConvloomError, ValueError):
    """Weights that do not fit the network; names each key that is missing, extra or misshapen."""


class Source(Protocol):
    """Whatever holds live weights: a compiled step, or its storage."""

    def read(self, name: str, /) -> np.ndarray:
        """A copy of a tensor in its logical shape."""
        ...

    def write(self, name: str, value: np.ndarray, /) -> None:
        """Replace a tensor's value."""
        ...


class Parameter:
    """A learnt tensor of a network; assign it to an attribute of a Module to register it.

    ``Parameter(shape, initialiser)`` is drawn by ``Module.initialize`` (see nn/init.py);
    ``Parameter(array)`` has its value at once. The initialiser can be replaced until then.

    Attributes:
        shape: the shape; the dtype is always float32.
        initialiser: how it is drawn; None if it was given as an array.
    """

    __slots__ = ("__weakref__", "_source", "_source_name", "_value", "initialiser", "shape")

    def __init__(
        self, value: np.ndarray | Sequence[Any], initialiser: Initialiser | None = None
    ) -> None:
        self.initialiser = initialiser
        self._source: Source | None = None
        self._source_name = ""
        self._value: np.ndarray | None = None
        if initialiser is None:
            if not hasattr(value, "dtype"):
                raise TypeError("Parameter takes an array, or a shape and an initialiser")
            self._value = as_float32(value, "the parameter")
            self.shape: tuple[int, ...] = self._value.shape
        else:
            self.shape = tuple(int(extent) for extent in value)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def is_set(self) -> bool:
        """Whether it has a value already."""
        return self._source is not None or self._value is not None

    @property
    def data(self) -> np.ndarray:
        """A copy of the value; assign an array of the same shape to replace it.

        Raises:
            ConvloomError: it has no value yet.
        """
        if self._source is not None:
            return np.array(self._source.read(self._source_name), np.float32)
        if self._value is None:
            raise ConvloomError(
                "this parameter has no value yet; call the network's initialize(seed) or "
                "state_dict() first"
            )
        return self._value.copy()

    @data.setter
    def data(self, value: Any) -> None:
        array = as_float32(value, "the parameter's value")
        if array.shape != self.shape:
            raise WeightsError(f"a value of shape {array.shape} was given to {self}")
        if self._source is not None:
            self._source.write(self._source_name, array)
        else:
            self._value = array

    def initialize(self, seed: int, name: str) -> None:
        """Draw the value, unless it has one; a function of seed, name and element alone."""
        if not self.is_set and self.initialiser is not None:
            value = self.initialiser.draw(self.shape, seed, name)
            self._value = np.ascontiguousarray(value, np.float32)

    def bind(self, source: Source, name: str) -> None:
        """Let the value live in ``source`` from now on, which holds it already."""
        self._source, self._source_name, self._value = source, name, None

    def release(self, source: Source | None = None) -> None:
        """Take the value back from its source (only if that is ``source``, when given)."""
        if self._source is not None and source in (None, self._source):
            self._value = self.data
            self._source = None

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self.data if dtype is None else self.data.astype(dtype)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the value, never the compiled step."""
        value = self.data if self.is_set else None
        return _restored, (self.shape, self.initialiser, value)

    def __repr__(self) -> str:
        return f"Parameter(shape={self.shape})"


def as_float32(value: Any, what: str) -> np.ndarray:
    """A new float32 array of ``value``: NumPy, or a PyTorch tensor. Raises WeightsError."""
    if hasattr(value, "detach"):  # a PyTorch tensor, on any device and of any float type
        value = value.detach().cpu().float().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise WeightsError(f"{what} is no array: {error}") from None
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        kind = type(value).__name__ if array.dtype == object else f"{array.dtype}"
        raise WeightsError(f"{what} must be an array of numbers, it is {kind}")
    return np.array(array, np.float32, order="C")


def _restored(
    shape: tuple[int, ...], initialiser: Initialiser | None, value: np.ndarray | None
) -> Parameter:
    if initialiser is None:
        assert value is not None
        return Parameter(value)
    parameter = Parameter(shape, initialiser)
    if value is not None:
        parameter.data = value
    return parameter
