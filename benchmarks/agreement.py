"""How closely devices agree over 100 steps of LeNet: with each other, with float64, with PyTorch.

    python benchmarks/agreement.py --out benchmarks/results/h200
    python benchmarks/agreement.py --devices cpu --seeds 0,1

From one seed, each device takes the same steps of SGD with momentum on the same batches of 64
MNIST images, in fp32. Three questions, each with a verdict; exit code 1 if one is no:

- steps: the losses of cpu and cuda differ by at most 1e-6 of their size over 5 steps, 1e-4 over 10.
- float64: after 100 steps, loss and weights are no farther from a run in float64 than 3 times
  PyTorch's in fp32. Rounding decides which cell of a pool wins and which ReLU is open, and from
  there on runs drift apart, in PyTorch too, oneDNN from its own kernels as well. So each seed has
  its figures, and geometric means count: over the seeds, and of PyTorch over its ways too.
- bits: a run again, a run kernel by kernel (watched), and resident against streamed input give the
  bits of the first.

The float64 run is PyTorch's, on the GPU if there is one; its first step is held against that of
device reference (NumPy) in float64.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import convloom as cl
from convloom import nn
from convloom.compiler.interpret import interpret
from convloom.inspection.environment import environment
from convloom.interop.torch.peers import precision
from convloom.interop.torch.twin import TorchTwin
from convloom.nn.models import lenet
from convloom.ops.control import counter_vector, hyper_vector
from convloom.optim import SGD
from convloom.training.graphs import INDEX, training_graph
from convloom.training.step import TrainingStep

SHAPE, BATCH = (1, 28, 28), 64
LR, MOMENTUM = 0.01, 0.9
#: {steps: the largest relative difference of losses that is allowed}.
STEPS = {5: 1e-6, 10: 1e-4}
#: How many times PyTorch's distance from float64 ours may be.
FACTOR = 3.0

Batches = list[tuple[np.ndarray, np.ndarray]]
Weights = dict[str, np.ndarray]


class Run:
    """Losses of each step, and the weights at the end."""

    def __init__(self, losses: list[float], weights: Weights) -> None:
        self.losses = np.array(losses)
        self.weights = weights

    def same(self, other: Run) -> bool:
        """Whether all bits are equal."""
        return self.losses.tobytes() == other.losses.tobytes() and all(
            self.weights[name].tobytes() == other.weights[name].tobytes() for name in self.weights
        )

    def apart(self, exact: Run) -> dict[str, float]:
        """How far this run is from another: of losses the mean and the last, and of weights."""
        losses = np.abs(self.losses - exact.losses) / np.abs(exact.losses)
        names = sorted(self.weights)
        ours, theirs = (
            np.concatenate([run.weights[name].ravel().astype(np.float64) for name in names])
            for run in (self, exact)
        )
        return {
            "mean loss": float(losses.mean()),
            "last loss": float(losses[-1]),
            "weights": float(np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)),
        }


def main() -> int:
    options = _options()
    exact = "cuda" if "cuda" in options.devices else "cpu"
    train, _ = cl.data.load("mnist", data_dir=options.data_dir)
    found: dict[str, Any] = {"steps": {}, "float64": {}, "bits": {}}
    runs = {}
    for seed in options.seeds:
        batches = _batches(train, seed, options.steps)
        runs[seed] = _runs(options.devices, seed, batches, exact)
        print(f"seed {seed}: {', '.join(runs[seed])} took {options.steps} steps", flush=True)
    if len(options.devices) > 1:
        found["steps"] = {seed: _compared(options.devices, runs[seed]) for seed in options.seeds}
    found["float64"] = _distances(options.devices, list(runs.values()))
    found["numpy float64"] = _first_step(options.seeds[0], _batches(train, options.seeds[0], 1))
    for device in options.devices:
        first, batches = runs[options.seeds[0]][device], _batches(train, options.seeds[0], 100)
        found["bits"][device] = _bits(device, options.seeds[0], first, batches[: options.steps])
        if device != "cpu":
            found["bits"][device]["resident and stream"] = _ways(device, train.take(6_400 + 13))
    return _report(found, options)


def _batches(train: Any, seed: int, steps: int) -> Batches:
    chosen = train.batches(BATCH, seed=seed, shuffle=True)
    return [(b.images, b.labels) for b, _ in zip(chosen.epoch(0), range(steps), strict=False)]


def _runs(devices: list[str], seed: int, batches: Batches, exact: str) -> dict[str, Run]:
    """Every engine's run: float64, PyTorch in its ways, ours."""
    made = {"float64": _torch_run(seed, batches, torch.float64, exact)}
    for name in _peers(devices):
        with _way(name) as device:
            made[name] = _torch_run(seed, batches, torch.float32, device)
    for device in devices:
        made[device] = _run(device, seed, batches)
    return made


