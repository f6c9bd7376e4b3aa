"""Give every tensor a place: lifetimes over the steps, packed into three arenas.

Parameters, gradients and each optimiser state form blocks with the same inner offsets, so that
one kernel walks them together. Transients are packed by size, largest first, each at the lowest
offset free during its whole life (best known simple rule for dynamic storage allocation: Sekiyama
et al., "Profile-guided memory optimization for deep neural networks", arXiv 1804.10001).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from convloom.compiler.layout import is_view
from convloom.ir import (
    GRADIENTS,
    PERSISTENT,
    TRANSIENT,
    Buffer,
    Graph,
    Role,
    Step,
)
from convloom.ops.base import Op

ALIGNMENT = 64


@dataclass(frozen=True)
class MemoryMap:
    """Where every tensor lies; the fields are Plan's."""

    buffers: Mapping[str, Buffer]
    arenas: Mapping[str, int]
    transient_bound: int


def assign_memory(graph: Graph, steps: Sequence[Step], apart: int = 0) -> MemoryMap:
    """Place every tensor and workspace of the steps.

    Args:
        apart: steps that should lie between the last use of transient memory and its use by
            another tensor, so that steps may run side by side; less where this costs much memory.
    """
    owner = _owners(graph)
    buffers: dict[str, Buffer] = {}
    end = len(steps)
    persistent = _place_persistent(graph, buffers, end)
    gradients = _place_gradients(graph, buffers, end)
    lives = _lifetimes(graph, steps, owner)
    loose = [life for life in lives if life.name not in buffers]
    placed = _pack_apart(loose, apart)
    buffers.update(placed)
    for name in graph.specs:
        root = _root(owner, name)
        if name not in buffers and root in buffers:
            buffers[name] = buffers[root]
    return MemoryMap(
        buffers=buffers,
        arenas={PERSISTENT: persistent, GRADIENTS: gradients, TRANSIENT: _size(placed)},
        transient_bound=_bound(loose, end),
    )


@dataclass(frozen=True)
class _Life:
    name: str
    nbytes: int
    first: int
    last: int


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _owners(graph: Graph) -> dict[str, str]:
    """{tensor: the tensor whose memory it shares}, for views and in-place updates."""
    owner: dict[str, str] = {}
    for node in graph.nodes:
        if is_view(graph, node):
            owner[node.outputs[0]] = node.inputs[0]
        assert isinstance(node.op, Op)
        for out, into in node.op.inplace.items():
            owner[node.outputs[out]] = node.inputs[into]
    for state, value in graph.updates.items():
        owner.setdefault(value, state)
    return owner


def _root(owner: Mapping[str, str], name: str) -> str:
    while name in owner:
        name = owner[name]
    return name


def _place_persistent(graph: Graph, buffers: dict[str, Buffer], end: int) -> int:
    """Parameters in order, then each state (a state of a parameter block repeats its offsets)."""
    offset = 0
    for role in (Role.PARAMETER, Role.STATE, Role.CONTROL):
        for name in graph.named(role):
            nbytes = graph.specs[name].nbytes
            buffers[name] = Buffer(PERSISTENT, offset, nbytes, 0, end)
            offset += _aligned(nbytes)
    return offset


def _place_gradients(graph: Graph, buffers: dict[str, Buffer], end: int) -> int:
    offset = 0
    parameters = set(graph.named(Role.PARAMETER))
    for name, grad in graph.gradients.items():
        if name in parameters and grad not in buffers:
            nbytes = graph.specs[grad].nbytes
            buffers[grad] = Buffer(GRADIENTS, offset, nbytes, 0, end)
            offset += _aligned(nbytes)
    return offset


def _lifetimes(graph: Graph, steps: Sequence[Step], owner: Mapping[str, str]) -> list[_Life]:
    """Transients, inputs and workspaces with the first and last step that need them."""
    end = len(steps)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for name in graph.named(Role.INPUT):
        first[name], last[name] = 0, 0
    for index, step in enumerate(steps):
        for tensor in (*step.node.inputs, *step.node.outputs):
            root = _root(owner, tensor)
            first.setdefault(root, index)
            last[root] = index
    for tensor in graph.kept():
        last[_root(owner, tensor)] = end
    lives = [
        _Life(name, graph.specs[name].nbytes, first[name], last.get(name, first[name]))
        for name in first
    ]
    for index, step in enumerate(steps):
        if step.workspace is not None:
            always = step.selection.lasting
            life = (0, end) if always else (index, index)
            lives.append(_Life(step.workspace, step.selection.workspace, *life))
    return lives


def _pack_apart(lives: Sequence[_Life], apart: int) -> dict[str, Buffer]:
    """Pack with as much room between uses as takes little more memory than none."""
    tight = _pack(lives, 0)
    while apart:
        roomy = _pack(lives, apart)
        if 4 * _size(roomy) <= 5 * _size(tight):
            return roomy
        apart //= 2
    return tight


def _size(placed: Mapping[str, Buffer]) -> int:
    return max((b.offset + _aligned(b.nbytes) for b in placed.values()), default=0)


def _pack(lives: Sequence[_Life], apart: int) -> dict[str, Buffer]:
    placed: list[tuple[_Life, int]] = []
    for life in sorted(lives, key=lambda one: (-one.nbytes, one.first, one.name)):
        offset = 0
        rivals = [
            (start, start + _aligned(other.nbytes))
            for other, start in placed
            if other.first <= life.last + apart and life.first <= other.last + apart
        ]
        for start, stop in sorted(rivals):
            if offset + _aligned(life.nbytes) <= start:
                break
            offset = max(offset, stop)
        placed.append((life, offset))
    return {
        life.name: Buffer(TRANSIENT, offset, life.nbytes, life.first, life.last)
        for life, offset in placed
    }


def _bound(lives: Sequence[_Life], end: int) -> int:
    """The most bytes that are live at any one step: no packing can need less."""
    change = [0] * (end + 2)
    for life in lives:
        change[life.first] += _aligned(life.nbytes)
        change[life.last + 1] -= _aligned(life.nbytes)
    peak = live = 0
    for delta in change:
        live += delta
        peak = max(peak, live)
    return peak
