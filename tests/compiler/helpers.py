"""Small networks as graphs, and a backend that serves every op: passes need no kernels."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from convloom import nn
from convloom.backends.base import LayoutPolicy
from convloom.compiler.interpret import interpret
from convloom.ir import Graph, Node, Role, Selection, TensorSpec
from convloom.nn import CrossEntropyLoss
from convloom.training.graphs import INDEX, training_graph
from convloom.training.optim import SGD


class AnyBackend:
    """Has a kernel for everything, of rung ``dense``."""

    name = "any"
    rungs = ("reference", "dense")
    layout_policy = LayoutPolicy(images="nhwc", filters="krsc")

    def __init__(self, refuses: tuple[str, ...] = (), workspace: int = 0) -> None:
        self.refuses = refuses
        self.workspace = workspace

    def select(self, node: Node, specs: Mapping[str, TensorSpec], kernels: str) -> Selection | None:
        if node.op.name in self.refuses:
            return None
        rung = "reference" if kernels == "reference" else "dense"
        return Selection(rung, node.op.name.lower(), None, self.workspace)


def lenet(pool: int = 2) -> nn.Sequential:
    """The seed network for 10x10 images, narrow."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.MaxPool2d(pool),
        nn.Flatten(),
        nn.Linear(6 * (6 // pool) ** 2, 5),
    )


def training(model: nn.Module, shape: tuple[int, int, int], batch: int = 4) -> Graph:
    """The model's whole training graph."""
    return training_graph(
        model.trace(shape, batch), CrossEntropyLoss(), INDEX, SGD(lr=0.1, momentum=0.9), False
    )


def values(graph: Graph, model: nn.Module, seed: int = 0) -> dict[str, np.ndarray]:
    """Random float64 values for everything a training graph needs from outside."""
    draw = np.random.default_rng(seed)
    weights = model.state_dict()
    given: dict[str, np.ndarray] = {}
    for name, role in graph.roles.items():
        spec = graph.specs[name]
        if role is Role.PARAMETER:
            given[name] = weights[name].astype(np.float64)
        elif name == "hyper":
            given[name] = np.array([0.1, 0.9, 0.01, 0, 0, 0, 0, 1, 1], np.float64)
        elif name == "loss.grad":
            given[name] = np.ones((), np.float64)
        elif name in ("target", "label"):
            given[name] = draw.integers(0, 5, spec.shape)
        elif name == "counter":
            given[name] = np.array([3, 1], np.uint64)
        else:
            given[name] = draw.standard_normal(spec.shape)
    return given


def same_results(before: Graph, after: Graph, model: nn.Module) -> None:
    """Both graphs give the same outputs, gradients and updates (references, float64)."""
    given = values(before, model)
    one, two = interpret(before, given), interpret(after, given)
    names = [*before.outputs, *before.gradients.values(), *before.updates.values()]
    assert names
    for name in names:
        np.testing.assert_allclose(two[name], one[name], rtol=1e-10, atol=1e-12, err_msg=name)
