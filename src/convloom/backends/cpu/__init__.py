"""The CPU backend."""

from convloom.backends.cpu.backend import CpuBackend, create

__all__ = ["CpuBackend", "create"]
