"""The class tree of a ``treefc`` layer: which classes lie together, which the data set says.

In 2012 it came with the data set's metadata. Here it is given as the parent of each node, in
Python or in a JSON file:

    {"beagle": "dog", "husky": "dog", "dog": "animal", "cat": "animal", "animal": null}
    [3, 3, 4, 4, null]

By names, leaves are the data set's classes; the root's parent is null, or is not said. By numbers,
node i's parent is entry i: the first nodes are the classes in their order, inner nodes follow.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from convloom.convnet.errors import ConfigError
from convloom.ir import ConvloomError


class TreeError(ConvloomError, ValueError):
    """A class tree that is none, or not one of the data set's classes; says which nodes and why."""

    def __init__(self, rule: str) -> None:
        self.rule = rule
        super().__init__(f"class tree: {rule}")


@dataclass(frozen=True)
class ClassTree:
    """A tree by its nodes' parents; leaves come first, node k is class k.

    Attributes:
        parents: the parent of each node, None for the root.

    Raises:
        TreeError: no root or several, a cycle, inner nodes before leaves, a parent that is none.
    """

    parents: tuple[int | None, ...]

    def __post_init__(self) -> None:
        for node, parent in enumerate(self.parents):
            if parent is not None and not (_whole(parent) and 0 <= parent < self.nodes):
                raise TreeError(
                    f"node {node} has the parent {parent!r}; it must be a node's number, 0 to "
                    f"{self.nodes - 1}, or null for the root"
                )
        _check(self.parents, [f"node {i}" for i in range(len(self.parents))])
        bare = sorted(set(range(len(self.parents))).difference(self.parents))
        if bare != list(range(len(bare))):
            inner = min(set(range(len(self.parents))).difference(bare))
            raise TreeError(
                f"node {inner} has nodes below it and node {bare[-1]} has none; the classes must "
                "come first, and inner nodes follow"
            )

    @property
    def nodes(self) -> int:
        """How many nodes there are, leaves and root among them."""
        return len(self.parents)

    @cached_property
    def classes(self) -> int:
        """How many leaves there are."""
        return len(set(range(self.nodes)).difference(self.parents))

    @cached_property
    def fingerprint(self) -> str:
        """Twelve digits that other trees do not have."""
        return hashlib.sha256(repr(self.parents).encode()).hexdigest()[:12]

    @cached_property
    def terms(self) -> int:
        """The nodes on all paths from the root to a leaf, counted on each."""
        return int(self.tables["leaves"].sum())

    @cached_property
    def tables(self) -> dict[str, np.ndarray]:
        """``parents``, ``first``, ``leaves`` and ``order``, int64, as ops/tree.py explains them."""
        walk, order = self._walk(), list[int]()
        first, leaves = (np.zeros(self.nodes, np.int64) for _ in range(2))
        for node in walk:
            first[node] = len(order)
            if node < self.classes:
                order.append(node)
        leaves[order] = 1
        for node in reversed(walk):
            parent = self.parents[node]
            if parent is not None:
                leaves[parent] += leaves[node]
        parents = np.array([-1 if one is None else one for one in self.parents], np.int64)
        return {"parents": parents, "first": first, "leaves": leaves, "order": np.array(order)}

    def _walk(self) -> list[int]:
        """All nodes, each before those below it, which follow it at once."""
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent is not None:
                children[parent].append(node)
        walk, waiting = [], [self.parents.index(None)]
        while waiting:
            walk.append(waiting.pop())
            waiting.extend(reversed(children[walk[-1]]))
        return walk


#: What ``class_tree`` takes: a file, parents by name, parents by number.
TreeSource = ClassTree | str | os.PathLike[str] | Mapping[str, str | None] | Sequence[int | None]


def class_tree(source: TreeSource, classes: int | Sequence[str] | None = None) -> ClassTree:
    """The tree that a file or Python says, over a data set's classes.

    Args:
        source: a ClassTree; a path to a JSON file; parents by name (a mapping), or by number (a
            sequence). See the top of this file.
        classes: the names of the classes in their order, or how many there are. Without names, the
            leaves of a tree by names are numbered as it names them.

    Raises:
        ConfigError: a file that cannot be read or says no tree of these classes.
        TreeError: the same of a tree in Python.
    """
    if not isinstance(source, str | os.PathLike):
        return _tree_of(source, classes)
    path = Path(source)
    try:
        plain = json.loads(path.read_text(encoding="utf-8-sig"), object_pairs_hook=_without_repeats)
        return _tree_of(plain, classes)
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror or error}", str(path)) from None
    except TreeError as error:
        raise ConfigError(error.rule, str(path)) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"is not JSON: {error}", str(path)) from None


