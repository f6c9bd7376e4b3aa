"""What may be chosen freely of the layers' kernels, and a way to choose it for a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """How convolutions run. Results differ by the order of sums alone.

    Attributes:
        sliding: blocks that conv2d_dgrad/sliding must have to be taken instead of
            conv2d_dgrad/sparse, where it serves the shapes.
        tall: window rows of one of its steps, if they divide those of the map; else one.
        sliding_forward: likewise of conv2d_fprop/sliding and conv2d_fprop/direct.
        wide: the most output columns of one of its threads.
    """

    sliding: int = 512
    tall: int = 1
    sliding_forward: int = 512
    wide: int = 6


#: What plans are made with, but for comparisons.
PLAIN = Config()
#: {name: what is compared with it}.
VARIANTS = {
    "plain": PLAIN,
    "unslid": Config(sliding=2**31, sliding_forward=2**31),
    "slid": Config(sliding=1, sliding_forward=1),
    "tall2": Config(tall=2),
    "slid-tall2": Config(sliding=1, tall=2),
    "wide4": Config(wide=4),
    "slid-wide4": Config(sliding_forward=1, wide=4),
}
_chosen: ContextVar[Config] = ContextVar("config of the layers' kernels", default=PLAIN)


def chosen() -> Config:
    """What plans are made with."""
    return _chosen.get()


@contextmanager
def using(config: Config) -> Iterator[None]:
    """Make plans with another one: to time what it changes, or to test it."""
    token = _chosen.set(config)
    try:
        yield
    finally:
        _chosen.reset(token)
