"""Whole graphs around a traced network: predict, evaluate, train.

Names that every graph shares: ``input``, ``target`` (labels, probabilities or values), ``label``
(class numbers, for counting right answers), ``output`` (logits), ``loss``, ``correct``, and for a
sum of losses ``costs``, each by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from convloom.compiler.autodiff import differentiate
from convloom.compiler.inference import for_inference
from convloom.compiler.rewrite import without_dead_code
from convloom.ir import Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.nn.losses import LossSum
from convloom.ops import (
    Figures,
    GradientNorm,
    OneHot,
    Op,
    TopKCorrect,
    TopKError,
    WeightedSum,
)

SCALAR = TensorSpec(())


class OneLoss(Protocol):
    """What a loss must offer: the op that compares the output with a target."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The kinds of target it takes: names of ``TargetKind``."""
        ...

    def op(self, target: str) -> Op:
        """The op for targets of a kind; its first output is the loss."""
        ...


#: A loss, or several whose sum is made small.
Loss = OneLoss | LossSum


class Optimizer(Protocol):
    """What an update rule must offer; ``training.optim`` has SGD and AdamW."""

    @property
    def slots(self) -> tuple[str, ...]:
        """What the control tensor ``hyper`` holds, in order."""
        ...

    @property
    def reads(self) -> tuple[str, ...]:
        """Buffers of the network that the op reads, behind everything else."""
        ...

    def kept(self, names: Sequence[str]) -> tuple[str, ...]:
        """The states for the named parameters, ``<parameter>.momentum``, in the op's order."""
        ...

    def op(self, names: tuple[str, ...], clip: bool) -> Op:
        """The op that updates the named parameters, all at once."""
        ...

    def hyper(self, step: int) -> dict[str, float]:
        """The hyper values of one update, given the number of updates before it."""
        ...


@dataclass(frozen=True)
class TargetKind:
    """How the truth is given: class numbers (N,), probabilities (N, K), or values of any shape."""

    name: str

    def spec(self, output: TensorSpec) -> TensorSpec:
        """The spec of the tensor ``target``."""
        if self.name == "index":
            return TensorSpec(output.shape[:1], "int64")
        return TensorSpec(output.shape)


INDEX, PROBABILITY = TargetKind("index"), TargetKind("probability")
#: One number for each element of the output, whatever its shape.
VALUE = TargetKind("value")


def usual_kind(loss: Loss, output: TensorSpec) -> TargetKind:
    """Class numbers where the output can be compared with such, else values."""
    return VALUE if VALUE.name in loss.targets and len(output.shape) != 2 else INDEX


def prediction_graph(forward: Graph) -> Graph:
    """The network as it predicts: dropout and its like are gone, and further outputs."""
    return _without_unused_controls(for_inference(forward.replacing(outputs=forward.outputs[:1])))


def evaluation_graph(forward: Graph, loss: Loss, kind: TargetKind) -> Graph:
    """Logits, mean loss and right answers; nothing is updated."""
    return _without_unused_controls(for_inference(with_loss(forward, loss, kind)))


def training_graph(
    forward: Graph, loss: Loss, kind: TargetKind, optimizer: Optimizer, clip: bool
) -> Graph:
    """Forward, loss, gradients, update: everything one training step does.

    Args:
        clip: whether gradients are scaled down to the norm in ``hyper``'s ``max_norm``.

    Raises:
        ShapeError: a batch too small to train on.
    """
    graph = with_loss(forward, loss, kind)
    check_training(graph)
    builder = GraphBuilder(graph)
    builder.declare("loss.grad", SCALAR, Role.CONTROL)
    parameters = graph.named(Role.PARAMETER)
    graph = differentiate(builder.build(), "loss", "loss.grad", parameters)
    return _with_update(graph, optimizer, clip)


def check_training(graph: Graph) -> None:
    """Raises ShapeError, naming the layer, where shapes allow prediction but no training."""
    for node in graph.nodes:
        assert isinstance(node.op, Op)
        try:
            node.op.check_training(*(graph.specs[name] for name in node.inputs))
        except ShapeError as error:
            raise error.within(node.layer) from None


def with_loss(forward: Graph, loss: Loss, kind: TargetKind) -> Graph:
    """Add the loss and, where targets name classes, the count of right answers."""
    builder = GraphBuilder(forward)
    output = forward.outputs[0]
    logits = builder.spec(output)
    if kind is not VALUE and len(logits.shape) != 2:
        raise ShapeError(
            f"the loss needs logits of shape (N, classes), the network gives {logits.shape}; "
            "end it with Flatten and Linear"
        )
    builder.declare("target", kind.spec(logits), Role.INPUT)
    builder.outputs = [output]
    if isinstance(loss, LossSum):
        values = _summed(builder, loss, forward.outputs, kind)
    else:
        _valued(builder, loss, output, kind, "loss", ["loss", "probability"])
    builder.outputs.append("loss")
    label = "target"
    if kind is PROBABILITY:
        label = builder.declare("label", INDEX.spec(logits), Role.INPUT)
    if kind is not VALUE:
        builder.add(TopKCorrect(), (output, label), layer="metrics", names=["correct"])
        builder.outputs.append("correct")
    if isinstance(loss, LossSum):
        _reported(builder, loss, forward.outputs, values, label)
    graph = builder.build()
    return without_dead_code(graph) if len(forward.outputs) > 1 else graph


