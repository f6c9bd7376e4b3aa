"""On-chip segments: a chain of layers, its loss, gradients and update as one node.

A small network's images fit in on-chip memory, so one kernel can carry them through the whole
forward and backward pass. This pass finds the chain of layers that ends in the logits, the loss
behind it, and in a training step every node of their gradients; the update too where nothing, such
as clipping, stands between. One node of ops/chain.py takes their place if the backend has a kernel
for it. The chain begins at the network's input, else at the first layer from which a kernel serves.

It runs after layouts are chosen, so that parameters lie alike in plans with and without a segment
and all plans of a network share one storage; and before fusion, which would break the pattern.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from convloom.backends.base import Backend, refusal
from convloom.compiler.autodiff import differentiate
from convloom.compiler.rewrite import Rewriter
from convloom.ir import Graph, Node, Plan, Role
from convloom.ops import (
    SGD,
    AdamW,
    ChainEvaluate,
    ChainForward,
    ChainGradient,
    ChainUpdate,
    Dropout,
    GradientNorm,
    Op,
    Operands,
    SoftmaxCrossEntropy,
    SoftmaxCrossEntropyGrad,
    TopKCorrect,
)
from convloom.ops.chain import PRODUCTS, Chain
from convloom.ops.precision import FP32

#: The rung that segments need.
ONCHIP = "onchip"


@dataclass(frozen=True)
class Segmented:
    """What the pass made.

    Attributes:
        graph: with the segment's nodes replaced by one, where there is a segment.
        notes: for the plan: why there is none, or why it does not hold the whole network.
    """

    graph: Graph
    notes: tuple[str, ...] = ()


def segment(graph: Graph, backend: Backend, kernels: str, precision: str) -> Segmented:
    """The graph with its on-chip segment as one node, if the backend serves it.

    Args:
        kernels: ``auto``, or the highest rung that may be used; below ``onchip`` nothing is done.
        precision: of the products inside the segment.
    """
    if ONCHIP not in backend.rungs or kernels not in ("auto", ONCHIP):
        return Segmented(graph)
    try:
        trunk = _Trunk.of(graph)
    except _UnfitError as why:
        return Segmented(graph, (f"no on-chip segment: {why}",))
    reasons: list[str] = []
    for start in trunk.starts:
        reason = ""
        for make in (_forward,) if trunk.seed is None else (_update, _gradient):
            try:
                match = make(trunk, start, precision)
            except _UnfitError as unfit:
                reason = str(unfit)
                continue
            if backend.select(match.node, graph.specs, kernels) is not None:
                return Segmented(match.rewritten(graph), trunk.begun_late(start, reasons))
            reason = refusal(backend, match.node, graph.specs, kernels)
        reasons.append(reason)
    return Segmented(graph, (f"no on-chip segment: {reasons[0]}",) if reasons[0] else ())


def computed_in_fp32(graph: Graph, precision: str) -> tuple[str, ...]:
    """The note that names layers whose products are not computed in ``precision``; else nothing.

    To be asked after ``segment`` and before fusion.
    """
    if precision == FP32:
        return ()
    nodes = [node for node in graph.nodes if isinstance(node.op, PRODUCTS)]
    if not nodes:
        return ()
    layers = ", ".join(dict.fromkeys(node.title for node in nodes))
    return (f"only on-chip segments compute in {precision}; in fp32: {layers}",)


def has_segment(plan: Plan) -> bool:
    """Whether a step of the plan runs a chain of layers, loss and update among them."""
    return any(isinstance(step.node.op, Chain) for step in plan.steps)


def below_segments(backend: Backend) -> str:
    """The highest rung that runs layers one by one."""
    ladder = tuple(backend.rungs)
    return ladder[ladder.index(ONCHIP) - 1]


class _UnfitError(Exception):
    """Why some nodes are no segment; a clause for the plan's notes."""


