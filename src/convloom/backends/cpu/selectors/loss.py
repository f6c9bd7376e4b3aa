"""Kernels for softmax cross-entropy, its gradient, and metrics of right answers."""

from __future__ import annotations

from typing import cast

from convloom.backends.cpu.launch import Argument, Tensor
from convloom.backends.cpu.selectors.common import Builder, Specs, ceil_div, dtypes
from convloom.ir import Node, Selection
from convloom.ops import SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad, TopKCorrect, TopKError

#: Logits an item takes, about: less would cost more to hand to another thread than to compute.
_LOGITS = 8192


def select(node: Node, specs: Specs, kernels: str) -> Selection | None:
    """Serves row-major float32 logits with int64 labels or float32 probabilities."""
    tensors = [specs[name] for name in (*node.inputs, *node.outputs)]
    target = specs[node.inputs[1]]
    labels = "int64" if len(target.shape) == 1 else "float32"
    if specs[node.inputs[0]].dtype != "float32" or target.dtype != labels:
        return None
    if any(t.layout.order is not None for t in tensors) or specs[node.inputs[0]].shape[1] == 0:
        return None
    build = Builder(specs)
    if isinstance(node.op, TopKCorrect | TopKError):
        return _top_k(build, node, node.op)
    if isinstance(node.op, SoftmaxCrossEntropyGrad):
        return _gradient(build, node)
    return _forward(build, node)


def _forward(build: Builder, node: Node) -> Selection | None:
    op = cast(SoftmaxCrossEntropy, node.op)
    logits, target = (Tensor(name) for name in node.inputs)
    loss, probability = (Tensor(name) for name in node.outputs)
    n, classes = build.specs[node.inputs[0]].shape
    items = ceil_div(n, _rows(classes))
    partial = build.workspace(8 * max(items, 1))
    smoothing = float(op.label_smoothing)
    arguments: tuple[Argument, ...] = (logits, target, probability, partial, n, smoothing)
    build.add("softmax_cross_entropy", _constants(build, node), arguments, items)
    build.add("mean_of_partials", {}, (partial, loss, items, n), 1)
    return build.selection("softmax_cross_entropy")


def _gradient(build: Builder, node: Node) -> Selection | None:
    op = cast(SoftmaxCrossEntropyGrad, node.op)
    if set(dtypes(node, build.specs)) - {"float32", "int64"}:
        return None
    n, classes = build.specs[node.inputs[0]].shape
    tensors = tuple(Tensor(name) for name in (*node.inputs, *node.outputs))
    arguments: tuple[Argument, ...] = (*tensors, n, float(op.label_smoothing))
    source = "softmax_cross_entropy_grad"
    build.add(source, _constants(build, node), arguments, ceil_div(n, _rows(classes)))
    return build.selection(source)


def _top_k(build: Builder, node: Node, op: TopKCorrect | TopKError) -> Selection | None:
    n, classes = build.specs[node.inputs[0]].shape
    constants = {"K": classes, "TOP": min(op.k, classes)}
    arguments: tuple[Argument, ...] = (*(Tensor(name) for name in (*node.inputs, *node.outputs)), n)
    source = "topk" if isinstance(op, TopKCorrect) else "topk_error"
    build.add(source, constants, arguments, 1)
    return build.selection(source)


def _constants(build: Builder, node: Node) -> dict[str, int]:
    classes = build.specs[node.inputs[0]].shape[1]
    probability = int(len(build.specs[node.inputs[1]].shape) == 2)
    return {"K": classes, "PROBABILITY": probability, "ROWS": _rows(classes)}


def _rows(classes: int) -> int:
    """Samples an item takes."""
    return max(1, _LOGITS // classes)
