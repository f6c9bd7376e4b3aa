"""Where a network's training step takes longer than PyTorch eager's, layer by layer, on this GPU.

    python benchmarks/layers_vs_pytorch.py --network alexnet --batch-size 128 --out FILE.json
    python benchmarks/layers_vs_pytorch.py --network resnet18,mobilenet-v1-small

Both sides repeat each piece alone, many times in a graph, on the same shapes in fp32 without TF32.
A row is a layer's forward or backward pass. Layers that convloom computes within another's kernels,
as a ReLU in a convolution, count to that one on both sides. Updates and the loss are left out: here
is only what layers do. The limit is the larger of FLOPs and bytes over their measured peaks.

A network that fails is told with its whole traceback, on stderr and in the file, and the others go
on. The file is written anew after each network, and the exit code is 1 if one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kernel_times import make_work, measured_steps
from networks import ZOO_SHAPES

from convloom import files
from convloom.backends.base import DeviceError
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.gpu import open_gpu
from convloom.compiler.segment import below_segments
from convloom.inspection.environment import environment
from convloom.inspection.peaks import Peaks, measured
from convloom.ir import Graph, Node, Plan

FORWARD, BACKWARD = "forward", "backward"
_IN_TORCH = Path(__file__).with_name("layers_in_torch.py")

#: (layer, direction)
Part = tuple[str, str]
Row = dict[str, Any]
#: A plan, and what each of its steps took.
Ours = tuple[Plan, list[Row]]


def main() -> int:
    options = _options()
    try:
        gpu = open_gpu()
    except DeviceError as error:
        print(error, file=sys.stderr)
        return 2
    with contextlib.ExitStack() as open_peers:
        peers = {
            network: open_peers.enter_context(Peer(network, options.batch_size))
            for network in options.network
        }
        backend = CudaBackend(gpu)
        peaks = measured(backend)

        def ours(network: str) -> Ours:
            work = make_work(network, options.batch_size)
            # A network on chip has no layers of its own.
            return measured_steps(work, backend, below_segments(backend), peaks, options.rounds)

        found = _document(options, peaks, gpu.name)
        for network, peer in peers.items():
            add(found, network, partial(ours, network), peer.seconds)
            if options.out is not None:
                files.write_text(options.out, json.dumps(found, indent=1) + "\n")
    return 1 if found["failed"] else 0


def _document(options: argparse.Namespace, peaks: Peaks, gpu: str) -> dict[str, Any]:
    made = environment("cuda", gpu)
    made["command"] = (
        f"python benchmarks/layers_vs_pytorch.py --network {','.join(options.network)} "
        f"--batch-size {options.batch_size}"
    )
    return {
        "bench": "layers beside PyTorch",
        "batch_size": options.batch_size,
        "networks": [],
        "failed": [],
        "peaks": vars(peaks),
        "environment": made,
    }


def add(
    found: dict[str, Any],
    network: str,
    ours: Callable[[], Ours],
    theirs: Callable[[], Mapping[Part, float]],
) -> None:
    """Time a network on one side, then on the other, and add its rows; or why there are none."""
    try:
        plan, steps = ours()
        rows = joined(plan, steps, theirs())
    except Exception:  # one network must not cost the results of the others
        error = traceback.format_exc()
        print(f"{network} failed\n{error}", file=sys.stderr, flush=True)
        found["failed"].append({"network": network, "error": error})
        return
    found["networks"].append({"network": network, "rows": rows})
    print(table(f"{network}, batches of {found['batch_size']}", rows), flush=True)


class PeerError(RuntimeError):
    """PyTorch's process failed; the message is its traceback, if it could give one."""


class Peer:
    """PyTorch's process for a network: it prepares at once, and times when it is asked to.

    A process of its own, since an error of CUDA in one engine would be the end of both.
    """

    def __init__(self, network: str, batch_size: int, device: str = "cuda") -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_IN_TORCH), network, str(batch_size), device],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()

    def seconds(self) -> dict[Part, float]:
        """Seconds of each layer and direction. Raises PeerError."""
        told, _ = self._process.communicate("begin\n")
        try:
            reply = json.loads(told.splitlines()[-1])
        except (IndexError, ValueError):
            reply = {"error": f"no figures, exit code {self._process.returncode}: see above"}
        if "error" in reply:
            raise PeerError(f"PyTorch's process failed\n{reply['error']}")
        return {(layer, direction): seconds for layer, direction, seconds in reply["seconds"]}


def joined(
    plan: Plan, steps: list[dict[str, Any]], theirs: Mapping[Part, float]
) -> list[dict[str, Any]]:
    """A row for each layer that has steps of its own, in the network's order, forward first.

    Args:
        steps: of the plan, as kernel_times measures them.
        theirs: seconds of PyTorch for each layer and direction.
    """
    own = owners(list(dict.fromkeys(layer for layer, _ in theirs)), plan)
    sizes = described(plan)
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
    made = [{**row, "what": sizes.get(row["layer"], "")} for row in rows.values()]
    return sorted(made, key=lambda row: row["direction"] == BACKWARD)


def described(plan: Plan) -> dict[str, str]:
    """{layer: its sizes without the batch}, as ``3×3, 64→128, 56×56`` of a convolution's input."""
    found: dict[str, str] = {}
    for node in plan.graph.nodes:
        if node.layer not in found and node.inputs:
            found[node.layer] = _sizes(node, plan.graph)
    return found


def _sizes(node: Node, graph: Graph) -> str:
    _, *image = graph.specs[node.inputs[0]].shape or (0,)
    if node.op.name not in ("Conv2d", "FusedConv2d", "Linear", "FusedLinear"):
        return "×".join(map(str, image))
    outputs, _, *taps = graph.specs[node.inputs[1]].shape
    parts = ["×".join(map(str, taps))] if taps else []
    op: Any = node.op
    if taps and op.stride != (1, 1):
        parts.append(f"stride {op.stride[0]}")
    if taps and op.groups > 1:
        parts.append("depthwise" if op.groups == image[0] else f"{op.groups} groups")
    parts.append(f"{image[0]}→{outputs}")
    return ", ".join([*parts, "×".join(map(str, image[1:]))] if taps else parts)


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
