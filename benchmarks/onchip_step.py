"""How fast a network trains that a GPU keeps on chip; many_models.py: many of them at once.

    python benchmarks/onchip_step.py [--network lenet] [--precision bf16] [--batches 64,512,4096]
    python benchmarks/onchip_step.py --precision fp32,tf32,bf16 --variant all --batches 64,4096

Data lies on the device; a step gathers, computes and updates. ``--gathered`` also runs the same
step with kernels of their own before and behind it. ``--variant`` compares ways to lay the kernels
out (backends/cuda/onchip/config.py), ``layers`` among them: layer by layer, without a segment.
Times are the host's, over many graphs, the last result awaited; a figure is the median of five
rounds. A row says so where its first losses are not those of the first variant.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import convloom as cl
from convloom import nn
from convloom.backends.cuda.fed import told
from convloom.backends.cuda.gpu import open_gpu
from convloom.backends.cuda.launch import Specialisation, launch_of
from convloom.backends.cuda.nvrtc import shared_compiler
from convloom.backends.cuda.onchip.config import VARIANTS, using
from convloom.backends.cuda.resident import kernels
from convloom.backends.feeding import Samples
from convloom.inspection.environment import environment
from convloom.nn import models
from convloom.normalise import coefficients
from convloom.training.engine import Engine

CLASSES, MEAN, STD = 10, (0.13,), (0.31,)
#: The variant that plans are made with when nobody asks for one.
DEFAULT = "auto"
#: The variant that has no segment, and the highest rung of its kernels.
LAYERS, BELOW = "layers", "sparse"
#: Steps whose losses are compared, and by how much they may differ.
COMPARED, CLOSE = 8, 0.02


@dataclass(frozen=True)
class Setting:
    """Where and how long: ``steps`` of a round, or None for what suits the batch."""

    device: str = "cuda"
    steps: int | None = None
    rounds: int = 5


GPU = Setting()


def main() -> None:
    """Print a line a measurement, a table, and all as JSON at the end."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--precision", default="bf16", help="one or more, with commas")
    parser.add_argument("--batches", default="64,512,4096")
    parser.add_argument("--variant", default=DEFAULT, help=f"all, or of {', '.join(_known())}")
    parser.add_argument("--gathered", action="store_true", help="with kernels around the step too")
    parser.add_argument("--out", help="a file for the JSON")
    given = parser.parse_args()
    batches = [int(batch) for batch in given.batches.split(",")]
    variants = {name: _variants(given.variant, name) for name in given.precision.split(",")}
    compile_ahead(given.network, variants, batches)
    rows: list[dict[str, Any]] = []
    for precision in variants:
        for batch in batches:
            rows += compared(given.network, precision, batch, variants[precision])
            if given.gathered:
                rows.append(gathered(given.network, precision, batch, GPU))
    print(table([row for row in rows if "variant" in row]))
    text = json.dumps({"environment": _environment(), "rows": rows})
    if given.out:
        Path(given.out).write_text(text + "\n", encoding="utf-8")
    print(text)


def _environment() -> dict[str, Any]:
    """Where this was measured, and how."""
    command = shlex.join(["python", "benchmarks/onchip_step.py", *sys.argv[1:]])
    return environment(GPU.device, open_gpu().name) | {"command": command}


def _known() -> tuple[str, ...]:
    return (DEFAULT, *VARIANTS, LAYERS)


def _variants(wanted: str, precision: str) -> list[str]:
    """Those asked for; layers compute in fp32 alone."""
    names = _known() if wanted == "all" else wanted.split(",")
    for name in names:
        if name not in _known():
            raise SystemExit(f"no variant {name!r}; there are all, {', '.join(_known())}")
    return [name for name in names if name != LAYERS or precision == "fp32"]


def compile_ahead(name: str, variants: Mapping[str, Sequence[str]], batches: Sequence[int]) -> None:
    """All kernels that will be timed, at once, so that all cores compile."""
    wanted = {
        kernel
        for precision, own in variants.items()
        for variant in own
        for batch in batches
        for kernel in kernels_of(name, precision, variant, batch)
    }
    shared_compiler().compile(wanted, open_gpu().arch)


def kernels_of(name: str, precision: str, variant: str, batch: int) -> set[Specialisation]:
    """Of steps that take their batches from the data set."""
    with using(VARIANTS.get(variant)):
        plan = engine_of(name, precision, variant, GPU.device).plan(batch)
    gather, _ = kernels((1, 28, 28), plan.spec("hyper").size, None)
    launches = [launch_of(step) for step in plan.steps]
    fed = [phase.kernel for launch in launches for phase in told(launch.fed, gather)]
    own = [kernel for launch in launches if not launch.fed for kernel in launch.kernels]
    return {*fed, *own, *(phase.kernel for launch in launches for phase in launch.prologue)}


