"""Single operations on this machine's GPU, beside PyTorch's and the limit of memory.

    python benchmarks/cuda_ops.py --batch-size 128

Each is repeated in a graph of its own; tensors are as large as in training, so that most do not
fit in the second-level cache. Milliseconds; PyTorch is eager, channels last, TF32 off.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import torch
from torch.nn import functional

from convloom.backends.base import DeviceError
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import open_gpu
from convloom.backends.cuda.measure import copy_rate, device_seconds, gpu_of
from convloom.compiler.memory import assign_memory
from convloom.compiler.select import select_kernels
from convloom.ir import KRSC, NHWC, Graph, GraphBuilder, Plan, Role, TensorSpec
from convloom.ops import (
    Activation,
    ActivationGrad,
    Add,
    AvgPool2d,
    AvgPool2dGrad,
    Conv2d,
    Conv2dDgrad,
    Conv2dWgrad,
    FusedSum,
    MaxPool2d,
    MaxPool2dGrad,
    Mul,
    Op,
    PointwiseLoss,
    ReLU,
    ReLUGrad,
    Softmax,
    SoftmaxGrad,
)

aten = torch.ops.aten

#: (name, channels, size, filters, kernel, stride, padding, groups)
CONVOLUTIONS = (
    ("depthwise 32 at 112", 32, 112, 32, 3, 1, 1, 32),
    ("depthwise 64 at 112, stride 2", 64, 112, 64, 3, 2, 1, 64),
    ("depthwise 256 at 28", 256, 28, 256, 3, 1, 1, 256),
    ("depthwise 512 at 14", 512, 14, 512, 3, 1, 1, 512),
    ("depthwise 1024 at 7", 1024, 7, 1024, 3, 1, 1, 1024),
    ("ResNeXt 128 in 32 groups at 56", 128, 56, 128, 3, 1, 1, 32),
    ("AlexNet conv2, 2 groups", 96, 27, 256, 5, 1, 2, 2),
)
#: (name, kind, channels, size, kernel, stride, padding)
POOLS = (
    ("max 3x3 stride 2, 96 at 55", "max", 96, 55, 3, 2, 0),
    ("max 3x3 stride 2, 64 at 112", "max", 64, 112, 3, 2, 1),
    ("max 2x2, 64 at 112", "max", 64, 112, 2, 2, 0),
    ("average 3x3 stride 2, 64 at 56", "avg", 64, 56, 3, 2, 1),
    ("global average, 512 at 7", "avg", 512, 7, 7, 7, 0),
)
#: What is as wide as the feature maps of pointwise operations: (channels, size).
MAPS = (64, 56)
#: (name, operation, tensors it reads, PyTorch's call of as many)
POINTWISE: tuple[tuple[str, Op, int, Callable[..., object]], ...] = (
    ("ReLU", ReLU(), 1, torch.relu),
    ("ReLU: input", ReLUGrad(), 2, lambda g, y: aten.threshold_backward(g, y, 0)),
    ("GELU", Activation("gelu"), 1, functional.gelu),
    ("GELU: input", ActivationGrad("gelu"), 2, aten.gelu_backward),
    ("SiLU", Activation("silu"), 1, functional.silu),
    ("SiLU: input", ActivationGrad("silu"), 2, aten.silu_backward),
    ("Hardswish", Activation("hardswish"), 1, functional.hardswish),
    ("tanh", Activation("tanh", 1.0, 1.0), 1, torch.tanh),
    ("tanh: input", ActivationGrad("tanh", 1.0, 1.0), 2, aten.tanh_backward),
    ("sum of two", Add(), 2, torch.add),
    ("sum of two and ReLU", FusedSum((1.0, 1.0)), 2, lambda a, b: torch.relu(a + b)),
    ("product of two", Mul(), 2, torch.mul),
    ("softmax of channels", Softmax(), 1, lambda x: torch.softmax(x, 1)),
    (
        "softmax of channels: input",
        SoftmaxGrad(),
        2,
        lambda g, y: aten._softmax_backward_data(g, y, 1, torch.float32),
    ),
    ("MSE loss", PointwiseLoss("mse"), 2, functional.mse_loss),
    (
        "BCE loss with logits",
        PointwiseLoss("bce_logits"),
        2,
        functional.binary_cross_entropy_with_logits,
    ),
)
_Case = tuple[str, Op, list[tuple[int, ...]], Callable[[], object]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--only", default="", help="what an operation's name must contain")
    options = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    torch.backends.cudnn.benchmark = True
    try:
        backend = CudaBackend(open_gpu())
    except DeviceError as error:
        print(error)
        return 2
    rate = copy_rate(gpu_of(backend))
    print(f"{'operation':44}{'rung':>8}{'ours':>9}{'PyTorch':>9}{'memory':>9}")
    for name, op, shapes, peer in cases(options.batch_size):
        if options.only not in name:
            continue
        rung, ours, nbytes = ours_of(backend, op, shapes)
        row = f"{name:44}{rung:>8}{1e3 * ours:9.3f}{1e3 * seconds_of(peer):9.3f}"
        print(f"{row}{1e3 * nbytes / rate:9.3f}", flush=True)
        torch.cuda.empty_cache()
    return 0


def cases(n: int) -> Iterator[_Case]:
    """Each operation, its inputs' shapes, and PyTorch's call."""
    for name, c, size, k, kernel, stride, padding, groups in CONVOLUTIONS:
        geometry = ((stride,) * 2, (padding,) * 2, (1, 1), groups)
        (out,) = {Conv2d(*geometry).window((kernel,) * 2).output((size, size))}
        x, w, y = (n, c, size, size), (k, c // groups, kernel, kernel), (n, k, *out)
        tx, tw, ty = (image(shape) for shape in (x, w, y))

        def backward(which: int, tx=tx, tw=tw, ty=ty, s=stride, p=padding, g=groups):  # type: ignore[no-untyped-def]
            wanted = [which == 0, which == 1, False]
            return lambda: torch.ops.aten.convolution_backward(
                ty, tx, tw, None, [s, s], [p, p], [1, 1], False, [0, 0], g, wanted
            )

        def forward(tx=tx, tw=tw, s=stride, p=padding, g=groups):  # type: ignore[no-untyped-def]
            return torch.nn.functional.conv2d(tx, tw, None, s, p, 1, g)

        yield f"{name}: forward", Conv2d(*geometry), [x, w], forward
        dgrad = Conv2dDgrad(*geometry, size=(size, size))
        yield f"{name}: input", dgrad, [y, w], backward(0)
        wgrad = Conv2dWgrad(*geometry, kernel=(kernel, kernel))
        yield f"{name}: filters", wgrad, [x, y], backward(1)
    for name, kind, c, size, kernel, stride, padding in POOLS:
        window = ((kernel,) * 2, (stride,) * 2, (padding,) * 2)
        x = (n, c, size, size)
        tx = image(x).requires_grad_()
        call = getattr(torch.nn.functional, f"{kind}_pool2d")
        ty = call(tx, *window)
        y = tuple(ty.shape)
        gradient = torch.ones_like(ty)

        def pool(tx=tx, call=call, window=window):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return call(tx, *window)

        def pool_backward(tx=tx, ty=ty, gradient=gradient):  # type: ignore[no-untyped-def]
            return torch.autograd.grad(ty, tx, gradient, retain_graph=True)

        side = (size, size)
        if kind == "max":
            yield f"{name}: forward", MaxPool2d(*window), [x], pool
            yield f"{name}: input", MaxPool2dGrad(side, *window), [y, y], pool_backward
        else:
            yield f"{name}: forward", AvgPool2d(*window), [x], pool
            yield f"{name}: input", AvgPool2dGrad(*window, size=side), [y], pool_backward
    maps = (n, MAPS[0], MAPS[1], MAPS[1])
    for name, op, count, call in POINTWISE:
        given = [image(maps) for _ in range(count)]

        def pointwise(call=call, given=given):  # type: ignore[no-untyped-def]
            with torch.no_grad():
                return call(*given)

        yield f"{name}, {MAPS[0]} at {MAPS[1]}", op, [maps] * count, pointwise


def image(shape: tuple[int, ...]) -> torch.Tensor:
    """A channels-last tensor on the GPU."""
    return torch.randn(shape, device="cuda").to(memory_format=torch.channels_last)


def ours_of(backend: CudaBackend, op: Op, shapes: list[tuple[int, ...]]) -> tuple[str, float, int]:
    """(rung, seconds, bytes that must move) of an operation on tensors of zeros."""
    graph = _graph(op, shapes)
    steps = select_kernels(graph, backend, "auto")
    memory = assign_memory(graph, steps)
    plan = Plan(graph, steps, memory.buffers, memory.arenas, memory.transient_bound, backend.name)
    executable = backend.executable(plan, backend.storage(plan))
    assert isinstance(executable, CudaExecutable)
    for name in graph.named(Role.INPUT):
        spec = graph.specs[name]
        executable.write(name, np.ones(spec.shape, spec.dtype))
    executable.run()

    def repeated() -> None:
        for _ in range(10):
            executable.launch_step(0)

    replay = executable.gpu.capture(repeated)
    replay()
    times = []
    for _ in range(7):
        executable.gpu.synchronize()
        times.append(device_seconds(executable.gpu, replay) / 10)
    (step,) = plan.steps
    return step.selection.rung, statistics.median(times), step.nbytes


def _graph(op: Op, shapes: list[tuple[int, ...]]) -> Graph:
    """The operation alone, images channels last."""
    builder = GraphBuilder()
    for i, shape in enumerate(shapes):
        dtype = "int32" if isinstance(op, MaxPool2dGrad) and i == 1 else "float32"
        builder.declare(f"x{i}", TensorSpec(shape, dtype), Role.INPUT)
    builder.outputs = list(builder.add(op, [f"x{i}" for i in range(len(shapes))]))
    graph = builder.build()
    filters = graph.named(Role.INPUT)[1:] if isinstance(op, Conv2d | Conv2dDgrad) else ()
    specs = {
        name: replace(spec, layout=KRSC if name in filters else NHWC)
        if len(spec.shape) == 4
        else spec
        for name, spec in graph.specs.items()
    }
    return graph.replacing(specs=specs)


def seconds_of(call: Callable[[], object]) -> float:
    """Seconds of PyTorch's call, the median of some rounds of ten."""
    for _ in range(3):
        call()
    times = []
    for _ in range(7):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            call()
        stop.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(stop) / 1e4)
    return statistics.median(times)


if __name__ == "__main__":
    sys.exit(main())