def _summed(
    builder: GraphBuilder, loss: LossSum, outputs: Sequence[str], kind: TargetKind
) -> list[str]:
    """Add every term, and their sum as ``loss``; returns the terms' tensors."""
    terms, values = loss.terms, []
    alone = len(terms) == 1 and terms[0].coefficient == 1
    for term in terms:
        names = [f"{term.name}.cost", f"{term.name}.probability"]
        if alone:
            names = ["loss", "probability"]
        read = outputs[term.output]
        values.append(_valued(builder, term.loss, read, kind, term.name, names))
    if alone:
        return values
    # One of coefficient 0 is left out, so that no gradient flows, not even 0 times infinity.
    live = [(t.coefficient, v) for t, v in zip(terms, values, strict=True) if t.coefficient]
    coefficients, added = zip(*(live or [(0.0, value) for value in values]), strict=True)
    builder.add(WeightedSum(coefficients), added, layer="loss", names=["loss"])
    return values


def _valued(
    builder: GraphBuilder,
    loss: OneLoss,
    output: str,
    kind: TargetKind,
    layer: str,
    names: Sequence[str],
) -> str:
    """Add one loss of one output; returns its tensor.

    Args:
        names: of the loss, and of what else its op makes.
    """
    as_rows = kind is INDEX and INDEX.name not in loss.targets
    op = loss.op(VALUE.name if as_rows else kind.name)
    reads = [output]
    if getattr(op, "targets", 1):
        reads.append(_rows(builder, builder.spec(output).shape[1]) if as_rows else "target")
    return builder.add(op, reads, layer=layer, names=names[: op.arity_out])[0]


def _rows(builder: GraphBuilder, classes: int) -> str:
    """Class numbers as rows of 0 with a 1 at the class, made once for each width."""
    name = f"target.rows{classes}"
    if not builder.has(name):
        builder.add(OneHot(classes), ("target",), layer="loss", names=[name])
    return name


def _reported(
    builder: GraphBuilder, loss: LossSum, outputs: Sequence[str], values: Sequence[str], label: str
) -> None:
    """Add ``costs``: the numbers that ``figures`` of the sum names, in their order."""
    numbers = []
    for term, value in zip(loss.terms, values, strict=True):
        numbers.append(value)
        if term.top is not None:
            read = (outputs[term.output], label)
            names = [f"{term.name}.errors"]
            numbers += builder.add(TopKError(term.top), read, layer=term.name, names=names)
    builder.add(Figures(), numbers, layer="metrics", names=["costs"])
    builder.outputs.append("costs")


def _with_update(graph: Graph, optimizer: Optimizer, clip: bool) -> Graph:
    """Add the update of every parameter that has a gradient."""
    builder = GraphBuilder(graph)
    names = tuple(name for name in graph.named(Role.PARAMETER) if name in graph.gradients)
    grads = [graph.gradients[name] for name in names]
    if not names:
        return graph
    states = optimizer.kept(names)
    for state in states:
        builder.declare(state, graph.specs[state.rpartition(".")[0]], Role.STATE)
    builder.declare("hyper", TensorSpec((len(optimizer.slots),), "float64"), Role.CONTROL)
    norm: tuple[str, ...] = ()
    if clip:
        op = GradientNorm()
        norm = builder.add(op, grads, layer="clip", names=["grad_norm"])
        builder.outputs.extend(norm)
    updated = (*names, *states)
    inputs = ("hyper", *norm, *names, *grads, *states, *optimizer.reads)
    outputs = builder.add(
        optimizer.op(names, clip), inputs, layer="optimizer", names=[f"{n}.new" for n in updated]
    )
    builder.updates.update(zip(updated, outputs, strict=True))
    return builder.build()


def _without_unused_controls(graph: Graph) -> Graph:
    read = {name for node in graph.nodes for name in node.inputs}
    roles: Mapping[str, Role] = {
        name: role for name, role in graph.roles.items() if role is not Role.CONTROL or name in read
    }
    specs = {
        name: spec for name, spec in graph.specs.items() if name in roles or name not in graph.roles
    }
    return graph.replacing(roles=roles, specs=specs)