def compared(
    name: str, precision: str, batch: int, variants: Sequence[str], setting: Setting = GPU
) -> list[dict[str, Any]]:
    """All variants of one precision and batch size, whose losses must agree.

    A variant that changes nothing of the first one's kernels is left out.
    """
    rows: list[dict[str, Any]] = []
    seen: list[object] = []
    for variant in variants:
        with using(VARIANTS.get(variant)):
            engine = engine_of(name, precision, variant, setting.device)
            launches = [launch_of(step) for step in engine.plan(batch).steps]
            if launches in seen:
                continue
            seen.append(launches)
            row = {"precision": precision, "batch": batch, "variant": variant}
            try:
                row |= timed(engine, batch, setting)
            except cl.ConvloomError as error:
                row |= {"error": str(error)}
            print(row, flush=True)
        rows.append(row)
    return agreeing(rows)


def agreeing(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows, with an error in those whose losses are not the first one's."""
    timed = [row for row in rows if "losses" in row]
    for row in timed[1:]:
        if not np.allclose(row["losses"], timed[0]["losses"], rtol=CLOSE, atol=CLOSE):
            row["error"] = f"its losses are not those of {timed[0]['variant']}"
    return list(rows)


def table(rows: Sequence[dict[str, Any]]) -> str:
    """Microseconds a step and thousands of images a second of every row."""
    lines = [f"{'precision':9} {'batch':>6} {'variant':16} {'us':>9} {'k images/s':>11}  blocks"]
    for row in rows:
        figures = f"{row['us']:9.1f} {row['images/s'] / 1e3:11.1f}  {row['blocks']}"
        told = row.get("error", "")
        lines.append(
            f"{row['precision']:9} {row['batch']:6} {row['variant']:16} {figures} {told}"
            if "us" in row
            else f"{row['precision']:9} {row['batch']:6} {row['variant']:16} {told}"
        )
    return "\n".join(lines)


def network(name: str) -> nn.Module:
    """A network of the zoo for images of digits."""
    return models.build(name, num_classes=CLASSES, in_channels=1, image_size=(28, 28))


def images(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Pixels and labels at random."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 256, (count, 1, 28, 28), np.uint8)
    return pixels, draw.integers(0, CLASSES, count)


def engine_of(name: str, precision: str, variant: str, device: str) -> Engine:
    """An engine that trains the network on chip, or layer by layer."""
    return Engine(
        network(name),
        loss=nn.CrossEntropyLoss(),
        optimizer=cl.optim.SGD(lr=0.01, momentum=0.9),
        input_shape=(1, 28, 28),
        device=device,
        kernels=BELOW if variant == LAYERS else "onchip",
        precision=precision,
    )


def gathered(name: str, precision: str, batch: int, setting: Setting) -> dict[str, Any]:
    """The same kernels, with others around them that gather the batch and file the loss."""
    engine = engine_of(name, precision, DEFAULT, setting.device)
    engine.plan(batch)
    for key, plan in list(engine._plans._made.items()):
        engine._plans._made[key] = replace(
            plan,
            steps=tuple(
                replace(s, selection=replace(s.selection, launch=replace(launch_of(s), fed=())))
                for s in plan.steps
            ),
        )
    row = {"precision": precision, "batch": batch, "variant": "auto, gathered"}
    row |= timed(engine, batch, setting)
    print(row, flush=True)
    return row


def timed(engine: Engine, batch: int, setting: Setting) -> dict[str, Any]:
    """Training steps of one batch size."""
    pixels, labels = images(16_384)
    device = engine.device_input()
    assert device is not None
    data = device.upload(Samples(pixels, labels, *coefficients(MEAN, STD)))
    runner = device.resident(engine.executable("train", batch), data, None)
    count = setting.steps or max(128, min(4096, 500_000 // batch)) // 64 * 64
    order = np.random.default_rng(1).integers(0, len(pixels), (count, batch))
    rates = engine.hyper_rows([{"lr": 0.01}] * count)
    seconds, losses = [], np.zeros(0)
    for _ in range(setting.rounds + 1):
        runner.begin(order, rates)
        began, waiting = time.perf_counter(), []
        while runner.left:
            waiting.append(runner.ask(64))
        results = [asked.results() for asked in waiting]
        seconds.append(time.perf_counter() - began)
        if not losses.size:
            losses = np.concatenate([result.losses for result in results])[:COMPARED]
    assert np.isfinite(results[-1].losses).all()
    median = statistics.median(seconds[1:]) / count
    segments = [step.selection.segment for step in engine.plan(batch).steps]
    return {
        "blocks": max((segment.blocks for segment in segments if segment), default=0),
        "us": 1e6 * median,
        "images/s": batch / median,
        "sum of |w|": float(np.abs(engine.read("0.weight").astype(np.float64)).sum()),
        "losses": [float(loss) for loss in losses],
    }


if __name__ == "__main__":
    main()
