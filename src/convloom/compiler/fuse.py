"""Fusion: neighbouring nodes that one kernel can do without storing what lies between.

Each rule looks for one pattern, and a fused node is taken only where the backend has a kernel for
it above the reference rung. Rules, in the order they run:

    forward    Conv2d + BatchNormInference                        -> FoldBatchNorm, Conv2d
               BatchNorm or its inference form [+ Add] [+ act.]   -> FusedBatchNorm*
               Conv2d + activation                                -> FusedConv2d
               Conv2d [+ ReLU] + MaxPool2d 2x2 (+ their gradients) -> FusedConv2d, PooledConv2dGrad
               Linear + activation                                -> FusedLinear
               Add or WeightedSum + ReLU                          -> FusedSum
    backward   ReLUGrad behind MaxPool2dGrad                      -> ReLUGrad before it
               ReLUGrad behind Unflatten                          -> ReLUGrad before it
               *Wgrad + BiasGrad                                  -> Fused*Wgrad
               ReLUGrad or another + BatchNormGrad                -> FusedBatchNormGrad
               LocalResponseNormGrad + ReLUGrad                   -> the same with a mask
               *Dgrad + ReLUGrad or another                       -> Fused*Dgrad with a mask

A max-pool passes its gradient only to the cells that won, and where a cell won, the pooled value
is the cell's value. So ReLU's mask may be read from the pooled map instead of the full one, and
the full map need not exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace

from convloom.backends.base import Backend
from convloom.compiler.fuse_norm import (
    epilogue,
    fold_into_conv,
    gate_and_norm_grad,
    norm_and_tail,
    response_norm_grad_and_mask,
)
from convloom.compiler.rewrite import Rewriter
from convloom.ir import Graph, Node, TensorSpec
from convloom.ops import (
    ActivationGrad,
    Add,
    BiasGrad,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    FusedConv2d,
    FusedConv2dDgrad,
    FusedConv2dWgrad,
    FusedLinear,
    FusedLinearDgrad,
    FusedLinearWgrad,
    FusedSum,
    Linear,
    LinearDgrad,
    LinearWgrad,
    MaxPool2d,
    MaxPool2dGrad,
    Op,
    PooledConv2dGrad,
    ReLU,
    ReLUGrad,
    Unflatten,
    WeightedSum,
)
from convloom.ops.conv2d import ConvGeometry
from convloom.ops.fused import EPILOGUES, MASKS

Accepts = Callable[[Node, dict[str, TensorSpec]], bool]


def fuse(graph: Graph, backend: Backend, kernels: str) -> Graph:
    """The graph with every fusion that the backend's kernels up to ``kernels`` can run."""

    def accepts(node: Node, specs: dict[str, TensorSpec]) -> bool:
        selection = backend.select(node, specs, kernels)
        return selection is not None and selection.rung != "reference"

    for rule in _RULES:
        rewriter = Rewriter(graph)
        for node in rewriter.nodes():
            if rewriter.present(node):
                rule(rewriter, node, accepts)
        graph = rewriter.result()
    return graph


def _conv_activation(rw: Rewriter, conv: Node, accepts: Accepts) -> None:
    """Conv2d + activation. The convolution's own output must serve nobody else."""
    follower = rw.sole_reader(conv.outputs[0]) if type(conv.op) is Conv2d else None
    ending = epilogue(follower)
    if follower is None or ending is None:
        return
    op = FusedConv2d(*_geometry(conv.op), *ending, pool=0)
    fused = Node(op, conv.inputs, follower.outputs, conv.layer)
    if accepts(fused, rw.specs):
        rw.replace((conv, follower), (fused,))


def _linear_activation(rw: Rewriter, linear: Node, accepts: Accepts) -> None:
    follower = rw.sole_reader(linear.outputs[0]) if type(linear.op) is Linear else None
    ending = epilogue(follower)
    if follower is None or ending is None:
        return
    fused = Node(FusedLinear(*ending), linear.inputs, follower.outputs, linear.layer)
    if accepts(fused, rw.specs):
        rw.replace((linear, follower), (fused,))


def _sum_relu(rw: Rewriter, add: Node, accepts: Accepts) -> None:
    """A residual connection and the rectifier behind it."""
    if isinstance(add.op, WeightedSum):
        op = FusedSum(add.op.coefficients)
    elif isinstance(add.op, Add):
        op = FusedSum((1.0, 1.0))
    else:
        return
    relu = rw.sole_reader(add.outputs[0])
    if relu is None or type(relu.op) is not ReLU:
        return
    fused = Node(op, add.inputs, relu.outputs, add.layer)
    if accepts(fused, rw.specs):
        rw.replace((add, relu), (fused,))


