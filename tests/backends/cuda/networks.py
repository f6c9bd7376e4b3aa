"""A small network's plans and batches, for tests of the runtime."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from convloom import nn
from convloom.backends.base import Backend, Executable
from convloom.compiler import compile_graph
from convloom.ir import Plan
from convloom.ops.control import hyper_vector
from convloom.optim import SGD
from convloom.training.graphs import INDEX, evaluation_graph, training_graph

SHAPE = (2, 9, 8)
CLASSES = 5


def network() -> nn.Module:
    """Convolution, pooling, dropout and a linear layer: one of each kind of kernel."""
    return nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25),
        nn.Flatten(),
        nn.Linear(4 * 3 * 3, CLASSES),
    )


def train_plan(backend: Backend, n: int, kernels: str = "naive") -> Plan:
    """A training step on batches of ``n``."""
    graph = training_graph(
        network().trace(SHAPE, n), nn.CrossEntropyLoss(), INDEX, SGD(lr=0.1, momentum=0.9), False
    )
    return compile_graph(graph, backend, kernels)


def evaluate_plan(backend: Backend, n: int, kernels: str = "naive") -> Plan:
    """The loss of batches of ``n``."""
    graph = evaluation_graph(network().trace(SHAPE, n), nn.CrossEntropyLoss(), INDEX)
    return compile_graph(graph, backend, kernels)


def bound(backend: Backend, plan: Plan, seed: int = 0) -> Executable:
    """The plan on new memory, ready to train: parameters drawn, rates and counter written."""
    storage = backend.storage(plan)
    model = network()
    model.initialize(seed)
    for name, value in model.state_dict().items():
        storage.write(name, value)
    storage.write("loss.grad", np.ones((), np.float32))
    storage.write("hyper", hyper_vector({"lr": 0.1, "momentum": 0.9}))
    storage.write("counter", np.array([7, 0], np.uint64))
    return backend.executable(plan, storage)


@dataclass(frozen=True)
class Pixels:
    """A tiny data set of bytes."""

    images: np.ndarray
    labels: np.ndarray


def pixels(samples: int = 40, seed: int = 0) -> Pixels:
    """Random images and labels."""
    draw = np.random.default_rng(seed)
    images = draw.integers(0, 256, (samples, *SHAPE), np.uint8)
    return Pixels(images, draw.integers(0, CLASSES, samples))


def write_batch(executable: Executable, images: np.ndarray, labels: np.ndarray) -> None:
    """Write what changes from step to step, but for rates."""
    executable.write("input", images)
    executable.write("target", labels)


def parameters(executable: Executable) -> dict[str, np.ndarray]:
    """Everything that lives between steps, but for controls."""
    storage = executable.storage
    controls = ("hyper", "counter", "loss.grad")
    return {name: storage.read(name) for name in storage.layouts if name not in controls}


def assert_same_bits(got: dict[str, np.ndarray], wanted: dict[str, np.ndarray]) -> None:
    """Equal names and bits."""
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert got[name].tobytes() == value.tobytes(), name
