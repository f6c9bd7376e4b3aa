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
    """The forward graph as a torch module; parameters keep their names, dots as underscores."""

    def __init__(self, graph: Graph, weights: dict[str, Any]) -> None:
        super().__init__()
        self.graph = graph
        self.names = {name: name.replace(".", "_") for name in graph.named(Role.PARAMETER)}
        for name, attribute in self.names.items():
            parameter = torch.nn.Parameter(torch.from_numpy(weights[name].copy()))
            self.register_parameter(attribute, parameter)
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


def _max_pool2d(op: Any) -> Callable[..., torch.Tensor]:
    return lambda x: functional.max_pool2d(
        x, op.kernel, op.stride, op.padding, op.dilation, ceil_mode=op.ceil_mode
    )


def _avg_pool2d(op: Any) -> Callable[..., torch.Tensor]:
    return lambda x: functional.avg_pool2d(
        x,
        op.kernel,
        op.stride,
        op.padding,
        op.ceil_mode,
        op.count_include_pad,
        op.divisor_override,
    )


_CALLS: dict[str, Callable[[Any], Callable[..., torch.Tensor]]] = {
    "Conv2d": _conv2d,
    "Linear": lambda op: functional.linear,
    "ReLU": lambda op: functional.relu,
    "MaxPool2d": _max_pool2d,
    "AvgPool2d": _avg_pool2d,
    "AdaptiveAvgPool2d": lambda op: lambda x: functional.adaptive_avg_pool2d(x, op.output),
    "AdaptiveMaxPool2d": lambda op: lambda x: functional.adaptive_max_pool2d(x, op.output),
    "Flatten": lambda op: lambda x: x.flatten(1),
    "Add": lambda op: torch.add,
    "Concat": lambda op: lambda *parts: torch.cat(parts, 1),
    "Dropout": lambda op: lambda x: functional.dropout(x, op.p, True),
}
