"""A training step's loss in float64 by the references, again and again with one tensor changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from convloom.compiler.interpret import interpret
from convloom.ir import Graph, Node
from convloom.ops import ContrastNorm2d, NoisyReLU
from convloom.ops.base import Op


class Forward:
    """The loss of a graph whose other tensors stay as they are.

    Masks of dropout are those of the counter given, so they stay too, and so do the means of the
    windows of a cnorm and the noise of an nrelu: cuda-convnet's gradients hold them constant.

    Args:
        graph: what makes the tensor ``loss``.
        values: every tensor that comes from outside; what is learnt in float64.
    """

    def __init__(self, graph: Graph, values: Mapping[str, np.ndarray]) -> None:
        self._graph = graph
        self.values = interpret(graph, values)
        self.loss = float(self.values["loss"])
        self._readers: dict[str, Sequence[Node]] = {}

    def loss_with(self, tensor: str, value: np.ndarray) -> float:
        """The loss if a tensor, given or made on the way, had another value."""
        known = {tensor: value}
        for node in self._dependents(tensor):
            inputs = [known.get(name, self.values[name]) for name in node.inputs]
            outputs = self._outputs(node, inputs)
            known.update(zip(node.outputs, outputs, strict=True))
        return float(known["loss"])

    def _outputs(self, node: Node, inputs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        assert isinstance(node.op, Op)
        if isinstance(node.op, ContrastNorm2d):
            return (node.op.with_means(inputs[0], self.values[node.inputs[0]]),)
        if isinstance(node.op, NoisyReLU):
            return (node.op.with_noise_of(self.values[node.inputs[0]], *inputs),)
        return node.op.reference(*inputs)

    def _dependents(self, tensor: str) -> Sequence[Node]:
        """The nodes to run again, in order."""
        if tensor not in self._readers:
            changed, found = {tensor}, []
            for node in self._graph.nodes:
                if changed.intersection(node.inputs) and tensor not in node.outputs:
                    changed.update(node.outputs)
                    found.append(node)
            self._readers[tensor] = found
        return self._readers[tensor]
