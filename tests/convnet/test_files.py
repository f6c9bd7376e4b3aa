"""The network files of 2012 as they are, and with fewer channels: shapes, steps, gradients."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from convloom.compiler import differentiate
from convloom.compiler.interpret import interpret
from convloom.convnet.describe import rows
from convloom.convnet.gradcheck import check_net
from convloom.convnet.gradcheck.values import drawn
from convloom.convnet.net import Net
from convloom.convnet.network import parse_network
from convloom.convnet.optimizer import optimizer_of, train_step
from convloom.convnet.rules import parse_rules
from convloom.ir import Graph, GraphBuilder, Role, TensorSpec
from convloom.training.graphs import training_graph, usual_kind, with_loss
from tests.convnet import shared
from tests.convnet.peer import Peer

#: Files that are quick to check.
SMALL = (
    "layers-cifar/layers-18pct.cfg",
    "example-layers/layers-conv-local-13pct.cfg",
    "example-layers/layers.gc.cfg",
)
#: What their channels are divided by, if not by 16.
DIVIDE = {"layers-cifar/layers-18pct.cfg": 4, "example-layers/layers.gc.cfg": 1}

GPU = pytest.param("cuda", marks=pytest.mark.gpu)


def marked() -> list[Any]:
    """The files; those that take long are marked."""
    return [
        pytest.param(name, marks=pytest.mark.slow)
        if isinstance(name, str) and name not in SMALL
        else name
        for name in shared.files()
    ]


@pytest.mark.parametrize("name", shared.files())
def test_shapes_and_parameters_are_those_of_2012(name: str) -> None:
    network = parse_network(shared.layers(name), shared.size(name))
    assert rows(network) == shared.shapes()[name]
    for file in shared.params(name):
        assert len(parse_rules(file, network).layers) == len(network.layers)


@pytest.mark.parametrize("device", ["cpu", "cuda-sim", GPU])
@pytest.mark.parametrize("name", marked())
def test_gradients_with_fewer_channels(name: str, device: str) -> None:
    """A training step on the device, against float64 and differences."""
    report = check_net(shared.net(name, DIVIDE.get(name, 16)), device=device, entries=3)
    assert [row for row in report.rows if row.verdict != "ok"] == []
    assert sum(row.skipped for row in report.rows) < 0.1 * sum(row.checked for row in report.rows)
    assert all(row.device_error is not None for row in report.rows)


@pytest.mark.parametrize("name", shared.files(without=("layers/layers-137-tree",)))
def test_costs_and_gradients_are_those_of_pytorch(name: str) -> None:
    """Of the whole file, read by another parser and computed after the rules of 2012 alone."""
    divide = DIVIDE.get(name, 16)
    layers = shared.text(shared.layers(name, divide))
    learning = shared.text(shared.params(name)[0]).replace("enable=true", "enable=false")
    net = undropped(name, divide)
    cost, gradients, values = ours(net)
    peer = Peer(layers, learning, net.to_convnet())
    images = torch.from_numpy(values["input"])
    wanted = peer.cost(images, torch.from_numpy(values["target"]))
    assert cost == pytest.approx(wanted.item(), rel=1e-9)
    wanted.backward()
    for key, weight in peer.weights.items():
        if "connections" not in key:
            assert weight.grad is not None, key
            scale = float(weight.grad.abs().max())
            assert scale > 0, key
            near = {"rtol": 0, "atol": 1e-6 * scale}
            np.testing.assert_allclose(gradients[key], weight.grad.numpy(), err_msg=key, **near)


def undropped(name: str, divide: int) -> Net:
    """A network whose dropout scales instead."""
    network = parse_network(shared.layers(name, divide), shared.size(name))
    rules = parse_rules(shared.params(name)[0], network)
    still = {
        layer: replace(rule, enabled=False) if rule.enabled else rule
        for layer, rule in rules.layers.items()
    }
    return Net(network, replace(rules, layers=still))


def take_drawn(net: Net, graph: Graph) -> dict[str, np.ndarray]:
    """Give a network weights that are fit for a comparison; all tensors that come from outside."""
    values = drawn(net, graph, 0)
    for name, parameter in net.named_parameters():
        parameter.data = values[name].astype(np.float32)
    return values


def ours(net: Net) -> tuple[float, dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The cost, its gradients in the layouts of 2012, and what they were computed from."""
    traced = net.trace(net.images, 3)
    graph = with_loss(traced, net.cost.loss, usual_kind(net.cost.loss, traced.specs["output"]))
    values = take_drawn(net, graph)
    builder = GraphBuilder(graph)
    builder.declare("seed", TensorSpec(()), Role.CONTROL)
    graph = differentiate(builder.build(), "loss", "seed", graph.named(Role.PARAMETER))
    known = interpret(graph, {**values, "seed": np.array(1.0)})
    weights = net.to_convnet()
    for name, parameter in net.named_parameters():
        parameter.data = known[graph.gradients[name]].astype(np.float32)
    gradients = net.to_convnet()
    net.from_convnet(weights)
    return float(known["loss"]), gradients, values


