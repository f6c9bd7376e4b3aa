"""Tracing: names, roles, sharing, batch sizes, and what cannot be traced."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from convloom import nn
from convloom.ir import Graph, Role, ShapeError
from convloom.nn import functional


def traced(
    forward: Callable[[Any, Any], Any], shape: tuple[int, ...] = (2, 4, 4), **parts: Any
) -> Graph:
    """The graph of a network with these parts and this forward."""
    kind = type("Net", (nn.Module,), {"forward": forward})
    model = kind()
    for name, part in parts.items():
        setattr(model, name, part)
    return model.trace(shape, 3)


def layers(graph: Graph) -> list[tuple[str, str]]:
    return [(node.layer, node.op.name) for node in graph.nodes]


def test_names_and_roles() -> None:
    graph = nn.models.lenet().trace((1, 28, 28), 64)
    assert graph.outputs == ("output",)
    assert graph.named(Role.INPUT) == ("input",)
    assert graph.named(Role.PARAMETER) == (
        "0.weight",
        "0.bias",
        "2.weight",
        "2.bias",
        "6.weight",
        "6.bias",
    )
    assert [node.outputs[0] for node in graph.nodes] == [
        "0.out",
        "1.out",
        "2.out",
        "3.out",
        "4.out",
        "5.out",
        "output",
    ]
    assert graph.nodes[4].outputs[1] == "4.index"
    assert [node.layer for node in graph.nodes] == list("0123456")
    assert graph.specs["output"].shape == (64, 10)
    assert set(graph.specs) == {"input", *graph.named(Role.PARAMETER), "4.index", "output"} | {
        f"{i}.out" for i in range(6)
    }


def test_ops_do_not_know_the_batch() -> None:
    model = nn.models.vgg_small()
    small, large = model.trace((3, 32, 32), 1), model.trace((3, 32, 32), 0)
    assert [node.op for node in small.nodes] == [node.op for node in large.nodes]
    assert large.specs["output"].shape == (0, 10)


def test_residual_and_concat() -> None:
    def forward(self: Any, x: Any) -> Any:
        y = self.conv(x)
        y = y + x
        y += x
        return nn.concat([functional.relu(y), y.relu(), x])

    graph = traced(forward, conv=nn.Conv2d(2, 2, 3, padding=1))
    assert layers(graph) == [
        ("conv", "Conv2d"),
        ("add", "Add"),
        ("add", "Add"),
        ("relu", "ReLU"),
        ("relu", "ReLU"),
        ("concat", "Concat"),
    ]
    assert [node.outputs for node in graph.nodes[1:5]] == [
        ("add.out",),
        ("add.out#2",),
        ("relu.out",),
        ("relu.out#2",),
    ]
    assert graph.specs["output"].shape == (3, 6, 4, 4)


def test_a_shared_module_has_one_parameter_tensor() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.b(self.a(self.b(x)))

    conv = nn.Conv2d(2, 2, 1)
    graph = traced(forward, b=conv, a=nn.ReLU())
    assert layers(graph) == [("b", "Conv2d"), ("a", "ReLU"), ("b", "Conv2d")]
    assert graph.named(Role.PARAMETER) == ("b.weight", "b.bias")
    assert graph.nodes[0].inputs[1:] == graph.nodes[2].inputs[1:]


def test_tied_parameters_have_one_tensor() -> None:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    graph = nn.Sequential(first, second).trace((4,))
    assert graph.named(Role.PARAMETER) == ("0.weight", "0.bias", "1.bias")


def test_parameters_keep_their_order_and_unused_ones_are_left_out() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.last(self.first(x))

    graph = traced(
        forward, (4,), last=nn.Linear(4, 2), unused=nn.Linear(9, 9), first=nn.Linear(4, 4)
    )
    assert graph.named(Role.PARAMETER) == (
        "last.weight",
        "last.bias",
        "first.weight",
        "first.bias",
    )
    assert "unused.weight" not in graph.specs


def test_nested_names_and_modules_made_in_forward() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(2, 2, 1)

        def forward(self, x: Any, scale: int) -> Any:
            return nn.ReLU()(functional.max_pool2d(self.conv(x), scale))

    def forward(self: Any, x: Any) -> Any:
        return self.stage[0](x, scale=2).flatten(1)

    graph = traced(forward, stage=nn.ModuleList([Block()]))
    assert layers(graph) == [
        ("stage.0.conv", "Conv2d"),
        ("stage.0.max_pool2d", "MaxPool2d"),
        ("stage.0.relu", "ReLU"),
        ("flatten", "Flatten"),
    ]
    assert nn.Conv2d(2, 2, 1).trace((2, 3, 3)).nodes[0].layer == "conv2d"


def test_dropout_streams_differ() -> None:
    def forward(self: Any, x: Any) -> Any:
        return functional.dropout(self.b(self.a(self.b(x))), 0.25)

    graph = traced(forward, a=nn.Dropout(), b=nn.Dropout(0.1), c=nn.Dropout(0))
    assert graph.named(Role.CONTROL) == ("counter",)
    ops: list[Any] = [node.op for node in graph.nodes]
    assert [op.p for op in ops] == [0.1, 0.5, 0.1, 0.25]
    assert len({op.stream for op in ops}) == 4
    assert graph.nodes[0].outputs == ("b.out", "b.mask")
    assert [op.stream for op in ops] == [
        node.op.stream for node in traced(forward, a=nn.Dropout(), b=nn.Dropout(0.1)).nodes
    ]
    assert layers(traced(lambda self, x: functional.relu(self.c(x)), c=nn.Dropout(0))) == [
        ("relu", "ReLU")
    ]


def test_a_loaded_network_can_be_a_part(tmp_path: Any) -> None:
    body = nn.Sequential(nn.Conv2d(2, 2, 1), nn.Dropout(0.5))
    body.save(tmp_path / "body", input_shape=(2, 4, 4))
    model = nn.Sequential(nn.ReLU(), nn.load(tmp_path / "body"), nn.Flatten())
    graph = model.trace((2, 4, 4))
    assert layers(graph) == [
        ("0", "ReLU"),
        ("1.0", "Conv2d"),
        ("1.1", "Dropout"),
        ("2", "Flatten"),
    ]
    assert graph.named(Role.PARAMETER) == ("1.0.weight", "1.0.bias")
    assert set(model.state_dict()) == {"1.0.weight", "1.0.bias"}

    twice = nn.Sequential(model[1], nn.ReLU(), nn.load(tmp_path / "body"), model[1])
    streams = [n.op.stream for n in twice.trace((2, 4, 4)).nodes if n.op.name == "Dropout"]
    assert len(set(streams)) == 3


def test_what_the_output_does_not_need_is_left_out() -> None:
    def forward(self: Any, x: Any) -> Any:
        self.side(functional.dropout(x))
        return functional.max_pool2d(x, 2)

    graph = traced(forward, side=nn.Conv2d(2, 2, 1))
    assert layers(graph) == [("max_pool2d", "MaxPool2d")]
    assert set(graph.specs) == {"input", "output", "max_pool2d.index"}
    assert set(graph.roles) == {"input"}


# ---- what cannot be traced


def _stored(self: Any, x: Any) -> Any:
    kept.append(x)
    return functional.relu(kept[0])


kept: list[Any] = []


@pytest.mark.parametrize(
    ("forward", "says"),
    [
        (lambda self, x: x if x > 0 else -x, r"tensor > … needs the tensor's values"),
        (lambda self, x: x if x else x.relu(), r"if, while, .* needs the tensor's values"),
        (lambda self, x: x if x == 0 else x.relu(), r"tensor == …"),
        (lambda self, x: x + float(x), r"float\(tensor\)"),
        (lambda self, x: [1, 2][x], r"a tensor as an index"),
        (lambda self, x: np.exp(x), r"numpy\.exp"),
        (lambda self, x: np.float32(2) * x, r"numpy\.multiply"),
        (lambda self, x: np.ones(3) + x, r"numpy\.add"),
        (lambda self, x: np.concatenate([x, x]), r"numpy\.concatenate"),
        (lambda self, x: np.asarray(x), r"a NumPy conversion"),
        (lambda self, x: math.floor(x), r"float\(tensor\)|no .__floor__"),
        (lambda self, x: list(x), r"iterating"),
        (lambda self, x: x.item(), r"tensor\.item"),
        (lambda self, x: x * 2, r"\* between tensors is not supported"),
        (lambda self, x: 2 - x, r"- between tensors"),
        (lambda self, x: x @ x, r"@ between tensors"),
        (lambda self, x: x[:, 0], r"indexing"),
        (lambda self, x: x + 1, r"a tensor was added to a value of type int"),
        (lambda self, x: x + self.w, r"added to a value of type Parameter"),
        (lambda self, x: x.softmax(1), r"tensors have no \.softmax"),
        (lambda self, x: x.flatten(0), r"would merge the batch"),
        (lambda self, x: x.view(3 * 2, 16), r"batch must stay first"),
        (lambda self, x: x.view(-1, 33), r"a sample keeps its 32 elements"),
        (lambda self, x: nn.concat([x, x], dim=0), r"concat along axis 0"),
        (lambda self, x: functional.relu(_stored(self, x)), r"kept from an earlier trace"),
        (lambda self, x: (x, x), r"returned a tuple of 2; a network returns exactly one"),
        (lambda self, x: [functional.relu(x)], r"returned a list of 1"),
        (lambda self, x: None, r"returned nothing \(None\)"),
        (lambda self, x: x.shape, r"returned a tuple of 4"),
        (lambda self, x: x, r"returned its input"),
        (
            lambda self, x: functional.linear(x.flatten(1), nn.Parameter(np.ones((2, 32)))),
            r"not registered",
        ),
    ],
)
def test_what_cannot_be_traced(forward: Any, says: str) -> None:
    kept[:] = []
    if "earlier" in says:
        traced(_stored)
    with pytest.raises(nn.TraceError, match=rf"Net.*({says})"):
        traced(forward, w=nn.Parameter(np.zeros((3, 2, 4, 4))))


def test_modules_in_a_plain_list_are_found_out() -> None:
    def forward(self: Any, x: Any) -> Any:
        return self.parts[0](x)

    with pytest.raises(nn.TraceError, match=r"Conv2d\): .* not registered .*nn\.ModuleList"):
        traced(forward, parts=[nn.Conv2d(2, 2, 1)])


def test_hasattr_and_identity_work_on_tensors() -> None:
    def forward(self: Any, x: Any) -> Any:
        assert not hasattr(x, "softmax")
        assert x in [x]
        assert {x: 1}[x] == 1
        assert (x.dim(), x.ndim, x.dtype, x.size()) == (4, 4, "float32", (3, 2, 4, 4))
        return x.relu()

    traced(forward)


def test_torch_functions_are_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(nn.TraceError, match=r"torch\.relu cannot work"):
        traced(lambda self, x: torch.relu(x))


def test_forward_needs_writing_and_tensors() -> None:
    with pytest.raises(nn.TraceError, match="Module has no forward"):
        nn.Module().trace((1, 2, 2))
    with pytest.raises(nn.TraceError, match=r"ReLU was called with ndarray.*predict\(images\)"):
        nn.ReLU()(np.zeros(3))
    with pytest.raises(nn.TraceError, match=r"relu works on the tensors inside forward"):
        nn.relu(np.zeros(3))
    with pytest.raises(nn.TraceError, match=r"concat takes a list"):
        traced(lambda self, x: nn.concat(x, x))
    with pytest.raises(nn.TraceError, match=r"at least one tensor"):
        traced(lambda self, x: nn.concat([]))


def test_mismatched_sums_name_the_layer() -> None:
    with pytest.raises(ShapeError, match=r"layer 'add': .*\(3, 2, 4, 4\) and \(3, 2, 2, 2\)"):
        traced(lambda self, x: x + functional.max_pool2d(x, 2))


def test_names_of_graphs_are_not_for_parameters() -> None:
    with pytest.raises(nn.TraceError, match="cannot be called 'input'"):
        traced(lambda self, x: x.relu(), input=nn.Parameter(np.zeros(1)))


@pytest.mark.parametrize("shape", [(), 3, (1, -1, 2), (1, 2.0, 3), "abc"])
def test_input_shapes_are_checked(shape: Any) -> None:
    with pytest.raises(ShapeError, match="input_shape"):
        nn.ReLU().trace(shape)


def test_errors_of_python_pass_through() -> None:
    def forward(self: Any, x: Any) -> Any:
        raise FileNotFoundError(os.curdir)

    with pytest.raises(FileNotFoundError):
        traced(forward)
