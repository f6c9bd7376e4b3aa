"""What a check of gradients found: one row for each tensor that a layer makes or learns."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

#: How far a device's float32 gradient may be from float64's: the length of the difference, as a
#: share of the gradient's. Rounding alone can turn a rectifier or a maximum.
DEVICE_TOLERANCE = 1e-4

OK, WRONG, UNKNOWN = "ok", "wrong", "unknown"


@dataclass(frozen=True)
class Row:
    """One gradient.

    Attributes:
        tensor: ``output`` (before the layer's neuron), ``weights.0``, ``biases``.
        size: entries of the tensor.
        checked: how many were compared with differences.
        skipped: how many of those looked at stand at kinks, or are too small to tell.
        error: the largest disagreement with a difference, as a share of the largest entry.
        direction: the same along a direction that moves all entries, as a share of the
            gradient's length; None where that meets a kink.
        device_error: how far the device's gradient is from float64's, as a share of its length;
            None where the device has no such gradient.
        wrong: whether either is beyond its tolerance.
        note: what to know of the layer's gradient.
    """

    layer: str
    type: str
    tensor: str
    size: int
    checked: int
    skipped: int
    error: float
    direction: float | None
    device_error: float | None
    wrong: bool
    note: str = ""

    @property
    def verdict(self) -> str:
        """``ok``, ``wrong``, or ``unknown`` where every entry looked at was skipped."""
        if self.wrong:
            return WRONG
        return UNKNOWN if self.checked == 0 and self.direction is None else OK


@dataclass(frozen=True)
class GradientReport:
    """The rows of a network, and how they were made.

    Attributes:
        device: what computed the gradients that were compared with float64's.
        loss: of the values drawn, in float64.
        entries: how many entries of each tensor were looked at; None is all.
        notes: what a person should know of the comparison.
    """

    rows: tuple[Row, ...]
    device: str
    loss: float
    entries: int | None
    tolerance: float
    device_tolerance: float
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no gradient is wrong."""
        return not any(row.wrong for row in self.rows)

    def to_json(self) -> dict[str, Any]:
        """The report as plain data."""
        rows = [{**asdict(row), "verdict": row.verdict} for row in self.rows]
        return {**asdict(self), "rows": rows, "ok": self.ok}
