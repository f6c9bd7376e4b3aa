"""Kernels for softmax cross-entropy, its gradient, and metrics of right answers."""

from __future__ import annotations

from typing import cast

from convloom.backends.cuda.launch import Argument, Tensor, Workspace
from convloom.backends.cuda.selectors.common import (
    ABSENT,
    Builder,
    Specs,
    ceil_div,
    dtypes,
    row_major,
    tensors,
)
from convloom.ir import Node, Selection
from convloom.ops import SoftmaxCrossEntropy, SoftmaxCrossEntropyGrad, TopKCorrect, TopKError

#: What one block may take on alone: samples, classes, and its threads.
_ONE_BLOCK_SAMPLES, _ONE_BLOCK_CLASSES, _ONE_BLOCK_THREADS = 1024, 64, 256

#: Of the warp rung: threads of a block, rounds over samples that one block makes alone, and most
#: blocks, beyond which blocks go round again.
_ROW_THREADS, _ROUNDS, _MOST_BLOCKS = 512, 4, 1024


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


def _warp_forward(node: Node, specs: Specs) -> Selection | None:
    """A small batch takes one launch, a large one two."""
    if not _served(node, specs):
        return None
    op = cast(SoftmaxCrossEntropy, node.op)
    n, classes = specs[node.inputs[0]].shape
    logits, target = (Tensor(name) for name in node.inputs)
    loss, probability = (Tensor(name) for name in node.outputs)
    build, blocks = Builder(specs), _row_blocks(n, classes)
    partial = build.workspace(8 * blocks) if blocks > 1 else ABSENT
    constants = _constants(node, specs) | {"THREADS": _ROW_THREADS}
    arguments = (logits, target, probability, partial, loss, n, float(op.label_smoothing))
    build.add("softmax_cross_entropy/warp", constants, arguments, blocks, _ROW_THREADS)
    if blocks > 1:
        threads = {"THREADS": _ROW_THREADS}
        build.add("mean_of_partials/warp", threads, (partial, loss, blocks, n), 1, _ROW_THREADS)
    return build.selection("warp", "softmax_cross_entropy")


def _warp_gradient(node: Node, specs: Specs) -> Selection | None:
    """Serves distributions as targets; with labels nothing is summed."""
    if len(specs[node.inputs[1]].shape) != 2 or not _served(node, specs):
        return None
    op = cast(SoftmaxCrossEntropyGrad, node.op)
    n = specs[node.inputs[0]].shape[0]
    facts: tuple[Argument, ...] = (n, float(op.label_smoothing))
    build = Builder(specs)
    build.each(
        "softmax_cross_entropy_grad/warp",
        _constants(node, specs),
        (*tensors(node), *facts),
        32 * n,
    )
    return build.selection("warp", "softmax_cross_entropy_grad")


def _warp_top_k(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    n, classes = specs[node.inputs[0]].shape
    constants = _ranked(node, specs) | {"THREADS": _ROW_THREADS}
    build, blocks = Builder(specs), _row_blocks(n, classes)
    if blocks > 1:
        build.add("fill_zero/naive", {}, (Tensor(node.outputs[0]), 2), blocks=1, threads=32)
    build.add("topk/warp", constants, (*tensors(node), n), blocks, _ROW_THREADS)
    return build.selection("warp", "topk")


def _warp_top_k_error(node: Node, specs: Specs) -> Selection | None:
    """A small batch takes one launch, a large one three."""
    if not _served(node, specs):
        return None
    n, classes = specs[node.inputs[0]].shape
    scores, target, error = tensors(node)
    build, blocks = Builder(specs), _row_blocks(n, classes)
    partial = build.workspace(16 * blocks) if blocks > 1 else ABSENT
    constants = _ranked(node, specs) | {"THREADS": _ROW_THREADS}
    build.add(
        "topk_error/warp", constants, (scores, target, partial, error, n), blocks, _ROW_THREADS
    )
    if isinstance(partial, Workspace):
        _means(build, "warp", partial, error, blocks, n)
    return build.selection("warp", "topk_error")


def _means(
    build: Builder, rung: str, partial: Workspace, error: Tensor, count: int, n: int
) -> None:
    """Both errors, of ``count`` sums each."""
    threads = _ROW_THREADS if rung == "warp" else 32
    constants = {"THREADS": threads} if rung == "warp" else {}
    for at in range(2):
        sums = Workspace(partial.offset + 8 * count * at)
        to = Tensor(error.name, 4 * at)
        build.add(f"mean_of_partials/{rung}", constants, (sums, to, count, n), 1, threads)


def _row_blocks(n: int, classes: int) -> int:
    """Blocks for n rows of logits: one where it needs few rounds, else one for each round."""
    at_once = _ROW_THREADS // min(32, 1 << (classes - 1).bit_length())
    rounds = ceil_div(n, at_once)
    return 1 if rounds <= _ROUNDS else min(rounds, _MOST_BLOCKS)


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
    n = specs[node.inputs[0]].shape[0]
    build = Builder(specs)
    build.add("fill_zero/naive", {}, (Tensor(node.outputs[0]), 2), blocks=1, threads=32)
    build.each("topk/naive", _ranked(node, specs), (*tensors(node), n), n, threads=64)
    return build.selection("naive", "topk")


def _top_k_error(node: Node, specs: Specs) -> Selection | None:
    if not _served(node, specs):
        return None
    n = specs[node.inputs[0]].shape[0]
    scores, target, error = tensors(node)
    build = Builder(specs)
    wrong = build.workspace(16 * max(n, 1))
    build.each("topk_error/naive", _ranked(node, specs), (scores, target, wrong, n), n, threads=64)
    _means(build, "naive", wrong, error, n, n)
    return build.selection("naive", "topk_error")


def _ranked(node: Node, specs: Specs) -> dict[str, int]:
    classes = specs[node.inputs[0]].shape[1]
    return {"K": classes, "TOP": min(cast(TopKCorrect | TopKError, node.op).k, classes)}


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
    ("SoftmaxCrossEntropy", "warp"): _warp_forward,
    ("SoftmaxCrossEntropyGrad", "naive"): _gradient,
    ("SoftmaxCrossEntropyGrad", "warp"): _warp_gradient,
    ("TopKCorrect", "naive"): _top_k,
    ("TopKCorrect", "warp"): _warp_top_k,
    ("TopKError", "naive"): _top_k_error,
    ("TopKError", "warp"): _warp_top_k_error,
}
