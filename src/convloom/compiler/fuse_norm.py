"""Fusion of batch normalisation with what stands around it; fuse.py says when each rule runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from convloom.compiler.rewrite import Rewriter
from convloom.ir import Node, TensorSpec
from convloom.ops import (
    Add,
    BatchNorm,
    BatchNormGrad,
    BatchNormInference,
    Conv2d,
    FoldBatchNorm,
    FusedBatchNorm,
    FusedBatchNormGrad,
    FusedBatchNormInference,
    ReLU,
    ReLUGrad,
)

Accepts = Callable[[Node, dict[str, TensorSpec]], bool]


def fold_into_conv(rw: Rewriter, conv: Node, accepts: Accepts) -> None:
    """Conv2d + BatchNormInference: other filters and another bias do both.

    The filters are folded on every run, since parameters may change between runs. That pays where
    there are no more of them than there are outputs.
    """
    norm = rw.sole_reader(conv.outputs[0]) if type(conv.op) is Conv2d else None
    if norm is None or type(norm.op) is not BatchNormInference:
        return
    x, w, *bias = conv.inputs
    if rw.specs[w].size > rw.specs[conv.outputs[0]].size:
        return
    op = FoldBatchNorm(norm.op.eps, norm.op.affine, bias=bool(bias))
    row = TensorSpec(rw.specs[w].shape[:1], rw.specs[w].dtype)
    made = (rw.fresh(f"{w}.folded", rw.specs[w]), rw.fresh(f"{conv.layer}.bias.folded", row))
    fold = Node(op, (w, *bias, *norm.inputs[1:]), made, norm.layer)
    folded = Node(conv.op, (x, *made), norm.outputs, conv.layer)
    if accepts(fold, rw.specs) and accepts(folded, rw.specs):
        rw.replace((conv, norm), (fold, folded))


def norm_and_tail(rw: Rewriter, norm: Node, accepts: Accepts) -> None:
    """BatchNorm or its inference form, + Add, + ReLU: as much of that as there is a kernel for."""
    if type(norm.op) is BatchNorm:
        kind: type[FusedBatchNorm | FusedBatchNormInference] = FusedBatchNorm
    elif type(norm.op) is BatchNormInference:
        kind = FusedBatchNormInference
    else:
        return
    attributes = {f.name: getattr(norm.op, f.name) for f in fields(norm.op)}
    for tail in _tails(rw, norm.outputs[0]):
        adds = [node for node in tail if isinstance(node.op, Add)]
        others = [name for node in adds for name in node.inputs if name != norm.outputs[0]]
        relu = isinstance(tail[-1].op, ReLU)
        op = kind(**attributes, add=bool(adds), relu=relu)
        outputs = (*tail[-1].outputs, *norm.outputs[1:])
        fused = Node(op, (*norm.inputs, *others), outputs, norm.layer)
        if accepts(fused, rw.specs):
            rw.replace((norm, *tail), (fused,))
            return


def _tails(rw: Rewriter, tensor: str) -> list[tuple[Node, ...]]:
    """What may be joined to the node that makes a tensor, the longest first."""
    first = rw.sole_reader(tensor)
    if first is None:
        return []
    if type(first.op) is ReLU:
        return [(first,)]
    if type(first.op) is not Add or first.inputs[0] == first.inputs[1]:
        return []
    second = rw.sole_reader(first.outputs[0])
    if second is not None and type(second.op) is ReLU:
        return [(first, second), (first,)]
    return [(first,)]


def mask_and_norm_grad(rw: Rewriter, grad: Node, accepts: Accepts) -> None:
    """ReLUGrad + BatchNormGrad; the masked gradient is kept where others read it too."""
    if type(grad.op) is not BatchNormGrad:
        return
    mask = rw.producer(grad.inputs[0])
    if mask is None or type(mask.op) is not ReLUGrad:
        return
    (masked,) = mask.outputs
    keep = rw.sole_reader(masked) is not grad
    op = FusedBatchNormGrad(grad.op.affine, keep=keep)
    inputs = (mask.inputs[0], *grad.inputs[1:], mask.inputs[1])
    outputs = (*grad.outputs, masked) if keep else grad.outputs
    fused = Node(op, inputs, outputs, grad.layer)
    if accepts(fused, rw.specs):
        rw.replace((mask, grad), (fused,))
