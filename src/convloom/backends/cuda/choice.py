"""What plans are made with, for as long as a comparison or a test chooses otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Generic, TypeVar

T = TypeVar("T")


class Choice(Generic[T]):
    """A value that all plans of this context share.

    Args:
        name: what it is, for whoever debugs.
        usual: the value where nothing else is chosen.
    """

    def __init__(self, name: str, usual: T) -> None:
        self._chosen: ContextVar[T] = ContextVar(name, default=usual)

    def __call__(self) -> T:
        """What plans are made with."""
        return self._chosen.get()

    @contextmanager
    def using(self, value: T) -> Iterator[None]:
        """Make plans with another one: to time what it changes, or to test it."""
        token = self._chosen.set(value)
        try:
            yield
        finally:
            self._chosen.reset(token)
