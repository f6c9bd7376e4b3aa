"""The error of everything that reads, finds or fetches data."""

from __future__ import annotations

import os

from convloom.ir.errors import ConvloomError


class DataError(ConvloomError, ValueError):
    """Data that cannot be used: the message says which, what is wrong, and what to do.

    Attributes:
        path: the file or folder at fault, or None.
    """

    def __init__(self, message: str, path: str | os.PathLike[str] | None = None) -> None:
        self.path = None if path is None else os.fspath(path)
        super().__init__(message if path is None else f"{self.path}: {message}")


class AccessError(DataError):
    """A file that the system does not let us read; nothing is known of its content."""


class WrongContentError(DataError):
    """A file that is well formed, but whose content is not what its name promises."""
