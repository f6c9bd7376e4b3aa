"""Normalisation layers: values and gradients of PyTorch's, its state_dict, and clear errors."""

from __future__ import annotations

import copy
import pickle
import re
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.compiler.inference import for_inference
from convloom.compiler.interpret import interpret
from convloom.ir import Role, ShapeError
from convloom.nn import functional
from convloom.nn.arguments import ArgumentError
from convloom.nn.parameter import WeightsError
from tests import golden

torch = pytest.importorskip("torch")


def normals(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(1, 2, size=shape)


LAYERS = [
    (lambda lib: lib.BatchNorm2d(4), (3, 4, 5, 6)),
    (lambda lib: lib.BatchNorm2d(4, 1e-3, 0.3, False), (3, 4, 5, 6)),
    (lambda lib: lib.BatchNorm2d(4, momentum=None), (3, 4, 5, 6)),
    (lambda lib: lib.BatchNorm2d(4, track_running_stats=False), (1, 4, 5, 6)),
    (lambda lib: lib.BatchNorm1d(4), (5, 4)),
    (lambda lib: lib.BatchNorm1d(4), (5, 4, 3)),
    (lambda lib: lib.GroupNorm(2, 4, affine=False), (3, 4, 5, 6)),
    (lambda lib: lib.GroupNorm(4, 4, 1e-3), (3, 4, 5, 6)),
    (lambda lib: lib.GroupNorm(2, 4), (3, 4, 5)),
    (lambda lib: lib.InstanceNorm2d(4), (3, 4, 5, 6)),
    (lambda lib: lib.InstanceNorm2d(4, 1e-3, affine=True), (3, 4, 5, 6)),
    (lambda lib: lib.LocalResponseNorm(3, 0.5, 0.6, 2.0), (3, 7, 5, 6)),
    (lambda lib: lib.LocalResponseNorm(3, 0.5), (3, 7, 5)),
    (lambda lib: lib.LocalResponseNorm(2), (3, 7, 5, 6)),
]


@pytest.mark.parametrize("make, shape", LAYERS)
def test_layers_compute_what_pytorch_does(make: Any, shape: tuple[int, ...]) -> None:
    ours, theirs = make(nn), make(torch.nn).double()
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        np.testing.assert_array_equal(ours.state_dict()[name], value.numpy())
        if value.dim():
            value.copy_(torch.rand(value.shape) + 0.5)
    ours.load_state_dict(theirs.state_dict())
    x, dy = normals(*shape), normals(*shape)[::-1].copy()
    state = {name: value.astype(np.float64) for name, value in ours.state_dict().items()}
    graph = for_inference(ours.trace(shape[1:], shape[0]))
    assert not graph.updates
    predicted = interpret(graph, {**state, "input": x})["output"]
    theirs.eval()
    np.testing.assert_allclose(predicted, theirs(torch.from_numpy(x)).detach().numpy(), atol=1e-6)
    theirs.train()
    tensor = torch.from_numpy(x).requires_grad_()
    expected = theirs(tensor)
    expected.backward(torch.from_numpy(dy))
    y, dx, grads = cl.vjp(ours, x, dy, device="reference")
    np.testing.assert_allclose(y, expected.detach().numpy(), atol=1e-6)
    np.testing.assert_allclose(dx, tensor.grad.numpy(), atol=1e-6)
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(grads[name], parameter.grad.numpy(), atol=1e-6)
    assert repr(ours) == re.sub(r", bias=\w+", "", repr(theirs))


def test_a_training_graph_updates_each_use_of_a_shared_layer_in_turn() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(2)

        def forward(self, x: Any) -> Any:
            return self.bn(x) + self.bn(nn.relu(x))

    ours, theirs, x = Twice(), torch.nn.BatchNorm2d(2).double(), normals(3, 2, 4, 4)
    tensor = torch.from_numpy(x)
    expected = theirs(tensor) + theirs(torch.relu(tensor))
    graph = ours.trace((2, 4, 4), 3)
    assert graph.named(Role.STATE) == (
        "bn.running_mean",
        "bn.running_var",
        "bn.num_batches_tracked",
    )
    state = {name: value.astype(np.float64) for name, value in ours.state_dict().items()}
    known = interpret(graph, {**state, "input": x})
    np.testing.assert_allclose(known["output"], expected.detach().numpy(), atol=1e-9)
    for name, value in theirs.state_dict().items():
        if name not in ("weight", "bias"):
            np.testing.assert_allclose(known[graph.updates[f"bn.{name}"]], value.numpy(), atol=1e-9)
    known = interpret(for_inference(graph), {**state, "input": x})
    mean, variance = (state[f"bn.running_{what}"].reshape(1, 2, 1, 1) for what in ("mean", "var"))
    wanted = sum((v - mean) / np.sqrt(variance + 1e-5) for v in (x, np.maximum(x, 0)))
    np.testing.assert_allclose(known["output"], wanted, atol=1e-9)


def test_an_unused_second_call_leaves_the_first_ones_update() -> None:
    class Dead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm2d(2)

        def forward(self, x: Any) -> Any:
            y = self.bn(x)
            self.bn(y)
            return y

    graph = Dead().trace((2, 4, 4), 3)
    assert len(graph.nodes) == 1
    assert graph.updates["bn.running_mean"] == graph.nodes[0].outputs[3]


def test_one_value_a_channel_is_an_error_in_training_alone() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 5), nn.BatchNorm2d(4))
    x, dy = normals(1, 3, 5, 5), normals(1, 4, 1, 1)
    model.trace((3, 5, 5), 1)
    with pytest.raises(ShapeError, match="layer '1': expected more than 1 value per channel"):
        cl.vjp(model, x, dy, device="reference")
    model.load_state_dict(model.state_dict())
    assert cl.vjp(model, normals(2, 3, 5, 5), normals(2, 4, 1, 1), device="reference")[0].any()


