"""How fast a network trains that a GPU keeps on chip: steps alone, whole runs, many members.

    python benchmarks/onchip_step.py [--network lenet] [--precision bf16] [--batches 64,512,4096]

Data lies on the device; a step gathers, computes and updates. ``gathered`` runs the same step with
kernels of their own before and behind it. Times are the host's, over many graphs, the last result
awaited; a figure is the median of five rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import numpy as np

import convloom as cl
from convloom import nn
from convloom.backends.cuda.launch import launch_of
from convloom.backends.feeding import Samples
from convloom.data import from_arrays
from convloom.nn import models
from convloom.normalise import coefficients
from convloom.training.engine import Engine

CLASSES, MEAN, STD = 10, (0.13,), (0.31,)
ROUNDS = 5


def main() -> None:
    """Print a line a measurement, and all as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--batches", default="64,512,4096")
    parser.add_argument("--members", type=int, default=0, help="of train_many; 0 leaves it out")
    given = parser.parse_args()
    rows = [
        steps(given.network, given.precision, int(batch), fed=fed)
        for batch in given.batches.split(",")
        for fed in (True, False)
    ]
    if given.members:
        rows.append(many(given.network, given.precision, given.members))
    print(json.dumps(rows))


def network(name: str) -> nn.Module:
    """A network of the zoo for images of digits."""
    return models.build(name, num_classes=CLASSES, in_channels=1, image_size=(28, 28))


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels at random."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (count, 1, 28, 28), np.uint8)
    return pixels, draw.integers(0, CLASSES, count)


def steps(name: str, precision: str, batch: int, *, fed: bool) -> dict[str, Any]:
    """Training steps of one batch size."""
    engine = Engine(
        network(name),
        loss=nn.CrossEntropyLoss(),
        optimizer=cl.optim.SGD(lr=0.01, momentum=0.9),
        input_shape=(1, 28, 28),
        device="cuda",
        precision=precision,
    )
    if not fed:
        engine.plan(batch)
        for key, plan in list(engine._plans._made.items()):
            engine._plans._made[key] = replace(
                plan,
                steps=tuple(
                    replace(s, selection=replace(s.selection, launch=replace(launch_of(s), fed=())))
                    for s in plan.steps
                ),
            )
    pixels, labels = images(16_384)
    device = engine.device_input()
    assert device is not None
    data = device.upload(Samples(pixels, labels, *coefficients(MEAN, STD)))
    runner = device.resident(engine.executable("train", batch), data, None)
    count = max(128, min(4096, 1_000_000 // batch)) // 64 * 64
    order = np.random.default_rng(1).integers(0, len(pixels), (count, batch))
    rates = engine.hyper_rows([{"lr": 0.01}] * count)
    seconds = []
    for _ in range(ROUNDS + 1):
        runner.begin(order, rates)
        began, waiting = time.perf_counter(), []
        while runner.left:
            waiting.append(runner.ask(64))
        last = [asked.results() for asked in waiting][-1]
        seconds.append(time.perf_counter() - began)
    assert np.isfinite(last.losses).all()
    median = statistics.median(seconds[1:]) / count
    digest = float(np.abs(engine.read("0.weight").astype(np.float64)).sum())
    row = {
        "batch": batch,
        "fed": fed,
        "us": 1e6 * median,
        "images/s": batch / median,
        "sum of |w|": digest,
    }
    print(row, flush=True)
    return row


def many(name: str, precision: str, members: int) -> dict[str, Any]:
    """Members of 60,000 images, batch 64, one epoch each."""
    pixels, labels = images(60_000)
    classes = [str(number) for number in range(CLASSES)]
    train = from_arrays(pixels, labels, classes=classes, mean=MEAN, std=STD)
    settings: dict[str, Any] = {
        "model": lambda: network(name),
        "optimizer": cl.optim.SGD(lr=0.01, momentum=0.9),
        "loss": nn.CrossEntropyLoss(),
        "epochs": 1,
        "device": "cuda",
        "precision": precision,
        "log_every": 0,
    }
    cl.train_many([{}], train, **settings)
    began = time.perf_counter()
    ensemble = cl.train_many([{"seed": seed} for seed in range(members)], train, **settings)
    seconds = time.perf_counter() - began
    each = statistics.median(member.last.seconds for member in ensemble)
    row = {
        "members": members,
        "seconds": seconds,
        "an epoch of one": each,
        "images/s": 60_000 * members / seconds,
    }
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
