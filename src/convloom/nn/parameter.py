"""Tensors of a network: in NumPy, or living in a compiled step; parameters are learnt."""

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


class Variable:
    """A tensor that lives between steps: what parameters and buffers share.

    Attributes:
        shape: the shape.
        dtype: the element type.
    """

    __slots__ = ("__weakref__", "_source", "_source_name", "_value", "dtype", "shape")

    shape: tuple[int, ...]

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self._source: Source | None = None
        self._source_name = ""
        self._value: np.ndarray | None = None

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
            return np.array(self._source.read(self._source_name), self.dtype)
        if self._value is None:
            raise ConvloomError(
                "this parameter has no value yet; call the network's initialize(seed) or "
                "state_dict() first"
            )
        return self._value.copy()

    @data.setter
    def data(self, value: Any) -> None:
        array = self.converted(value, f"the {type(self).__name__.lower()}'s value")
        if array.shape != self.shape:
            raise WeightsError(f"a value of shape {array.shape} was given to {self}")
        if self._source is not None:
            self._source.write(self._source_name, array)
        else:
            self._value = array

    def converted(self, value: Any, what: str) -> np.ndarray:
        """A new array of ``value`` in this dtype. Raises WeightsError for what is no number."""
        array = as_float32(value, what) if self.dtype == "float32" else _as_array(value, what)
        return np.array(array, self.dtype)

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

    def __repr__(self) -> str:
        return f"{type(self).__name__}(shape={self.shape})"


class Parameter(Variable):
    """A learnt tensor of a network; assign it to an attribute of a Module to register it.

    ``Parameter(shape, initialiser)`` is drawn by ``Module.initialize`` (see nn/init.py);
    ``Parameter(array)`` has its value at once. The initialiser can be replaced until then.

    Attributes:
        shape: the shape; the dtype is always float32.
        initialiser: how it is drawn; None if it was given as an array.
    """

    __slots__ = ("initialiser",)

    def __init__(
        self, value: np.ndarray | Sequence[Any], initialiser: Initialiser | None = None
    ) -> None:
        super().__init__("float32")
        self.initialiser = initialiser
        if initialiser is None:
            if not hasattr(value, "dtype"):
                raise TypeError("Parameter takes an array, or a shape and an initialiser")
            self._value = as_float32(value, "the parameter")
            self.shape = self._value.shape
        else:
            self.shape = tuple(int(extent) for extent in value)

    def initialize(self, seed: int, name: str) -> None:
        """Draw the value, unless it has one; a function of seed, name and element alone."""
        if not self.is_set and self.initialiser is not None:
            value = self.initialiser.draw(self.shape, seed, name)
            self._value = np.ascontiguousarray(value, np.float32)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the value, never the compiled step."""
        value = self.data if self.is_set else None
        return _restored, (self.shape, self.initialiser, value)


class Buffer(Variable):
    """A tensor of a network that is not learnt but changes as it trains: a running mean.

    Assign it to an attribute of a Module to register it; a training step that an op updates it in
    leaves the new value here. Floats are float32, whole numbers int64.
    """

    __slots__ = ()

    def __init__(self, value: np.ndarray) -> None:
        if not hasattr(value, "dtype"):
            raise TypeError("Buffer takes an array")
        array = _as_array(value, "the buffer")
        super().__init__("int64" if np.issubdtype(array.dtype, np.integer) else "float32")
        self._value = array.astype(self.dtype)
        self.shape = array.shape

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the value, never the compiled step."""
        return Buffer, (self.data,)


def as_float32(value: Any, what: str) -> np.ndarray:
    """A new float32 array of ``value``: NumPy, or a PyTorch tensor. Raises WeightsError."""
    return np.array(_as_array(value, what), np.float32, order="C")


def _as_array(value: Any, what: str) -> np.ndarray:
    """``value`` as a NumPy array of numbers. Raises WeightsError."""
    if hasattr(value, "detach"):  # a PyTorch tensor, on any device and of any type
        value = value.detach().cpu()
        value = (value.float() if value.is_floating_point() else value).numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise WeightsError(f"{what} is no array: {error}") from None
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        kind = type(value).__name__ if array.dtype == object else f"{array.dtype}"
        raise WeightsError(f"{what} must be an array of numbers, it is {kind}")
    return array


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
