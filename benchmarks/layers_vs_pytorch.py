"""Where a network's training step takes longer than PyTorch eager's, layer by layer, on this GPU.

    python benchmarks/layers_vs_pytorch.py --network alexnet --batch-size 128 --out FILE.json
    python benchmarks/layers_vs_pytorch.py --network resnet18,mobilenet-v1-small

Both sides repeat each piece alone, many times in a graph, on the same shapes in fp32 without TF32.
A row is a layer's forward or backward pass. Layers that convloom computes within another's kernels,
as a ReLU in a convolution, count to that one on both sides. Updates and the loss are left out: here
is only what layers do. The limit is the larger of FLOPs and bytes over their measured peaks.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from kernel_times import make_work, measured_steps
from networks import ZOO_SHAPES

from convloom.backends.base import DeviceError
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.gpu import open_gpu
from convloom.inspection.environment import environment
from convloom.inspection.peaks import measured
from convloom.inspection.workload import Workload
from convloom.interop.torch.peers import precision
from convloom.interop.torch.twin import TorchTwin
from convloom.ir import Graph, Plan, Role

FORWARD, BACKWARD = "forward", "backward"
#: Calls of PyTorch in one graph, and rounds of it of which the median counts.
_CALLS, _ROUNDS = 10, 5

#: (layer, direction)
Part = tuple[str, str]
Timer = Callable[[Callable[[], object]], float]


def main() -> int:
    options = _options()
    try:
        gpu = open_gpu()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    backend = CudaBackend(gpu)
    peaks = measured(backend)
    networks = []
    for network in options.network:
        work = make_work(network, options.batch_size)
        plan, steps = measured_steps(work, backend, "auto", peaks, options.rounds)
        with precision(tf32=False):
            theirs = torch_seconds(work, "cuda", on_gpu)
        rows = joined(plan, steps, theirs)
        networks.append({"network": network, "rows": rows})
        print(table(f"{network}, batches of {options.batch_size}", rows), flush=True)
    found = {
        "bench": "layers beside PyTorch",
        "batch_size": options.batch_size,
        "networks": networks,
        "peaks": vars(peaks),
        "environment": environment("cuda", gpu.name),
    }
    found["environment"]["command"] = (
        f"python benchmarks/layers_vs_pytorch.py --network {','.join(options.network)} "
        f"--batch-size {options.batch_size}"
    )
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def joined(
    plan: Plan, steps: list[dict[str, Any]], theirs: Mapping[Part, float]
) -> list[dict[str, Any]]:
    """A row for each layer that has steps of its own, in the network's order, forward first.

    Args:
        steps: of the plan, as kernel_times measures them.
        theirs: seconds of PyTorch for each layer and direction.
    """
    own = owners(list(dict.fromkeys(layer for layer, _ in theirs)), plan)
    rows: dict[Part, dict[str, Any]] = {}
    for (layer, direction), seconds in theirs.items():
        part = own[layer], direction
        row = rows.setdefault(part, _empty(*part))
        row["layers"].append(layer)
        row["pytorch_us"] += 1e6 * seconds
    direction = FORWARD
    for step in steps:
        layer = step["layer"]
        if layer == "loss":
            direction = BACKWARD
        if layer in own:
            row = rows.setdefault((own[layer], direction), _empty(own[layer], direction))
            row["us"] += step["us"]
            row["limit_us"] += step["limit_us"]
            row["kernels"] += [f"{step['op']} [{step['rung']}]"]
    return sorted(rows.values(), key=lambda row: row["direction"] == BACKWARD)


def owners(layers: list[str], plan: Plan) -> dict[str, str]:
    """{layer: the one it counts to}: itself, or else the last before it with forward steps."""
    steps = itertools.takewhile(lambda step: step.node.layer != "loss", plan.steps)
    have = {step.node.layer for step in steps}
    found: dict[str, str] = {}
    last = layers[0]
    for layer in layers:
        last = layer if layer in have else last
        found[layer] = last
    return found


def _empty(layer: str, direction: str) -> dict[str, Any]:
    return {
        "layer": layer,
        "direction": direction,
        "layers": [],
        "kernels": [],
        "us": 0.0,
        "pytorch_us": 0.0,
        "limit_us": 0.0,
    }


def torch_seconds(work: Workload, device: str, timer: Timer) -> dict[Part, float]:
    """Seconds of each layer's calls in PyTorch, forward and backward, on a batch of the workload.

    Each call of the twin stands alone: its inputs are leaves, so that its backward pass is one call
    too. What adds up the gradients of a tensor that several layers read is not counted.
    """
    graph = work.forward
    twin = TorchTwin(graph, work.weights).to(device)
    images, _ = work.batches[0]
    known: dict[str, torch.Tensor] = {"input": torch.from_numpy(images).to(device)}
    known |= {name: getattr(twin, attribute) for name, attribute in twin.names.items()}
    found: dict[Part, float] = {}
    for node, call in twin.calls:
        leaves = [_leaf(known[name], graph, name) for name in node.inputs if name in known]
        output = call(*leaves)
        known[node.outputs[0]] = output.detach()
        _add(found, (node.layer, FORWARD), timer(_forward(call, leaves)))
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        if wanted and output.requires_grad:
            _add(found, (node.layer, BACKWARD), timer(_backward(output, wanted)))
    return found


def _forward(call: Callable[..., torch.Tensor], leaves: list[torch.Tensor]) -> Callable[[], object]:
    return lambda: call(*leaves)


def _backward(output: torch.Tensor, wanted: list[torch.Tensor]) -> Callable[[], object]:
    gradient = torch.ones_like(output)
    return lambda: torch.autograd.grad(output, wanted, gradient, retain_graph=True)


def _leaf(value: torch.Tensor, graph: Graph, name: str) -> torch.Tensor:
    """A tensor that a call's gradient ends at; images and buffers have none."""
    learns = name not in graph.roles or graph.role(name) is Role.PARAMETER
    return value.detach().requires_grad_(learns and value.is_floating_point())