@pytest.mark.parametrize("name", shared.files(only=("layers/layers-153", "layers/layers-183-4gpu")))
def test_gpus_of_a_file_change_nothing(name: str) -> None:
    """One graph holds the columns of all GPUs, wherever the file puts them."""
    file, net = shared.layers(name, 32), shared.net(name, 32)
    assert net.network.gpus == (4 if "4gpu" in name else 2)
    for section in file.sections.values():
        section.entries.pop("gpu", None)
    alone = parse_network(file, shared.size(name))
    assert alone.gpus == 1
    other = Net(alone, parse_rules(shared.params(name)[0], alone))
    assert str(other.trace(net.images, 2)) == str(net.trace(net.images, 2))


@pytest.mark.parametrize("device", ["cpu", "cuda-sim", GPU])
@pytest.mark.parametrize("name", marked())
def test_a_training_step_with_fewer_channels(name: str, device: str) -> None:
    """By the parameter file's own rule, on the device and in float64 by the references."""
    net = shared.net(name, DIVIDE.get(name, 16))
    rule, loss, traced = optimizer_of(net), net.cost.loss, net.trace(net.images, 2)
    kind = usual_kind(loss, traced.specs["output"])
    values = take_drawn(net, with_loss(traced, loss, kind))
    graph = training_graph(traced, loss, kind, rule, clip=False)
    rates = rule.hyper(0)
    given = {"loss.grad": np.array(1.0), "hyper": np.array([rates[slot] for slot in rule.slots])}
    for state in graph.named(Role.STATE):
        given.setdefault(state, values.get(state, np.zeros(graph.specs[state].shape)))
    known = interpret(graph, values | given)
    images = values["input"].astype(np.float32)
    assert train_step(net, images, values["target"], device=device) == pytest.approx(
        float(known["loss"]), rel=1e-4
    )
    for key, after in net.named_parameters():
        before, wanted = values[key], known[graph.updates[key]]
        # As exact as float32 is where it adds the change to the weight.
        rounding = 2 * np.spacing(np.abs(before).max().astype(np.float32))
        near = {"rtol": 0, "atol": 1e-3 * np.abs(wanted - before).max() + rounding}
        np.testing.assert_allclose(after.data, wanted, err_msg=key, **near)


@pytest.mark.parametrize("device", [pytest.param("cpu", marks=pytest.mark.slow), GPU])
@pytest.mark.parametrize("name", shared.files())
def test_a_training_step_at_full_size(name: str, device: str) -> None:
    """What the parameter file lets learn changes, what it freezes stays."""
    net = shared.net(name)
    net.initialize(0)
    before = net.to_convnet()
    random = np.random.default_rng(0)
    images = 50 * random.standard_normal((2, *net.images)).astype(np.float32)
    assert np.isfinite(train_step(net, images, np.array([0, 1]), device=device))
    for key, after in net.to_convnet().items():
        layer, kind, *at = key.split("/")
        rule = net.rules.layers[layer]
        assert rule.biases is not None
        rates = {"biases": rule.biases.eps, "connections": 0.0}
        learns = rates.get(kind, rule.weights[int((at or "0")[0])].eps)
        assert np.isfinite(after).all(), key
        assert (after != before[key]).any() == (learns > 0), key