def _conv_pool(rw: Rewriter, conv: Node, accepts: Accepts) -> None:
    """Convolution (with or without ReLU) + 2x2 max-pool, and the gradients of all three.

    Afterwards the full map between convolution and pool does not exist, so every reader of it
    must be part of the pattern.
    """
    match = _PoolMatch.find(rw, conv)
    if match is None:
        return
    pooled = match.pool.outputs[0]
    index = rw.fresh(f"{pooled}.argmax", replace(rw.specs[pooled], dtype="uint8"))
    op = FusedConv2d(*_geometry(conv.op), activation=match.activation, pool=2)
    forward = Node(op, conv.inputs, (pooled, index), conv.layer)
    if not accepts(forward, rw.specs):
        return
    if not match.gradients:
        rw.replace((conv, match.pool), (forward,))
        return
    backward = match.backward(rw, index)
    if accepts(backward[-1], rw.specs):
        rw.replace((conv, match.pool), (forward,))
        rw.replace((match.pool_grad, *match.relu_grad, *match.gradients), backward)


class _PoolMatch:
    """The nodes around one convolution followed by a 2x2 max-pool."""

    def __init__(self, conv: Node, pool: Node, activation: str) -> None:
        self.conv = conv
        self.pool = pool
        self.activation = activation
        self.relu_grad: tuple[Node, ...] = ()
        self.gradients: tuple[Node, ...] = ()
        self.pool_grad: Node = pool

    @classmethod
    def find(cls, rw: Rewriter, conv: Node) -> _PoolMatch | None:
        activation = _activation_of(conv.op)
        full = conv.outputs[0]
        if activation is None or full in rw.kept:
            return None
        readers = rw.readers(full)
        pools = [node for node in readers if _is_2x2_pool(node.op, rw.specs[full])]
        if len(pools) != 1 or pools[0].outputs[1] in rw.kept:
            return None
        match = cls(conv, pools[0], activation)
        rest = [node for node in readers if node is not pools[0]]
        return match if match._take_gradients(rw, rest) else None

    def _take_gradients(self, rw: Rewriter, rest: Sequence[Node]) -> bool:
        """Collect the backward nodes; False if one of them serves anyone outside the pattern."""
        pool_grad = rw.readers(self.pool.outputs[1])
        if not pool_grad:
            return not rest
        if len(pool_grad) != 1 or type(pool_grad[0].op) is not MaxPool2dGrad:
            return False
        self.pool_grad = pool_grad[0]
        arriving = self.pool_grad.outputs[0]
        if self.activation == "relu":
            masked = rw.sole_reader(arriving)
            if masked is None or type(masked.op) is not ReLUGrad or list(rest) != [masked]:
                return False
            self.relu_grad = (masked,)
            arriving = masked.outputs[0]
        elif rest:
            return False
        self.gradients = tuple(rw.readers(arriving))
        kinds = {type(node.op) for node in self.gradients}
        complete = Conv2dWgrad in kinds and kinds <= {Conv2dWgrad, Conv2dDgrad, BiasGrad}
        return complete and len(kinds) == len(self.gradients) and arriving not in rw.kept

    def backward(self, rw: Rewriter, index: str) -> tuple[Node, ...]:
        """ReLU's mask on the pooled map, then all gradients of the convolution in one node."""
        made = {type(node.op): node.outputs[0] for node in self.gradients}
        arriving = self.pool_grad.inputs[0]
        before: tuple[Node, ...] = ()
        if self.relu_grad:
            masked = rw.fresh(f"{arriving}.masked", rw.specs[arriving])
            pooled = self.pool.outputs[0]
            before = (Node(ReLUGrad(), (arriving, pooled), (masked,), self.conv.layer),)
            arriving = masked
        x, w = self.conv.inputs[:2]
        op = PooledConv2dGrad(
            *_geometry(self.conv.op),
            size=_hw(rw.specs[x]),
            kernel=_hw(rw.specs[w]),
            mask="none",
            needs_dx=Conv2dDgrad in made,
            has_bias=BiasGrad in made,
        )
        outputs = tuple(made[kind] for kind in (Conv2dWgrad, BiasGrad, Conv2dDgrad) if kind in made)
        return (*before, Node(op, (x, w, arriving, index), outputs, self.conv.layer))


def _mask_before_pool(rw: Rewriter, mask: Node, accepts: Accepts) -> None:
    """ReLUGrad(MaxPool2dGrad(d, …), x) = MaxPool2dGrad(ReLUGrad(d, y), …) for the pool's own x, y.

    An input that receives gradient equals its window's maximum y, so both have one mask; the
    pooled map is smaller, and the layer that made d can often take the mask along.
    """
    if type(mask.op) is not ReLUGrad:
        return
    back = rw.producer(mask.inputs[0])
    if back is None or type(back.op) is not MaxPool2dGrad:
        return
    if rw.sole_reader(back.outputs[0]) is not mask:
        return
    d, *rest = back.inputs
    pool = rw.producer(rest[-1])
    if pool is None or type(pool.op) is not MaxPool2d or pool.inputs[0] != mask.inputs[1]:
        return
    masked = rw.fresh(f"{d}.masked", rw.specs[d])
    early = Node(ReLUGrad(), (d, pool.outputs[0]), (masked,), mask.layer)
    if accepts(early, rw.specs):
        late = Node(back.op, (masked, *rest), mask.outputs, back.layer)
        rw.replace((back, mask), (early, late))


