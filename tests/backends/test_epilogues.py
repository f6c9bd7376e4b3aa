"""Activations behind convolutions and linear layers, and masks of gradients, in one kernel."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from convloom.backends.base import get_backend
from convloom.backends.cuda.selectors import RUNGS
from convloom.ir import TensorSpec
from convloom.ops import Conv2d, FusedConv2d, FusedConv2dDgrad, FusedLinear, FusedLinearDgrad
from convloom.ops.fused import EPILOGUES, MASKS
from tests.backends.cuda.trials import Trial, check
from tests.backends.harness import integers, normals

PARAMETERS = {"leaky_relu": (0.5, 0.0), "clamp": (-1.0, 6.0), "hardswish": (0.0, 0.0)}

#: Input, filters, and (stride, padding, dilation, groups): few and many channels, 1x1, padded
#: edges, groups, depthwise, channels in fours.
LAYERS = (
    ((2, 3, 9, 7), (17, 3, 3, 2), ((2, 1), (1, 0), (1, 1), 1)),
    ((1, 16, 6, 5), (32, 16, 3, 3), ((1, 1), (1, 1), (1, 1), 1)),
    ((3, 8, 5, 4), (20, 8, 1, 1), ((1, 1), (0, 0), (1, 1), 1)),
    ((2, 8, 9, 9), (8, 1, 3, 3), ((1, 1), (1, 1), (1, 1), 8)),
    ((2, 12, 7, 6), (6, 4, 3, 3), ((2, 2), (1, 1), (1, 1), 3)),
)


def epilogue_trials() -> Iterator[Trial]:
    """Every activation behind every layer, and every mask; what has no rounding is exact."""
    for at, (x, w, geometry) in enumerate(LAYERS):
        kind = EPILOGUES[at % len(EPILOGUES)]
        for one in {kind, "clamp"}:
            exact = one != "hardswish"
            make = integers if exact else normals
            inputs = (make(x, at), make(w, at + 50), make(w[:1], at + 90))
            yield Trial(FusedConv2d(*geometry, one, *PARAMETERS[one]), inputs, exact)
        (y,) = Conv2d(*geometry).infer(*(TensorSpec(shape) for shape in (x, w)))
        for one in MASKS:
            dy, kept = integers(y.shape, at + 20), integers(x, at + 30)
            op = FusedConv2dDgrad(*geometry, x[2:], one, *PARAMETERS[one])
            yield Trial(op, (dy, integers(w, at + 50), kept), True)
    for at, (n, i, o) in enumerate(((1, 1, 1), (31, 33, 7), (40, 300, 10), (33, 200, 132))):
        kind = EPILOGUES[at % len(EPILOGUES)]
        x, w, b = normals((n, i), at), normals((o, i), at + 50), normals((o,), at + 90)
        x[-1, 0] = np.nan
        yield Trial(FusedLinear(kind, *PARAMETERS[kind]), (x, w, b))
        mask, dy, kept = MASKS[at % len(MASKS)], integers((n, o), at), integers((n, i), at + 30)
        op = FusedLinearDgrad(mask, *PARAMETERS[mask])
        yield Trial(op, (dy, integers((o, i), at + 50), kept), True)


@pytest.mark.parametrize("kernels", ["dense", "winograd"])
def test_cpu(kernels: str) -> None:
    trials = list(epilogue_trials())
    served = check(trials, get_backend("cpu"), kernels)
    assert served == (len(trials) if kernels == "dense" else 3)


@pytest.mark.parametrize("rung", RUNGS)
@pytest.mark.parametrize("device", ["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_cuda(device: str, rung: str) -> None:
    trials = list(epilogue_trials())
    served = check(trials, get_backend(device), rung)
    assert rung != "fused" or served == len(trials)
    assert rung not in ("tiled", "async", "warp") or served
