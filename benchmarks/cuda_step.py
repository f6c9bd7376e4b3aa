"""Training steps on this machine's GPU: every rung, launched one by one, as graphs, resident.

    python benchmarks/cuda_step.py
    python benchmarks/cuda_step.py --network vgg-small --batch-size 64,1024 --kernels auto --json

One row a rung and batch size. `launches` and `graph` are device time of one step, launched kernel
by kernel and as one graph; `fed` is wall time of a step whose batch the host writes; `resident` is
wall time of a step over a data set in device memory, many steps a graph. All but `fed` leave out
what the host does beside.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from networks import ZOO_SHAPES

from convloom import nn, normalise
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import open_gpu
from convloom.backends.cuda.resident import ResidentData, ResidentSteps
from convloom.backends.cuda.selectors import RUNGS
from convloom.compiler import compile_graph
from convloom.nn import models
from convloom.ops.control import hyper_vector
from convloom.optim import SGD
from convloom.training.graphs import INDEX, training_graph

COLUMNS = ("kernels", "batch", "launches", "graph", "fed", "resident", "images/s", "kernels/step")


def main() -> None:
    options = _options()
    gpu = open_gpu()
    shape, classes = ZOO_SHAPES[options.network]
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (options.samples, *shape), np.uint8)
    labels = draw.integers(0, classes, options.samples)
    mean = (0.5,) * shape[0]
    data = ResidentData(gpu, images, labels, *normalise.coefficients(mean, mean))
    rows = []
    for kernels in options.kernels:
        for batch in options.batch_size:
            rows.append(_measure(options, kernels, batch, images, labels, data))
            if not options.json:
                _print(rows[-1], header=len(rows) == 1)
    if options.json:
        print(json.dumps({"device": gpu.name, "network": options.network, "rows": rows}, indent=2))


def _measure(
    options: argparse.Namespace,
    kernels: str,
    batch: int,
    images: np.ndarray,
    labels: np.ndarray,
    data: ResidentData,
) -> dict[str, Any]:
    executable = _bound(options.network, kernels, batch)
    gpu = open_gpu()
    mean = (0.5,) * images.shape[1]
    x = normalise.normalise(images[:batch], mean, mean)

    def feed() -> None:
        executable.write("input", x)
        executable.write("target", labels[:batch])

    def one_by_one() -> None:
        for call in executable.calls:
            call()

    def fed() -> None:
        feed()
        executable.run()
        executable.read("loss")

    feed()
    executable.warm_up()
    # Labels must be right again before each run: their memory is reused within a run.
    launches = _median(lambda: feed() or gpu.seconds(one_by_one))
    graph = _median(lambda: feed() or gpu.seconds(executable.run))
    host = _median(lambda: _wall(fed))
    steps = max(64, min(len(images) // batch, 4096))
    order = np.random.default_rng(1).integers(0, len(images), (steps, batch))
    rates = np.tile(hyper_vector({"lr": 1e-4, "momentum": 0.9}), (steps, 1))
    resident = ResidentSteps(executable, data)
    resident.train(order, rates)  # captures the graphs
    wall = min(_wall(lambda: resident.train(order, rates)) for _ in range(3)) / steps
    return {
        "kernels": kernels,
        "batch": batch,
        "launches": 1e6 * launches,
        "graph": 1e6 * graph,
        "fed": 1e6 * host,
        "resident": 1e6 * wall,
        "images/s": batch / wall,
        "kernels/step": len(executable.calls),
    }


def _bound(network: str, kernels: str, batch: int) -> CudaExecutable:
    backend = CudaBackend()
    shape, classes = ZOO_SHAPES[network]
    model = models.build(
        network, num_classes=classes, in_channels=shape[0], image_size=(shape[1], shape[2])
    )
    optimizer = SGD(lr=1e-4, momentum=0.9)
    forward = model.trace(shape, batch)
    graph = training_graph(forward, nn.CrossEntropyLoss(), INDEX, optimizer, False)
    plan = compile_graph(graph, backend, kernels)
    storage = backend.storage(plan)
    model.initialize(0)
    for name, value in model.state_dict().items():
        storage.write(name, value)
    storage.write("loss.grad", np.ones((), np.float32))
    storage.write("hyper", hyper_vector({"lr": 1e-4, "momentum": 0.9}))
    return backend.executable(plan, storage)


def _wall(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _median(measure: Callable[[], float], rounds: int = 21) -> float:
    measure()
    return statistics.median(measure() for _ in range(rounds))


def _print(row: dict[str, Any], *, header: bool) -> None:
    if header:
        print("".join(f"{name:>13}" for name in COLUMNS) + "   (times in µs)")
    cells = (f"{v:13,.1f}" if isinstance(v, float) else f"{v:>13}" for v in row.values())
    print("".join(cells), flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="lenet", choices=sorted(ZOO_SHAPES))
    parser.add_argument("--batch-size", default="64,512,4096", type=_numbers)
    parser.add_argument("--kernels", default=",".join(RUNGS), type=lambda text: text.split(","))
    parser.add_argument("--samples", default=60_000, type=int, help="images of the data set")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    main()
