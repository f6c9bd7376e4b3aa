"""PyTorch as the peer: it runs the same network, and trains when it is asked to."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import convloom as cl
from convloom import nn
from convloom.inspection.workload import Workload, make_workload
from convloom.interop.torch import peers
from convloom.interop.torch.peers import (
    COMPILE,
    EAGER,
    Kind,
    Loading,
    Peer,
    Pixels,
    in_channels_last,
    kinds,
)
from convloom.interop.torch.twin import TorchTwin
from convloom.ir import ConvloomError
from convloom.ops.precision import BF16, FP32, PRECISIONS, TF32
from convloom.optim import SGD

SHAPE = (2, 10, 9)


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * 2 * 2, 5),
    )


@pytest.fixture(scope="module")
def workload() -> Workload:
    return make_workload(
        network(),
        nn.CrossEntropyLoss(),
        SGD(lr=0.1, momentum=0.9),
        input_shape=SHAPE,
        batch_size=3,
        samples=20,
    )


def peer(workload: Workload, kind: Kind = EAGER) -> Peer:
    return Peer(
        kind,
        workload.forward,
        workload.weights,
        workload.batches,
        device="cpu",
        update="sgd",
        options={"lr": 1e-3, "momentum": 0.9},
    )


def test_the_twin_is_the_same_network() -> None:
    model = network()
    model.initialize(3)
    x = np.random.default_rng(0).standard_normal((4, *SHAPE), dtype=np.float32)
    dy = np.random.default_rng(1).standard_normal((4, 5), dtype=np.float32)
    y, dx, grads = cl.vjp(model, x, dy, device="reference")
    twin = TorchTwin(model.trace(SHAPE, 4), model.state_dict())
    image = torch.from_numpy(x).requires_grad_()
    output = twin(image)
    output.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(output.detach(), y, atol=1e-5)
    np.testing.assert_allclose(image.grad, dx, atol=1e-5)
    for name, grad in grads.items():
        found = twin.get_parameter(twin.names[name]).grad
        np.testing.assert_allclose(found, grad, atol=1e-4)


def test_the_twin_of_spatial_layers() -> None:
    model = nn.Sequential(
        nn.ReflectionPad2d((1, 2, 0, 1)), nn.LocallyConnected2d(3, 4, 3, (9, 11), 2, 1, groups=1),
        nn.ConvTranspose2d(4, 6, 3, 2, 1, 1, groups=2), nn.UnsharedBias(6, (10, 12)),
        nn.Nailbed(2), nn.Mirror(), nn.Upsample((7, 8), mode="bilinear"), nn.Blur(3, 1.0),
        nn.ConstantPad2d(1, 0.5), nn.AvgPool2d(2, divisor_override=3), nn.AdaptiveAvgPool2d((3, 2)),
        nn.AdaptiveMaxPool2d(2),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    model.load_state_dict({k: rng.normal(size=v.shape) for k, v in model.state_dict().items()})
    x = rng.normal(size=(2, 3, 8, 8))
    dy = rng.normal(size=model.trace((3, 8, 8), 2).specs["output"].shape)
    y, _, gradients = cl.vjp(model, x, dy, device="reference")
    twin = TorchTwin(model.trace((3, 8, 8), 2), model.state_dict()).double()
    output = twin(torch.from_numpy(x))
    output.backward(torch.from_numpy(dy))
    np.testing.assert_allclose(y, output.detach(), atol=1e-10)
    for name, gradient in gradients.items():
        found = twin.get_parameter(twin.names[name]).grad
        assert found is not None
        np.testing.assert_allclose(gradient, found, atol=1e-9)


@pytest.mark.parametrize("pool", [nn.MaxPool2d(2, ties="all"), nn.MaxPool2d(2, outputs=3)], ids=str)
def test_pools_that_have_no_twin(pool: nn.Module) -> None:
    model = nn.Sequential(pool)
    with pytest.raises(ValueError, match="PyTorch has no pools"):
        TorchTwin(model.trace((3, 6, 6), 2), {})


def test_the_twin_of_products_sums_and_softmax() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.fc = nn.Conv2d(2, 2, 3, padding=1), nn.Linear(180, 5)

        def forward(self, x: Any) -> Any:
            gate = nn.functional.softmax(self.conv(x), 1)
            y = nn.functional.weighted_sum([nn.functional.mul(gate, x), x], [2.0, -0.5])
            return nn.functional.log_softmax(self.fc(y.flatten(1)))

    model = Net().initialize(3)
    x = np.random.default_rng(0).standard_normal((4, *SHAPE))
    y, _, _ = cl.vjp(model, x, np.ones((4, 5)), device="reference")
    twin = TorchTwin(model.trace(SHAPE, 4), model.state_dict()).double()
    np.testing.assert_allclose(twin(torch.from_numpy(x)).detach(), y, atol=1e-9)


@pytest.mark.parametrize(
    ("layer", "kept"),
    [
        (nn.Dropout(0.25), 1 / 0.75),
        (nn.Dropout2d(0.25), 1 / 0.75),
        (nn.Dropout(0.25, rescale=False), 1.0),
    ],
    ids=str,
)
def test_the_twin_drops_as_often(layer: nn.Module, kept: float) -> None:
    model = nn.Sequential(layer, nn.Conv2d(40, 40, 1, groups=40, bias=False))
    model.load_state_dict({"1.weight": np.ones((40, 1, 1, 1), np.float32)})
    torch.manual_seed(0)
    twin = TorchTwin(model.trace((40, 2, 2), 50), model.state_dict())
    y = twin(torch.ones(50, 40, 2, 2)).detach().numpy()
    np.testing.assert_allclose(np.unique(y), [0, kept], rtol=1e-6)
    assert 0.2 < (y == 0).mean() < 0.3
    assert (y == y[:, :, :1, :1]).all() == isinstance(layer, nn.Dropout2d)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("lenet5", (1, 28, 28)), ("resnet20", (3, 8, 8)), ("mobilenet-v1-small", (3, 33, 33))],
)
def test_the_twin_of_networks_of_the_zoo(name: str, shape: tuple[int, int, int]) -> None:
    model = nn.models.build(name, num_classes=5, in_channels=shape[0], image_size=shape[1:])
    model.initialize(3)
    x = np.random.default_rng(0).standard_normal((2, *shape), dtype=np.float32)
    dy = np.random.default_rng(1).standard_normal((2, 5), dtype=np.float32)
    y, _, grads = cl.vjp(model, x.astype(np.float64), dy, device="reference")
    twin = TorchTwin(model.trace(shape, 2), model.state_dict()).double()
    output = twin(torch.from_numpy(x).double())
    output.backward(torch.from_numpy(dy).double())
    np.testing.assert_allclose(output.detach(), y, atol=1e-9)
    for key, grad in grads.items():
        found = twin.get_parameter(twin.names[key]).grad
        np.testing.assert_allclose(found, grad, atol=1e-8 * np.abs(grad).max() + 1e-12)


@pytest.mark.parametrize("kind", [EAGER, pytest.param(COMPILE, marks=pytest.mark.slow)])
def test_a_peer_begins_where_convloom_does(workload: Workload, kind: Kind) -> None:
    model = network()
    model.load_state_dict(workload.weights)
    step = cl.compile(
        model, nn.CrossEntropyLoss(), SGD(lr=0.1), batch_size=3, input_shape=SHAPE, device="cpu"
    )
    assert peer(workload, kind).first_loss == pytest.approx(step(*workload.batches[0]), rel=1e-5)


@pytest.mark.parametrize("kind", [EAGER, pytest.param(COMPILE, marks=pytest.mark.slow)])
def test_a_peer_in_bf16_begins_where_the_kernels_on_chip_do(kind: Kind) -> None:
    def model() -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(8 * 9, 5)
        )

    loss, rule, shape = nn.CrossEntropyLoss(), SGD(lr=0.1), (3, 8, 8)
    workload = make_workload(
        model(), loss, rule, input_shape=shape, batch_size=4, samples=20, precision=BF16
    )
    ours = model()
    ours.load_state_dict(workload.weights)
    step = cl.compile(
        ours, loss, rule, batch_size=4, input_shape=shape, device="cuda-sim", precision=BF16
    )
    assert [part.node.op.name for part in step.plan.steps] == ["ChainUpdate"]
    exact = peer(workload).first_loss
    found = peer(workload, replace(kind, precision=BF16)).first_loss
    assert found == pytest.approx(step(*workload.batches[0]), rel=3e-2)
    assert 0 < abs(found - exact) < 3e-2 * exact


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_a_peer_computes_in(
    workload: Workload, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[object, ...]] = []
    twins: list[TorchTwin] = []
    cross_entropy, backward = peers.functional.cross_entropy, torch.autograd.backward

    def note(*what: object) -> None:
        flags = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
        seen.append((*what, torch.is_autocast_enabled("cpu"), *flags))

    def loss(logits: torch.Tensor, *given: Any, **named: Any) -> torch.Tensor:
        note("loss", logits.dtype)
        return cross_entropy(logits, *given, **named)

    def gradients(loss: torch.Tensor) -> None:
        note("backward", loss.dtype)
        backward(loss)

    def twin(*given: Any) -> TorchTwin:
        twins.append(TorchTwin(*given))
        return twins[-1]

    monkeypatch.setattr(peers, "TorchTwin", twin)
    monkeypatch.setattr(peers.functional, "cross_entropy", loss)
    monkeypatch.setattr(torch.autograd, "backward", gradients)
    peer(workload, replace(EAGER, precision=precision)).run_for(0.0)
    narrow, tf32 = precision == BF16, precision == TF32
    logits = torch.bfloat16 if narrow else torch.float32
    step = [("loss", logits, narrow, tf32, tf32), ("backward", torch.float32, False, tf32, tf32)]
    assert seen == 2 * step  # the first step, and one of the turn
    for parameter in twins[0].parameters():
        assert parameter.grad is not None
        assert parameter.dtype == parameter.grad.dtype == torch.float32


@pytest.mark.parametrize("precision", [FP32, BF16])
def test_a_peer_learns(workload: Workload, precision: str) -> None:
    found = peer(workload, replace(EAGER, precision=precision))
    images, seconds = found.run_for(0.01)
    assert images % 3 == 0
    assert images > 0
    assert seconds >= 0.01
    before = [float(found.step(*batch)) for batch in found._batches]
    for batch in itertools.islice(itertools.cycle(found._batches), 400):
        found.step(*batch)
    after = [float(found.step(*batch)) for batch in found._batches]
    assert sum(after) < sum(before)


@pytest.mark.parametrize(("workers", "kind"), [(0, in_channels_last(EAGER)), (1, EAGER)])
def test_a_loader_feeds_a_peer(workload: Workload, workers: int, kind: Kind) -> None:
    fed = peer(workload, kind)
    loading = Loading(
        fed,
        workload.images,
        workload.labels,
        workload.mean,
        workload.std,
        batch_size=3,
        workers=workers,
        pin_memory=False,
    )
    try:
        images, _ = loading.run_for(0.01)
        x, _ = next(loading._batches)
        assert x.stride() == fed._batches[0][0].stride()
    finally:
        loading.close()
    assert images % 3 == 0
    assert images > 0


def test_a_loader_s_pixels_are_convloom_s(workload: Workload) -> None:
    pixels = Pixels(workload.images, workload.labels, workload.mean, workload.std)
    assert len(pixels) == 20
    images, labels = workload.batches[0]
    for image, label, index in zip(images, labels, workload.order[0], strict=True):
        theirs, their_label = pixels[index]
        np.testing.assert_allclose(theirs, image, atol=1e-6)
        assert their_label == label


def test_precision_is_as_it_was() -> None:
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    with peers.precision(tf32=False):
        assert not torch.backends.cudnn.allow_tf32
    assert (torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32) == before


def test_graphs_are_for_gpus() -> None:
    assert [kind.name for kind in kinds("cpu")] == ["eager", "compile"]
    assert {"graph", "compile+graph"} < {kind.name for kind in kinds("cuda")}


def test_rows_are_in_the_precision_asked_for() -> None:
    fp32 = kinds("cuda", FP32)
    assert [kind.precision for kind in fp32] == [FP32] * 4 + [TF32]
    assert fp32[-1].name == "compile+graph, TF32"
    names = [kind.name for kind in fp32[:4]]
    for precision, more in ((TF32, []), (BF16, [f"{name}, channels_last" for name in names])):
        found = kinds("cuda", precision)
        assert [kind.name for kind in found] == names + more
        assert {kind.precision for kind in found} == {precision}
    assert [kind.name for kind in kinds("cpu", BF16) if kind.channels_last] == [
        "eager, channels_last",
        "compile, channels_last",
    ]


@pytest.mark.parametrize("channels_last", [False, True])
def test_the_memory_format_that_a_peer_computes_in(
    workload: Workload, channels_last: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Images, filters and what convolutions make; weights stay what they were."""
    seen: list[tuple[int, ...]] = []
    conv2d = peers.functional.conv2d

    def noted(x: torch.Tensor, w: torch.Tensor, *rest: Any) -> torch.Tensor:
        y = conv2d(x, w, *rest)
        seen.extend((x.stride(), w.stride(), y.stride()))
        return y

    monkeypatch.setattr(peers.functional, "conv2d", noted)
    kind = replace(EAGER, precision=BF16)
    found = peer(workload, in_channels_last(kind) if channels_last else kind)
    assert found.kind.channels_last == channels_last
    strides = [(180, 1, 18, 2), (18, 1, 6, 2), (360, 1, 36, 4)]
    if not channels_last:
        strides = [(180, 90, 9, 1), (18, 9, 3, 1), (360, 90, 9, 1)]
    assert seen == strides
    assert found.first_loss == pytest.approx(peer(workload).first_loss, rel=3e-2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="PyTorch sees a GPU")
def test_a_pytorch_without_cuda_says_so() -> None:
    threads = torch.get_num_threads()
    with pytest.raises(ConvloomError, match="cannot use the GPU"):
        peers.check("cuda", threads)


def test_other_optimisers(workload: Workload) -> None:
    found = Peer(
        EAGER,
        workload.forward,
        workload.weights,
        workload.batches,
        device="cpu",
        update="adamw",
        options={"lr": 1e-3, "betas": (0.9, 0.999)},
        label_smoothing=0.1,
    )
    assert found.run_for(0.0)[0] == 3
