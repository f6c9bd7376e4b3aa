"""Central differences against gradients that are right, wrong, or not there."""

from __future__ import annotations

import numpy as np
import pytest

from convloom.convnet.gradcheck.differences import Losses, Tally, compare

VALUE = np.array([3.0, -2.0, 0.5, 1.5])


def smooth(x: np.ndarray) -> float:
    return float((x**3).sum())


def tally(
    loss: Losses, gradient: np.ndarray, value: np.ndarray = VALUE, entries: int | None = None
) -> Tally:
    return compare(loss, value, gradient, entries, seed=0)


def test_a_right_gradient() -> None:
    found = tally(smooth, 3 * VALUE**2)
    assert (found.checked, found.skipped, found.wrong) == (4, 0, False)
    assert found.error < 1e-8
    assert found.direction is not None
    assert found.direction < 1e-8


@pytest.mark.parametrize("at", range(4))
def test_one_wrong_entry(at: int) -> None:
    """Along the direction it shows too, though no entry alone be looked at."""
    gradient = 3 * VALUE**2
    gradient[at] += 1e-3
    assert tally(smooth, gradient).error == pytest.approx(1e-3 / 27, rel=1e-3)
    for entries in (None, 0):
        assert tally(smooth, gradient, entries=entries).wrong


def test_a_gradient_of_zeros() -> None:
    assert not tally(lambda x: 7.0, np.zeros(4)).wrong
    assert tally(smooth, np.zeros(4)).wrong


def test_not_a_number_is_wrong() -> None:
    assert tally(smooth, np.full(4, np.nan)).wrong


def test_entries_at_a_kink_are_skipped_and_counted() -> None:
    """At 0 any slope from 0 to 1 may be a rectifier's; another is wrong even there."""
    value = np.array([0.0, 1.0, -1.0])
    for slope, skipped, wrong in (
        (0.0, 1, False),
        (1.0, 1, False),
        (1.5, 0, True),
        (-0.1, 0, True),
    ):
        found = tally(lambda x: float(np.maximum(x, 0).sum()), np.array([slope, 1, 0]), value)
        assert (found.skipped, found.wrong) == (skipped, wrong), slope


def test_a_kink_beside_the_step_is_avoided_by_a_smaller_one() -> None:
    value = np.array([1e-6, 1.0])
    gradient = np.array([1.0, 1.0])
    found = tally(lambda x: float(np.maximum(x, 0).sum()), gradient, value)
    assert (found.checked, found.skipped, found.wrong) == (2, 0, False)
    assert tally(lambda x: float(np.maximum(x, 0).sum()), 2 * gradient, value).wrong


def test_what_rounding_hides_is_neither_right_nor_wrong() -> None:
    found = tally(lambda x: 1e9 + float(x.sum()), np.full(4, 2.0))
    assert (found.checked, found.skipped, found.direction, found.wrong) == (0, 4, None, False)


def test_a_part_of_the_entries_half_of_them_not_zero() -> None:
    value = np.arange(1, 1001.0)
    gradient = np.where(value <= 10, 2 * value, 0)
    found = tally(lambda x: float((x[:10] ** 2).sum()), gradient, value, entries=20)
    assert (found.checked, found.skipped, found.wrong) == (20, 0, False)
    # With ten of them not zero, all ten are looked at.
    gradient[3] = 0.0
    assert tally(lambda x: float((x[:10] ** 2).sum()), gradient, value, entries=20).wrong
