"""Gradients of a network file against differences and against a device's, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from convloom.backends import resolve_device
from convloom.compiler import differentiate
from convloom.compiler.interpret import interpret
from convloom.convnet import syntax
from convloom.convnet.gradcheck.differences import TOLERANCE, compare
from convloom.convnet.gradcheck.forward import Forward
from convloom.convnet.gradcheck.report import DEVICE_TOLERANCE, GradientReport, Row
from convloom.convnet.gradcheck.values import Arrays, drawn
from convloom.convnet.net import Net
from convloom.convnet.network import Classes, Layer, parse_network
from convloom.convnet.reduce import reduced
from convloom.convnet.rules import read_rules
from convloom.convnet.tree import TreeSource
from convloom.ir import ConvloomError, Graph, GraphBuilder, Node, Role
from convloom.nn.arguments import whole
from convloom.ops.base import Op
from convloom.random import stream_id
from convloom.training import compile
from convloom.training.arguments import checked_seed
from convloom.training.graphs import SCALAR, training_graph, usual_kind, with_loss
from convloom.training.optim import SGD

#: A rule that changes nothing: gradients alone are of interest.
_STILL = SGD(lr=0.0)


def check_grads(
    layers: str | Path,
    params: str | Path,
    input_size: int = 224,
    *,
    batch: int = 2,
    device: str = "auto",
    divide: int = 1,
    entries: int | None = 8,
    seed: int = 0,
    classes: Classes = None,
    tree: TreeSource | None = None,
) -> GradientReport:
    """Compare every gradient of a network file with differences, and a device's with float64's.

    Weights, images and labels are drawn anew: the file's own initial weights would make gradients
    too small to tell (``gradcheck/values.py``). Masks of dropout stay the same throughout.

    Args:
        input_size: height and width of the images, in pixels.
        batch: images.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda-sim`` or ``reference``.
        divide: the channels and outputs of every layer are divided by this, to be quick.
        entries: how many entries of each tensor to compare with differences, beside a direction
            that moves all of them; None is all.
        seed: of everything that is drawn.
        classes, tree: classes of the data set and their tree, as of ``load``.

    Raises:
        ConfigError: what breaks a rule or is not supported, with file, section and key.
        ConvloomError: a device that is not there, an argument out of its range, or a layer that
            makes NaN of random numbers.
    """
    net = smaller(layers, params, input_size, divide, classes=classes, tree=tree)
    return check_net(net, batch=batch, device=device, entries=entries, seed=seed)


def smaller(
    layers: str | Path,
    params: str | Path,
    input_size: int,
    divide: int,
    *,
    classes: Classes = None,
    tree: TreeSource | None = None,
) -> Net:
    """The network of two files, its channels divided; see ``check_grads``."""
    file = syntax.read(layers)
    network = parse_network(file, input_size, classes=classes, tree=tree)
    file = reduced(file, network, divide)
    network = parse_network(file, input_size, classes=classes, tree=tree)
    return Net(network, read_rules(params, network))


def check_net(
    net: Net,
    *,
    batch: int = 2,
    device: str = "auto",
    entries: int | None = 8,
    seed: int = 0,
    tell: Callable[[str], None] = lambda _: None,
) -> GradientReport:
    """As ``check_grads``, of a network that is loaded already; its weights are replaced.

    Args:
        tell: is called with what is worked on.
    """
    checked_seed(seed)
    entries = None if entries is None else whole(entries, "entries")
    step = _Step(net, whole(batch, "batch"))
    values = drawn(net, step.forward, seed)
    forward = Forward(step.forward, values)
    gradients = step.gradients(values)
    device = resolve_device(device)
    tell(f"a training step on {device}")
    found = _on_device(net, step, values, device, seed)
    rows = []
    for subject in step.subjects:
        tell(f"{subject.layer.name} {subject.short}")
        device_gradient = found.get(subject.name)
        rows.append(_row(subject, forward, gradients[subject.name], device_gradient, entries, seed))
    return GradientReport(
        tuple(rows), device, forward.loss, entries, TOLERANCE, DEVICE_TOLERANCE, step.notes
    )


@dataclass(frozen=True)
class _Subject:
    """A tensor whose gradient is checked: its name in the graph, its layer, its name there."""

    name: str
    layer: Layer
    short: str
    note: str


class _Step:
    """The training step of a network: its forward pass and loss, then with gradients."""

    def __init__(self, net: Net, batch: int) -> None:
        loss, traced = net.cost.loss, net.trace(net.images, batch)
        kind = usual_kind(loss, traced.specs["output"])
        self.forward = with_loss(traced, loss, kind)
        self._trained = training_graph(traced, loss, kind, _STILL, clip=False)
        builder = GraphBuilder(self.forward)
        builder.declare("loss.grad", SCALAR, Role.CONTROL)
        layers = (layer for layer in net.network.layers if not layer.is_cost)
        subjects = [subject for layer in layers for subject in _subjects(layer, self.forward)]
        wanted = [subject.name for subject in subjects]
        self.graph = differentiate(builder.build(), "loss", "loss.grad", wanted)
        self.subjects = [one for one in subjects if one.name in self.graph.gradients]
        idle = [one.layer.name for one in subjects if one.name not in self.graph.gradients]
        self.notes = tuple(
            f"[{name}] has no gradient: no cost that counts depends on it"
            for name in dict.fromkeys(idle)
        )

    def gradients(self, values: Arrays) -> Arrays:
        """{subject: its gradient} in float64.

        Raises:
            ConvloomError: one that is not finite.
        """
        known = interpret(self.graph, values | {"loss.grad": np.array(1.0)})
        found = {one.name: known[self.graph.gradients[one.name]] for one in self.subjects}
        for one in reversed(self.subjects):
            if not np.isfinite(found[one.name]).all():
                raise ConvloomError(
                    f"the gradient of [{one.layer.name}] {one.short} is NaN or infinite for "
                    "numbers drawn at random, so it cannot be checked"
                )
        return found

    def device_names(self) -> dict[str, str]:
        """{subject: the tensor that has its gradient in the step as it is trained}."""
        names = {one.name: self.graph.gradients[one.name] for one in self.subjects}
        return {name: grad for name, grad in names.items() if grad in self._trained.specs}


def _subjects(layer: Layer, forward: Graph) -> Iterator[_Subject]:
    """What a layer computes before its neuron, if anything that learns lies before; its weights."""
    nodes = [node for node in forward.nodes if node.layer == layer.module]
    learnt = forward.named(Role.PARAMETER)
    if nodes and nodes[-1].outputs[0] in _dependents(forward, learnt):
        note = "; ".join(filter(None, (_op(node).gradient_note for node in nodes)))
        yield _Subject(nodes[-1].outputs[0], layer, "output", note)
    for name in learnt:
        if name.startswith(f"{layer.module}."):
            yield _Subject(name, layer, name.removeprefix(f"{layer.module}."), "")


def _dependents(graph: Graph, sources: Iterable[str]) -> set[str]:
    reached = set(sources)
    for node in graph.nodes:
        if reached.intersection(node.inputs):
            reached.update(node.outputs)
    return reached


def _on_device(
    net: Net, step: _Step, values: Arrays, device: str, seed: int
) -> dict[str, np.ndarray]:
    """{subject: its gradient}, by one training step as the device runs it."""
    names = step.device_names()
    for name, parameter in net.named_parameters():
        if name in values:
            parameter.data = values[name].astype(np.float32)
    x, target = values["input"].astype(np.float32), values["target"]
    if target.dtype == np.float64:
        target = target.astype(np.float32)
    trained = compile(
        net,
        net.cost.loss,
        _STILL,
        batch_size=len(x),
        input_shape=net.images,
        device=device,
        seed=seed,
        watch=list(names.values()),
    )
    trained(x, target)
    return {name: trained.read(grad).astype(np.float64) for name, grad in names.items()}


def _row(
    subject: _Subject,
    forward: Forward,
    gradient: np.ndarray,
    found: np.ndarray | None,
    entries: int | None,
    seed: int,
) -> Row:
    def loss(value: np.ndarray) -> float:
        return forward.loss_with(subject.name, value)

    value = forward.values[subject.name]
    # Each tensor has draws of its own.
    tally = compare(loss, value, gradient, entries, (seed, stream_id(subject.name)))
    off = None if found is None else _distance(found, gradient)
    return Row(
        layer=subject.layer.name,
        type=subject.layer.type,
        tensor=subject.short,
        size=value.size,
        checked=tally.checked,
        skipped=tally.skipped,
        error=tally.error,
        direction=tally.direction,
        device_error=off,
        wrong=tally.wrong or (off is not None and not off <= DEVICE_TOLERANCE),
        note=subject.note,
    )


def _distance(found: np.ndarray, wanted: np.ndarray) -> float:
    """The length of the difference, as a share of the length of what is wanted."""
    length = float(np.linalg.norm(wanted))
    off = float(np.linalg.norm(found - wanted))
    return off / length if length else off


def _op(node: Node) -> Op:
    assert isinstance(node.op, Op)
    return node.op
