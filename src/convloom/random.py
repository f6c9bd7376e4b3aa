"""Counter-based random numbers: every draw is a function of (seed, stream, step, index).

Nothing here has a state, so any step can be replayed, in any order and in any pieces. The
generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011);
devices draw the same integers. Word ``i`` of a stream is word ``i % 4`` of the block

    key     = (seed mod 2^32, seed div 2^32)
    counter = (i div 4 mod 2^32, i div 4 div 2^32, step, stream)

Real numbers are made on the host from these words with IEEE +, *, / and sqrt alone, so they are
the same bits on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence

import numpy as np

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROUNDS = 10
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
#: Blocks or numbers made at once, so that the work stays in the cache.
_CHUNK = 1 << 14

Stream = int | str


def stream_id(stream: Stream) -> int:
    """The 32-bit number of a stream; a name is hashed (the first four bytes of its SHA-256).

    Raises ValueError for an integer outside [0, 2^32).
    """
    if isinstance(stream, str):
        return int.from_bytes(hashlib.sha256(stream.encode()).digest()[:4], "little")
    if not 0 <= stream < 2**32:
        raise ValueError(f"a stream number must be in [0, 2^32), it is {stream}")
    return stream


def philox4x32(counter: Sequence[np.ndarray], key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 of many counters.

    Args:
        counter: four arrays of one shape, the words of each counter, least significant first.
        key: two 32-bit words.

    Returns:
        uint32 array of shape (*shape, 4).
    """
    c0, c1, c2, c3 = (np.asarray(word, np.uint64) & _LOW for word in counter)
    k0, k1 = key
    for _ in range(_ROUNDS):
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> _HALF) ^ c1 ^ np.uint64(k0),
            second & _LOW,
            (first >> _HALF) ^ c3 ^ np.uint64(k1),
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & 0xFFFFFFFF, (k1 + _WEYL[1]) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def bits(seed: int, stream: Stream, step: int, start: int, count: int) -> np.ndarray:
    """Words [start, start + count) of a stream at a step, uint32 (count,).

    Raises ValueError for a seed outside [0, 2^64) or a step outside [0, 2^32).
    """
    for what, value, width in (("seed", seed, 64), ("step", step, 32)):
        if not 0 <= value < 2**width:
            raise ValueError(f"{what} must be in [0, 2^{width}), it is {value}")
    key, number = (seed & 0xFFFFFFFF, seed >> 32), stream_id(stream)
    words = np.empty(count, np.uint32)
    done = 0
    while done < count:
        at = start + done
        first = at // 4
        blocks = min(_CHUNK, (start + count - 1) // 4 - first + 1)
        index = np.arange(first, first + blocks, dtype=np.uint64)
        fixed = (np.full(blocks, word, np.uint64) for word in (step, number))
        drawn = philox4x32((index, index >> _HALF, *fixed), key).ravel()[at - 4 * first :]
        drawn = drawn[: count - done]
        words[done : done + len(drawn)] = drawn
        done += len(drawn)
    return words


def integers(
    seed: int, stream: Stream, step: int, start: int, count: int, bound: int
) -> np.ndarray:
    """Whole numbers in [0, bound) made of words [start, start + count), int64 (count,).

    ``bound`` must be in [1, 2^32]. A number's chance differs from 1/bound by less than 2^-32.
    """
    if not 1 <= bound <= 2**32:
        raise ValueError(f"bound must be in [1, 2^32], it is {bound}")
    words = bits(seed, stream, step, start, count).astype(np.uint64)
    return ((words * np.uint64(bound)) >> _HALF).astype(np.int64)


def uniform(
    seed: int,
    stream: Stream,
    shape: Sequence[int],
    low: float = 0.0,
    high: float = 1.0,
    step: int = 0,
) -> np.ndarray:
    """Uniform draws between ``low`` and ``high``, float64; element i is made of word i."""
    return low + (high - low) * _unit(seed, stream, shape, step)


def normal(
    seed: int,
    stream: Stream,
    shape: Sequence[int],
    mean: float = 0.0,
    std: float = 1.0,
    step: int = 0,
) -> np.ndarray:
    """Normal draws, float64; element i is made of word i by the inverse distribution function."""
    return mean + std * _inverse_normal(_unit(seed, stream, shape, step))


def permutation(seed: int, stream: Stream, epoch: int, n: int) -> np.ndarray:
    """An order of 0..n-1, int64 (n,): positions sorted by 64 random bits each, ties by position."""
    words = bits(seed, stream, epoch, 0, 2 * n).astype(np.uint64)
    return np.argsort((words[0::2] << _HALF) | words[1::2], kind="stable").astype(np.int64)


def _unit(seed: int, stream: Stream, shape: Sequence[int], step: int) -> np.ndarray:
    """Draws inside (0, 1), never at its ends."""
    words = bits(seed, stream, step, 0, math.prod(shape))
    return ((words + 0.5) * 2.0**-32).reshape(tuple(shape))


# Algorithm AS 241, PPND16 (Wichura, Applied Statistics 37, 1988): the inverse of the normal
# distribution function, to 1e-16. Its far tail (p < e^-25) is never met: 2^-33 < p < 1 - 2^-33.
# Coefficients run from the highest power down.
_CENTRE = (
    (
        2.5090809287301226727e3,
        3.3430575583588128105e4,
        6.7265770927008700853e4,
        4.5921953931549871457e4,
        1.3731693765509461125e4,
        1.9715909503065514427e3,
        1.3314166789178437745e2,
        3.3871328727963666080e0,
    ),
    (
        5.2264952788528545610e3,
        2.8729085735721942674e4,
        3.9307895800092710610e4,
        2.1213794301586595867e4,
        5.3941960214247511077e3,
        6.8718700749205790830e2,
        4.2313330701600911252e1,
        1.0,
    ),
)
_TAIL = (
    (
        7.74545014278341407640e-4,
        2.27238449892691845833e-2,
        2.41780725177450611770e-1,
        1.27045825245236838258e0,
        3.64784832476320460504e0,
        5.76949722146069140550e0,
        4.63033784615654529590e0,
        1.42343711074968357734e0,
    ),
    (
        1.05075007164441684324e-9,
        5.47593808499534494600e-4,
        1.51986665636164571966e-2,
        1.48103976427480074590e-1,
        6.89767334985100004550e-1,
        1.67638483018380384940e0,
        2.05319162663775882187e0,
        1.0,
    ),
)


def _inverse_normal(p: np.ndarray) -> np.ndarray:
    value = np.empty_like(p)
    flat, made = p.reshape(-1), value.reshape(-1)
    for start in range(0, p.size, _CHUNK):
        made[start : start + _CHUNK] = _inverse_normal_chunk(flat[start : start + _CHUNK])
    return value


def _inverse_normal_chunk(p: np.ndarray) -> np.ndarray:
    q = p - 0.5
    central = np.abs(q) <= 0.425
    value = np.empty_like(p)
    middle = q[central]
    value[central] = middle * _ratio(_CENTRE, 0.180625 - middle * middle)
    outer = ~central
    r = np.sqrt(-_log(np.minimum(p[outer], 1.0 - p[outer])))
    value[outer] = np.copysign(_ratio(_TAIL, r - 1.6), q[outer])
    return value


def _ratio(coefficients: tuple[tuple[float, ...], tuple[float, ...]], r: np.ndarray) -> np.ndarray:
    numerator, denominator = (_horner(terms, r) for terms in coefficients)
    ratio: np.ndarray = numerator / denominator
    return ratio


def _horner(terms: Sequence[float], r: np.ndarray) -> np.ndarray:
    total = np.full_like(r, terms[0])
    for term in terms[1:]:
        total = total * r + term
    return total


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm of positive normal numbers, to 1e-15, by IEEE arithmetic alone.

    np.log's last bit depends on the machine. log(2^e m) = e ln 2 + 2 artanh((m - 1)/(m + 1)).
    """
    mantissa, exponent = np.frexp(x)
    small = mantissa < math.sqrt(0.5)
    mantissa = np.where(small, 2.0 * mantissa, mantissa)
    exponent = exponent - small
    s = (mantissa - 1.0) / (mantissa + 1.0)
    series = _horner([1.0 / k for k in range(23, 0, -2)], s * s)
    log: np.ndarray = exponent * math.log(2.0) + 2.0 * s * series
    return log
