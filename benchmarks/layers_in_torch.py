"""PyTorch's side of layers_vs_pytorch.py, in a process of its own.

    python benchmarks/layers_in_torch.py NETWORK BATCH_SIZE DEVICE

It makes the network and its batch, waits for a line on stdin, times each layer on the device, and
prints one line of JSON: {"seconds": [[layer, direction, seconds], …]}, or {"error": traceback} and
exit code 1. So no side works while the other is timed, and an error of CUDA ends one side alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import torch
from kernel_times import make_work
from layers_vs_pytorch import BACKWARD, FORWARD, Part

from convloom.inspection.workload import Workload
from convloom.interop.torch.peers import precision
from convloom.interop.torch.twin import TorchTwin
from convloom.ir import Graph, Role

#: Calls that warm up, calls in one graph, and rounds of it of which the median counts.
_WARM_UP, _CALLS, _ROUNDS = 3, 10, 5

Timer = Callable[[Callable[[], object]], float]


def main() -> int:
    network, batch_size, device = sys.argv[1:]
    try:
        work = make_work(network, int(batch_size))
        if not sys.stdin.readline():
            return 0  # who asked is gone
        found = gpu_seconds(work) if device == "cuda" else torch_seconds(work, device, by_clock)
    except Exception:  # told by whoever asked, with all of its lines
        print(json.dumps({"error": traceback.format_exc()}))
        return 1
    print(json.dumps({"seconds": [[*part, seconds] for part, seconds in found.items()]}))
    return 0


def gpu_seconds(work: Workload) -> dict[Part, float]:
    """Seconds of each layer on the GPU, in fp32 without TF32."""
    aside: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with precision(tf32=False), torch.cuda.stream(aside):
        return torch_seconds(work, "cuda", on_gpu)


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
    """Seconds of a call, from a CUDA graph of several; the current stream must not be the default.

    Autograd runs a backward pass in the stream of its forward pass ("Stream semantics of backward
    passes" in PyTorch's notes on CUDA), and only what runs in the stream that is being captured can
    be: so the stream of this graph is the one in which the layer ran forward.
    """
    for _ in range(_WARM_UP):  # cuDNN chooses its algorithms
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
        for _ in range(_CALLS):
            call()
    graph.replay()
    return statistics.median(_round(graph.replay) for _ in range(_ROUNDS)) / _CALLS


def _round(replay: Callable[[], None]) -> float:
    start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    replay()
    stop.record()
    torch.cuda.synchronize()
    return 1e-3 * start.elapsed_time(stop)


def by_clock(call: Callable[[], object]) -> float:
    """Seconds of a call on the host, the median of some."""
    rounds = []
    for _ in range(_ROUNDS):
        began = time.perf_counter()
        call()
        rounds.append(time.perf_counter() - began)
    return statistics.median(rounds)


if __name__ == "__main__":
    sys.exit(main())
