"""Network files' layers against cuda-convnet's golden vectors, in float64 and by every kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from convloom.backends import get_backend
from convloom.compiler import compile_graph, differentiate
from convloom.compiler.interpret import interpret
from convloom.convnet.layers import (
    Apply,
    Blur,
    Concat,
    Conv,
    EltMax,
    EltSum,
    Extent,
    Fc,
    HalfSparse,
    Local,
    Mirror,
    Nailbed,
    Norm,
    TreeFc,
    Window,
)
from convloom.convnet.layers.base import Initial
from convloom.convnet.layers.pool import Pool
from convloom.convnet.modules import piece_of
from convloom.convnet.modules.base import Piece
from convloom.convnet.network import Layer
from convloom.convnet.neurons import IDENTITY, parse_neuron
from convloom.convnet.rules import LayerRule
from convloom.convnet.schedules import RateSchedule
from convloom.convnet.tree import ClassTree
from convloom.ir import Graph, GraphBuilder, Role, TensorSpec
from convloom.nn.tensor import SymbolicTensor
from convloom.nn.tracing import Tracer
from convloom.ops import DropoutGrad, Op, PointwiseLoss, Softmax, SoftmaxCrossEntropy, TopKError
from tests.backends.harness import run_op
from tests.golden import load, names

Arrays = dict[str, np.ndarray]

every = pytest.mark.parametrize(
    "device", ("reference", "cpu", "cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu))
)


def piece(definition: Any, inputs: tuple[Extent, ...] = (), **rule: Any) -> Piece:
    layer = Layer("one", "one", (), definition, Extent(0), 0, IDENTITY, 0, 1)
    return piece_of(layer, inputs, LayerRule(**rule), [])


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
    near(found[graph.outputs[0]], images(arrays["y"]), device)
    for name in names:
        near(found[f"{name}.grad"], images(arrays[f"d{name}"]), device)
    if weights:
        for name, parameter in made.named_parameters():
            parameter.data = found[f"{name}.grad"].astype(np.float32)
        exported = made.export()
        for key in weights:
            near(exported[key], arrays[f"dw{key[-1]}"], device)
        near(exported["biases"], arrays["db"], device)


def near(got: np.ndarray, wanted: np.ndarray, device: str) -> None:
    """Within 1e-6 in float64, within 1e-4 by kernels in float32."""
    tolerance = 1e-6 if device == "reference" else 1e-4
    np.testing.assert_allclose(got, wanted, rtol=tolerance, atol=tolerance)


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
    """Output and gradients, by the references in float64 or by a device's kernels."""
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


def applied(op: Op, device: str, *inputs: np.ndarray, dy: np.ndarray) -> tuple[Any, Any]:
    """An operation's output, and the gradient of its first input for the gradient ``dy``."""
    builder = GraphBuilder()
    values = {f"x{i}": value for i, value in enumerate(inputs)} | {"dy": dy}
    for name, value in values.items():
        dtype = "float32" if value.dtype.kind == "f" else str(value.dtype)
        builder.declare(name, TensorSpec(value.shape, dtype), Role.INPUT)
    builder.outputs = list(builder.add(op, list(values)[:-1], layer="one")[:1])
    graph = differentiate(builder.build(), builder.outputs[0], "dy", ["x0"])
    found = evaluated(graph, values, device)
    return found[graph.outputs[0]], found["x0.grad"]


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


@every
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
    check(piece(definition), arrays, device, kept)


