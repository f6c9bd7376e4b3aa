"""What may be chosen freely of the kernels on chip, and a way to choose it for a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    """How a chain's kernels are laid out. Results differ by the order of sums alone.

    Attributes:
        threads: of a block.
        images: that a block carries at a time.
        split: blocks that share an image's backward pass, where a batch leaves room for them.
        cluster: whether these blocks are a cluster and share the forward pass as well; GPUs before
            compute capability 9.0 have none.
        early: whether biases come to shared memory with the weights, so that no stage waits for
            its own to come from device memory.
        ahead: whether the second kernel asks for parameters and states before it adds up gradients.
        wide: whether a thread's tile may be six columns wide, in fp32.
        chained: whether, within a graph, each kernel begins while the one before it still runs, and
            waits for that where it must (kernels/cuda/device/chained.cuh).
        unroll: channels whose products are one piece of code, in fp32, so that the inputs of the
            next are on their way while those of one are multiplied.
    """

    threads: int = 384
    images: int = 1
    split: int = 1
    cluster: bool = False
    early: bool = False
    ahead: bool = False
    wide: bool = False
    chained: bool = False
    unroll: int = 1

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.threads // 32


#: What plans are made with, but for comparisons.
PLAIN = Config()
#: {name: what is compared with it}.
VARIANTS = {
    "plain": PLAIN,
    "split2": Config(split=2),
    "cluster2": Config(split=2, cluster=True),
    "threads256": Config(threads=256),
    "threads512": Config(threads=512),
    "early": Config(early=True),
    "ahead": Config(ahead=True),
    "wide": Config(wide=True),
    "unroll2": Config(unroll=2),
    "chained": Config(chained=True),
    "cluster2ahead": Config(split=2, cluster=True, ahead=True),
    "cluster2chained": Config(split=2, cluster=True, ahead=True, chained=True),
    "together": Config(split=2, cluster=True, early=True, ahead=True, wide=True, chained=True),
}
_chosen: ContextVar[Config] = ContextVar("config of the kernels on chip", default=PLAIN)


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
