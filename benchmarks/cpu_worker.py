"""One contender of cpu_vs_pytorch.py: prepares its task, then runs rounds on request.

Protocol on stdin/stdout: prints ``ready``; ``run SECONDS`` answers images a second; ``peak``
answers the process's peak resident memory in MB.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

Step = Callable[[], object]
BATCHES = 8
#: Seconds of steps before the first round; one step at least.
WARM_UP = 1.0


def batches(
    shape: tuple[int, ...], count: int, classes: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Random normalised images and labels, the same for both contenders."""
    draw = np.random.default_rng(0)
    return [
        (
            draw.standard_normal((count, *shape), dtype=np.float32),
            draw.integers(0, classes, count),
        )
        for _ in range(BATCHES)
    ]


def network(spec: dict[str, Any]) -> Any:
    """The convloom model a spec names."""
    from convloom.nn import models

    shape = tuple(spec["input_shape"])
    return models.build(
        spec["network"],
        num_classes=spec["classes"],
        in_channels=shape[0],
        image_size=shape[1:],
    )


def convloom_network(spec: dict[str, Any]) -> tuple[Step, int]:
    import convloom as cl
    from convloom import nn

    shape, size = tuple(spec["input_shape"]), spec["batch_size"]
    step = cl.compile(
        network(spec),
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.01, momentum=0.9),
        batch_size=size,
        input_shape=shape,
        device="cpu",
    )
    data = batches(shape, size, spec["classes"])
    return _rotating(step, data), size


def pytorch_network(spec: dict[str, Any]) -> tuple[Step, int]:
    import torch

    from convloom.interop.torch.twin import TorchTwin

    shape, size = tuple(spec["input_shape"]), spec["batch_size"]
    model = network(spec)
    twin = TorchTwin(model.trace(shape, size), model.state_dict())
    optimizer = torch.optim.SGD(twin.parameters(), lr=0.01, momentum=0.9)
    data = [
        (torch.from_numpy(x), torch.from_numpy(y)) for x, y in batches(shape, size, spec["classes"])
    ]

    def step(x: torch.Tensor, y: torch.Tensor) -> float:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(twin(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return _rotating(step, data), size


def convloom_conv(spec: dict[str, Any]) -> tuple[Step, int]:
    from convloom.backends import get_backend
    from convloom.compiler import compile_graph
    from convloom.training.step import _vjp_graph

    x, dy, model = _conv_problem(spec)
    model.initialize(0)
    graph, _ = _vjp_graph(model.trace(x.shape[1:], len(x)), dy)
    # Written once, so their memory must not be used again within a run.
    graph = graph.replacing(outputs=(*graph.outputs, "input", "output.grad"))
    backend = get_backend("cpu")
    plan = compile_graph(graph, backend)
    executable = backend.executable(plan, backend.storage(plan))
    for name, value in {**model.state_dict(), "input": x, "output.grad": dy}.items():
        executable.write(name, value)
    return executable.run, len(x)


def pytorch_conv(spec: dict[str, Any]) -> tuple[Step, int]:
    import torch

    from convloom.interop.torch.twin import TorchTwin

    x, dy, model = _conv_problem(spec)
    twin = TorchTwin(model.trace(x.shape[1:], len(x)), model.state_dict())
    image, grad = torch.from_numpy(x).requires_grad_(), torch.from_numpy(dy)

    def step() -> None:
        twin.zero_grad()
        image.grad = None
        twin(image).backward(grad)

    return step, len(x)


def _conv_problem(spec: dict[str, Any]) -> tuple[np.ndarray, np.ndarray, Any]:
    from convloom import nn

    n, c, h, w, k, kernel, stride, padding, dilation, groups = spec["conv"]
    model = nn.Sequential(nn.Conv2d(c, k, kernel, stride, padding, dilation, groups))
    forward = model.trace((c, h, w), n)
    draw = np.random.default_rng(0)
    dy_shape = forward.specs[forward.outputs[0]].shape
    return (
        draw.standard_normal((n, c, h, w), dtype=np.float32),
        draw.standard_normal(dy_shape, dtype=np.float32),
        model,
    )


def _rotating(step: Callable[..., object], data: list[tuple[Any, Any]]) -> Step:
    position = 0

    def run() -> object:
        nonlocal position
        position = (position + 1) % len(data)
        return step(*data[position])

    return run


def timed(step: Step, images: int, seconds: float) -> float:
    """Images a second over at least ``seconds``."""
    start, count = time.perf_counter(), 0
    while (elapsed := time.perf_counter() - start) < seconds or count == 0:
        step()
        count += 1
    return count * images / elapsed


def main() -> None:
    engine, spec = sys.argv[1], json.loads(sys.argv[2])
    answers, sys.stdout = sys.stdout, sys.stderr
    if engine == "pytorch":
        import os

        import torch

        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    kind = "network" if "network" in spec else "conv"
    step, images = globals()[f"{engine}_{kind}"](spec)
    timed(step, images, WARM_UP)
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        command, *rest = line.split()
        if command == "run":
            print(timed(step, images, float(rest[0])), file=answers, flush=True)
        else:
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            print(round(peak, 1), file=answers, flush=True)


if __name__ == "__main__":
    main()
