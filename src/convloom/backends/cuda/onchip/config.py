"""What may be chosen freely of the kernels on chip, and a way to choose it for a comparison."""

from __future__ import annotations

from dataclasses import dataclass, replace

from convloom.backends.cuda.choice import Choice
from convloom.ops.precision import BF16


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
        bulk: whether weights come to shared memory by the copy engine, where the GPU has it (as it
            has clusters).
        spread: whether each block of the second kernel has a multiprocessor of its own, where there
            are enough.
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
    bulk: bool = False
    spread: bool = False
    unroll: int = 1

    @property
    def warps(self) -> int:
        """Of a block."""
        return self.threads // 32


PLAIN = Config()
#: What plans are made with, but for comparisons: where clusters of two blocks can share the images,
#: in bfloat16 with threads that have more registers, and where they cannot.
SHARED = Config(split=2, cluster=True, ahead=True, chained=True, bulk=True, spread=True)
SHARED_BF16 = replace(SHARED, threads=288)
ALONE = Config(early=True, ahead=True)
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
    "bulk": Config(bulk=True),
    "cluster2ahead": Config(split=2, cluster=True, ahead=True),
    "cluster2chained": Config(split=2, cluster=True, chained=True),
    "cluster2both": Config(split=2, cluster=True, ahead=True, chained=True),
    "shared": SHARED,
    "shared288": SHARED_BF16,
    "shared320": replace(SHARED, threads=320),
    "unbulk": replace(SHARED, bulk=False),
    "unspread": replace(SHARED, spread=False),
    "together": replace(SHARED, early=True, wide=True),
}
_chosen: Choice[Config | None] = Choice("config of the kernels on chip", None)
#: A way to choose another one; None: as ever.
using = _chosen.using


def candidates(clusters: bool, room: int, precision: str) -> tuple[Config, ...]:
    """What plans are made with, best first: the first one that fits, and whose blocks can share an
    image if they are to.

    Args:
        clusters: whether the GPU has them.
        room: how many blocks it has for each image of a batch.
        precision: that of the operands of products.
    """
    wanted = _chosen()
    if wanted is not None:
        split = 1 if wanted.cluster and not clusters else max(1, min(wanted.split, room))
        return (replace(wanted, split=split),)
    alone = ALONE, PLAIN  # which takes the least memory
    if not clusters or room < SHARED.split:
        return alone
    return (SHARED_BF16, SHARED, *alone) if precision == BF16 else (SHARED, *alone)
