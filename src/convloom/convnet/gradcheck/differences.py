"""Central differences of a loss against a gradient, entry by entry and in one direction at once.

A network of rectifiers and maxima has kinks. Where a step of any size meets one, the differences to
both sides disagree; if the gradient lies between the two, the entry is skipped and counted, since
it can be neither confirmed nor refuted. A wrong gradient lies outside, and is found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

#: Errors allowed, as a share of the gradient's largest entry.
TOLERANCE = 1e-5
#: Steps tried one after the other, as a share of the tensor's root mean square: a smaller one
#: crosses fewer kinks and rounds more.
_STEPS = (1e-5, 1e-6, 1e-7)
#: Rounding beyond this share of the gradient hides it.
_CLEAR = 1e-3
#: How much a float64 loss errs by rounding, as a share of it.
_ROUNDING = 2e-14

#: What NumPy's generators are seeded with.
Seed = int | tuple[int, ...]
Losses = Callable[[np.ndarray], float]


@dataclass(frozen=True)
class Tally:
    """What became of the entries of one tensor that were looked at.

    Attributes:
        checked: entries that agree or disagree.
        skipped: entries at kinks, or too small to tell.
        error: the largest disagreement of those checked, as a share of the largest entry.
        direction: the same along a random direction, as a share of the gradient's length; None
            where that meets a kink.
        wrong: whether any disagrees by more than the tolerance.
    """

    checked: int
    skipped: int
    error: float
    direction: float | None
    wrong: bool


def compare(
    loss: Losses, value: np.ndarray, gradient: np.ndarray, entries: int | None, seed: Seed
) -> Tally:
    """A gradient against differences: along a random direction, and for some entries alone.

    Args:
        loss: the loss as a function of the tensor.
        value: where the gradient is taken, float64.
        entries: how many to look at, half of them where the gradient is not 0; None is all.
    """
    random = np.random.default_rng(seed)
    lines = _Lines(loss, value, gradient, loss(value))
    along, agrees = lines.compare(_everything(value, random), float(np.linalg.norm(gradient)))
    wrong = agrees is False
    largest = float(np.abs(gradient).max(initial=0.0))
    errors = []
    chosen = _chosen(gradient, entries, random)
    for at in chosen:
        direction = np.zeros(gradient.shape)
        direction.flat[at] = 1.0
        error, right = lines.compare(direction, largest)
        if right is not None:
            errors.append(error)
            wrong = wrong or not right
    return Tally(
        checked=len(errors),
        skipped=len(chosen) - len(errors),
        error=max(errors, default=0.0),
        direction=None if agrees is None else along,
        wrong=wrong,
    )


def _everything(value: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """A random direction that moves every entry which is not 0.

    Zeros behind a rectifier tie in the windows of a maximum, where each is given the whole
    gradient, and together they have no derivative.
    """
    return np.where(value == 0, 0.0, random.choice((-1.0, 1.0), value.shape))


def _chosen(gradient: np.ndarray, entries: int | None, random: np.random.Generator) -> list[int]:
    if entries is None or entries >= gradient.size:
        return list(range(gradient.size))
    telling = np.flatnonzero(gradient)
    half = min(len(telling), entries // 2)
    first = telling[random.choice(len(telling), half, replace=False)].tolist()
    others = random.choice(gradient.size, entries, replace=False).tolist()
    return sorted(list(dict.fromkeys(first + others))[:entries])


@dataclass(frozen=True)
class _Lines:
    """A loss along lines through one point, where it is ``here``."""

    loss: Losses
    value: np.ndarray
    gradient: np.ndarray
    here: float

    def compare(self, direction: np.ndarray, size: float) -> tuple[float, bool | None]:
        """How far the gradient is off along a direction, and whether that is little enough.

        Returns:
            The distance as a share of ``size``; None for the verdict at a kink, and where rounding
            hides so small a slope.
        """
        slope = float((self.gradient * direction).sum())
        scale = float(np.sqrt(np.mean(np.square(self.value)))) or 1.0
        error, verdict = 0.0, None
        for step in (share * scale for share in _STEPS):
            noise = _ROUNDING * (1 + abs(self.here)) / step
            if size and noise > _CLEAR * size:
                break
            sides = self._sides(step * direction, step)
            off = abs(sum(sides) / 2 - slope)
            error = off / size if size else off
            if off <= TOLERANCE * size + noise:
                return error, True
            verdict = None if _kinked(sides, slope, noise, TOLERANCE * size) else False
        return error, verdict

    def _sides(self, move: np.ndarray, step: float) -> tuple[float, float]:
        """The differences to both sides."""
        ahead, behind = self.loss(self.value + move), self.loss(self.value - move)
        return (ahead - self.here) / step, (self.here - behind) / step


def _kinked(sides: tuple[float, float], slope: float, noise: float, tolerance: float) -> bool:
    """Whether the differences to both sides disagree, with the slope between them."""
    low, high = min(sides), max(sides)
    return high - low > 2 * noise + tolerance and low - noise <= slope <= high + noise
