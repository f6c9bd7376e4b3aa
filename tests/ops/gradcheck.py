"""Checks an op's reference and gradient rule against PyTorch and against finite differences.

The gradient rule is used as a network uses it: a graph of the one op is differentiated by
compiler/autodiff.py and evaluated by the references.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import numpy as np
import torch

from convloom.compiler.autodiff import differentiate
from convloom.compiler.interpret import interpret
from convloom.ir import GraphBuilder, Role, TensorSpec
from convloom.ops import Op, from_json, to_json

Arrays = Sequence[np.ndarray]
Torch = Callable[..., torch.Tensor]


def spec_of(array: np.ndarray) -> TensorSpec:
    return TensorSpec(array.shape, str(array.dtype))


def evaluate(op: Op, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
    """The reference's outputs, after checking what holds of every op.

    Outputs are as ``infer`` said, inputs are unchanged and share no memory with an output, and
    the op survives JSON.
    """
    before = [value.copy() for value in inputs]
    outputs = op.reference(*inputs)
    specs = op.infer(*(spec_of(value) for value in inputs))
    assert len(outputs) == len(specs) == op.arity_out
    for output, spec in zip(outputs, specs, strict=True):
        assert spec_of(output) == spec, op
        assert not any(np.shares_memory(output, value) for value in inputs)
    for value, old in zip(inputs, before, strict=True):
        np.testing.assert_array_equal(value, old)
    assert from_json(json.loads(json.dumps(to_json(op)))) == op
    return outputs


def gradients(
    op: Op, inputs: Arrays, dy: np.ndarray, wanted: Sequence[int] | None = None
) -> dict[int, np.ndarray]:
    """{input: its gradient}, for the gradient ``dy`` of the op's first output."""
    builder = GraphBuilder()
    names = [builder.declare(f"x{i}", spec_of(value), Role.INPUT) for i, value in enumerate(inputs)]
    outputs = builder.add(op, names, layer="layer")
    builder.declare("dy", spec_of(dy), Role.INPUT)
    wanted = [i for i, x in enumerate(inputs) if x.dtype.kind == "f"] if wanted is None else wanted
    graph = differentiate(builder.build(), outputs[0], "dy", [names[i] for i in wanted])
    values = interpret(graph, {**dict(zip(names, inputs, strict=True)), "dy": dy})
    for name, spec in graph.specs.items():
        assert spec_of(values[name]) == spec, name
    return {i: values[graph.gradients[names[i]]] for i in wanted}


def check(
    op: Op,
    inputs: Arrays,
    peer: Torch,
    wanted: Sequence[int] | None = None,
    tolerance: float = 1e-11,
) -> None:
    """Forward and gradients against PyTorch (float64), and gradients against differences.

    Args:
        peer: PyTorch's function of the same inputs; gives the op's first output.
        wanted: inputs to differentiate by; default all of floating type.
    """
    y = evaluate(op, *inputs)[0]
    dy = np.random.default_rng(99).standard_normal(y.shape)
    grads = gradients(op, inputs, dy, wanted)
    tensors = [torch.from_numpy(value.copy()) for value in inputs]
    for i in grads:
        tensors[i].requires_grad_()
    expected = peer(*tensors)
    close(y, expected.detach().numpy(), tolerance)
    expected.backward(torch.from_numpy(np.asarray(dy)))
    for i, grad in grads.items():
        assert tensors[i].grad is not None
        close(grad, tensors[i].grad.numpy(), tolerance)
        check_differences(op, inputs, dy, i, grad)


def check_differences(
    op: Op, inputs: Arrays, dy: np.ndarray, i: int, grad: np.ndarray, step: float = 1e-4
) -> None:
    """The gradient of input ``i`` along a random direction, by central differences."""
    direction = np.random.default_rng(7).uniform(-1, 1, inputs[i].shape)

    def loss(shift: float) -> float:
        moved = [x + shift * direction if j == i else x for j, x in enumerate(inputs)]
        return float((op.reference(*moved)[0] * dy).sum())

    difference = (loss(step) - loss(-step)) / (2 * step)
    scale = float(np.abs(grad * direction).sum()) + 1e-3
    assert abs(difference - float((grad * direction).sum())) <= 1e-6 * scale


def close(got: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-11) -> None:
    """Equal within ``tolerance`` of the largest magnitude; NaN and Inf in the same places."""
    assert got.shape == wanted.shape
    finite = np.isfinite(wanted)
    scale = float(np.abs(wanted[finite]).max(initial=1.0))
    np.testing.assert_allclose(got, wanted, rtol=0, atol=tolerance * scale, equal_nan=True)
