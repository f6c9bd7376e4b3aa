"""Checks and conversions of layer arguments, shared by layers and functions."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from convloom.ir import ConvloomError, ShapeError
from convloom.ops.geometry import Pair, Window


class ArgumentError(ConvloomError, ValueError):
    """An argument that convloom does not support; says what to use instead."""


def whole(value: Any, what: str, least: int = 1) -> int:
    """A whole number of at least ``least``. Raises ShapeError."""
    number = _integer(value)
    if number is None or number < least:
        raise ShapeError(f"{what} must be a whole number of at least {least}, it is {value!r}")
    return number


def pair(value: Any, what: str) -> Pair:
    """``3`` or ``(3, 5)`` as (height, width). Raises ShapeError."""
    values = list(value) if isinstance(value, (tuple, list)) else [value, value]
    numbers = [_integer(item) for item in values]
    if len(numbers) != 2 or numbers[0] is None or numbers[1] is None:
        raise ShapeError(f"{what} must be one whole number or a pair of them, it is {value!r}")
    return numbers[0], numbers[1]


def conv_geometry(
    kernel: Sequence[int], stride: Any, padding: Any, dilation: Any, groups: Any
) -> tuple[Pair, Pair, Pair, int]:
    """(stride, padding, dilation, groups) of a convolution, checked.

    ``padding`` may be ``"valid"`` or ``"same"`` (stride 1, and an even number of cells in all).
    """
    strides, dilations = pair(stride, "stride"), pair(dilation, "dilation")
    size = (kernel[0], kernel[1])
    if isinstance(padding, str):
        padding = _named_padding(padding, size, strides, dilations)
    paddings = pair(padding, "padding")
    Window(size, strides, paddings, dilations).check()
    return strides, paddings, dilations, whole(groups, "groups")


def sides(padding: Any, what: str = "padding") -> tuple[int, int, int, int]:
    """``3`` or ``(left, right, top, bottom)``. Raises ShapeError."""
    values = list(padding) if isinstance(padding, (tuple, list)) else [padding] * 4
    numbers = [_integer(value) for value in values]
    if len(numbers) != 4 or None in numbers:
        raise ShapeError(
            f"{what} must be one whole number or four (left, right, top, bottom), it is {padding!r}"
        )
    left, right, top, bottom = (number or 0 for number in numbers)
    return left, right, top, bottom


def check_resizing(mode: Any, align_corners: Any, antialias: Any = False) -> None:
    """Raises ArgumentError for options of PyTorch that are not there or do not go together."""
    if mode not in ("nearest", "bilinear"):
        raise ArgumentError(f"mode must be 'nearest' or 'bilinear', it is {mode!r}")
    if align_corners is not None and mode == "nearest":
        raise ArgumentError("align_corners goes with mode='bilinear' only")
    if antialias:
        raise ArgumentError("antialias is not supported")


def given_size(size: Any, scale_factor: Any) -> tuple[Pair | None, tuple[float, float]]:
    """A size if one is given, and the factors otherwise. Raises ShapeError."""
    if (size is None) == (scale_factor is None):
        raise ShapeError("give either size or scale_factor")
    if size is not None:
        return pair(size, "size"), (1.0, 1.0)
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * 2
    if len(factors) != 2 or not all(
        isinstance(factor, (int, float)) and factor > 0 for factor in factors
    ):
        raise ShapeError(f"scale_factor must be one positive number or two, it is {scale_factor!r}")
    return None, (float(factors[0]), float(factors[1]))


def resized(extents: Pair, size: Any, scale_factor: Any) -> Pair:
    """The size of a resized image: ``size``, or the extents times factors. Raises ShapeError."""
    given, factors = given_size(size, scale_factor)
    if given is not None:
        return given
    wished = [extent * factor for extent, factor in zip(extents, factors, strict=True)]
    if any(extent != int(extent) for extent in wished):
        raise ShapeError(
            f"scale_factor {scale_factor} makes no whole number of pixels of "
            f"{extents[0]}x{extents[1]}; give size instead"
        )
    return int(wished[0]), int(wished[1])


def check_groups(channels: int, filters: int, groups: int) -> None:
    """Raises ShapeError unless channels and filters can be split into groups."""
    if channels % groups or filters % groups:
        raise ShapeError(
            f"{channels} input channels and {filters} filters cannot be split into {groups} "
            "groups; both must be divisible by groups"
        )


def output_padding(value: Any, stride: Pair) -> Pair:
    """What a transposed convolution adds to its output on the far side, checked."""
    cells = pair(value, "output_padding")
    if any(not 0 <= more < step for more, step in zip(cells, stride, strict=True)):
        raise ShapeError(
            f"output_padding must be at least 0 and smaller than the stride, it is {cells} for "
            f"stride {stride}"
        )
    return cells


def pool_window(
    kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: Any, outputs: Any = None
) -> Window:
    """The window of a pooling layer, checked; the stride is the kernel unless given."""
    size = pair(kernel, "kernel_size")
    window = Window(
        size,
        size if stride is None else pair(stride, "stride"),
        pair(padding, "padding"),
        pair(dilation, "dilation"),
        bool(ceil_mode),
        None if outputs is None else pair(outputs, "outputs"),
    )
    window.check()
    for axis in range(2) if outputs is None else ():
        if 2 * window.padding[axis] > window.extent(axis):
            raise ShapeError(
                f"padding must be at most half of what the window covers, it is {window.padding} "
                f"for kernel {window.kernel} and dilation {window.dilation}"
            )
    return window


def probability(p: Any) -> float:
    """A number in [0, 1]. Raises ShapeError."""
    number = isinstance(p, (int, float, np.floating)) and not isinstance(p, bool)
    if not (number and 0.0 <= p <= 1.0):
        raise ShapeError(f"the probability must be between 0 and 1, it is {p!r}")
    return float(p)


def number(value: Any, what: str) -> float:
    """A finite number. Raises ShapeError."""
    real = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not (real and math.isfinite(value)):
        raise ShapeError(f"{what} must be a finite number, it is {value!r}")
    return float(value)


def gelu_kind(approximate: Any) -> str:
    """The kind of activation that GELU's ``approximate`` means. Raises ArgumentError."""
    kinds = {"none": "gelu", "tanh": "gelu_tanh"}
    if not isinstance(approximate, str) or approximate not in kinds:
        raise ArgumentError(f"approximate must be 'none' or 'tanh', it is {approximate!r}")
    return kinds[approximate]


