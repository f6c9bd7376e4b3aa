"""A traced convloom graph, run by PyTorch eager: the peer for any network a person writes.

Every forward op becomes the call of torch.nn.functional that a person would have written, so the
twin pays what PyTorch eager pays and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from convloom.ir import Graph, Node, Role

Tensors = dict[str, torch.Tensor]


class TorchTwin(torch.nn.Module):
    """The forward graph as a torch module; parameters keep their names, dots as underscores.

    Buffers do as well, and change as PyTorch changes them.
    """

    def __init__(self, graph: Graph, weights: dict[str, Any]) -> None:
        super().__init__()
        self.graph = graph
        variables = (*graph.named(Role.PARAMETER), *graph.named(Role.STATE))
        self.names = {name: name.replace(".", "_") for name in variables}
        for name, attribute in self.names.items():
            value = torch.from_numpy(weights[name].copy())
            if graph.role(name) is Role.PARAMETER:
                self.register_parameter(attribute, torch.nn.Parameter(value))
            else:
                self.register_buffer(attribute, value)
        self.calls = [(node, _CALLS[node.op.name](node.op)) for node in graph.nodes]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known: Tensors = {"input": x}
        for name, attribute in self.names.items():
            known[name] = getattr(self, attribute)
        for node, call in self.calls:
            known[node.outputs[0]] = call(*_arguments(node, known))
        return known[self.graph.outputs[0]]


def _arguments(node: Node, known: Tensors) -> list[torch.Tensor]:
    return [known[name] for name in node.inputs if name in known]


def _conv2d(op: Any) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
        return functional.conv2d(x, w, b, op.stride, op.padding, op.dilation, op.groups)

    return call


def _conv_transpose2d(op: Any) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        least = [
            (x.shape[i + 2] - 1) * op.stride[i]
            - 2 * op.padding[i]
            + op.dilation[i] * (w.shape[i + 2] - 1)
            + 1
            for i in range(2)
        ]
        more = [size - extent for size, extent in zip(op.size, least, strict=True)]
        return functional.conv_transpose2d(
            x, w, None, op.stride, op.padding, more, op.groups, op.dilation
        )

    return call


def _add_bias(op: Any) -> Callable[..., torch.Tensor]:
    return lambda x, b: x + (b[:, None, None] if b.ndim == 1 and x.ndim == 4 else b)


def _local2d(op: Any) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        kernel = (w.shape[2], w.shape[3])
        p, q = op.window(kernel).output((x.shape[2], x.shape[3]))
        patches = functional.unfold(x, kernel, op.dilation, op.padding, op.stride)
        patches = patches.reshape(len(x), op.groups, -1, p * q)
        filters = w.reshape(p * q, op.groups, -1, patches.shape[2])
        y = torch.einsum("ngim,mgki->ngkm", patches, filters)
        return y.reshape(len(x), -1, p, q)

    return call


def _nailbed(op: Any) -> Callable[..., torch.Tensor]:
    def nails(size: int) -> slice:
        return slice((size - op.stride * (-(-size // op.stride) - 1)) // 2, None, op.stride)

    return lambda x: x[:, :, nails(x.shape[2]), nails(x.shape[3])]


def _blur(op: Any) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor) -> torch.Tensor:
        taps = torch.as_tensor(op.weights, dtype=x.dtype, device=x.device)
        filters = torch.outer(taps, taps).expand(x.shape[1], 1, len(taps), len(taps))
        return functional.conv2d(x, filters, padding=len(taps) // 2, groups=x.shape[1])

    return call


def _max_pool2d(op: Any) -> Callable[..., torch.Tensor]:
    if op.outputs is not None or op.ties != "first" or op.magnitude:
        raise ValueError(
            "PyTorch has no pools of a fixed number of windows, of shared maxima or of magnitudes"
        )
    return lambda x: functional.max_pool2d(
        x, op.kernel, op.stride, op.padding, op.dilation, ceil_mode=op.ceil_mode
    )


def _avg_pool2d(op: Any) -> Callable[..., torch.Tensor]:
    if op.outputs is not None:
        raise ValueError("PyTorch has no pools of a fixed number of windows")
    return lambda x: functional.avg_pool2d(
        x,
        op.kernel,
        op.stride,
        op.padding,
        op.ceil_mode,
        op.count_include_pad,
        op.divisor_override,
    )


def _batch_norm(op: Any) -> Callable[..., torch.Tensor]:
    def call(x: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        weight, bias = rest[:2] if op.affine else (None, None)
        mean, variance, count = rest[-3:] if op.track else (None, None, None)
        momentum = op.momentum
        if count is not None:
            count.add_(1)
            momentum = 1.0 / float(count) if momentum is None else momentum
        return functional.batch_norm(x, mean, variance, weight, bias, True, momentum or 0.0, op.eps)

    return call


def _group_norm(op: Any) -> Callable[..., torch.Tensor]:
    def call(
        x: torch.Tensor, weight: torch.Tensor | None = None, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        return functional.group_norm(x, op.groups, weight, bias, op.eps)

    return call


def _local_response_norm(op: Any) -> Callable[..., torch.Tensor]:
    if op.blocked:
        raise ValueError("PyTorch has no blocked local response normalisation")
    return lambda x: functional.local_response_norm(x, op.size, op.alpha, op.beta, op.k)


#: {kind of activation: its function of x, a and b}, as PyTorch's own layers have it.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor, float, float], torch.Tensor]] = {
    "leaky_relu": lambda x, a, b: functional.leaky_relu(x, a),
    "clamp": lambda x, a, b: functional.hardtanh(x, a, b),
    "elu": lambda x, a, b: functional.elu(x, a),
    "gelu": lambda x, a, b: functional.gelu(x),
    "gelu_tanh": lambda x, a, b: functional.gelu(x, approximate="tanh"),
    "silu": lambda x, a, b: functional.silu(x),
    "hardswish": lambda x, a, b: functional.hardswish(x),
    "tanh": lambda x, a, b: torch.tanh(x) if a == b == 1 else a * torch.tanh(b * x),
    "sigmoid": lambda x, a, b: torch.sigmoid(x),
    "softplus": lambda x, a, b: functional.softplus(x, a, b),
    "square": lambda x, a, b: x * x,
    "abs": lambda x, a, b: x.abs(),
    "sqrt": lambda x, a, b: x.sqrt(),
    "linear": lambda x, a, b: a * x + b,
}


def _activation(op: Any) -> Callable[..., torch.Tensor]:
    if op.kind not in _ACTIVATIONS:
        raise ValueError(f"PyTorch has no activation {op.kind}")
    function, a, b = _ACTIVATIONS[op.kind], op.a, op.b
    return lambda x: function(x, a, b)


def _weighted_sum(op: Any) -> Callable[..., torch.Tensor]:
    def call(*parts: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = op.coefficients[0] * parts[0]
        for factor, part in zip(op.coefficients[1:], parts[1:], strict=True):
            total = total + factor * part
        return total

    return call


def _softmax(op: Any) -> Callable[..., torch.Tensor]:
    function = torch.log_softmax if op.log else torch.softmax
    return lambda x: function(x, op.dim)


def _dropout(op: Any) -> Callable[..., torch.Tensor]:
    function = functional.dropout if op.name == "Dropout" else functional.dropout2d
    if op.rescale:
        return lambda x: function(x, op.p, True)
    return lambda x: function(x, op.p, True) * (1 - op.p)


_CALLS: dict[str, Callable[[Any], Callable[..., torch.Tensor]]] = {
    "Activation": _activation,
    "BatchNorm": _batch_norm,
    "AddBias": _add_bias,
    "Conv2d": _conv2d,
    "Conv2dDgrad": _conv_transpose2d,
    "GroupNorm": _group_norm,
    "LocalResponseNorm": _local_response_norm,
    "Linear": lambda op: functional.linear,
    "ReLU": lambda op: functional.relu,
    "MaxPool2d": _max_pool2d,
    "AvgPool2d": _avg_pool2d,
    "AdaptiveAvgPool2d": lambda op: lambda x: functional.adaptive_avg_pool2d(x, op.output),
    "AdaptiveMaxPool2d": lambda op: lambda x: functional.adaptive_max_pool2d(x, op.output),
    "Pad2d": lambda op: (
        lambda x: functional.pad(x, op.sides, op.mode, op.value if op.mode == "constant" else None)
    ),
    "Resize2d": lambda op: (
        lambda x: functional.interpolate(
            x,
            op.to,
            mode=op.mode,
            align_corners=op.align_corners if op.mode == "bilinear" else None,
        )
    ),
    "Local2d": _local2d,
    "Nailbed": _nailbed,
    "Blur": _blur,
    "Mirror": lambda op: lambda x: x.flip(3),
    "Flatten": lambda op: lambda x: x.flatten(1),
    "Add": lambda op: torch.add,
    "Mul": lambda op: torch.mul,
    "WeightedSum": _weighted_sum,
    "Concat": lambda op: lambda *parts: torch.cat(parts, 1),
    "Softmax": _softmax,
    "Dropout": _dropout,
    "ChannelDropout": _dropout,
}
