from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from convloom.ir import ShapeError
from convloom.ops import Window, pair


@pytest.mark.parametrize(
    "size, kernel, stride, padding, wanted",
    [
        ((5, 5), 2, 2, 1, (3, 3)),
        ((6, 7), 1, 2, 0, (3, 4)),
        ((5, 5), 3, 3, 1, (2, 2)),
    ],
)
def test_ceil_mode_never_keeps_a_window_that_starts_in_the_padding(
    size: tuple[int, int], kernel: int, stride: int, padding: int, wanted: tuple[int, int]
) -> None:
    window = Window((kernel,) * 2, (stride,) * 2, (padding,) * 2, ceil_mode=True)
    assert window.output(size) == wanted


@given(
    size=st.integers(1, 40),
    kernel=st.integers(1, 9),
    stride=st.integers(1, 9),
    padding=st.integers(0, 4),
    dilation=st.integers(1, 4),
    ceil_mode=st.booleans(),
)
def test_positions_are_all_that_fit(
    size: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool
) -> None:
    """Against a count of the windows, one by one."""
    extent = dilation * (kernel - 1) + 1
    assume(2 * padding <= extent)  # as pools demand
    padded = size + 2 * padding
    window = Window((kernel, 1), (stride, 1), (padding, 0), (dilation, 1), ceil_mode)
    if extent > padded and ceil_mode and extent - padded < stride:
        assert window.output((size, 1)) == (1, 1)
        return
    if extent > padded:
        with pytest.raises(ShapeError, match=f"covers {extent} cells of height"):
            window.output((size, 1))
        return
    starts = range(0, padded, stride)
    fits = [start for start in starts if start + extent <= padded]
    if ceil_mode and fits[-1] + extent < padded and fits[-1] + stride < size + padding:
        fits.append(fits[-1] + stride)
    assert window.output((size, 1)) == (len(fits), 1)


def test_pair() -> None:
    assert pair(3, "stride") == (3, 3)
    assert pair((3, 5), "stride") == (3, 5)
    for wrong in (1.5, (1,), (1, 2, 3), "ab", True, None):
        with pytest.raises(ShapeError, match="stride must be one integer or a pair"):
            pair(wrong, "stride")  # type: ignore[arg-type]
