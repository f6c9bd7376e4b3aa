"""Which launches of a graph must wait for which: those that share no bytes may run side by side.

What a launch reads and writes is known as byte ranges, so this sees memory that a plan uses twice
as well as data that flows. Each order that keeps these dependencies gives the same bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

#: Addresses of the first byte and of the one after the last.
Span = tuple[int, int]


@dataclass(frozen=True)
class Access:
    """The bytes that a launch reads and those that it writes; it may read what it writes."""

    reads: tuple[Span, ...]
    writes: tuple[Span, ...]


def dependencies(launches: Sequence[Access | None]) -> list[tuple[int, ...]]:
    """For each launch the numbers of earlier ones that it must wait for.

    It waits for whoever last wrote what it reads or writes, and for whoever has read since what it
    writes. Waits that follow from others are left out. A launch whose access is None waits for all
    before it, and all after it wait for it.
    """
    pieces = _Pieces(access for access in launches if access is not None)
    ancestors: list[int] = []  # of each launch, with itself, as bits
    found = []
    for number, access in enumerate(launches):
        waits = pieces.take(number, access)
        kept = []
        covered = 0
        for other in sorted(
            waits, reverse=True
        ):  # later ones cover earlier ones, never the reverse
            if not covered >> other & 1:
                kept.append(other)
                covered |= ancestors[other]
        ancestors.append(covered | 1 << number)
        found.append(tuple(reversed(kept)))
    return found


@dataclass
class _Piece:
    """Bytes that are always used together: who wrote them last, and who has read them since."""

    writer: int | None = None
    readers: list[int] = field(default_factory=list)


class _Pieces:
    """Memory cut at the ends of all spans."""

    def __init__(self, accesses: Iterable[Access]) -> None:
        spans = {span for one in accesses for span in (*one.reads, *one.writes)}
        cuts = sorted({address for span in spans for address in span})
        pieces = [(start, _Piece()) for start, _ in pairwise(cuts)]
        self._of = {
            (first, end): [piece for start, piece in pieces if first <= start < end]
            for first, end in spans
        }
        self._fence: int | None = None  # the last launch that all must wait for
        self._since: list[int] = []

    def take(self, number: int, access: Access | None) -> set[int]:
        """Note a launch; returns which ones it must wait for."""
        waits = {self._fence} if self._fence is not None else set()
        if access is None:
            waits.update(self._since)
            self._fence, self._since = number, []
            return waits
        self._since.append(number)
        for piece in self._touched(access.reads):
            waits.update(() if piece.writer is None else (piece.writer,))
        written = self._touched(access.writes)
        for piece in written:
            waits.update(piece.readers, () if piece.writer is None else (piece.writer,))
        for piece in self._touched(access.reads):
            piece.readers.append(number)
        for piece in written:
            piece.writer, piece.readers = number, []
        return waits

    def _touched(self, spans: tuple[Span, ...]) -> list[_Piece]:
        return [piece for span in spans for piece in self._of[span]]
