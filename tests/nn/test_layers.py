"""Layers and functions: values against PyTorch, impossible sizes, options that are not there."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from convloom import nn
from convloom.compiler.interpret import interpret
from convloom.ir import ConvloomError, ShapeError
from convloom.nn import functional

torch = pytest.importorskip("torch")


def run(model: nn.Module, x: np.ndarray) -> np.ndarray:
    graph = model.trace(x.shape[1:], len(x))
    values = {name: value.astype(x.dtype) for name, value in model.state_dict().items()}
    return interpret(graph, {**values, "input": x})["output"]


def images(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape)


@pytest.mark.parametrize(
    ("make", "shape"),
    [
        (lambda lib: lib.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), 2), (2, 4, 9, 8)),
        (lambda lib: lib.Conv2d(3, 5, 3, padding="same", dilation=2, bias=False), (2, 3, 7, 6)),
        (lambda lib: lib.Conv2d(3, 5, 2, padding="valid"), (1, 3, 7, 6)),
        (lambda lib: lib.ConvTranspose2d(4, 6, 3, 2, 1, 1, 2, True, (1, 2)), (2, 4, 5, 4)),
        (lambda lib: lib.ConvTranspose2d(3, 5, (2, 3), bias=False), (1, 3, 1, 6)),
        (lambda lib: lib.MaxPool2d(3, 2, 1, ceil_mode=True), (2, 3, 8, 7)),
        (lambda lib: lib.MaxPool2d((2, 3), dilation=2), (2, 3, 8, 12)),
        (lambda lib: lib.MaxPool2d(2), (2, 3, 7, 6)),
        (lambda lib: lib.AvgPool2d(3, 2, 1, True, False), (2, 3, 8, 7)),
        (lambda lib: lib.AvgPool2d(2, padding=1), (2, 3, 6, 7)),
        (lambda lib: lib.AvgPool2d(2, divisor_override=3), (2, 3, 6, 7)),
        (lambda lib: lib.AdaptiveAvgPool2d(1), (2, 3, 6, 7)),
        (lambda lib: lib.AdaptiveAvgPool2d((3, None)), (2, 3, 7, 5)),
        (lambda lib: lib.AdaptiveAvgPool2d((3, 5)), (2, 3, 6, 10)),
        (lambda lib: lib.AdaptiveMaxPool2d((4, 2)), (2, 3, 6, 7)),
        (lambda lib: lib.AdaptiveMaxPool2d(2), (2, 3, 6, 4)),
        (lambda lib: lib.Sequential(lib.ReLU(inplace=False), lib.Identity(1, a=2)), (2, 3, 4, 4)),
        (lambda lib: lib.Sequential(lib.ReLU6(), lib.Hardswish(True)), (2, 3, 4, 4)),
        (lambda lib: lib.Sequential(lib.LeakyReLU(0.2), lib.ELU(0.5, True)), (2, 3, 4, 4)),
        (lambda lib: lib.Sequential(lib.GELU(), lib.GELU("tanh"), lib.SiLU(True)), (2, 3, 4, 4)),
        (lambda lib: lib.Sequential(lib.Tanh(), lib.Sigmoid()), (2, 3, 4, 4)),
        (lambda lib: lib.Sequential(lib.Hardtanh(-0.5, 2), lib.Softplus(2, 1)), (2, 3, 4, 4)),
        (
            lambda lib: lib.Sequential(lib.Softmax(-1), lib.Softmax(1), lib.LogSoftmax(2)),
            (2, 3, 4, 5),
        ),
        (lambda lib: lib.Sequential(lib.ZeroPad2d((1, 2, 0, -1)), lib.ZeroPad2d(1)), (2, 3, 4, 5)),
        (lambda lib: lib.ConstantPad2d(2, -1.5), (2, 3, 4, 5)),
        (lambda lib: lib.ReflectionPad2d((1, 2, 3, 0)), (2, 3, 4, 5)),
        (lambda lib: lib.ReplicationPad2d(3), (2, 3, 4, 5)),
        (lambda lib: lib.Upsample((7, 3)), (2, 3, 4, 5)),
        (lambda lib: lib.Upsample(scale_factor=2, mode="bilinear"), (2, 3, 4, 5)),
        (lambda lib: lib.Upsample(None, (1.5, 2), "bilinear", True), (2, 3, 4, 5)),
        (lambda lib: lib.Flatten(2), (2, 3, 4, 5)),
        (lambda lib: lib.Flatten(1, 2), (2, 3, 4, 5)),
        (lambda lib: lib.Sequential(lib.Flatten(), lib.Linear(60, 7, False)), (2, 3, 4, 5)),
    ],
)
def test_layers_compute_what_pytorch_does(make: Any, shape: tuple[int, ...]) -> None:
    ours, theirs = make(nn), make(torch.nn).double()
    ours.load_state_dict(theirs.state_dict())
    x = images(*shape)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(run(ours, x), expected, rtol=1e-12, atol=1e-12)
    assert run(ours, x[:0]).shape == (0, *expected.shape[1:])


def test_functions_compute_what_pytorch_does() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w, self.b = nn.Parameter(images(6, 2, 3, 3)), nn.Parameter(np.arange(6.0))
            self.fc = nn.Parameter(images(4, 144))

        def forward(self, x: Any) -> Any:
            return body(self, x, functional, nn.cat, nn.add)

    def body(net: Any, x: Any, lib: Any, cat: Any, add: Any) -> Any:
        y = lib.relu(lib.conv2d(x, net.w, net.b, padding=1, groups=2))
        y = lib.max_pool2d(y, 2) if y.shape[2] > 2 else y
        z = add(lib.avg_pool2d(y, 3, 1, 1), lib.dropout(y, 0.5, training=False))
        z = sum([z, z]).view(x.shape[0], -1, z.size(3)).reshape((-1, 6, 4, 3))
        return lib.linear(cat([z, z], dim=1).flatten(1), net.fc)

    ours, x = Net(), images(2, 4, 8, 6)
    tensors = {k: torch.from_numpy(v).double() for k, v in ours.state_dict().items()}
    theirs = type("Net", (), tensors)
    expected = body(theirs, torch.from_numpy(x), torch.nn.functional, torch.cat, torch.add)
    np.testing.assert_allclose(run(ours, x), expected.numpy(), rtol=1e-12, atol=1e-12)


# ---- impossible sizes: an error when built or shaped, naming the layer and the sizes


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Conv2d(6, 8, 3, groups=4), r"Conv2d\(6, 8, 3\): 6 input channels .* 4 groups"),
        (lambda: nn.Conv2d(6, 8, 3, dilation=0), r"dilation must be at least 1, it is \(0, 0\)"),
        (lambda: nn.Conv2d(6, 8, 3, padding=-1), r"padding must be at least 0"),
        (lambda: nn.Conv2d(6, 8, 3, stride=0), r"stride must be at least 1"),
        (lambda: nn.Conv2d(6, 8, 0), r"Conv2d\(6, 8, 0\): kernel size must be at least 1"),
        (lambda: nn.Conv2d(6, 8, (3, 3, 3)), r"kernel_size must be .* pair .*\(3, 3, 3\)"),
        (lambda: nn.Conv2d(6, 8, 3, dilation=2**31), r"below 2\^31"),
        (lambda: nn.Conv2d(6.0, 8, 3), r"in_channels must be a whole number"),
        (lambda: nn.Conv2d(True, 8, 3), r"in_channels must be a whole number"),
        (lambda: nn.Conv2d(0, 8, 3), r"in_channels .* at least 1, it is 0"),
        (lambda: nn.Conv2d(6, 8, 2, padding="same"), r"padding='same' needs an odd kernel"),
        (lambda: nn.Conv2d(6, 8, 3, 2, padding="same"), r"padding='same' needs stride 1"),
        (lambda: nn.Conv2d(6, 8, 3, padding="full"), r"'valid' or 'same', it is 'full'"),
        (lambda: nn.Conv2d(6, 8, 3, groups=0), r"groups must be a whole number of at least 1"),
        (lambda: nn.ConvTranspose2d(6, 8, 3, groups=4), r"ConvTranspose2d\(6, 8, 3\): 6 input"),
        (lambda: nn.ConvTranspose2d(6, 8, 3, 2, output_padding=2), r"smaller than the stride"),
        (lambda: nn.ZeroPad2d((1, 2)), r"ZeroPad2d\(\(1, 2\)\): padding must be one whole number"),
        (lambda: nn.Upsample(), r"either size or scale_factor"),
        (lambda: nn.Upsample(scale_factor=-1), r"scale_factor must be one positive number"),
        (lambda: nn.Nailbed(0), r"Nailbed\(0\): stride must be a whole number of at least 1"),
        (lambda: nn.Linear(-3, 2), r"Linear\(-3, 2\): in_features"),
        (lambda: nn.Linear(3, None), r"out_features"),
        (lambda: nn.MaxPool2d(2, padding=2), r"MaxPool2d\(2\): padding must be at most half"),
        (lambda: nn.MaxPool2d(2, stride=0), r"stride must be at least 1"),
        (lambda: nn.AvgPool2d(0), r"AvgPool2d\(0\): kernel size must be at least 1"),
        (lambda: nn.AvgPool2d(2, divisor_override=0), r"divisor_override .* other than 0"),
        (lambda: nn.MaxPool2d(2, ties="none"), r"MaxPool2d\(2\): ties must be 'first' or 'all'"),
        (lambda: nn.AdaptiveAvgPool2d(0), r"AdaptiveAvgPool2d\(0\): output_size .* at least 1"),
        (
            lambda: nn.AdaptiveMaxPool2d((1, 2, 3)),
            r"output_size must be one whole number",
        ),
        (lambda: nn.Dropout(1.5), r"Dropout\(1.5\): the probability must be between 0 and 1"),
        (lambda: nn.Dropout(float("nan")), r"probability"),
        (lambda: nn.LeakyReLU(float("inf")), r"LeakyReLU\(inf\): negative_slope must be a finite"),
        (lambda: nn.Hardtanh(1, 1), r"Hardtanh\(1, 1\): max_val must be greater than min_val"),
        (lambda: nn.Softplus(0), r"Softplus\(0, 20.0\): beta must not be 0"),
        (
            lambda: nn.Activation("tanh", 0),
            r"Activation\('tanh', 0, 0.0\): the activation tanh has",
        ),
        (lambda: nn.Softmax(0), r"Softmax\(0\): dim must not be 0"),
        (lambda: nn.Flatten(0), r"Flatten\(0, -1\): start_dim must be at least 1"),
        (lambda: nn.CrossEntropyLoss(label_smoothing=1.5), r"in \[0, 1\], it is 1.5"),
        (lambda: nn.CrossEntropyLoss(label_smoothing="a"), r"must be a number"),
    ],
)
def test_impossible_when_built(make: Any, says: str) -> None:
    with pytest.raises(ShapeError, match=says):
        make()


@pytest.mark.parametrize(
    ("layer", "shape", "says"),
    [
        (lambda: nn.Conv2d(3, 4, 3), (3, 2, 2), r"covers 3 cells of height .* the input has 2"),
        (lambda: nn.Conv2d(3, 4, 3), (1, 8, 8), r"expect 3 input channels, the input has 1"),
        (lambda: nn.Conv2d(3, 4, 3, dilation=2**31 - 1), (3, 8, 8), r"dilation 2147483647"),
        (lambda: nn.Conv2d(3, 4, 3), (3,), r"\(N, C, H, W\), it got \(2, 3\)"),
        (lambda: nn.ConvTranspose2d(3, 4, 3), (3,), r"images \(N, C, H, W\) meet filters"),
        (lambda: nn.ConvTranspose2d(3, 4, 1, 1, 1), (3, 2, 8), r"would become 0x6"),
        (lambda: nn.ConvTranspose2d(3, 4, 3), (2, 8, 8), r"do not fit the 2 channels"),
        (lambda: nn.ReflectionPad2d(8), (3, 8, 8), r"less than the input's height of 8, it is 8"),
        (lambda: nn.Upsample(scale_factor=1.3), (3, 8, 8), r"no whole number .* give size instead"),
        (lambda: nn.Blur(4, 1.0), (3, 8, 8), r"odd filter size"),
        (lambda: nn.Linear(10, 4), (12,), r"expects 10 input features, the input has 12"),
        (lambda: nn.Linear(10, 4), (3, 2, 2), r"put a Flatten before it"),
        (lambda: nn.MaxPool2d(9), (3, 8, 8), r"kernel 9"),
        (lambda: nn.AvgPool2d(2), (3,), r"\(N, C, H, W\), it got \(2, 3\)"),
        (lambda: nn.AdaptiveAvgPool2d(2), (3,), r"\(N, C, H, W\), it got \(2, 3\)"),
        (lambda: nn.Flatten(4), (3, 8, 8), r"axis 4 does not exist"),
    ],
)
def test_impossible_when_shaped(layer: Any, shape: tuple[int, ...], says: str) -> None:
    model = nn.Sequential(OrderedDict(features=nn.Sequential(nn.ReLU(), layer())))
    with pytest.raises(ConvloomError, match=rf"layer 'features\.1'.*{says}"):
        model.trace(shape, 2)


def test_functional_errors_name_the_layer() -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(np.zeros((2, 2)))

        def forward(self, x: Any) -> Any:
            return functional.conv2d(x, self.w)

    with pytest.raises(ShapeError, match=r"layer '0': conv2d: filters have shape \(K, C, R, S\)"):
        nn.Sequential(Inner()).trace((2, 4, 4))


# ---- options of PyTorch that are not there


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: nn.Conv2d(1, 2, 3, padding_mode="reflect"), r"padding_mode must be 'zeros'"),
        (lambda: nn.Conv2d(1, 2, 3, device="cuda"), r"a layer has no device"),
        (lambda: nn.Upsample(2, mode="bicubic"), r"mode must be 'nearest' or 'bilinear'"),
        (lambda: nn.Upsample(2, align_corners=True), r"align_corners goes with mode='bilinear'"),
        (lambda: nn.Linear(1, 2, dtype=np.float64), r"parameters are float32"),
        (lambda: nn.Linear(1, 2, init="magic"), r"Linear\(1, 2\): unknown init 'magic'"),
        (lambda: nn.GELU("erf"), r"GELU\('erf'\): approximate must be 'none' or 'tanh'"),
        (lambda: nn.MaxPool2d(2, return_indices=True), r"return_indices is not supported"),
        (lambda: nn.CrossEntropyLoss(weight=np.ones(3)), r"weight=.* is not supported"),
        (lambda: nn.CrossEntropyLoss(reduction="sum"), r"reduction='sum' is not supported"),
        (lambda: nn.CrossEntropyLoss(ignore_index=0), r"ignore_index=0 is not supported"),
    ],
)
def test_unsupported_options(make: Any, says: str) -> None:
    with pytest.raises(nn.ArgumentError, match=says):
        make()


def test_float32_and_whole_numbers_of_numpy_are_fine() -> None:
    layer = nn.Conv2d(np.int64(3), 4, np.int32(3), dtype=torch.float32)
    assert layer.weight.shape == (4, 3, 3, 3)
    assert nn.Linear(3, 4, dtype=np.float32).weight.shape == (4, 3)


def test_loss_is_a_description() -> None:
    loss = nn.CrossEntropyLoss(label_smoothing=0.1)
    assert (loss.op().label_smoothing, loss.op().target) == (0.1, "index")
    assert loss.op("probability").target == "probability"
    assert repr(loss) == "CrossEntropyLoss(label_smoothing=0.1)"


# ---- containers


def test_sequential_is_a_list() -> None:
    a, b, c = nn.ReLU(), nn.Flatten(), nn.Linear(4, 2)
    model = nn.Sequential(a, b).append(c)
    assert list(model) == [a, b, c]
    assert len(model) == 3
    assert model[-1] is c
    assert list(model[1:].state_dict()) == ["2.weight", "2.bias"]  # as PyTorch names a slice's
    model.insert(1, nn.Identity())
    assert [name for name, _ in model.named_children()] == ["0", "1", "2", "3"]
    del model[1]
    model[0] = nn.Identity()
    assert [type(module).__name__ for module in model] == ["Identity", "Flatten", "Linear"]
    with pytest.raises(IndexError, match="module 3 does not exist: there are 3"):
        _ = model[3]


def test_module_list() -> None:
    modules = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    assert list(modules.state_dict())[-1] == "2.bias"
    assert len(modules[1:]) == 2
    assert len(modules.extend([nn.ReLU()])) == 4
    with pytest.raises(nn.TraceError, match="a ModuleList cannot be called"):
        modules.trace((2,))


@pytest.mark.parametrize(
    ("item", "hint"),
    [
        (nn.ReLU, r"write ReLU\(\)"),
        ([nn.ReLU()], "unpack a list"),
        (3, "not int"),
        (torch.nn.ReLU(), "PyTorch's"),
    ],
)
def test_only_modules_go_into_containers(item: Any, hint: str) -> None:
    with pytest.raises(TypeError, match=hint):
        nn.Sequential(item)