def stand_in(classes: int) -> ClassTree:
    """A tree where none is given: about sqrt(classes) groups of classes that follow each other.

    Groups are as equal as can be; fewer than four classes hang below the root.
    """
    if classes == 1:
        return ClassTree((None,))
    groups = round(math.sqrt(classes)) if classes >= 4 else 0
    root = classes + groups
    above = [classes + k * groups // classes if groups else root for k in range(classes)]
    return ClassTree((*above, *(root for _ in range(groups)), None))


def _tree_of(source: Any, classes: int | Sequence[str] | None) -> ClassTree:
    if isinstance(source, Mapping):
        return _named(source, classes)
    tree = source if isinstance(source, ClassTree) else _numbered(source)
    _check_count(tree.classes, classes if isinstance(classes, int | None) else len(classes))
    return tree


def _numbered(source: Any) -> ClassTree:
    if isinstance(source, str) or not isinstance(source, Sequence):
        raise TreeError(
            "must be the parent of each node: an object {node: parent}, or an array of node "
            "numbers; null above the root"
        )
    return ClassTree(tuple(int(one) if _whole(one) else one for one in source))


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _named(source: Mapping[Any, Any], classes: int | Sequence[str] | None) -> ClassTree:
    for node, parent in source.items():
        if not (isinstance(node, str) and isinstance(parent, str | None)):
            raise TreeError(f"{node!r} has the parent {parent!r}; both must be names")
    nodes = [*dict.fromkeys(name for pair in source.items() for name in pair if name is not None)]
    place = {name: i for i, name in enumerate(nodes)}
    above = [source.get(name) for name in nodes]
    _check([None if one is None else place[one] for one in above], nodes)
    inner = set(above)
    leaves = [name for name in nodes if name not in inner]
    if isinstance(classes, int | None):
        _check_count(len(leaves), classes)
    else:
        _check_classes(nodes, leaves, classes)
        leaves = list(classes)
    ordered = [*leaves, *(name for name in nodes if name in inner)]
    number = {name: i for i, name in enumerate(ordered)}
    parents = (source.get(name) for name in ordered)
    return ClassTree(tuple(None if one is None else number[one] for one in parents))


def _check(parents: Sequence[int | None], names: Sequence[str]) -> None:
    """Raises TreeError unless every way up ends at one root."""
    if not parents:
        raise TreeError("has no nodes")
    roots = [names[i] for i, parent in enumerate(parents) if parent is None]
    if len(roots) > 1:
        more = ", …" if len(roots) > 5 else ""
        raise TreeError(f"has {len(roots)} roots, and must have one: {', '.join(roots[:5])}{more}")
    ends: set[int | None] = {None}
    for start in range(len(parents)):
        way: dict[int, None] = {}
        node: int | None = start
        while node not in ends and node not in way:
            assert node is not None
            way[node] = None
            node = parents[node]
        if node not in ends:
            assert node is not None
            cycle = [names[i] for i in [*way][[*way].index(node) :]]
            shown = [*cycle[:5], "…"] if len(cycle) > 5 else [*cycle, cycle[0]]
            raise TreeError(f"goes round in a circle: {' below '.join(shown)}")
        ends.update(way)


def _check_count(leaves: int, classes: int | None) -> None:
    if classes is not None and leaves != classes:
        raise TreeError(f"has {leaves} leaves, the data set has {classes} classes")


def _check_classes(nodes: Sequence[str], leaves: Sequence[str], classes: Sequence[str]) -> None:
    """Raises TreeError unless the leaves are the classes."""
    inner = set(nodes).difference(leaves)
    for name in classes:
        if name in inner:
            raise TreeError(f"has nodes below {name}, which is a class; classes must be leaves")
    twice = [name for name, count in Counter(classes).items() if count > 1]
    if twice:
        raise TreeError(f"cannot go by names: two classes are called {twice[0]}")
    for what, names, others in (
        ("the leaf {}, which is no class of the data set", leaves, classes),
        ("no leaf {}, which is a class of the data set", classes, leaves),
    ):
        known = set(others)
        strange = [name for name in names if name not in known]
        if strange:
            near = get_close_matches(strange[0], others, n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise TreeError(f"has {what.format(strange[0])}{hint}")


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        (twice, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise TreeError(f"gives {twice} two parents")
    return found