def test_buffers_are_no_parameters_but_part_of_the_state() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    assert [name for name, _ in model.named_parameters()] == [
        "0.weight", "0.bias", "1.weight", "1.bias",
    ]  # fmt: skip
    names = ["1.running_mean", "1.running_var", "1.num_batches_tracked"]
    assert [name for name, _ in model.named_buffers()] == names
    assert len(list(model.buffers())) == 3
    assert list(model.state_dict())[4:] == names
    assert model.state_dict()[names[2]].dtype == np.int64
    twin = copy.deepcopy(model)
    model[1].running_mean.data = np.array([1.0, 2.0])
    assert twin[1].running_mean.data.tolist() == [0, 0]
    again = pickle.loads(pickle.dumps(model[1].running_mean))
    assert again.data.tolist() == [1, 2]
    assert again.dtype == "float32"
    model[1].running_mean = None
    assert [name for name, _ in model.named_buffers()] == names[1:]
    with pytest.raises(WeightsError, match="shape"):
        model[1].running_var.data = np.zeros(3)
    with pytest.raises(WeightsError, match=r"unexpected '1\.running_mean'"):
        model.load_state_dict(twin.state_dict())


def test_a_module_of_ones_own_may_have_buffers() -> None:
    class Mine(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", np.zeros(3))
            self.none: Any = None
            self.register_buffer("none", None)

    model = Mine()
    assert list(model.state_dict()) == ["seen"]
    assert model.none is None
    assert "seen" in dir(model)
    with pytest.raises(TypeError, match="array"):
        nn.Buffer([1, 2])  # type: ignore[arg-type]
    with pytest.raises(cl.ConvloomError, match="dot"):
        model.register_buffer("a.b", np.zeros(1))


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: nn.BatchNorm2d(0), r"BatchNorm2d\(0\): num_features must be a whole number"),
        (lambda: nn.BatchNorm2d(3, eps="a"), "eps must be a finite number"),
        (lambda: nn.BatchNorm2d(3, momentum=float("nan")), "momentum must be a finite number"),
        (lambda: nn.BatchNorm2d(3, dtype="float64"), "float32"),
        (lambda: nn.GroupNorm(1, 3, bias=False), "bias=False is not supported"),
        (lambda: nn.InstanceNorm2d(3, track_running_stats=True), "track_running_stats"),
        (lambda: nn.InstanceNorm2d(3).trace((3, 1, 1)), "more than 1 spatial element"),
        (lambda: nn.InstanceNorm2d(3).trace((2, 4, 4)), r"expected \(N, 3, H, W\)"),
        (lambda: nn.GroupNorm(2, 3), "num_channels must be divisible by num_groups"),
        (lambda: nn.LocalResponseNorm(0), r"LocalResponseNorm\(0\): size"),
        (lambda: nn.ContrastNorm2d(3, alpha=True), r"ContrastNorm2d\(3\): alpha"),
        (lambda: nn.BatchNorm2d(3).trace((3, 4)), "expected 4D input .got 3D input"),
        (lambda: nn.BatchNorm1d(3).trace((3, 4, 4)), "expected 2D or 3D input .got 4D input"),
        (lambda: nn.BatchNorm2d(3).trace((2, 4, 4)), "num_features must be 2"),
        (lambda: nn.GroupNorm(1, 3).trace((2, 4, 4)), "expected 3 channels, got 2"),
        (lambda: nn.ResponseNorm2d(3).trace((4,)), r"\(N, C, H, W\)"),
    ],
)
def test_what_cannot_be_is_refused(make: Any, message: str) -> None:
    with pytest.raises(cl.ConvloomError, match=message):
        make()