@every
@pytest.mark.parametrize("case", names("local"))
def test_locally_connected_layers(case: str, device: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    check(piece(conv(parameters, arrays, Local)), arrays, device)


@every
@pytest.mark.parametrize("case", names("fc"))
def test_sums_of_products(case: str, device: str) -> None:
    arrays = load(case).arrays
    inputs = tuple(Extent(arrays[name].shape[0]) for name in ("x0", "x1"))
    initial = Initial((0.1, 0.1), 0.0, (), (None, None))
    check(piece(Fc(arrays["y"].shape[0], initial), inputs), arrays, device)


@every
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


@every
@pytest.mark.parametrize("case", names("pool"))
def test_pools(case: str, device: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    pool = Pool(
        parameters["pool"], image(arrays), parameters["sizeX"],
        parameters["stride"], parameters["start"], arrays["y"].shape[1],
    )  # fmt: skip
    check(piece(pool), arrays, device)


@every
@pytest.mark.parametrize("case", names("eltsum", "eltmax", "concat"))
def test_several_inputs(case: str, device: str) -> None:
    found = load(case)
    kinds: dict[str, Any] = {"eltmax": EltMax(), "concat": Concat()}
    definition = kinds.get(found.layer) or EltSum(tuple(found.params["coeffs"]))
    check(piece(definition), found.arrays, device)


@every
@pytest.mark.parametrize("case", names("rnorm", "cnorm", "cmrnorm"))
def test_normalisations(case: str, device: str) -> None:
    """For cnorm ``dx`` is the gradient that holds the means constant."""
    found = load(case)
    p, arrays = found.params, found.arrays
    norm = Norm(found.layer, image(arrays), p["size"], p.get("blocked", False))
    rule = {"scale": p["scale"], "pow": p["pow"], "min_divisor": p.get("minDiv", 1.0)}
    check(piece(norm, **rule), arrays, device)


@every
@pytest.mark.parametrize("case", names("blur", "nailbed", "href"))
def test_changes_of_an_image(case: str, device: str) -> None:
    found = load(case)
    p, arrays = found.params, found.arrays
    definition: Any = Mirror(image(arrays))
    if found.layer == "blur":
        definition = Blur(image(arrays), p["filterSize"], p["stdev"])
    if found.layer == "nailbed":
        definition = Nailbed(image(arrays), p["stride"])
    check(piece(definition), {name: arrays[name] for name in ("x", "y", "g", "dx")}, device)


@every
@pytest.mark.parametrize("case", names("neuron"))
def test_neurons(case: str, device: str) -> None:
    found = load(case)
    check(piece(Apply(parse_neuron(found.params["neuron"]))), found.arrays, device)


@every
@pytest.mark.parametrize("case", names("hs"))
def test_dropout(case: str, device: str) -> None:
    """A mask given passes what it passes back; in tests, or disabled, all is scaled."""
    found = load(case)
    arrays, keep = found.arrays, found.params["keep"]
    scaled = {name.removesuffix("_test"): arrays[name] for name in ("x", "g", "y_test", "dx_test")}
    check(piece(HalfSparse(keep), enabled=False), scaled, device)
    rule, mask = DropoutGrad(1 - keep, rescale=False), images(arrays["mask"]).astype(np.uint8)
    for before, after in (("x", "y_train"), ("g", "dx_train")):
        given = images(arrays[before])
        if device == "reference":
            (found,) = rule.reference(given, mask)
        else:
            (found,) = run_op(rule, given.astype(np.float32), mask, backend=get_backend(device))
        near(found, images(arrays[after]), device)


@every
@pytest.mark.parametrize("case", names("softmax+cost.logreg"))
def test_softmax_and_its_cost(case: str, device: str) -> None:
    """Costs are sums over the cases there, and means here."""
    arrays = load(case).arrays
    x, labels = images(arrays["x"]), arrays["labels"].astype(np.int64)
    p, dx = applied(Softmax(), device, x, dy=images(arrays["g"]))
    near(p, images(arrays["p"]), device)
    near(dx, images(arrays["dx_of_g"]), device)
    cost, dx = applied(SoftmaxCrossEntropy(), device, x, labels, dy=np.array(1.0))
    near(len(x) * cost, arrays["cost"][0], device)
    near(len(x) * dx, images(arrays["dx"]), device)


@every
@pytest.mark.parametrize("case", names("cost.logreg"))
def test_errors_with_ties(case: str, device: str) -> None:
    """Several scores equal to the right one share what places there are; sums over the cases."""
    found = load(case)
    op, p = TopKError(found.params["topk"]), images(found.arrays["p"])
    labels = found.arrays["labels"].astype(np.int64)
    if device == "reference":
        (wrong,) = op.reference(p, labels)
    else:
        (wrong,) = run_op(op, p.astype(np.float32), labels, backend=get_backend(device))
    near(len(p) * wrong, found.arrays["cost"][1:], device)


@every
@pytest.mark.parametrize(
    ("case", "loss", "read", "wanted"),
    [
        *((case, ("bce_logits", "sum"), "z", "dz") for case in names("logistic+cost.crossent2")),
        *((case, ("bce", "sum", 50.0), "y", "dy") for case in names("logistic+cost.crossent2")),
        *((case, ("log_square", "sum"), "y", "dy") for case in names("cost.rflickr")),
        *((case, ("square", "sum"), "x", "dx") for case in names("cost.sum2")),
    ],
)
def test_costs(case: str, loss: tuple[Any, ...], read: str, wanted: str, device: str) -> None:
    arrays = load(case).arrays
    targets = [images(arrays["t"])] if "t" in arrays else []
    inputs = (images(arrays[read]), *targets)
    cost, gradient = applied(PointwiseLoss(*loss), device, *inputs, dy=np.array(1.0))
    near(cost, arrays["cost"], device)
    near(gradient, images(arrays[wanted]), device)


def image(arrays: Arrays) -> Extent:
    return Extent.image(*arrays["x"].shape[:2])


@pytest.mark.parametrize("case", names("schedule"))
def test_schedules(case: str) -> None:
    found = load(case)
    parameters, arrays = found.params, found.arrays
    schedule = RateSchedule(parameters["kind"], parameters["tgtFactor"])
    schedule = dataclasses.replace(schedule, steps=parameters.get("numSteps", 1))
    ours = [schedule.rate(parameters["base"], p) for p in arrays["progress"]]
    np.testing.assert_allclose(ours, arrays["rate"], rtol=1e-12)
