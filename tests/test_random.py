from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from convloom import random

#: Random123's known answers for Philox4x32-10: counter, key, result (tests/kat_vectors).
KNOWN = [
    ([0, 0, 0, 0], (0, 0), [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    (
        [0xFFFFFFFF] * 4,
        (0xFFFFFFFF, 0xFFFFFFFF),
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
    ),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        (0xA4093822, 0x299F31D0),
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize("counter, key, result", KNOWN)
def test_known_answers(counter: list[int], key: tuple[int, int], result: list[int]) -> None:
    assert random.philox4x32([np.array(word) for word in counter], key).tolist() == result


def test_many_counters_at_once() -> None:
    counters = np.array([counter for counter, _, _ in KNOWN]).T
    many = random.philox4x32(list(counters), KNOWN[2][1])
    assert many[2].tolist() == KNOWN[2][2]
    assert many.shape == (3, 4)


def test_where_seed_step_and_stream_go() -> None:
    """The first known answers again, through ``bits``: what devices must reproduce."""
    assert random.bits(0, 0, 0, 0, 4).tolist() == KNOWN[0][2]
    seed, stream, step = 0x299F31D0A4093822, 0x03707344, 0x13198A2E
    start = 4 * 0x85A308D3243F6A88
    assert random.bits(seed, stream, step, start, 4).tolist() == KNOWN[2][2]


@pytest.mark.parametrize("start, count", [(0, 0), (0, 1), (3, 2), (5, 70_000), (65_533, 9)])
def test_any_piece_of_a_stream(start: int, count: int) -> None:
    whole = random.bits(1, "weights", 2, 0, 70_010)
    piece = random.bits(1, "weights", 2, start, count)
    np.testing.assert_array_equal(piece, whole[start : start + count])


def test_values_out_of_range() -> None:
    with pytest.raises(ValueError, match="seed must be in"):
        random.bits(-1, 0, 0, 0, 1)
    with pytest.raises(ValueError, match="step must be in"):
        random.bits(0, 0, 2**32, 0, 1)
    with pytest.raises(ValueError, match="stream number must be in"):
        random.bits(0, 2**32, 0, 0, 1)
    with pytest.raises(ValueError, match="bound must be in"):
        random.integers(0, 0, 0, 0, 1, 0)


def test_integers() -> None:
    drawn = random.integers(0, "crop", 0, 0, 9000, 9)
    assert drawn.dtype == np.int64
    assert np.abs(np.bincount(drawn, minlength=9) - 1000).max() < 150
    assert random.integers(0, "crop", 0, 0, 3, 1).tolist() == [0, 0, 0]


def test_uniform() -> None:
    drawn = random.uniform(0, "w", (40_000,), low=-3.0, high=5.0)
    assert -3 < drawn.min() < -2.99
    assert 4.99 < drawn.max() < 5
    assert abs(drawn.mean() - 1) < 0.05


def test_normal() -> None:
    drawn = random.normal(0, "w", (40_000,), mean=2.0, std=3.0)
    assert abs(drawn.mean() - 2) < 0.06
    assert abs(drawn.std() - 3) < 0.04
    within = (np.abs(drawn - 2) < 3).mean()
    assert abs(within - 0.6827) < 0.01


def test_normal_is_the_inverse_distribution_function() -> None:
    """Over the whole range a word can give, its ends included."""
    words = np.concatenate([np.array([0, 1, 2**32 - 2, 2**32 - 1]), random.bits(0, 0, 0, 0, 3000)])
    p = (words + 0.5) * 2.0**-32
    wanted = [NormalDist().inv_cdf(value) for value in p]
    np.testing.assert_allclose(random._inverse_normal(p), wanted, rtol=1e-12, atol=1e-15)


def test_logarithm() -> None:
    x = np.concatenate([2.0 ** -np.arange(1, 34), np.linspace(0.01, 3, 500)])
    np.testing.assert_allclose(random._log(x), [math.log(v) for v in x], rtol=1e-14, atol=1e-16)


def test_draws_depend_on_seed_stream_and_index_alone() -> None:
    first = random.normal(1, "0.weight", (6, 4))
    np.testing.assert_array_equal(first, random.normal(1, "0.weight", (24,)).reshape(6, 4))
    np.testing.assert_array_equal(first.ravel()[:5], random.normal(1, "0.weight", (5,)))
    for other in (random.normal(2, "0.weight", (6, 4)), random.normal(1, "1.weight", (6, 4))):
        assert (first != other).all()


def test_draws_are_the_same_bits_everywhere() -> None:
    """Pinned, because saved seeds promise the same network on any machine."""
    assert random.bits(7, "0.weight", 0, 0, 3).tolist() == [3921584051, 924386096, 429748612]
    assert [value.hex() for value in random.normal(7, "0.weight", (3,))] == [
        "0x1.5c20a2be9543fp+0",
        "-0x1.93abd7fcb11ebp-1",
        "-0x1.47fdde3585686p+0",
    ]


def test_permutation() -> None:
    order = random.permutation(0, "shuffle", 3, 1000)
    assert sorted(order.tolist()) == list(range(1000))
    np.testing.assert_array_equal(order, random.permutation(0, "shuffle", 3, 1000))
    assert (order != random.permutation(0, "shuffle", 4, 1000)).mean() > 0.98
    assert (order != random.permutation(1, "shuffle", 3, 1000)).mean() > 0.98
    assert random.permutation(0, "shuffle", 0, 0).tolist() == []
    assert random.permutation(0, "shuffle", 0, 1).tolist() == [0]
