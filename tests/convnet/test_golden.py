"""The modules of network files against cuda-convnet's golden vectors, in float64 and on the CPU."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from convloom.backends import get_backend
from convloom.compiler import compile_graph, differentiate
from convloom.compiler.interpret import interpret
from convloom.convnet.layers import (
    Concat,
    Conv,
    EltMax,
    EltSum,
    Extent,
    Fc,
    Local,
    TreeFc,
    Window,
)
from convloom.convnet.layers.base import Initial
from convloom.convnet.layers.pool import Pool
from convloom.convnet.modules import piece_of
from convloom.convnet.modules.base import Piece
from convloom.convnet.network import Layer
from convloom.convnet.neurons import IDENTITY
from convloom.convnet.rules import LayerRule
from convloom.convnet.schedules import RateSchedule
from convloom.convnet.tree import ClassTree
from convloom.ir import Graph, Role, TensorSpec
from convloom.nn.tensor import SymbolicTensor
from convloom.nn.tracing import Tracer
from tests.golden import load, names

Arrays = dict[str, np.ndarray]


def piece(definition: Any, inputs: tuple[Extent, ...]) -> Piece:
    layer = Layer("one", "one", (), definition, Extent(0), 0, IDENTITY, 0, 1)
    rule = LayerRule(scale=0.5, pow=0.75, do_max=True)
    return piece_of(layer, inputs, rule, [])


def rows(array: np.ndarray) -> np.ndarray:
    """(…, N) as (N, count)."""
    return np.ascontiguousarray(array.reshape(-1, array.shape[-1]).T)


def check(made: Piece, arrays: Arrays, device: str, kept: Arrays | None = None) -> None:
    """Output, input gradients and parameter gradients are those of the golden vectors.

    ``kept`` is what the piece keeps beside its weights.
    """
    names = sorted(name for name in arrays if name[0] == "x")
    weights = {f"weights/{n[1:]}": arrays[n] for n in arrays if n[0] == "w" and n[1:].isdigit()}
    if weights:
        made.restore({**weights, **(kept or {}), "biases": arrays["b"]})
    values = {name: images(arrays[name]) for name in names}
    graph = traced(made, values, images(arrays["g"]))
    values |= {"dy": images(arrays["g"]), **made.state_dict()}
    found = evaluated(graph, values, device)
    tolerance = 1e-6 if device == "reference" else 1e-4
    near = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(found[graph.outputs[0]], images(arrays["y"]), **near)
    for name in names:
        np.testing.assert_allclose(found[f"{name}.grad"], images(arrays[f"d{name}"]), **near)
    if weights:
        for name, parameter in made.named_parameters():
            parameter.data = found[f"{name}.grad"].astype(np.float32)
        exported = made.export()
        for key in weights:
            np.testing.assert_allclose(exported[key], arrays[f"dw{key[-1]}"], rtol=1e-4, atol=1e-4)
        np.testing.assert_allclose(exported["biases"], arrays["db"], rtol=1e-4, atol=1e-4)


def images(array: np.ndarray) -> np.ndarray:
    """(…, N) as (N, …)."""
    return np.ascontiguousarray(np.moveaxis(array, -1, 0))


def traced(made: Piece, inputs: Arrays, dy: np.ndarray) -> Graph:
    """The piece and its gradients in every input and parameter, for the gradient ``dy``."""
    tracer = Tracer(made)
    tracer.builder.declare("dy", TensorSpec(dy.shape), Role.INPUT)
    for name, value in inputs.items():
        tracer.builder.declare(name, TensorSpec(value.shape), Role.INPUT)
    for name, parameter in made.named_parameters():
        tracer.builder.declare(name, TensorSpec(parameter.shape), Role.PARAMETER)
    for name, buffer in made.named_buffers():
        tracer.builder.declare(name, TensorSpec(buffer.shape, buffer.dtype), Role.STATE)
    y = made(*(SymbolicTensor(tracer, name) for name in inputs))
    tracer.builder.outputs.append(y.name)
    wanted = [*inputs, *(name for name, _ in made.named_parameters())]
    return differentiate(tracer.builder.build(), y.name, "dy", wanted)


def evaluated(graph: Graph, values: Arrays, device: str) -> Arrays:
    """Output and gradients, by the references in float64 or by the CPU's kernels."""
    names = {graph.outputs[0]: graph.outputs[0]}
    names |= {f"{source}.grad": grad for source, grad in graph.gradients.items()}
    if device == "reference":
        found = interpret(graph, {name: cast(value, np.float64) for name, value in values.items()})
        return {name: np.asarray(found[tensor]) for name, tensor in names.items()}
    backend = get_backend(device)
    graph = graph.replacing(outputs=tuple(dict.fromkeys(names.values())))
    plan = compile_graph(graph, backend)
    executable = backend.executable(plan, backend.storage(plan))
    for name, value in values.items():
        executable.write(name, cast(value, np.float32))
    executable.run()
    return {name: executable.read(tensor) for name, tensor in names.items()}