def test_functions_take_all_or_none() -> None:
    class Net(nn.Module):
        def __init__(self, **options: Any) -> None:
            super().__init__()
            self.w, self.options = nn.Parameter(np.ones(2)), options

        def forward(self, x: Any) -> Any:
            options = {k: self.w if v == "w" else v for k, v in self.options.items()}
            return functional.batch_norm(x, None, None, **options)

    Net(weight="w", bias="w").trace((2, 3, 3), 2)
    for options in ({"weight": "w"}, {"training": False}, {"num_batches_tracked": "w"}):
        with pytest.raises(ArgumentError, match="batch_norm"):
            Net(**options).trace((2, 3, 3), 2)


def test_saved_and_loaded(tmp_path: Any) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2, momentum=None), nn.Flatten())
    model[1].running_mean.data = np.array([1.0, 2.0])
    model[1].num_batches_tracked.data = np.array(7)
    path = tmp_path / "net.safetensors"
    model.save(path, input_shape=(1, 4, 4))
    loaded = cl.load(path)
    for state in (loaded.state_dict(), nn.load_weights(path)):
        assert set(state) == set(model.state_dict())
        for name, value in model.state_dict().items():
            np.testing.assert_array_equal(state[name], value)
            assert state[name].dtype == value.dtype
    assert [name for name, _ in loaded.named_parameters()] == [
        name for name, _ in model.named_parameters()
    ]
    assert loaded.trace((1, 4, 4), 2).updates == model.trace((1, 4, 4), 2).updates
    outer = nn.Sequential(loaded, loaded_twice := nn.Flatten())
    assert loaded_twice is outer[1]
    graph = outer.trace((1, 4, 4), 2)
    assert list(graph.updates) == [f"0.1.{name}" for name in (
        "running_mean", "running_var", "num_batches_tracked")]  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda-sim"])
def test_sequences_run_on_kernels_of_images(device: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(
                [nn.BatchNorm1d(6), nn.GroupNorm(3, 6), nn.LocalResponseNorm(3)]
            )

        def forward(self, x: Any) -> Any:
            for norm in self.norms:
                x = norm(x)
            return x

    x, dy = normals(4, 6, 5).astype(np.float32), normals(4, 6, 5)[::-1].astype(np.float32)
    ours, wanted = (cl.vjp(Net(), x, dy, device=where) for where in (device, "reference"))
    for one, two in zip(ours[:2], wanted[:2], strict=True):
        np.testing.assert_allclose(one, two, atol=1e-4)
    for name, gradient in wanted[2].items():
        np.testing.assert_allclose(ours[2][name], gradient, atol=1e-4)


@pytest.mark.parametrize("device", ["reference", "cpu", "cuda-sim"])
@pytest.mark.parametrize("name", golden.names("rnorm", "cnorm", "cmrnorm"))
def test_golden_vectors_of_cuda_convnet(name: str, device: str) -> None:
    """Forward and backward through layers: rnorm, cnorm and cmrnorm, with its blocks."""
    case = golden.load(name)
    size, *numbers = (case.params[key] for key in ("size", "scale", "pow"))
    if case.layer == "cmrnorm":
        more = {"k": case.params["minDiv"], "blocked": case.params["blocked"]}
        layer: nn.Module = nn.LocalResponseNorm(size, *numbers, **more)
    else:
        kinds = {"rnorm": nn.ResponseNorm2d, "cnorm": nn.ContrastNorm2d}
        layer = kinds[case.layer](size, *numbers)
    exact = device == "reference"
    x, dy = (case.images(v).astype(np.float64 if exact else np.float32) for v in ("x", "g"))
    y, dx, _ = cl.vjp(layer, x, dy, device=device)
    tolerance = 1e-6 if exact else 1e-4
    np.testing.assert_allclose(y, case.images("y"), rtol=0, atol=tolerance)
    np.testing.assert_allclose(dx, case.images("dx"), rtol=0, atol=tolerance)