@dataclass(frozen=True)
class _Trunk:
    """The longest chain of layers that ends in the logits, and the loss behind it."""

    graph: Graph
    layers: tuple[Node, ...]
    loss: Node | None
    correct: Node | None
    before: str

    @classmethod
    def of(cls, graph: Graph) -> _Trunk:
        """Raises _UnfitError where there is none."""
        losses = [node for node in graph.nodes if type(node.op) is SoftmaxCrossEntropy]
        counts = [node for node in graph.nodes if type(node.op) is TopKCorrect]
        if len(losses) > 1 or len(counts) > 1:
            raise _UnfitError("the network has more than one loss")
        loss, correct = (found[0] if found else None for found in (losses, counts))
        if (loss is None) != (correct is None):
            raise _UnfitError("loss and right answers do not come together")
        if loss is None and len(graph.outputs) != 1:
            raise _UnfitError("the network has more than one output")
        logits = graph.outputs[0] if loss is None else loss.inputs[0]
        if correct is not None and correct.inputs[0] != logits:
            raise _UnfitError("loss and right answers are those of different tensors")
        layers, before = _chain_to(graph, logits)
        if not any(isinstance(node.op, PRODUCTS) for node in layers):
            raise _UnfitError(before or "no Conv2d or Linear leads to the output")
        return cls(graph, layers, loss, correct, before)

    @property
    def starts(self) -> tuple[int, ...]:
        """Where a segment may begin: at the chain's first layer, or at one with parameters."""
        products = [i for i, node in enumerate(self.layers) if isinstance(node.op, PRODUCTS)]
        return tuple(sorted({0, *products}))

    @property
    def seed(self) -> str | None:
        """The gradient of the loss; None in a graph without gradients."""
        if self.loss is None:
            return None
        probability = self.loss.outputs[1]
        for node in self.graph.nodes:
            if type(node.op) is SoftmaxCrossEntropyGrad and node.inputs[0] == probability:
                return node.inputs[2]
        return None

    def begun_late(self, start: int, reasons: Sequence[str]) -> tuple[str, ...]:
        """The note of a segment that does not hold the whole network."""
        if not start and not self.before:
            return ()
        layer = self.layers[start].title
        why = reasons[0] if start and reasons else self.before
        return (f"the on-chip segment begins at {layer}: {why}",)


def _chain_to(graph: Graph, logits: str) -> tuple[tuple[Node, ...], str]:
    """The layers up to ``logits`` that read one tensor each, and what stands before them."""
    producers = {out: node for node in graph.nodes for out in node.outputs}
    layers: list[Node] = []
    tensor = logits
    while (node := producers.get(tensor)) is not None:
        if node.outputs[0] != tensor or not _is_stage(graph, node):
            return tuple(reversed(layers)), f"{node.title} cannot be part of a chain"
        layers.append(node)
        tensor = node.inputs[0]
    given = graph.role(tensor) is Role.INPUT
    return tuple(reversed(layers)), "" if given else f"{tensor} is not the network's input"


def _is_stage(graph: Graph, node: Node) -> bool:
    """Whether a node reads one tensor of the network and nothing a chain could not bring."""
    if not isinstance(node.op, Op) or not node.inputs:
        return False
    rest = node.inputs[1:]
    if isinstance(node.op, PRODUCTS):
        return all(graph.role(name) is Role.PARAMETER for name in rest)
    return len(rest) == (1 if isinstance(node.op, Dropout) else 0)


@dataclass(frozen=True)
class _Match:
    """Nodes that one node can stand for."""

    node: Node
    gone: tuple[Node, ...]

    def rewritten(self, graph: Graph) -> Graph:
        """The graph with the one node in place of the others."""
        rewriter = Rewriter(graph)
        rewriter.replace(self.gone, (self.node,))
        return rewriter.result()

    def checked(self, graph: Graph) -> _Match:
        """Raises _UnfitError if anybody needs a tensor that would not exist."""
        made = {out for node in self.gone for out in node.outputs} - set(self.node.outputs)
        if kept := sorted(made & graph.kept()):
            raise _UnfitError(f"{kept[0]} is read after the run, and a segment would not store it")
        gone = {id(node) for node in self.gone}
        for node in graph.nodes:
            if id(node) not in gone and made.intersection(node.inputs):
                name = next(name for name in node.inputs if name in made)
                raise _UnfitError(f"{node.title} reads {name}, which a segment would not store")
        return self


