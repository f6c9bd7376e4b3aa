"""Fusion of normalisations with what stands around them; fuse.py says when each rule runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from convloom.compiler.rewrite import Rewriter
from convloom.ir import Node, TensorSpec
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    BatchNorm,
    BatchNormGrad,
    BatchNormInference,
    Conv2d,
    FoldBatchNorm,
    FusedBatchNorm,
    FusedBatchNormGrad,
    FusedBatchNormInference,
    FusedLocalResponseNormGrad,
    LocalResponseNormGrad,
    ReLU,
    ReLUGrad,
)
from convloom.ops.fused import EPILOGUES, NONE, RELU

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
    """BatchNorm or its inference form, + Add, + activation: as much as there is a kernel for."""
    if type(norm.op) is BatchNorm:
        kind: type[FusedBatchNorm | FusedBatchNormInference] = FusedBatchNorm
    elif type(norm.op) is BatchNormInference:
        kind = FusedBatchNormInference
    else:
        return
    attributes = {f.name: getattr(norm.op, f.name) for f in fields(norm.op)}
    for tail in _tails(rw, norm):
        adds = [node for node in tail if isinstance(node.op, Add)]
        others = [name for node in adds for name in node.inputs if name != norm.outputs[0]]
        activation, a, b = epilogue(tail[-1]) or (NONE, 0.0, 0.0)
        op = kind(**attributes, add=bool(adds), activation=activation, a=a, b=b)
        outputs = (*tail[-1].outputs, *norm.outputs[1:])
        fused = Node(op, (*norm.inputs, *others), outputs, norm.layer)
        if accepts(fused, rw.specs):
            rw.replace((norm, *tail), (fused,))
            return


def _tails(rw: Rewriter, norm: Node) -> list[tuple[Node, ...]]:
    """What may be joined to a norm, the longest first."""
    first = rw.sole_reader(norm.outputs[0])
    if first is None:
        return []
    if epilogue(first) is not None:
        return [(first,)]
    if type(first.op) is not Add or first.inputs[0] == first.inputs[1]:
        return []
    if any(rw.readers(new) for new in norm.outputs[3:]):
        return []  # the layer normalises again later, and what is added may come from there
    second = rw.sole_reader(first.outputs[0])
    if second is not None and epilogue(second) is not None:
        return [(first, second), (first,)]
    return [(first,)]


def gate_and_norm_grad(rw: Rewriter, grad: Node, accepts: Accepts) -> None:
    """ReLUGrad, or another activation's, + BatchNormGrad.

    What passed is kept where others read it too. Where nothing was added between norm and
    activation, the activation's output is computed again instead of read.
    """
    if type(grad.op) is not BatchNormGrad:
        return
    gate = rw.producer(grad.inputs[0])
    activation = _gradient_of(gate)
    if gate is None or activation is None:
        return
    (passed,) = gate.outputs
    rows = _computes_again(rw.producer(gate.inputs[1]), grad, activation)
    keep, again = rw.sole_reader(passed) is not grad, rows is not None
    op = FusedBatchNormGrad(grad.op.affine, *activation, keep=keep, again=again)
    last = (gate.inputs[1],) if rows is None else rows
    inputs = (gate.inputs[0], *grad.inputs[1:], *last)
    outputs = (*grad.outputs, passed) if keep else grad.outputs
    fused = Node(op, inputs, outputs, grad.layer)
    if accepts(fused, rw.specs):
        rw.replace((gate, grad), (fused,))


def response_norm_grad_and_mask(rw: Rewriter, grad: Node, accepts: Accepts) -> None:
    """LocalResponseNormGrad + the mask of the rectifier that made the norm's input."""
    if type(grad.op) is not LocalResponseNormGrad:
        return
    (dx,) = grad.outputs
    mask = rw.sole_reader(dx)
    if mask is None or type(mask.op) is not ReLUGrad or mask.inputs != (dx, grad.inputs[1]):
        return
    attributes = {f.name: getattr(grad.op, f.name) for f in fields(grad.op)}
    fused = Node(FusedLocalResponseNormGrad(**attributes), grad.inputs, mask.outputs, grad.layer)
    if accepts(fused, rw.specs):
        rw.replace((grad, mask), (fused,))


def _gradient_of(node: Node | None) -> tuple[str, float, float] | None:
    """The activation whose gradient a node takes, from its output; None if it is no such node."""
    if node is not None and type(node.op) is ReLUGrad:
        return RELU, 0.0, 0.0
    if node is None or not isinstance(node.op, ActivationGrad):
        return None
    known = node.op.kind in EPILOGUES and node.op.reads == "y"
    return (node.op.kind, node.op.a, node.op.b) if known else None


def _computes_again(
    norm: Node | None, grad: Node, activation: tuple[str, float, float]
) -> tuple[str, ...] | None:
    """The norm's bias, if any, where a node makes the activation's output of what ``grad`` has."""
    op = None if norm is None else norm.op
    if norm is None or not isinstance(op, FusedBatchNorm) or op.add:
        return None
    same = (norm.inputs[0], *norm.outputs[1:3]) == grad.inputs[1:4]
    if not same or (op.activation, op.a, op.b) != activation:
        return None
    return norm.inputs[2:3] if op.affine else ()


def epilogue(node: Node | None) -> tuple[str, float, float] | None:
    """The activation that a node is, as a fused layer has it; None if it is none of those."""
    if node is not None and type(node.op) is ReLU:
        return RELU, 0.0, 0.0
    if node is not None and isinstance(node.op, Activation) and node.op.kind in EPILOGUES:
        return node.op.kind, node.op.a, node.op.b
    return None
