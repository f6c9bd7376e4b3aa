"""The simulator: CUDA kernels compiled for this machine's CPU and run without a GPU."""

from convloom.backends.cudasim.backend import CudaSimBackend, create

__all__ = ["CudaSimBackend", "create"]