def _peers(devices: list[str]) -> list[str]:
    cuda = ["PyTorch cuda"] if "cuda" in devices else []
    return ["PyTorch cpu, oneDNN", "PyTorch cpu, native", *cuda]


@contextlib.contextmanager
def _way(name: str) -> Iterator[str]:
    """The device of one of PyTorch's ways, in fp32 without TF32."""
    if "native" in name:
        with torch.backends.mkldnn.flags(enabled=False):
            yield "cpu"
    elif "cuda" in name:
        with precision(tf32=False):
            yield "cuda"
    else:
        yield "cpu"


def _step(device: str, seed: int) -> TrainingStep:
    return cl.compile(
        lenet(10, 1, 28),
        nn.CrossEntropyLoss(),
        SGD(lr=LR, momentum=MOMENTUM),
        batch_size=BATCH,
        input_shape=SHAPE,
        device=device,
        seed=seed,
    )


def _run(device: str, seed: int, batches: Batches, watched: bool = False) -> Run:
    step, losses = _step(device, seed), []
    for x, y in batches:
        if watched:
            fault = step.watch(x, y)
            assert fault is None, fault
            losses.append(float(step.read("loss")))
        else:
            losses.append(step(x, y))
    return Run(losses, step.state_dict())


def _torch_run(seed: int, batches: Batches, dtype: torch.dtype, device: str = "cpu") -> Run:
    model = lenet(10, 1, 28)
    model.initialize(seed)
    forward = model.trace(SHAPE, BATCH)
    twin = TorchTwin(forward, model.state_dict()).to(device, dtype)
    optimizer = torch.optim.SGD(twin.parameters(), lr=LR, momentum=MOMENTUM)
    losses = []
    for x, y in batches:
        optimizer.zero_grad()
        images = torch.from_numpy(x).to(device, dtype)
        loss = functional.cross_entropy(twin(images), torch.from_numpy(y).to(device))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    named = {name: getattr(twin, attribute) for name, attribute in twin.names.items()}
    return Run(losses, {name: one.detach().cpu().numpy() for name, one in named.items()})


def _compared(devices: list[str], runs: dict[str, Run]) -> dict[str, float]:
    """{steps: largest relative difference of the losses of the first device and another}."""
    first = runs[devices[0]].losses
    return {
        str(count): max(
            float(np.max(np.abs(runs[other].losses - first)[:count] / first[:count]))
            for other in devices[1:]
        )
        for count in STEPS
    }


def _distances(devices: list[str], seeds: list[dict[str, Run]]) -> dict[str, dict[str, Any]]:
    """{engine: {figure: distance from float64, of each seed and the geometric mean}}."""
    made: dict[str, dict[str, Any]] = {}
    for name in (*_peers(devices), *devices):
        apart = [runs[name].apart(runs["float64"]) for runs in seeds]
        made[name] = {
            figure: {
                "seeds": [one[figure] for one in apart],
                "mean": math.exp(float(np.mean([math.log(one[figure]) for one in apart]))),
            }
            for figure in apart[0]
        }
    return made


