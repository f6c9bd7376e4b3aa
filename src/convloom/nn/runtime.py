"""Where the package above hooks in what networks need to run; nn itself computes nothing."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from convloom.ir import ConvloomError


class Predictor(Protocol):
    """Computes class probabilities; ``convloom.training`` registers one."""

    def __call__(
        self, model: Any, images: np.ndarray, *, batch_size: int, device: str
    ) -> np.ndarray: ...


_predictor: Predictor | None = None


def set_predictor(predictor: Predictor) -> None:
    """Make ``Module.predict`` call this."""
    global _predictor
    _predictor = predictor


def predictor() -> Predictor:
    """What ``Module.predict`` calls. Raises ConvloomError when nothing was registered."""
    if _predictor is None:
        raise ConvloomError("prediction needs convloom.training; import it first")
    return _predictor
