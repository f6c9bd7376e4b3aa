"""Sliding windows: output sizes and their errors, shared by convolution and pooling.

Source: torch.nn.Conv2d and torch.nn.MaxPool2d documentation, "Shape".
"""

from __future__ import annotations

from dataclasses import dataclass

from convloom.ir import ShapeError

Pair = tuple[int, int]

_AXES = ("height", "width")
_LIMIT = 2**31 - 1


def pair(value: int | tuple[int, int], what: str) -> Pair:
    """``3`` or ``(3, 5)`` as (height, width). Raises ShapeError for anything else."""
    values = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(values) != 2 or not all(type(v) is int for v in values):
        raise ShapeError(f"{what} must be one integer or a pair of them, it is {value!r}")
    return values[0], values[1]


@dataclass(frozen=True)
class Window:
    """A sliding window; each pair is (height, width).

    ``outputs`` fixes the number of positions, whatever the input's size, and lets windows overhang
    the input on the far side. Only then may ``padding`` be negative: windows start inside.
    """

    kernel: Pair
    stride: Pair
    padding: Pair
    dilation: Pair = (1, 1)
    ceil_mode: bool = False
    outputs: Pair | None = None

    def output(self, size: Pair) -> Pair:
        """Number of window positions over an input of ``size``.

        With ``ceil_mode`` a last window may overhang by less than a stride (the only one too, as in
        PyTorch), but never starts in the right padding.

        Raises:
            ShapeError: an attribute out of range, or a window larger than the padded input.
        """
        self.check()
        return self._positions(size, 0), self._positions(size, 1)

    def check(self) -> None:
        """Raises ShapeError unless every attribute is in range, whatever the input's size."""
        for what, values, least in (
            ("kernel size", self.kernel, 1),
            ("stride", self.stride, 1),
            ("padding", self.padding, 0 if self.outputs is None else -_LIMIT),
            ("dilation", self.dilation, 1),
            ("outputs", self.outputs or (1, 1), 1),
        ):
            if min(values) < least:
                raise ShapeError(f"{what} must be at least {least}, it is {values}")
            if max(values) > _LIMIT:
                raise ShapeError(f"{what} must be below 2^31, it is {values}")

    def extent(self, axis: int) -> int:
        """Input cells from a window's first to its last tap."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def _positions(self, size: Pair, axis: int) -> int:
        if self.outputs is not None:
            return self.outputs[axis]
        padding, stride = self.padding[axis], self.stride[axis]
        room = size[axis] + 2 * padding - self.extent(axis)
        if room + (stride - 1 if self.ceil_mode else 0) < 0:
            raise ShapeError(
                f"the window covers {self.extent(axis)} cells of {_AXES[axis]} (kernel "
                f"{self.kernel[axis]}, dilation {self.dilation[axis]}), the input has "
                f"{size[axis]} with {padding} of padding on each side; use a smaller kernel or "
                "dilation, or more padding"
            )
        if not self.ceil_mode:
            return room // stride + 1
        positions = -(-room // stride) + 1
        starts_in_padding = (positions - 1) * stride >= size[axis] + padding
        return positions - 1 if starts_in_padding else positions
