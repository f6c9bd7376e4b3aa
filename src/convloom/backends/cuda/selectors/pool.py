"""Kernels for pooling and its gradients."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.selectors.common import (
    Builder,
    Specs,
    channels_last,
    dtypes,
    image_order,
    pairs,
    same_order,
    tensors,
)
from convloom.ir import Node, Selection, TensorSpec
from convloom.ops import AvgPool2d, AvgPool2dGrad, MaxPool2d


def _max_pool(node: Node, specs: Specs) -> Selection | None:
    """Serves float32 images, each row-major or NHWC."""
    x, y, index = _specs(node, specs)
    if not _served(node, specs, "float32", "float32", "int32"):
        return None
    if not same_order(y.layout, index.layout):
        return None
    op = cast(MaxPool2d, node.op)
    constants = _sizes(x, y) | pairs(K=op.kernel, U=op.stride, P=op.padding, D=op.dilation)
    build = Builder(specs)
    build.each("max_pool/naive", constants, (*tensors(node), y.shape[0]), y.size)
    return build.selection("naive", "max_pool")


def _max_pool_grad(node: Node, specs: Specs) -> Selection | None:
    dy, index, dx = _specs(node, specs)
    if not _served(node, specs, "float32", "int32", "float32"):
        return None
    if not same_order(dy.layout, index.layout):
        return None
    sizes = _sizes(dx, dy)
    constants = {
        "C": sizes["C"],
        "CELLS": sizes["H"] * sizes["W"],
        "WINDOWS": sizes["OH"] * sizes["OW"],
        "XROW": sizes["XROW"],
        "YROW": sizes["YROW"],
    }
    build = Builder(specs)
    planes = dx.shape[0] * dx.shape[1]
    build.each("max_pool_grad/naive", constants, (*tensors(node), dx.shape[0]), planes, threads=64)
    return build.selection("naive", "max_pool_grad")


def _avg_pool(node: Node, specs: Specs) -> Selection | None:
    x, y = _specs(node, specs)
    if not _served(node, specs, "float32", "float32"):
        return None
    constants = _avg_constants(cast(AvgPool2d, node.op), x, y)
    build = Builder(specs)
    build.each("avg_pool/naive", constants, (*tensors(node), y.shape[0]), y.size)
    return build.selection("naive", "avg_pool")


def _avg_pool_grad(node: Node, specs: Specs) -> Selection | None:
    dy, dx = _specs(node, specs)
    if not _served(node, specs, "float32", "float32"):
        return None
    constants = _avg_constants(cast(AvgPool2dGrad, node.op), dx, dy)
    build = Builder(specs)
    build.each("avg_pool_grad/naive", constants, (*tensors(node), dx.shape[0]), dx.size)
    return build.selection("naive", "avg_pool_grad")


def _specs(node: Node, specs: Specs) -> list[TensorSpec]:
    return [specs[name] for name in (*node.inputs, *node.outputs)]


def _served(node: Node, specs: Specs, *expected: str) -> bool:
    return dtypes(node, specs) == expected and all(image_order(s) for s in _specs(node, specs))


def _avg_constants(op: AvgPool2d | AvgPool2dGrad, x: TensorSpec, y: TensorSpec) -> dict[str, int]:
    window = pairs(K=op.kernel, U=op.stride, P=op.padding)
    return _sizes(x, y) | window | {"COUNT_PADDING": int(op.count_include_pad)}


def _sizes(x: TensorSpec, y: TensorSpec) -> dict[str, int]:
    """The constants of device/pool.cuh for input x and output y, the window apart."""
    return {
        **{"C": x.shape[1], "H": x.shape[2], "W": x.shape[3]},
        **{"OH": y.shape[2], "OW": y.shape[3]},
        **{"XROW": int(not channels_last(x)), "YROW": int(not channels_last(y))},
    }


LADDER = {
    ("MaxPool2d", "naive"): _max_pool,
    ("MaxPool2dGrad", "naive"): _max_pool_grad,
    ("AvgPool2d", "naive"): _avg_pool,
    ("AvgPool2dGrad", "naive"): _avg_pool_grad,
}
