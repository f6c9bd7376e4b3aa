"""Every network of the zoo beside its twin in plain PyTorch: names, shapes, outputs, gradients."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends import get_backend
from convloom.compiler import compile_graph
from convloom.nn import models
from convloom.training.engine import Engine
from convloom.training.graphs import INDEX, training_graph

torch = pytest.importorskip("torch")
from tests.nn.torch_zoo import TWINS  # noqa: E402

#: {network: (channels, side of the images)}: as small as shows every layer at work.
SMALL = {
    "lenet": (1, 12),
    "lenet5": (1, 28),
    "vgg-small": (3, 8),
    "resnet18": (3, 40),
    "resnet20": (3, 10),
    "resnet56": (2, 8),
    "mobilenet-v1-small": (3, 40),
    "alexnet": (3, 67),
    "alexnet-torchvision": (3, 63),
    "vgg16": (3, 32),
}
#: Those with tens of millions of weights.
LARGE = ("alexnet", "alexnet-torchvision", "vgg16")
#: Those whose kernels are soon compiled.
QUICK = ("lenet", "lenet5", "vgg-small", "resnet20")
SIMULATED = ("resnet20", "mobilenet-v1-small")
CASES = [pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in SMALL]

#: Parameters with 1000 classes and three channels at 224×224 as published, else as counted by hand.
COUNTS = {
    "alexnet": 60_965_224,
    "alexnet-torchvision": 61_100_840,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "mobilenet-v1-small": 1_331_592,
}


def test_every_network_has_a_twin() -> None:
    assert set(TWINS) == set(SMALL) == set(models.names())


def test_every_network_is_timed_beside_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Path(__file__).resolve().parents[2] / "benchmarks"
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("timed", folder / "cpu_vs_pytorch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "timed", module)
    spec.loader.exec_module(module)
    assert set(module.ZOO_SHAPES) == set(models.names())
    assert {f"{name}@32" for name in models.names()} <= set(module.NETWORKS)


@pytest.mark.parametrize("name", SMALL)
def test_names_and_shapes(name: str) -> None:
    channels, side = SMALL[name]
    model = models.build(name, num_classes=7, in_channels=channels, image_size=side)
    with torch.device("meta"):
        twin = TWINS[name](7, channels, side)
    ours = [(key, tuple(value.shape)) for key, value in model.named_parameters()]
    assert ours == [(key, tuple(value.shape)) for key, value in twin.named_parameters()]
    if name not in LARGE:
        state = {key: value.shape for key, value in model.state_dict().items()}
        assert state == {key: tuple(value.shape) for key, value in twin.state_dict().items()}


@pytest.mark.parametrize(("name", "count"), COUNTS.items())
def test_parameters_are_as_many_as_published(name: str, count: int) -> None:
    model = models.build(name, num_classes=1000, in_channels=3, image_size=224)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def pair(name: str, classes: int = 5) -> tuple[nn.Module, Any, np.ndarray]:
    """A network and its twin with the same weights, drawn fast and as large as he's, without
    dropout; and two images."""
    channels, side = SMALL[name]
    twin = TWINS[name](classes, channels, side).double()
    draw = np.random.default_rng(0)
    with torch.no_grad():
        for key, value in twin.state_dict().items():
            if value.dtype != torch.float64:
                continue
            if value.ndim > 1:
                fan = float(np.prod(value.shape[1:]))
                drawn = draw.standard_normal(value.shape, np.float32) * (2 / fan) ** 0.5
            elif key.endswith(("running_var", "weight")):
                drawn = draw.uniform(0.5, 1.5, value.shape)
            else:
                drawn = draw.uniform(-0.3, 0.3, value.shape)
            value.copy_(torch.from_numpy(np.asarray(drawn, np.float32)))
    for layer in twin.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0
    model = models.build(name, num_classes=classes, in_channels=channels, image_size=side)
    for ours in model.modules():
        if isinstance(ours, nn.Dropout):
            ours.p = 0.0
    model.load_state_dict({key: value.numpy() for key, value in twin.state_dict().items()})
    return model, twin, draw.standard_normal((2, channels, side, side), np.float32)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_the_twins(name: str) -> None:
    """A training step's: batch normalisation takes the batch's statistics. In float64, so that
    nothing but a difference of the networks themselves can show."""
    model, twin, images = pair(name)
    dy = np.random.default_rng(1).standard_normal((2, 5))
    y, dx, gradients = cl.vjp(model, images.astype(np.float64), dy, device="reference")
    x = torch.from_numpy(images).double().requires_grad_()
    twin.train()
    output = twin(x)
    output.backward(torch.from_numpy(dy))
    close(y, output, "output")
    close(dx, x.grad, "input")
    wanted = dict(twin.named_parameters())
    assert gradients.keys() == wanted.keys()
    for key, value in gradients.items():
        close(value, wanted[key].grad, key)


def close(ours: np.ndarray, theirs: Any, what: str, tolerance: float = 1e-9) -> None:
    """Equal as a whole, in proportion to the largest element."""
    expected = theirs.detach().numpy()
    scale = np.abs(expected).max()
    np.testing.assert_allclose(ours, expected, atol=tolerance * scale, rtol=0, err_msg=what)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK))
        for name in SMALL
        if name != "resnet56"
    ],
)
def test_evaluation_on_the_cpu(name: str) -> None:
    """With running statistics and compiled kernels, to 1e-4 of the largest logit."""
    model, twin, images = pair(name)
    channels, side = SMALL[name]
    twin.eval()
    with torch.no_grad():
        expected = twin(torch.from_numpy(images).double())
    logits = Engine(model, input_shape=(channels, side, side), device="cpu").predict(images)
    close(logits, expected, "logits", 1e-4)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        *(pytest.param("cpu", n, marks=[pytest.mark.slow] * (n not in QUICK)) for n in SMALL),
        pytest.param("cuda-sim", "lenet5"),
        *(pytest.param("cuda-sim", name, marks=pytest.mark.slow) for name in SIMULATED),
        *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in SMALL),
    ],
)
def test_gradients_on_devices(device: str, name: str) -> None:
    """Of compiled kernels, in float32; as a whole, as one rectifier more or less near 0 may pass
    a gradient, which the batch normalisations of a deep network then spread."""
    model, twin, images = pair(name)
    dy = np.random.default_rng(1).standard_normal((2, 5)).astype(np.float32)
    y, _, gradients = cl.vjp(model, images, dy, device=device)
    twin.train()
    output = twin(torch.from_numpy(images).double())
    output.backward(torch.from_numpy(dy).double())
    close(y, output, "output", 1e-3)
    wanted = dict(twin.named_parameters())
    largest = max(float(p.grad.norm()) for p in wanted.values())
    for key, value in gradients.items():
        expected = wanted[key].grad.numpy()
        error = np.linalg.norm(value - expected)
        bound = 0.005 * np.linalg.norm(expected) + 1e-6 * largest
        assert error <= bound, f"{key}: {error} of {np.linalg.norm(expected)}"


@pytest.mark.parametrize("name", SMALL)
def test_every_step_has_a_compiled_kernel(name: str) -> None:
    """Of the training step, on the CPU; a GPU refuses what it has no kernel for."""
    channels, side = SMALL[name]
    model = models.build(name, num_classes=5, in_channels=channels, image_size=side)
    forward = model.trace((channels, side, side), 2)
    graph = training_graph(forward, nn.CrossEntropyLoss(), INDEX, cl.optim.SGD(lr=0.1), False)
    plan = compile_graph(graph, get_backend("cpu"))
    assert plan.steps
    assert [step.node.title for step in plan.steps if step.selection.rung == "reference"] == []


def test_the_paper_s_start_of_alexnet() -> None:
    model = models.alexnet(num_classes=2, image_size=67)
    drawn = {name: p.initialiser.draw((4,), 0, name) for name, p in model.named_parameters()}
    ones = {name for name, value in drawn.items() if (value == 1).all()}
    assert ones == {
        f"{layer}.bias"
        for layer in ("features.4", "features.10", "features.12", "classifier.1", "classifier.4")
    }
    assert (
        not models.alexnet(num_classes=2, image_size=67, init="he")
        .features[4]
        .bias.initialiser.value
    )


def test_starts_are_torchvisions() -> None:
    """Deviations of the first filters: 2/fan_out for vgg16 and resnet18."""
    for name, key, fan in (
        ("resnet18", "conv1.weight", 64 * 49),
        ("vgg16", "features.2.weight", 576),
    ):
        model = models.get(name)(num_classes=2)
        parameter = dict(model.named_parameters())[key]
        drawn = parameter.initialiser.draw(parameter.shape, 0, key)
        assert drawn.std() == pytest.approx((2 / fan) ** 0.5, rel=0.05)
