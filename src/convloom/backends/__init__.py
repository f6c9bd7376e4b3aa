"""Backends run plans. They are found by name; see ``convloom.backends.base``."""

from convloom.backends.base import (
    Backend,
    DeviceError,
    Executable,
    Storage,
    get_backend,
    resolve_device,
)

__all__ = ["Backend", "DeviceError", "Executable", "Storage", "get_backend", "resolve_device"]
