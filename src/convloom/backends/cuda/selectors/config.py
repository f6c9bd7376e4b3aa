"""What may be chosen freely of the layers' kernels, and a way to choose it for a comparison."""

from __future__ import annotations

from dataclasses import dataclass

from convloom.backends.cuda.choice import Choice

#: More blocks than a launch can have.
NEVER = 2**31


@dataclass(frozen=True)
class Config:
    """How convolutions run. Results differ by rounding alone.

    Attributes:
        sliding: blocks that conv2d_dgrad/sliding must have to be taken instead of
            conv2d_dgrad/sparse, where it serves the shapes.
        tall: window rows of one of its steps, if they divide those of the map; else one.
        sliding_forward: likewise of conv2d_fprop/sliding and conv2d_fprop/direct.
        wide: the most output columns of one of its threads.
        winograd: groups of windows, times blocks of filters, that a launch must have to be made by
            minimal filtering, forward or of an input gradient, where that serves the shapes; and
            blocks that it should have before one makes several groups.
        wino_wgrad: blocks that conv2d_wgrad/winograd must be able to have, with few windows each,
            to be taken instead of conv2d_wgrad/sparse or, without a pool, conv2d_wgrad/tiled.
        wino_unrolled: windows that its loop multiplies a turn: 8 or 16.
    """

    sliding: int = 512
    tall: int = 1
    sliding_forward: int = 512
    wide: int = 6
    winograd: int = 1024
    wino_wgrad: int = 512
    wino_unrolled: int = 8


#: What plans are made with, but for comparisons.
PLAIN = Config()
#: {name: what is compared with it}.
VARIANTS = {
    "plain": PLAIN,
    "winograd": Config(winograd=1),
    "unwinograd": Config(winograd=NEVER),
    "unslid": Config(sliding=NEVER, sliding_forward=NEVER, winograd=NEVER),
    "slid": Config(sliding=1, sliding_forward=1, winograd=NEVER),
    "tall2": Config(tall=2, winograd=NEVER),
    "slid-tall2": Config(sliding=1, tall=2, winograd=NEVER),
    "wide4": Config(wide=4, winograd=NEVER),
    "slid-wide4": Config(sliding_forward=1, wide=4, winograd=NEVER),
    "wino_wgrad": Config(wino_wgrad=1),
    "wino_wgrad16": Config(wino_unrolled=16),
    "unwino_wgrad": Config(wino_wgrad=NEVER),
}
#: What plans are made with, and a way to choose another one.
chosen = Choice("config of the layers' kernels", PLAIN)
using = chosen.using