def _add(found: dict[Part, float], part: Part, seconds: float) -> None:
    found[part] = found.get(part, 0.0) + seconds


def on_gpu(call: Callable[[], object]) -> float:
    """Seconds of a call, from a CUDA graph of several."""
    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(3):  # cuDNN chooses its algorithms
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(_CALLS):
            call()
    graph.replay()
    rounds = [_round(graph.replay) for _ in range(_ROUNDS)]
    return statistics.median(rounds) / _CALLS


def _round(replay: Callable[[], None]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop)


def table(title: str, rows: list[dict[str, Any]]) -> str:
    """The rows as text, totals last."""
    head = f"{'layer':28}{'':10}{'us':>10}{'PyTorch':>10}{'limit':>10}{'ratio':>8}  kernels"
    lines = [title, head]
    total = {**_empty("all layers", ""), "kernels": []}
    for row, key in itertools.product(rows, ("us", "pytorch_us", "limit_us")):
        total[key] += row[key]
    for row in [*rows, total]:
        ratio = f"{row['pytorch_us'] / row['us']:.2f}" if row["us"] else ""
        lines.append(
            f"{row['layer']:28}{row['direction']:10}{row['us']:10,.1f}{row['pytorch_us']:10,.1f}"
            f"{row['limit_us']:10,.1f}{ratio:>8}  {', '.join(row['kernels'])}"
        )
    return "\n".join(lines)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    known = ",".join(sorted(ZOO_SHAPES))
    parser.add_argument(
        "--network", default=["alexnet"], type=lambda text: text.split(","), help=f"some of {known}"
    )
    parser.add_argument("--batch-size", default=128, type=int)
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--out", type=Path, help="file for the figures, as JSON")
    options = parser.parse_args()
    if unknown := [name for name in options.network if name not in ZOO_SHAPES]:
        parser.error(f"--network {unknown[0]} is not one of {known}")
    return options


if __name__ == "__main__":
    sys.exit(main())
