"""The CUDA backend. Launch data, selectors and the simulator need nothing of its runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from convloom.backends.cuda.backend import CudaBackend


def create() -> CudaBackend:
    """The backend; whether there is a GPU shows when memory is asked for."""
    from convloom.backends.cuda.backend import CudaBackend

    return CudaBackend()
