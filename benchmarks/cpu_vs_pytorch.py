"""CPU training throughput beside PyTorch eager's, interleaved in one run.

    python benchmarks/cpu_vs_pytorch.py                       # two networks, all convolutions
    python benchmarks/cpu_vs_pytorch.py --only zoo --rounds 3 # every network by name, batch 32
    python benchmarks/cpu_vs_pytorch.py --only lenet,resnet18@32 --json
    python benchmarks/cpu_vs_pytorch.py --network path/net.py:make_model --input-shape 3,32,32

Each contender lives in a process of its own and runs in turn, a second at a time, so that a
disturbed machine disturbs both; the ratio is the median over rounds of ours / PyTorch's. A network
is timed over forward, loss, backward and SGD update with momentum at fp32; a convolution over its
forward and both gradients. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

from conv_zoo import ZOO
from networks import ZOO_SHAPES

ANY_BAR = 1.0


@dataclass(frozen=True)
class Network:
    """A network of the zoo: what it is timed on, and the least ratio."""

    name: str
    shape: tuple[int, int, int]
    classes: int
    batch_size: int
    bar: float = ANY_BAR


#: {name of a task: network}: the two that were tuned first, at batch 64, and the whole zoo at 32.
NETWORKS = {
    "lenet": Network("lenet", *ZOO_SHAPES["lenet"], batch_size=64, bar=5.0),
    "vgg-small": Network("vgg-small", *ZOO_SHAPES["vgg-small"], batch_size=64, bar=1.8),
    **{f"{name}@32": Network(name, *of, batch_size=32) for name, of in ZOO_SHAPES.items()},
}


@dataclass(frozen=True)
class Task:
    """One thing to time: a network's training step or one convolution."""

    name: str
    spec: dict[str, Any]
    bar: float
    images: int


class Contender:
    """A worker process; ``round`` lets it run for a while and returns images a second."""

    def __init__(self, engine: str, task: Task, threads: int) -> None:
        worker = Path(__file__).with_name("cpu_worker.py")
        threads_env = {
            name: str(threads)
            for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "CONVLOOM_NUM_THREADS")
        }
        self.process = subprocess.Popen(
            [sys.executable, str(worker), engine, json.dumps(task.spec)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **threads_env},
        )
        self._answer()

    def round(self, seconds: float) -> float:
        return float(self._ask(f"run {seconds}"))

    def peak_mb(self) -> float:
        return float(self._ask("peak"))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with code {self.process.wait()}; see above")
        return line.strip()


def tasks(arguments: argparse.Namespace) -> list[Task]:
    """What to time, by the command line."""
    if arguments.network:
        shape = tuple(int(v) for v in arguments.input_shape.split(","))
        return [_task(arguments.network, Network(arguments.network, shape, 10, 64), arguments)]
    found = [_task(name, network, arguments) for name, network in NETWORKS.items()]
    found += [Task(name, {"conv": conv}, ANY_BAR, conv[0]) for name, conv in ZOO.items()]
    if arguments.only:
        only = arguments.only.split(",")
        if "zoo" in only:
            only += [name for name in NETWORKS if name.endswith("@32")]
        if unknown := set(only) - {"zoo"} - {task.name for task in found}:
            raise SystemExit(
                f"--only {', '.join(sorted(unknown))}: known are zoo, "
                f"{', '.join((*NETWORKS, *ZOO))}"
            )
        return [task for task in found if task.name in only]
    return [task for task in found if not task.name.endswith("@32")]


def _task(name: str, network: Network, arguments: argparse.Namespace) -> Task:
    size = arguments.batch_size or network.batch_size
    spec = {
        "network": network.name,
        "input_shape": network.shape,
        "classes": network.classes,
        "batch_size": size,
    }
    return Task(name, spec, network.bar, size)


def measure(task: Task, rounds: int, seconds: float, threads: int) -> dict[str, float]:
    """Interleaved rounds of one task."""
    ours, peer = (Contender(engine, task, threads) for engine in ("convloom", "pytorch"))
    rates = [(ours.round(seconds), peer.round(seconds)) for _ in range(rounds)]
    result = {
        "ratio": round(statistics.median(a / b for a, b in rates), 3),
        "ours": round(statistics.median(a for a, _ in rates), 1),
        "pytorch": round(statistics.median(b for _, b in rates), 1),
        "peak_mb": ours.peak_mb(),
        "pytorch_peak_mb": peer.peak_mb(),
    }
    for contender in (ours, peer):
        contender.close()
    return result


def misses(task: Task, result: dict[str, float]) -> list[str]:
    """What falls short of the bars, in words."""
    found = []
    if result["ratio"] < task.bar:
        found.append(f"{task.name}: ratio {result['ratio']} is under {task.bar}")
    if "network" in task.spec and result["peak_mb"] > result["pytorch_peak_mb"]:
        found.append(f"{task.name}: peak memory is above PyTorch's")
    return found


def circumstances(arguments: argparse.Namespace) -> dict[str, Any]:
    """What a figure is worth nothing without."""
    import numpy
    import torch

    return {
        "date": str(date.today()),
        "command": shlex.join(["python", *sys.argv]),
        "processor": processor(),
        "threads": arguments.threads,
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "pytorch": torch.__version__,
    }


def processor() -> str:
    """The processor's name and instruction sets that matter here."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    facts = dict(line.split(":", 1) for line in lines if ":" in line)
    facts = {name.strip(): value.strip() for name, value in facts.items()}
    vectors = [name for name in ("avx2", "avx512f", "amx_tile") if name in facts.get("flags", "")]
    return f"{facts.get('model name', platform.machine())} ({', '.join(vectors)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="names of networks or convolutions, comma-separated")
    parser.add_argument("--network", help="path/net.py:make_model, a network of your own")
    parser.add_argument("--input-shape", default="3,32,32", help="C,H,W for --network")
    parser.add_argument(
        "--batch-size", type=int, help="images a step of every network (default: as its name says)"
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=7, help="rounds per contender (default 7)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a round")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--save", type=Path, help="file for the results with all circumstances")
    arguments = parser.parse_args()

    results, short = {}, []
    for task in tasks(arguments):
        seconds = arguments.seconds if "network" in task.spec else arguments.seconds / 2
        result = measure(task, arguments.rounds, seconds, arguments.threads)
        results[task.name] = result
        short += misses(task, result)
        if not arguments.json:
            print(
                f"{task.name:22s} {result['ratio']:6.2f}x (bar {task.bar:.1f})  "
                f"ours {result['ours']:9.1f}  PyTorch {result['pytorch']:9.1f} images/s  "
                f"peak {result['peak_mb']:.0f} / {result['pytorch_peak_mb']:.0f} MB",
                flush=True,
            )
    if arguments.json:
        print(json.dumps(results, indent=1))
    else:
        print(", ".join(f"{name} {value}" for name, value in circumstances(arguments).items()))
    if arguments.save:
        record = {**circumstances(arguments), "results": results}
        arguments.save.write_text(json.dumps(record, indent=1) + "\n")
    for line in short:
        print(f"MISSED {line}", file=sys.stderr)
    return 1 if short else 0


if __name__ == "__main__":
    raise SystemExit(main())