def cast(value: np.ndarray, to: type) -> np.ndarray:
    """Floats as another type; whole numbers stay."""
    return value.astype(to) if value.dtype.kind == "f" else value


def conv(parameters: dict[str, Any], arrays: Arrays, kind: type[Conv]) -> Conv:
    windows = []
    for i, one in enumerate(parameters["inputs"]):
        channels, side = arrays[f"x{i}"].shape[:2]
        each = channels // one["groups"]
        windows.append(
            Window(channels, side, parameters["filters"] // one["groups"], one["fs"],
                   one["stride"], one["pad"], one["groups"], one.get("filterChannels", each),
                   "conns" in one)
        )  # fmt: skip
    initial = Initial((0.1,) * len(windows), 0.0, (), (None,) * len(windows))
    return kind(tuple(windows), initial, kind is Conv and parameters["sharedBiases"])


@pytest.mark.parametrize("device", ("reference", "cpu"))
@pytest.mark.parametrize("case", names("conv"))
def test_convolutions(case: str, device: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    definition = conv(parameters, arrays, Conv)
    kept = {
        f"connections/{i}": np.array(one["conns"])
        for i, one in enumerate(parameters["inputs"])
        if "conns" in one
    }
    check(piece(definition, ()), arrays, device, kept)


@pytest.mark.parametrize("device", ("reference", "cpu"))
@pytest.mark.parametrize("case", names("local"))
def test_locally_connected_layers(case: str, device: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    check(piece(conv(parameters, arrays, Local), ()), arrays, device)


@pytest.mark.parametrize("device", ("reference", "cpu"))
@pytest.mark.parametrize("case", names("fc"))
def test_sums_of_products(case: str, device: str) -> None:
    arrays = load(case).arrays
    inputs = tuple(Extent(arrays[name].shape[0]) for name in ("x0", "x1"))
    initial = Initial((0.1, 0.1), 0.0, (), (None, None))
    check(piece(Fc(arrays["y"].shape[0], initial), inputs), arrays, device)


@pytest.mark.parametrize("device", ("reference", "cpu", "cuda-sim"))
@pytest.mark.parametrize("case", names("treefc"))
def test_a_softmax_tree(case: str, device: str) -> None:
    """The columns that classes have are the output for rows of the identity."""
    found = load(case)
    children, arrays = found.params["tree"], found.arrays
    above = {child: node for node, below in enumerate(children) for child in below}
    tree = ClassTree(tuple(above.get(node) for node in range(len(children))))
    classes, inputs = found.params["classes"], len(arrays["x"])
    assert (tree.classes, tree.parents[found.params["root"]]) == (classes, None)
    np.testing.assert_array_equal(tree.tables["leaves"], arrays["sizes"])
    definition = TreeFc(classes, Initial((0.1,), 0.0, (), (None,)), tree)
    made, none = piece(definition, (Extent(inputs),)), np.zeros(classes)
    made.restore({"weights/0": arrays["w"], "biases": none})
    graph = traced(made, {"x": np.eye(inputs)}, np.zeros((inputs, classes)))
    values = {"x": np.eye(inputs), "dy": np.zeros((inputs, classes)), **made.state_dict()}
    y = evaluated(graph, values, device)[graph.outputs[0]]
    np.testing.assert_allclose(y, arrays["w_eff"], rtol=1e-6, atol=1e-6)
    x, g, w_eff = arrays["x"], arrays["g"], arrays["w_eff"]
    whole = {
        **{"x0": x, "w0": arrays["w"], "dw0": arrays["dw"], "b": none, "db": g.sum(axis=1)},
        **{"g": g, "y": w_eff.T @ x, "dx0": w_eff @ g},
    }
    check(made, whole, device)


@pytest.mark.parametrize("device", ("reference", "cpu"))
@pytest.mark.parametrize("case", names("pool"))
def test_pools(case: str, device: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    channels, side = arrays["x"].shape[:2]
    pool = Pool(
        parameters["pool"], Extent.image(channels, side), parameters["sizeX"],
        parameters["stride"], parameters["start"], arrays["y"].shape[1],
    )  # fmt: skip
    check(piece(pool, ()), arrays, device)


@pytest.mark.parametrize("device", ("reference", "cpu"))
@pytest.mark.parametrize("case", names("eltsum", "eltmax", "concat"))
def test_several_inputs(case: str, device: str) -> None:
    found = load(case)
    kinds: dict[str, Any] = {"eltmax": EltMax(), "concat": Concat()}
    definition = kinds.get(found.layer) or EltSum(tuple(found.params["coeffs"]))
    check(piece(definition, ()), found.arrays, device)


@pytest.mark.parametrize("case", names("schedule"))
def test_schedules(case: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    schedule = RateSchedule(parameters["kind"], parameters["tgtFactor"])
    schedule = dataclasses.replace(schedule, steps=parameters.get("numSteps", 1))
    ours = [schedule.rate(parameters["base"], p) for p in arrays["progress"]]
    np.testing.assert_allclose(ours, arrays["rate"], rtol=1e-12)
