"""Input gradient behind a 2x2 max-pool for 3x3 filters, by patches in registers.

The kernel is kernels/cpu/pooled_dgrad.cpp.
"""

from __future__ import annotations

import math

from convloom.backends.cpu.launch import Argument, Phase, Workspace
from convloom.backends.cpu.selectors.conv2d_problem import Problem, channels_last, specialise

#: Channels that the pack kernel treats at a time, on every vector width.
_CHANNELS = 16


def serves_patches(problem: Problem) -> bool:
    """Whether the patch that a pool window reaches fits the registers: 3x3, stride 1, one group."""
    geometry = problem.geometry
    return (
        (problem.r, problem.s) == (3, 3)
        and (geometry.stride, geometry.dilation, geometry.groups) == ((1, 1), (1, 1), 1)
        and not problem.planar_x
        and not problem.planar_y
        and channels_last(problem.w_layout)
    )


def patch_dgrad(
    problem: Problem, w: Argument, dyp: Argument, index: Argument, mask: Argument, dx: Argument
) -> tuple[tuple[Phase, ...], int]:
    """The phases, and the bytes of workspace they need from its start.

    Args:
        mask: the input whose ReLU masks dx, or 0.
    """
    c, k, (ph, pw) = problem.c, problem.k, problem.geometry.padding
    slices = math.ceil(c / _CHANNELS)
    # Strips give few large images enough items; a row is staged four deep.
    strip = max(8, math.ceil(problem.h / max(1, 16 // problem.n)))
    row = math.ceil((problem.w + 2 * pw) * c / _CHANNELS) * _CHANNELS
    pack = Phase(specialise("pooled_pack", C=c, K=k), (w, Workspace()), items=slices)
    main = Phase(
        specialise("pooled_dgrad", C=c, K=k, PAD_H=ph, PAD_W=pw, MASK=int(mask != 0)),
        (Workspace(), dyp, index, mask, dx, problem.h, problem.w, strip),
        items=problem.n * math.ceil(problem.h / strip),
        scratch=4 * 4 * row,
    )
    return (pack, main), slices * _CHANNELS * k * 9 * 4
