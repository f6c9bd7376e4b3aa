"""Maps of rows and columns as the constants of axis_map.h of the CPU and axis_map.cuh of CUDA."""

from __future__ import annotations

from convloom.ir.graph import Operation
from convloom.ops import (
    Blur,
    Mirror,
    Nailbed,
    NailbedGrad,
    Pad2d,
    Pad2dGrad,
    Resize2d,
    Resize2dGrad,
)

#: What the kernels call the kinds of maps, by number.
SHIFT, REFLECT, REPLICATE, NEAREST, BILINEAR, ALIGNED, EVERY, MIRRORED, BLURRED = range(9)
_PADS = {"constant": SHIFT, "reflect": REFLECT, "replicate": REPLICATE}
_BLURS = 5


def map_constants(op: Operation) -> dict[str, int]:
    """By axis the KIND and BEFORE (cells that a pad adds before it); STEP of a nailbed, TAPS of a
    blur."""
    kinds, before, step, taps = (SHIFT, SHIFT), (0, 0), 1, 1
    if isinstance(op, Pad2d | Pad2dGrad):
        kinds = (_PADS[op.mode],) * 2
        before = (op.around(0)[0], op.around(1)[0])
    elif isinstance(op, Resize2d | Resize2dGrad):
        if op.mode == "nearest":
            kinds = (NEAREST,) * 2
        else:
            kinds = (ALIGNED if op.align_corners else BILINEAR,) * 2
    elif isinstance(op, Nailbed | NailbedGrad):
        kinds, step = (EVERY,) * 2, op.stride
    elif isinstance(op, Mirror):
        kinds = (SHIFT, MIRRORED)
    else:
        assert isinstance(op, Blur)
        kinds, taps = (BLURRED,) * 2, op.filter_size
    return {
        **{"HKIND": kinds[0], "WKIND": kinds[1], "HBEFORE": before[0], "WBEFORE": before[1]},
        **{"STEP": step, "TAPS": taps},
    }


def map_numbers(op: Operation) -> tuple[float, ...]:
    """The value around a padded image, then a blur's weights from its middle outwards."""
    weights = [0.0] * _BLURS
    if isinstance(op, Blur):
        outwards = op.weights[op.filter_size // 2 :]
        weights[: len(outwards)] = [float(weight) for weight in outwards]
    return (float(getattr(op, "value", 0.0)), *weights)
