"""An engine that interprets graphs with the NumPy references, and small problems to train on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from convloom import nn, optim
from convloom.compiler.interpret import interpret
from convloom.data import ArrayDataset, from_arrays
from convloom.ir import Graph, Plan, Role
from convloom.ops.control import HYPER
from convloom.training import Trainer
from convloom.training.graphs import INDEX, evaluation_graph, training_graph
from convloom.training.protocols import StepResult


class InterpretedEngine:
    """The Engine protocol without backend, layouts or fusion: nothing but references."""

    device = "interpreted"

    def __init__(
        self,
        model: nn.Module,
        *,
        loss: Any,
        optimizer: Any,
        input_shape: tuple[int, int, int],
        device: str = "auto",
        kernels: str = "auto",
        seed: int = 0,
        max_norm: float | None = None,
        precision: str = "fp32",
    ) -> None:
        self.model, self.loss, self.optimizer = model, loss, optimizer
        self.input_shape, self.max_norm = input_shape, max_norm
        self.sizes: list[int] = []
        self.prepared: list[tuple[str, int]] = []
        self.hyper_log: list[dict[str, float]] = []
        model.initialize(seed)
        graph = self._graph(1)
        self.held: dict[str, np.ndarray] = {
            name: value for name, value in model.state_dict().items() if name in graph.roles
        }
        for name in graph.named(Role.STATE):
            self.held.setdefault(name, np.zeros(graph.specs[name].shape, np.float32))
        self.held["counter"] = np.array([seed, 0], np.uint64)
        self.hyper = np.zeros(len(HYPER))
        self.set_hyper(**optimizer.hyper(0))
        if max_norm is not None:
            self.set_hyper(max_norm=max_norm)
        self.hyper_log.clear()

    def _graph(self, n: int) -> Graph:
        forward = self.model.trace(self.input_shape, n)
        clip = self.max_norm is not None
        return training_graph(forward, self.loss, INDEX, self.optimizer, clip)

    def _run(self, graph: Graph, images: np.ndarray, targets: np.ndarray) -> dict[str, np.ndarray]:
        values = {
            **self.held,
            "hyper": self.hyper,
            "loss.grad": np.float32(1),
            "input": images,
            "target": targets,
        }
        return interpret(graph, {name: values[name] for name in graph.roles})

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        graph = self._graph(len(images))
        made = self._run(graph, images, targets)
        self.held |= {name: made[new] for name, new in graph.updates.items()}
        self.held["counter"] = self.held["counter"] + np.array([0, 1], np.uint64)
        self.sizes.append(len(images))
        return self._result(made, len(images))

    def evaluate_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        forward = self.model.trace(self.input_shape, len(images))
        graph = evaluation_graph(forward, self.loss, INDEX)
        return self._result(self._run(graph, images, targets), len(images))

    @staticmethod
    def _result(made: Mapping[str, np.ndarray], n: int) -> StepResult:
        return StepResult(float(made["loss"]), *(int(v) for v in made["correct"]), n)

    def predict(self, images: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def set_hyper(self, **values: float) -> None:
        for name, value in values.items():
            self.hyper[HYPER.index(name)] = value
        self.hyper_log.append(dict(values))

    def state(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        asked = set(self.held if names is None else names)
        return {name: np.array(value) for name, value in self.held.items() if name in asked}

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        for name, value in state.items():
            assert self.held[name].shape == value.shape
            self.held[name] = np.array(value)

    def read(self, name: str, /) -> np.ndarray:
        return np.array(self.held[name])

    def write(self, name: str, value: np.ndarray, /) -> None:
        self.held[name] = np.array(value)

    def pull_weights(self) -> None:
        for name, value in self.model.state_dict().items():
            self.held[name] = value

    def hold_weights(self) -> None:
        self.model.bind(self)

    def prepare(self, kind: str, batch_size: int) -> None:
        assert kind in ("train", "evaluate")
        self.prepared.append((kind, batch_size))

    def plan(self, batch_size: int) -> Plan:
        graph = self._graph(batch_size)
        return Plan(graph, (), {}, {}, 0, self.device)


def images_and_labels(
    count: int, *, channels: int = 1, size: int = 6, classes: int = 3, seed: int = 0
) -> ArrayDataset:
    """Noise with a bright row that names the class: learnt in a few steps."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, classes, count)
    images = rng.integers(0, 80, (count, channels, size, size), dtype=np.uint8)
    for image, label in zip(images, labels, strict=True):
        image[:, label] += 120
    names = [f"row {k}" for k in range(classes)]
    return from_arrays(
        images, labels, classes=names, mean=[0.2] * channels, std=[0.2] * channels, name="rows"
    )


def small_network(channels: int = 1, size: int = 6, classes: int = 3) -> nn.Module:
    """Conv, ReLU, pool, dropout, Linear: something of everything that has a state or a draw."""
    return nn.Sequential(
        nn.Conv2d(channels, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.2),
        nn.Flatten(),
        nn.Linear(4 * (size // 2) ** 2, classes),
    )


def make_trainer(model: nn.Module | None = None, **changes: Any) -> Trainer:
    """A Trainer on the interpreted engine, with momentum and a schedule."""
    settings: dict[str, Any] = {
        "optimizer": optim.SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=5e-4),
        "loss": nn.CrossEntropyLoss(),
        "batch_size": 8,
        "seed": 3,
        "engine": InterpretedEngine,
        "log_every": 5,
        **changes,
    }
    return Trainer(model if model is not None else small_network(), **settings)
