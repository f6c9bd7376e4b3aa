"""A pool's window as the constants of kernels/cpu/pool.h and kernels/cuda/device/pool.cuh."""

from __future__ import annotations

from convloom.ir.graph import Operation

_AXES = "HW"


def window_constants(op: Operation) -> dict[str, int]:
    """ADAPTIVE, and by axis kernel K, stride U, padding P and dilation D."""
    pairs = {
        "K": getattr(op, "kernel", (1, 1)),
        "U": getattr(op, "stride", (1, 1)),
        "P": getattr(op, "padding", (0, 0)),
        "D": getattr(op, "dilation", (1, 1)),
    }
    constants = {f"{n}{axis}": pair[i] for n, pair in pairs.items() for i, axis in enumerate(_AXES)}
    return {"ADAPTIVE": int(op.name.startswith("Adaptive")), **constants}


def maximum_constants(op: Operation) -> dict[str, int]:
    """MAGNITUDE: 1 where the greatest magnitude wins."""
    return {"MAGNITUDE": int(getattr(op, "magnitude", False))}


def divisor_constants(op: Operation) -> dict[str, int]:
    """COUNT_PADDING, and DIVISOR: 0, or what stands for the number of cells counted."""
    return {
        "COUNT_PADDING": int(getattr(op, "count_include_pad", False)),
        "DIVISOR": getattr(op, "divisor_override", None) or 0,
    }