def _forward(trunk: _Trunk, start: int, precision: str) -> _Match:
    """Logits, and loss and right answers where the graph has them; no gradients."""
    layers = trunk.layers[start:]
    stages, bias, given = _described(trunk, layers)
    logits = layers[-1].outputs[0]
    if trunk.loss is None or trunk.correct is None:
        node = Node(
            ChainForward(stages, bias, precision), given.all(), (logits,), _layers_of(layers)
        )
        return _Match(node, layers).checked(trunk.graph)
    outputs = (logits, trunk.loss.outputs[0], trunk.correct.outputs[0])
    op = ChainEvaluate(stages, bias, precision)
    node = Node(op, given.all(), outputs, _layers_of(layers))
    return _Match(node, (*layers, trunk.loss, trunk.correct)).checked(trunk.graph)


def _gradient(trunk: _Trunk, start: int, precision: str) -> _Match:
    """Loss and gradients; the update stays a node of its own."""
    return _gradients(trunk, start, precision).checked(trunk.graph)


def _update(trunk: _Trunk, start: int, precision: str) -> _Match:
    """Loss, gradients and the update of every parameter of the network."""
    match = _gradients(trunk, start, precision)
    op = match.node.op
    assert isinstance(op, ChainGradient)
    operands = op.operands(match.node.inputs)
    grads = match.node.outputs[3 + op.needs_dx :]
    rule = _rule_for(trunk.graph, operands.parameters, grads)
    assert isinstance(rule.op, SGD | AdamW)
    order = [rule.inputs[1:].index(name) for name in operands.parameters]
    count = rule.op.count
    blocks = [rule.outputs[i : i + count] for i in range(0, len(rule.outputs), count)]
    states = rule.inputs[1 + 2 * count :]
    old = [states[i : i + count] for i in range(0, len(states), count)]
    updated = ChainUpdate(
        op.stages,
        op.bias,
        op.precision,
        op.needs_dx,
        replace(
            rule.op,
            decay=tuple(rule.op.decay[i] for i in order),
            rate=tuple(rule.op.rate[i] for i in order),
        ),
    )
    inputs = replace(
        operands,
        hyper=rule.inputs[0],
        states=tuple(block[i] for block in old for i in order),
    )
    outputs = (*match.node.outputs, *(block[i] for block in blocks for i in order))
    node = Node(updated, inputs.all(), outputs, match.node.layer)
    return _Match(node, (*match.gone, rule)).checked(trunk.graph)


def _rule_for(graph: Graph, parameters: Sequence[str], grads: Sequence[str]) -> Node:
    """The node that updates these parameters and no others by these gradients."""
    for node in graph.nodes:
        if isinstance(node.op, GradientNorm):
            raise _UnfitError("gradients are clipped by their norm before the update")
        if isinstance(node.op, SGD | AdamW):
            count, first = node.op.count, node.op.first
            pairs = zip(node.inputs[first:][:count], node.inputs[first + count :], strict=False)
            if not node.op.clip and dict(pairs) == dict(zip(parameters, grads, strict=True)):
                return node
    raise _UnfitError("the update takes other parameters or gradients than the chain's")


def _gradients(trunk: _Trunk, start: int, precision: str) -> _Match:
    """Match every gradient node of the chain, by deriving them again and looking each up."""
    layers = trunk.layers[start:]
    if trunk.loss is None or trunk.correct is None or trunk.seed is None:
        raise _UnfitError("the graph has no gradients")
    stages, bias, given = _described(trunk, layers)
    forward = (*layers, trunk.loss, trunk.correct)
    needs_dx = _has_gradient(trunk, given.x)
    wanted = ((given.x,) if needs_dx else ()) + given.parameters
    found = _Found(trunk.graph)
    graph = _alone(trunk.graph, forward, trunk.seed)
    derived = differentiate(graph, trunk.loss.outputs[0], trunk.seed, wanted)
    backward = tuple(found.node(node) for node in derived.nodes[len(forward) :])
    missing = [name for name in wanted if name not in derived.gradients]
    if missing:
        raise _UnfitError(f"{missing[0]} has no gradient")
    grads = tuple(found.name(derived.gradients[name]) for name in wanted)
    op = ChainGradient(stages, bias, precision, needs_dx)
    logits = layers[-1].outputs[0]
    outputs = (logits, trunk.loss.outputs[0], trunk.correct.outputs[0], *grads)
    inputs = replace(given, dloss=trunk.seed).all()
    return _Match(Node(op, inputs, outputs, _layers_of(layers)), (*forward, *backward))


