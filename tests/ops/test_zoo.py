"""The zoo keeps its promise: few rows, and every pair of conditions that can meet does meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product

import pytest

from convloom.ir import ShapeError, TensorSpec
from convloom.ops import Conv2d, MaxPool2d
from tests import zoo
from tests.zoo import Case

_KERNELS = ((1, 1), (3, 3), (2, 3), (5, 4), zoo.WHOLE)
_SIZES = ((5, 7), (9, 6), (7, 13), (13, 8))

CONV_AXES = {
    "n": zoo.N,
    "c": zoo.C,
    "kernel": _KERNELS,
    "stride": ((1, 1), (2, 2), (3, 3), (4, 1)),
    "padding": ((0, 0), (1, 1), (2, 1)),
    "dilation": ((1, 1), (2, 2)),
    "grouped": (False, True),
}
POOL_AXES = {
    "n": zoo.N,
    "c": zoo.C,
    "kernel": ((1, 1), (2, 2), (3, 3), (3, 2), zoo.WHOLE),
    "stride": ((1, 1), (2, 2), (3, 3), (4, 1)),
    "padding": ((0, 0), (1, 1)),
    "dilation": ((1, 1), (2, 2)),
    "ceil_mode": (False, True),
}
Conditions = dict[str, object]


def conditions(case: Case) -> Conditions:
    x, op = case.shapes[0], case.op
    assert isinstance(op, Conv2d | MaxPool2d)
    kernel = case.shapes[1][2:] if isinstance(op, Conv2d) else op.kernel
    last = {"grouped": op.groups > 1} if isinstance(op, Conv2d) else {"ceil_mode": op.ceil_mode}
    return {
        "n": x[0],
        "c": x[1],
        "kernel": zoo.WHOLE if kernel == x[2:] else kernel,
        "stride": op.stride,
        "padding": op.padding,
        "dilation": op.dilation,
        **last,
    }


def pairs_of(values: Conditions) -> set[tuple[object, ...]]:
    return {(a, values[a], b, values[b]) for a, b in combinations(values, 2)}


def possible(values: Conditions) -> bool:
    """Whether some image size of the zoo can have these conditions."""
    for size in _SIZES:
        kernel = size if values["kernel"] == zoo.WHOLE else values["kernel"]
        window = (values["stride"], values["padding"], values["dilation"])
        if values["dilation"] == (2, 2) and kernel == (1, 1):
            return False
        x = TensorSpec((values["n"], values["c"], *size))
        try:
            if "grouped" in values:
                groups = values["c"] if values["grouped"] else 1
                if values["grouped"] and groups == 1:
                    return False
                w = TensorSpec((groups, values["c"] // groups, *kernel))
                Conv2d(*window, groups).infer(x, w)
            else:
                if any(2 * p > k for p, k in zip(values["padding"], kernel, strict=True)):
                    continue
                MaxPool2d(kernel, *window, values["ceil_mode"]).infer(x)
        except ShapeError:
            continue
        return True
    return False


@pytest.mark.parametrize(
    "cases, axes", [(zoo.CONV, CONV_AXES), (zoo.MAX_POOL, POOL_AXES)], ids=["conv", "pool"]
)
def test_every_possible_pair_occurs(
    cases: Sequence[Case], axes: Mapping[str, Sequence[object]]
) -> None:
    found = set().union(*(pairs_of(conditions(case)) for case in cases))
    wanted: set[tuple[object, ...]] = set()
    others = {name: values for name, values in axes.items() if name not in ("n", "c")}
    for values in product(*others.values()):
        chosen = dict(zip(others, values, strict=True))
        for c in axes["c"]:
            if possible({"n": 1, "c": c, **chosen}):
                for n in axes["n"]:
                    wanted |= pairs_of({"n": n, "c": c, **chosen})
    assert wanted - found == set()


@pytest.mark.parametrize(
    "name",
    [
        "CONV",
        "MAX_POOL",
        "AVG_POOL",
        "FOURS_POOL",
        "CLIPPED_POOL",
        "ADAPTIVE_POOL",
        "CONV_TRANSPOSE",
        "LOCAL",
        "AXIS_MAPS",
        "LINEAR",
        "ELEMENTWISE",
    ],
)
def test_tables_are_small(name: str) -> None:
    assert len(getattr(zoo, name)) <= 25