def no_indices(return_indices: Any) -> None:
    """Raises ArgumentError if the positions of the maxima are wanted."""
    if return_indices:
        raise ArgumentError("return_indices is not supported, a layer gives one tensor")


def divisor(divisor_override: Any) -> int | None:
    """What an average divides by instead of the number of cells, or None. Raises ShapeError."""
    if divisor_override is None:
        return None
    number = _integer(divisor_override)
    if number is None or number == 0:
        raise ShapeError(
            f"divisor_override must be a whole number other than 0, it is {divisor_override!r}"
        )
    return number


def output_size(value: Any) -> tuple[int | None, int | None]:
    """``3``, ``(3, 5)`` or ``(3, None)``; None keeps the input's extent. Raises ShapeError."""
    values = list(value) if isinstance(value, (tuple, list)) else [value, value]
    if len(values) != 2:
        raise ShapeError(f"output_size must be one whole number or a pair of them, it is {value!r}")
    height, width = (v if v is None else whole(v, "output_size") for v in values)
    return height, width


def no_placement(device: Any, dtype: Any) -> None:
    """Raises ArgumentError unless device and dtype are left to convloom."""
    if device is not None:
        raise ArgumentError("a layer has no device; pass device= to compile or Trainer")
    if dtype is not None and str(getattr(dtype, "__name__", dtype)).split(".")[-1] != "float32":
        raise ArgumentError(f"parameters are float32, dtype={dtype!r} is not supported")


def _integer(value: Any) -> int | None:
    if isinstance(value, (bool, np.bool_)):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _named_padding(padding: str, kernel: Pair, stride: Pair, dilation: Pair) -> Pair:
    if padding == "valid":
        return 0, 0
    if padding != "same":
        raise ShapeError(f"padding must be numbers, 'valid' or 'same', it is {padding!r}")
    if stride != (1, 1):
        raise ShapeError(f"padding='same' needs stride 1, it is {stride}")
    total = [d * (k - 1) for k, d in zip(kernel, dilation, strict=True)]
    if any(cells % 2 for cells in total):
        raise ShapeError(
            f"padding='same' needs an odd kernel or an even dilation, the kernel is {kernel} with "
            f"dilation {dilation}: one side would get more padding than the other"
        )
    return total[0] // 2, total[1] // 2
