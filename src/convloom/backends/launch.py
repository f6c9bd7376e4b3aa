"""What the launches of every backend share: how a kernel's arguments are written down."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Tensor:
    """An argument: the address of a tensor's buffer, plus a byte offset."""

    name: str
    offset: int = 0


@dataclass(frozen=True)
class Workspace:
    """An argument: an address inside the step's own workspace."""

    offset: int = 0


Argument = Tensor | Workspace | int | float