def _first_step(seed: int, batches: Batches) -> float:
    """How far the weights after a step of the NumPy reference in float64 are from PyTorch's."""
    model = lenet(10, 1, 28)
    model.initialize(seed)
    optimizer = SGD(lr=LR, momentum=MOMENTUM)
    graph = training_graph(
        model.trace(SHAPE, BATCH), nn.CrossEntropyLoss(), INDEX, optimizer, False
    )
    (x, y), weights = batches[0], model.state_dict()
    values = {
        **{name: np.zeros(spec.shape) for name, spec in graph.specs.items() if "momentum" in name},
        **{name: value.astype(np.float64) for name, value in weights.items()},
        "input": x.astype(np.float64),
        "target": y,
        "loss.grad": np.ones(()),
        "hyper": hyper_vector({"lr": LR, "momentum": MOMENTUM}),
        "counter": counter_vector(seed, 0),
    }
    known = interpret(graph, {name: values[name] for name in graph.roles if name in values})
    new = {name: known[graph.updates[name]] for name in weights}
    ours, exact = Run([1.0], new), _torch_run(seed, batches[:1], torch.float64)
    return ours.apart(Run([1.0], exact.weights))["weights"]


def _bits(device: str, seed: int, first: Run, batches: Batches) -> dict[str, bool]:
    return {
        "again": first.same(_run(device, seed, batches)),
        "watched": first.same(_run(device, seed, batches, watched=True)),
    }


def _ways(device: str, train: Any) -> bool:
    """Whether two epochs of resident and of streamed input end in the same bits."""
    ends = []
    for way in ("resident", "stream"):
        trainer = cl.Trainer(
            lenet(10, 1, 28),
            optimizer=SGD(lr=LR, momentum=MOMENTUM),
            loss=nn.CrossEntropyLoss(),
            batch_size=BATCH,
            device=device,
            input=way,
            seed=0,
        )
        history = trainer.fit(train, epochs=2)
        ends.append(Run(list(history.column("loss")), trainer.model.state_dict()))
    return ends[0].same(ends[1])


def _report(found: dict[str, Any], options: argparse.Namespace) -> int:
    verdicts = _verdicts(found, options.devices)
    found.update(
        bench="agreement",
        batch_size=BATCH,
        steps_taken=options.steps,
        seeds=options.seeds,
        verdicts=verdicts,
        environment=environment(options.devices[-1]),
    )
    asked = f"--devices {','.join(options.devices)} --seeds {','.join(map(str, options.seeds))}"
    found["environment"]["command"] = f"python benchmarks/agreement.py {asked}"
    text = "\n".join(_lines(found))
    print(text)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "agreement.json").write_text(json.dumps(found, indent=1) + "\n")
    return 0 if all(verdicts.values()) else 1


def _verdicts(found: dict[str, Any], devices: list[str]) -> dict[str, bool]:
    made = {}
    for count, most in STEPS.items():
        apart = [one[str(count)] for one in found["steps"].values()]
        if apart:
            made[f"losses agree to {most:g} over {count} steps"] = max(apart) <= most
    distances = found["float64"]
    for device in devices:
        for figure in next(iter(distances.values())):
            peers = [math.log(distances[name][figure]["mean"]) for name in _peers(devices)]
            near = distances[device][figure]["mean"] <= FACTOR * math.exp(np.mean(peers))
            made[f"{device}: {figure} within {FACTOR:g} x PyTorch's distance"] = near
        for what, same in found["bits"][device].items():
            made[f"{device}: same bits, {what}"] = same
    made["NumPy's float64 step is PyTorch's"] = found["numpy float64"] < 1e-12
    return made


def _lines(found: dict[str, Any]) -> Iterator[str]:
    for seed, counts in found["steps"].items():
        shown = ", ".join(f"{apart:.2g} over {count} steps" for count, apart in counts.items())
        yield f"losses of the devices, seed {seed}: {shown}"
    yield f"{'distance from float64':24}{'mean loss':>12}{'last loss':>12}{'weights':>12}"
    for name, figures in found["float64"].items():
        yield f"{name:24}" + "".join(f"{one['mean']:12.2e}" for one in figures.values())
    yield f"first step of NumPy in float64: weights {found['numpy float64']:.1e} from PyTorch's"
    for verdict, holds in found["verdicts"].items():
        yield f"{'yes' if holds else 'NO '}  {verdict}"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--devices", default="cpu,cuda", type=lambda text: text.split(","))
    parser.add_argument("--seeds", default="0,1,2,3,4", type=_numbers)
    parser.add_argument("--steps", default=100, type=int)
    parser.add_argument("--data-dir", type=Path, help="where mnist lies")
    parser.add_argument("--out", type=Path, help="folder for agreement.json")
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
