"""What every entry of a study runs: one network's training step, on batches that differ."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from convloom import normalise
from convloom.backends.base import Backend, Executable, Storage
from convloom.compiler import compile_graph
from convloom.ir import Graph, Plan, ShapeError
from convloom.ops.control import counter_vector, hyper_vector
from convloom.ops.precision import FP32
from convloom.training.graphs import INDEX, Loss, Optimizer, training_graph

if TYPE_CHECKING:
    from convloom.nn import Module

#: Batches that take turns where the host holds them, so that no step reads what the last one left.
ROTATION = 8
#: Learning rate of a study: small, because labels are random and thousands of steps are made.
RATE = 1e-4
#: Random pixels are normalised as if they had these in every channel.
_MEAN, _STD = 0.5, 0.29
#: Most bytes of images, and most entries of the order in which they come.
_IMAGE_BYTES, _ORDER = 64 << 20, 1 << 22
_SAMPLES, _STEPS = 60_000, 4096


@dataclass(frozen=True, eq=False)
class Workload:
    """A training step and its data.

    Attributes:
        forward: the network, as traced.
        graph: forward, loss, gradients and update, as traced: no backend has seen it.
        weights: initial parameters, by name.
        hyper: the vector of rates, the same in every step.
        images: (samples, C, H, W) uint8, random.
        labels: (samples,) int64, random.
        order: (steps, batch size) int64: which samples a step takes.
        precision: of products, where a rung has such kernels.
    """

    forward: Graph
    graph: Graph
    weights: dict[str, np.ndarray]
    hyper: np.ndarray
    images: np.ndarray
    labels: np.ndarray
    order: np.ndarray
    precision: str = FP32

    @property
    def batch_size(self) -> int:
        """Images a step."""
        return int(self.order.shape[1])

    @property
    def channels(self) -> int:
        """Of an image."""
        return int(self.images.shape[1])

    @property
    def classes(self) -> int:
        """Number of logits."""
        return int(self.forward.specs[self.forward.outputs[0]].shape[-1])

    @property
    def rates(self) -> np.ndarray:
        """The rates of as many steps as ``order`` has, (steps, slots) float64."""
        return np.broadcast_to(self.hyper, (len(self.order), self.hyper.size)).copy()

    @property
    def mean(self) -> tuple[float, ...]:
        """Of pixels / 255, one each channel."""
        return (_MEAN,) * self.channels

    @property
    def std(self) -> tuple[float, ...]:
        """Of pixels / 255, one each channel."""
        return (_STD,) * self.channels

    @cached_property
    def batches(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """The first batches of ``order``, normalised: float32 images and int64 labels."""
        return [
            (
                normalise.normalise(self.images[samples], self.mean, self.std),
                self.labels[samples],
            )
            for samples in self.order[:ROTATION]
        ]

    def plan(self, backend: Backend, kernels: str) -> Plan:
        """The training step as a backend runs it."""
        return compile_graph(self.graph, backend, kernels, precision=self.precision)

    def bind(self, backend: Backend, plan: Plan) -> tuple[Executable, Storage]:
        """A plan on memory of its own, ready for its first step."""
        storage = backend.storage(plan)
        values = {
            **self.weights,
            "loss.grad": np.ones((), np.float32),
            "hyper": self.hyper,
            "counter": counter_vector(0, 0),
        }
        for name, value in values.items():
            if name in storage.layouts:
                storage.write(name, value)
        return backend.executable(plan, storage), storage


def make_workload(
    model: Module,
    loss: Loss,
    optimizer: Optimizer,
    *,
    input_shape: tuple[int, int, int],
    batch_size: int,
    samples: int | None = None,
    clip: bool = False,
    seed: int = 0,
    precision: str = FP32,
) -> Workload:
    """The training step of a network, with random data.

    Args:
        samples: size of the data set; None takes 60,000, or what fits in 64 MB.
        clip: whether gradients are clipped.

    Raises:
        ShapeError: a batch size below 1; shapes that do not fit the network.
    """
    if batch_size < 1:
        raise ShapeError(f"batch_size must be at least 1, it is {batch_size}")
    model.initialize(seed)
    forward = model.trace(input_shape, batch_size)
    graph = training_graph(forward, loss, INDEX, optimizer, clip)
    classes = forward.specs[forward.outputs[0]].shape[-1]
    count = samples or min(_SAMPLES, _IMAGE_BYTES // int(np.prod(input_shape)))
    draw = np.random.default_rng(seed)
    steps = max(ROTATION, min(_STEPS, _ORDER // batch_size))
    return Workload(
        forward=forward,
        graph=graph,
        weights=model.state_dict(),
        hyper=hyper_vector({**optimizer.hyper(0), "lr": RATE, "max_norm": 1.0}),
        images=draw.integers(0, 256, (count, *input_shape), np.uint8),
        labels=draw.integers(0, classes, count),
        order=draw.integers(0, count, (steps, batch_size)),
        precision=precision,
    )
