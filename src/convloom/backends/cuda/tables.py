"""What steps on resident data are told, and what they report: tables with a row for each step."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from convloom.backends.cuda.gpu import Gpu, Pinned
from convloom.backends.feeding import Results
from convloom.ir import ConvloomError, ShapeError

#: Numbers of right answers that a step counts: top 1 and top 5.
RANKS = 2


class Reports:
    """What each step reports, in device memory and on its way to the host.

    Args:
        costs: numbers that a plan reports beside its loss.
        members: networks that report in each step; None: one, and no axis for it.

    Attributes:
        tables: addresses of the losses, float32 (steps[, members]), the right answers, int32
            (steps[, members], 2), and the costs, float32 (steps[, members], costs); 0 for none.
    """

    def __init__(self, gpu: Gpu, steps: int, costs: int = 0, members: int | None = None) -> None:
        self._gpu = gpu
        own = () if members is None else (members,)
        self._columns = (
            (np.dtype(np.float32), own),
            (np.dtype(np.int32), (*own, RANKS)),
            (np.dtype(np.float32), (*own, costs)),
        )
        sizes = [4 * steps * math.prod(shape) for _, shape in self._columns]
        self._memory = [gpu.allocate(size) for size in sizes]
        self.tables = [memory.address if memory.nbytes else 0 for memory in self._memory]
        # Of nothing there is nothing to pin.
        self._pinned: list[Pinned] = [gpu.pinned(max(size, 4)) for size in sizes]

    def results(self, start: int, steps: int) -> Callable[[], Results]:
        """A function that waits for the results of some steps, whose copy begins now."""
        reported: list[np.ndarray] = []
        for pinned, table, (kind, shape) in zip(
            self._pinned, self.tables, self._columns, strict=True
        ):
            width = math.prod(shape)
            words = pinned.array.view(kind)[start * width : (start + steps) * width]
            if width:
                self._gpu.download_later(table + 4 * width * start, words)
            reported.append(words.reshape(steps, *shape))
        wait = self._gpu.mark()

        def results() -> Results:
            wait()
            return Results(*(words.copy() for words in reported))

        return results


def checked_order(order: np.ndarray, batch_size: int, samples: int) -> np.ndarray:
    """Indices of samples, int64 (steps, batch size). Raises ShapeError or ConvloomError."""
    order = np.ascontiguousarray(order, np.int64)
    if order.ndim != 2 or order.shape[1] != batch_size:
        raise ShapeError(f"order must be (steps, {batch_size}) for this plan, it is {order.shape}")
    if order.size and not (order.min() >= 0 and order.max() < samples):
        raise ConvloomError(
            f"order names samples {order.min()} to {order.max()}; the data set has {samples}"
        )
    return order


def checked_rates(rates: np.ndarray | None, steps: int, width: int) -> np.ndarray | None:
    """Hyper values, float64 (steps, width); None where the plan has none. Raises ShapeError."""
    if not width:
        return None
    if rates is None or rates.shape != (steps, width):
        shape = None if rates is None else rates.shape
        raise ShapeError(f"rates must be ({steps}, {width}), they are {shape}")
    return np.ascontiguousarray(rates, np.float64)