def _mask_before_unflatten(rw: Rewriter, mask: Node, accepts: Accepts) -> None:
    """ReLUGrad(Unflatten(d), y) = Unflatten(ReLUGrad(d, Flatten(y))) where Flatten(y) exists."""
    if _mask_of(mask.op) is None:
        return
    unflatten = rw.producer(mask.inputs[0])
    if unflatten is None or type(unflatten.op) is not Unflatten:
        return
    if rw.sole_reader(unflatten.outputs[0]) is not mask:
        return
    d = unflatten.inputs[0]
    flat = [
        node.outputs[0]
        for node in rw.readers(mask.inputs[1])
        if node.op.name == "Flatten" and rw.specs[node.outputs[0]] == rw.specs[d]
    ]
    if not flat:
        return
    masked = rw.fresh(f"{d}.masked", rw.specs[d])
    early = Node(mask.op, (d, flat[0]), (masked,), mask.layer)
    late = Node(unflatten.op, (masked,), mask.outputs, unflatten.layer)
    rw.replace((unflatten, mask), (early, late))


def _weight_and_bias(rw: Rewriter, wgrad: Node, accepts: Accepts) -> None:
    """Conv2dWgrad or LinearWgrad + BiasGrad of the same dy: one pass over dy makes both."""
    if type(wgrad.op) is Conv2dWgrad:
        op: Op = FusedConv2dWgrad(*_geometry(wgrad.op), kernel=wgrad.op.kernel)
    elif type(wgrad.op) is LinearWgrad:
        op = FusedLinearWgrad()
    else:
        return
    dy = wgrad.inputs[1]
    biases = [
        node for node in rw.readers(dy) if type(node.op) is BiasGrad and node.layer == wgrad.layer
    ]
    if len(biases) != 1:
        return
    fused = Node(op, wgrad.inputs, (*wgrad.outputs, *biases[0].outputs), wgrad.layer)
    if accepts(fused, rw.specs):
        rw.replace((wgrad, biases[0]), (fused,))


def _dgrad_mask(rw: Rewriter, dgrad: Node, accepts: Accepts) -> None:
    """An input gradient + the mask of the activation that made that input."""
    dx = dgrad.outputs[-1]
    mask = rw.sole_reader(dx)
    if mask is None or mask.inputs[0] != dx:
        return
    activation = _mask_of(mask.op)
    op = None if activation is None else _masked_dgrad(dgrad.op, *activation)
    if op is None:
        return
    if isinstance(dgrad.op, PooledConv2dGrad):
        if mask.inputs[1] != dgrad.inputs[0]:
            return
        inputs = dgrad.inputs
    else:
        inputs = (*dgrad.inputs, mask.inputs[1])
    fused = Node(op, inputs, (*dgrad.outputs[:-1], *mask.outputs), dgrad.layer)
    if accepts(fused, rw.specs):
        rw.replace((dgrad, mask), (fused,))


def _masked_dgrad(op: object, mask: str, a: float, b: float) -> Op | None:
    if type(op) is Conv2dDgrad:
        return FusedConv2dDgrad(*_geometry(op), size=op.size, mask=mask, a=a, b=b)
    if type(op) is LinearDgrad:
        return FusedLinearDgrad(mask, a, b)
    if isinstance(op, PooledConv2dGrad) and op.needs_dx and (op.mask, mask) == ("none", "relu"):
        return replace(op, mask=mask)
    return None


def _mask_of(op: object) -> tuple[str, float, float] | None:
    """The activation whose gradient an op is, as fused gradients have it: told by the output."""
    if type(op) is ReLUGrad:
        return "relu", 0.0, 0.0
    if isinstance(op, ActivationGrad) and op.kind in MASKS and op.reads == "y":
        return op.kind, op.a, op.b
    return None


_RULES = (
    fold_into_conv,
    norm_and_tail,
    _conv_activation,
    _conv_pool,
    _linear_activation,
    _sum_relu,
    _mask_before_pool,
    _mask_before_unflatten,
    _weight_and_bias,
    gate_and_norm_grad,
    response_norm_grad_and_mask,
    _dgrad_mask,
)


def _activation_of(op: object) -> str | None:
    if type(op) is Conv2d:
        return "none"
    if isinstance(op, FusedConv2d) and op.pool == 0 and op.activation not in EPILOGUES:
        return op.activation
    return None


def _is_2x2_pool(op: object, full: TensorSpec) -> bool:
    """A 2x2 max-pool of stride 2 without padding whose windows all lie inside the map."""
    if type(op) is not MaxPool2d:
        return False
    plain = (op.kernel, op.stride, op.padding, op.dilation) == ((2, 2), (2, 2), (0, 0), (1, 1))
    plain = plain and op.outputs is None and op.ties == "first" and not op.magnitude
    even = full.shape[2] % 2 == 0 and full.shape[3] % 2 == 0
    return plain and (even or not op.ceil_mode)


def _geometry(op: object) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
    assert isinstance(op, ConvGeometry)
    stride, padding, dilation, groups = (getattr(op, f.name) for f in fields(ConvGeometry))
    return stride, padding, dilation, groups


def _hw(spec: TensorSpec) -> tuple[int, int]:
    return spec.shape[2], spec.shape[3]
