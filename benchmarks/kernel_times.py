"""What each part of a training step takes on this machine's GPU, on every rung of the ladder.

    python benchmarks/kernel_times.py --out benchmarks/results/h200/times-lenet.json
    python benchmarks/kernel_times.py --batch-size 64 --kernels naive,auto
    python benchmarks/kernel_times.py --network resnet18 --batch-size 128 --kernels auto
    python benchmarks/kernel_times.py --batch-size 4096 --kernels sparse --variant all

Each step of the plan is repeated alone, many times in one graph, so what it reads lies in the
second-level cache if it has room there; in a whole step parts also wait for each other, or run side
by side. Steps are put together by layer and direction, so that rungs which fuse operations can be
laid beside those which do not. The limit is the larger of FLOPs over the peak rate and bytes over
bandwidth, both measured in the same run. ``--variant`` compares ways to lay out the layers' kernels
(backends/cuda/selectors/config.py) and prints each part.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

from networks import ZOO_SHAPES

from convloom import nn
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Gpu, open_gpu
from convloom.backends.cuda.launch import launch_of
from convloom.backends.cuda.measure import device_seconds
from convloom.backends.cuda.selectors import RUNGS
from convloom.backends.cuda.selectors.config import VARIANTS, using
from convloom.inspection.environment import environment
from convloom.inspection.peaks import Peaks, measured
from convloom.inspection.workload import Workload, make_workload
from convloom.ir import Graph, Plan, Step
from convloom.nn import models
from convloom.optim import SGD

#: A round of a step lasts about so long, and has no more repetitions than this.
_SECONDS, _MOST = 2e-3, 200


def main() -> int:
    options = _options()
    backend = CudaBackend(open_gpu())
    peaks = measured(backend)
    rows = []
    for batch in options.batch_size:
        for kernels in options.kernels:
            for variant in options.variant:
                with using(VARIANTS[variant]):
                    made = _measured(options, backend, kernels, batch, peaks)
                rows += made
                title = kernels if options.variant == ["plain"] else f"{kernels}, {variant}"
                total = sum(row["us"] for row in made)
                print(f"{title}, batch {batch}: {total:,.1f} µs", flush=True)
                if len(options.variant) > 1:
                    _print_parts(made)
    found: dict[str, Any] = {
        "bench": "kernel times",
        "network": options.network,
        "batch_sizes": options.batch_size,
        "rungs": options.kernels,
        "peaks": vars(peaks),
        "rows": rows,
        "environment": environment("cuda", open_gpu().name),
    }
    asked = f"--batch-size {','.join(map(str, options.batch_size))}"
    if options.network != "lenet":
        asked = f"--network {options.network} {asked}"
    found["environment"]["command"] = f"python benchmarks/kernel_times.py {asked}"
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def _measured(
    options: argparse.Namespace, backend: CudaBackend, kernels: str, batch: int, peaks: Peaks
) -> list[dict[str, Any]]:
    workload = make_work(options.network, batch)
    owners = _owners(workload.graph)
    plan, rows = measured_steps(workload, backend, kernels, peaks, options.rounds)
    parts = [_part(step, owners) for step in plan.steps]
    return [
        {"kernels": kernels, "batch": batch, "part": part, **row}
        for part, row in zip(parts, rows, strict=True)
    ]


def measured_steps(
    workload: Workload, backend: CudaBackend, kernels: str, peaks: Peaks, rounds: int
) -> tuple[Plan, list[dict[str, Any]]]:
    """A workload's plan, and for each of its steps what it is, what it took, and what limits it."""
    plan = workload.plan(backend, kernels)
    executable, _ = workload.bind(backend, plan)
    assert isinstance(executable, CudaExecutable)
    images, labels = workload.batches[0]
    executable.write("input", images)
    executable.write("target", labels)
    executable.run()
    return plan, [
        {
            "op": step.node.op.name,
            "layer": step.node.layer,
            "rung": step.selection.rung,
            "sources": [phase.kernel.source for phase in launch_of(step).phases],
            "us": 1e6 * _alone(executable, at, rounds),
            "limit_us": 1e6 * peaks.seconds(step.flops, step.nbytes),
        }
        for at, step in enumerate(plan.steps)
    ]


def make_work(network: str, batch: int) -> Workload:
    """The training step of a network of the zoo, by plain SGD with momentum."""
    shape, classes = ZOO_SHAPES[network]
    channels, height, width = shape
    model = models.build(
        network, num_classes=classes, in_channels=channels, image_size=(height, width)
    )
    return make_workload(
        model,
        nn.CrossEntropyLoss(),
        SGD(lr=1e-4, momentum=0.9),
        input_shape=shape,
        batch_size=batch,
    )


def _alone(executable: CudaExecutable, at: int, rounds: int) -> float:
    """Seconds of one step, the median of some rounds of many repetitions."""
    gpu = executable.gpu
    times = 1 + min(_MOST, int(_SECONDS / max(_once(executable, at), 1e-7)))

    def repeated() -> None:
        for _ in range(times):
            executable.launch_step(at)

    replay = gpu.capture(repeated)
    replay()
    return statistics.median(_seconds(gpu, replay) for _ in range(rounds)) / times


def _once(executable: CudaExecutable, at: int) -> float:
    executable.run_step(at)
    return _seconds(executable.gpu, lambda: executable.launch_step(at))


def _seconds(gpu: Gpu, work: Any) -> float:
    gpu.synchronize()
    return device_seconds(gpu, work)


def _owners(graph: Graph) -> dict[str, str]:
    """{layer: the layer with parameters that it follows, as a title}."""
    owners: dict[str, str] = {}
    counts: dict[str, int] = {}
    title = "input"
    for node in graph.nodes:
        if node.op.name in ("Conv2d", "Linear"):
            kind = node.op.name.lower().removesuffix("2d")
            counts[kind] = counts.get(kind, 0) + 1
            title = f"{kind} {counts[kind]}"
        owners.setdefault(node.layer, title)
    owners.update({"loss": "loss and metrics", "metrics": "loss and metrics"})
    owners["optimizer"] = "update"
    return owners


def _part(step: Step, owners: dict[str, str]) -> str:
    """``conv 2, backward``."""
    if step.node.op.name.startswith("Chain"):
        return "layers on chip"
    title = owners[step.node.layer]
    if title in ("loss and metrics", "update"):
        return title
    backward = "grad" in step.node.op.name.lower()
    return f"{title}, {'backward' if backward else 'forward'}"


def _print_parts(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        sources = " + ".join(row["sources"])
        print(f"    {row['part']:20}{row['us']:9.1f}  {sources}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--network", default="lenet", choices=sorted(ZOO_SHAPES))
    parser.add_argument(
        "--batch-size", default="64,4096", type=lambda text: [int(n) for n in text.split(",")]
    )
    parser.add_argument("--kernels", default=list(RUNGS), type=lambda text: text.split(","))
    parser.add_argument(
        "--variant",
        default=["plain"],
        type=lambda text: list(VARIANTS) if text == "all" else text.split(","),
        help=f"ways to lay out the layers' kernels: all, or of {', '.join(VARIANTS)}",
    )
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    options = parser.parse_args()
    if options.out is not None and options.variant != ["plain"]:
        parser.error("--out keeps the times of the plain variant; leave --variant out")
    return options


if __name__ == "__main__":
    sys.exit(main())