class _Found:
    """Nodes of a graph, looked up by what they compute from what.

    Derived nodes name their tensors as they like; ``name`` gives the graph's own name.
    """

    def __init__(self, graph: Graph) -> None:
        self._nodes = {(node.op, node.inputs): node for node in graph.nodes}
        self._names: dict[str, str] = {}

    def name(self, derived: str) -> str:
        """The graph's name of a derived tensor; those of the forward pass have one name."""
        return self._names.get(derived, derived)

    def node(self, derived: Node) -> Node:
        """The graph's node that does what a derived one does. Raises _UnfitError without one."""
        inputs = tuple(self.name(name) for name in derived.inputs)
        node = self._nodes.get((derived.op, inputs))
        if node is None:
            raise _UnfitError(f"the gradient {derived.title} is not computed by the chain alone")
        self._names.update(zip(derived.outputs, node.outputs, strict=True))
        return node


def _alone(graph: Graph, nodes: tuple[Node, ...], seed: str) -> Graph:
    """Some nodes of a graph as a graph of their own; what they read from others is declared."""
    made = {out for node in nodes for out in node.outputs}
    read = {name for node in nodes for name in node.inputs} | {seed}
    roles = {name: graph.roles.get(name, Role.INPUT) for name in sorted(read - made)}
    specs = {name: graph.specs[name] for name in sorted(read | made)}
    return Graph(nodes, specs, roles, outputs=(), updates={}, gradients={})


def _has_gradient(trunk: _Trunk, tensor: str) -> bool:
    """Whether layers before ``tensor`` have parameters, so that its gradient is needed."""
    producers = {out: node for node in trunk.graph.nodes for out in node.outputs}
    reached, open_ = {tensor}, [tensor]
    while open_:
        node = producers.get(open_.pop())
        new = set(node.inputs) - reached if node is not None else set()
        if any(trunk.graph.role(name) is Role.PARAMETER for name in new):
            return True
        reached |= new
        open_ += sorted(new)
    return False


def _described(
    trunk: _Trunk, layers: Sequence[Node]
) -> tuple[tuple[Op, ...], tuple[bool, ...], Operands[str]]:
    """The stages, which of them have a bias, and the operands but for gradients and updates."""
    products = [node for node in layers if isinstance(node.op, PRODUCTS)]
    parameters = tuple(name for node in products for name in node.inputs[1:])
    if len(set(parameters)) != len(parameters):
        raise _UnfitError("layers share their weights")
    counters = [node.inputs[1] for node in layers if isinstance(node.op, Dropout)]
    ends = [node for node in (trunk.loss, trunk.correct) if node is not None]
    stages = tuple(node.op for node in (*layers, *ends) if isinstance(node.op, Op))
    target = label = None
    if trunk.loss is not None and trunk.correct is not None:
        target, label = trunk.loss.inputs[1], trunk.correct.inputs[1]
        if label == target:
            label = None
        elif len(trunk.graph.specs[target].shape) == 1:
            raise _UnfitError("loss and right answers are counted by different labels")
    operands = Operands(
        layers[0].inputs[0], parameters, target, label, counters[0] if counters else None
    )
    return stages, tuple(len(node.inputs) > 2 for node in products), operands


def _layers_of(layers: Sequence[Node]) -> str:
    first, last = layers[0].layer, layers[-1].layer
    return first if first == last else f"{first}…{last}"
