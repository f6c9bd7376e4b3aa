"""Whole graphs around a traced network: predict, evaluate, train.

Names that every graph shares: ``input``, ``target`` (labels, probabilities or values), ``label``
(class numbers, for counting right answers), ``output`` (logits), ``loss`` and ``correct``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from convloom.compiler.autodiff import differentiate
from convloom.compiler.inference import for_inference
from convloom.ir import Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.ops import GradientNorm, OneHot, Op, TopKCorrect

SCALAR = TensorSpec(())


class Loss(Protocol):
    """What a loss must offer: the op that compares the output with a target."""

    @property
    def targets(self) -> tuple[str, ...]:
        """The kinds of target it takes: names of ``TargetKind``."""
        ...

    def op(self, target: str) -> Op:
        """The op for targets of a kind; its first output is the loss."""
        ...


class Optimizer(Protocol):
    """What an update rule must offer; ``training.optim`` has SGD and AdamW."""

    @property
    def states(self) -> tuple[str, ...]:
        """Suffixes of the states kept for each parameter (``momentum``)."""
        ...

    @property
    def slots(self) -> tuple[str, ...]:
        """What the control tensor ``hyper`` holds, in order."""
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
    """The network as it predicts: dropout and its like are gone."""
    return _without_unused_controls(for_inference(forward))


def evaluation_graph(forward: Graph, loss: Loss, kind: TargetKind) -> Graph:
    """Logits, mean loss and right answers; nothing is updated."""
    return _without_unused_controls(for_inference(_with_loss(forward, loss, kind)))


def training_graph(
    forward: Graph, loss: Loss, kind: TargetKind, optimizer: Optimizer, clip: bool
) -> Graph:
    """Forward, loss, gradients, update: everything one training step does.

    Args:
        clip: whether gradients are scaled down to the norm in ``hyper``'s ``max_norm``.

    Raises:
        ShapeError: a batch too small to train on.
    """
    graph = _with_loss(forward, loss, kind)
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


def _with_loss(forward: Graph, loss: Loss, kind: TargetKind) -> Graph:
    """Add the loss and, where targets name classes, the count of right answers."""
    builder = GraphBuilder(forward)
    (output,) = forward.outputs
    logits = builder.spec(output)
    if kind is not VALUE and len(logits.shape) != 2:
        raise ShapeError(
            f"the loss needs logits of shape (N, classes), the network gives {logits.shape}; "
            "end it with Flatten and Linear"
        )
    builder.declare("target", kind.spec(logits), Role.INPUT)
    compared = "target"
    if kind is INDEX and INDEX.name not in loss.targets:
        rows = OneHot(logits.shape[1])
        (compared,) = builder.add(rows, ("target",), layer="loss", names=["target.rows"])
        op = loss.op(VALUE.name)
    else:
        op = loss.op(kind.name)
    reads = (output, compared) if getattr(op, "targets", 1) else (output,)
    names = ["loss", "probability"][: op.arity_out]
    builder.add(op, reads, layer="loss", names=names)
    builder.outputs.append("loss")
    if kind is VALUE:
        return builder.build()
    label = "target"
    if kind is PROBABILITY:
        label = builder.declare("label", INDEX.spec(logits), Role.INPUT)
    builder.add(TopKCorrect(), (output, label), layer="metrics", names=["correct"])
    builder.outputs.append("correct")
    return builder.build()


def _with_update(graph: Graph, optimizer: Optimizer, clip: bool) -> Graph:
    """Add the update of every parameter that has a gradient."""
    builder = GraphBuilder(graph)
    names = tuple(name for name in graph.named(Role.PARAMETER) if name in graph.gradients)
    grads = [graph.gradients[name] for name in names]
    if not names:
        return graph
    states = [
        [builder.declare(f"{name}.{suffix}", graph.specs[name], Role.STATE) for name in names]
        for suffix in optimizer.states
    ]
    builder.declare("hyper", TensorSpec((len(optimizer.slots),), "float64"), Role.CONTROL)
    norm: tuple[str, ...] = ()
    if clip:
        op = GradientNorm()
        norm = builder.add(op, grads, layer="clip", names=["grad_norm"])
        builder.outputs.extend(norm)
    updated = [*names, *(state for block in states for state in block)]
    inputs = ("hyper", *norm, *names, *grads, *(state for block in states for state in block))
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
