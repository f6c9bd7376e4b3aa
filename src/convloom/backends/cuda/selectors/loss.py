"""Kernels for softmax cross-entropy, its gradient, and the count of right answers."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor
from convloom.backends.cuda.selectors.common import Builder, Specs, dtypes, row_major, tensors
from convloom.ir import Node, Selection
from convloom.ops import SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad, TopKCorrect

#: What one block may take on alone: samples, classes, and its threads.
_ONE_BLOCK_SAMPLES, _ONE_BLOCK_CLASSES, _ONE_BLOCK_THREADS = 1024, 64, 256


def _forward(node: Node, specs: Specs) -> Selection | None:
    """Serves row-major float32 logits with int64 labels or float32 probabilities."""
    if not _served(node, specs):
        return None
    op = cast(SoftmaxCrossEntropy, node.op)
    logits, target = (Tensor(name) for name in node.inputs)
    loss, probability = (Tensor(name) for name in node.outputs)
    n = specs[node.inputs[0]].shape[0]
    build = Builder(specs)
    partial = build.workspace(8 * max(n, 1))
    arguments = (logits, target, probability, partial, n, float(op.label_smoothing))
    build.each("softmax_cross_entropy/naive", _constants(node, specs), arguments, n, threads=64)
    build.add("mean_of_partials/naive", {}, (partial, loss, n, n), blocks=1, threads=32)
    return build.selection("naive", "softmax_cross_entropy")


def _fused_forward(node: Node, specs: Specs) -> Selection | None:
    """Serves small batches of few classes: one block does them all."""
    if not _served(node, specs):
        return None
    op = cast(SoftmaxCrossEntropy, node.op)
    n, classes = specs[node.inputs[0]].shape
    if n > _ONE_BLOCK_SAMPLES or classes > _ONE_BLOCK_CLASSES:
        return None
    logits, target = (Tensor(name) for name in node.inputs)
    loss, probability = (Tensor(name) for name in node.outputs)
    constants = _constants(node, specs) | {"THREADS": _ONE_BLOCK_THREADS}
    arguments = (logits, target, probability, loss, n, float(op.label_smoothing))
    build = Builder(specs)
    build.add("softmax_cross_entropy/fused", constants, arguments, 1, _ONE_BLOCK_THREADS)
    return build.selection("fused", "softmax_cross_entropy")


def _gradient(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs) or set(dtypes(node, specs)) - {"float32", "int64"}:
        return None
    op = cast(SoftmaxCrossEntropyGrad, node.op)
    probability = specs[node.inputs[0]]
    facts: tuple[Argument, ...] = (probability.shape[0], float(op.label_smoothing))
    build = Builder(specs)
    build.each(
        "softmax_cross_entropy_grad/naive",
        _constants(node, specs),
        (*tensors(node), *facts),
        probability.size,
    )
    return build.selection("naive", "softmax_cross_entropy_grad")


def _top_k(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    op = cast(TopKCorrect, node.op)
    n, classes = specs[node.inputs[0]].shape
    constants = {"K": classes, "TOP": min(op.k, classes)}
    build = Builder(specs)
    build.add("fill_zero/naive", {}, (Tensor(node.outputs[0]), 2), blocks=1, threads=32)
    build.each("topk/naive", constants, (*tensors(node), n), n, threads=64)
    return build.selection("naive", "topk")


def _served(node: Node, specs: Specs) -> bool:
    logits, target = (specs[name] for name in node.inputs[:2])
    labels = "int64" if len(target.shape) == 1 else "float32"
    if logits.dtype != "float32" or target.dtype != labels or logits.shape[1] == 0:
        return False
    return all(row_major(specs[name]) for name in (*node.inputs, *node.outputs))


def _constants(node: Node, specs: Specs) -> dict[str, int]:
    probability = len(specs[node.inputs[1]].shape) == 2
    return {"K": specs[node.inputs[0]].shape[1], "PROBABILITY": int(probability)}


LADDER = {
    ("SoftmaxCrossEntropy", "naive"): _forward,
    ("SoftmaxCrossEntropy", "fused"): _fused_forward,
    ("SoftmaxCrossEntropyGrad", "naive"): _gradient,
    ("TopKCorrect", "naive"): _top_k,
}
