"""The cases that the engine must never get wrong, each driven as a person would: public API, CLI.

Every one was a fault of some other engine. The unit tests of the parts go deeper; here each case
has one place where it is named and shown whole, from ``cl.…`` or ``convloom …`` down.
"""

from __future__ import annotations

import gzip
import math
import os
import pickle
import random
import resource
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import torch

import convloom as cl
from convloom import nn
from convloom.data import Augmentation, catalog, fetch, locate
from convloom.training import Callback, Moment, TrainingInterrupted
from tests.cli.running import invoke, refused
from tests.data.tiny import idx_bytes, idx_contents, known_idx, place, serving

DEVICES = ("reference", "cpu")
both_devices = pytest.mark.parametrize("device", DEVICES)


def linear(rows: Any, bias: Any = None) -> nn.Sequential:
    """Flatten and a Linear layer with these weights: the logits of an image, plainly."""
    weight = np.array(rows, np.float32)
    model = nn.Sequential(nn.Flatten(), nn.Linear(weight.shape[1], len(weight), bias is not None))
    state = {"1.weight": weight} | ({} if bias is None else {"1.bias": np.array(bias, np.float32)})
    model.load_state_dict(state)
    return model


def small_network() -> nn.Sequential:
    """A convolution, a pool and a Linear layer for digits."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 10)
    )


# Case 1: ceil_mode never keeps a window that starts in the padding.


@both_devices
@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "expected"),
    [
        ((5, 5), 2, 2, 1, (3, 3)),
        ((6, 7), 1, 2, 0, (3, 4)),
        ((5, 5), 3, 3, 1, (2, 2)),
        ((2, 2), 3, 2, 0, (1, 1)),  # larger than the map, but by less than a stride
    ],
)
def test_case_1_ceil_mode(
    size: tuple[int, int],
    kernel: int,
    stride: int,
    padding: int,
    expected: tuple[int, int],
    device: str,
) -> None:
    x = -1 - np.random.default_rng(0).random((2, 3, *size)).astype(np.float32)
    dy = np.ones((2, 3, *expected), np.float32)
    for ours, theirs in (
        (nn.MaxPool2d, torch.nn.functional.max_pool2d),
        (nn.AvgPool2d, torch.nn.functional.avg_pool2d),
    ):
        model = nn.Sequential(ours(kernel, stride, padding, ceil_mode=True))
        y, dx, _ = cl.vjp(model, x, dy, device=device)
        assert y.shape == (2, 3, *expected)
        assert np.isfinite(y).all()
        wide = torch.from_numpy(x).double().requires_grad_()
        right = theirs(wide, kernel, stride, padding, ceil_mode=True)
        right.backward(torch.ones_like(right))
        np.testing.assert_allclose(y, right.detach().numpy(), rtol=1e-6)
        np.testing.assert_allclose(dx, wide.grad.numpy(), rtol=1e-6)


# Case 2: ties go to the first cell in scan order, in overlapping windows too.


@both_devices
def test_case_2_ties_in_overlapping_windows(device: str) -> None:
    zeros, dy = np.zeros((1, 1, 5, 5), np.float32), np.ones((1, 1, 2, 2), np.float32)
    _, dx, _ = cl.vjp(nn.Sequential(nn.MaxPool2d(3, 2)), zeros, dy, device=device)
    winners = np.zeros((5, 5))
    winners[[0, 0, 2, 2], [0, 2, 0, 2]] = 1
    np.testing.assert_array_equal(dx[0, 0], winners)

    row = np.array([5, 3, 1, 2, 5], np.float32).reshape(1, 1, 1, 5)
    pool = nn.Sequential(nn.MaxPool2d((1, 2), 1))
    _, dx, _ = cl.vjp(pool, row, np.ones((1, 1, 1, 4), np.float32), device=device)
    np.testing.assert_array_equal(dx.ravel(), [1, 1, 0, 1, 1])


@pytest.mark.parametrize("kernels", ("auto", "sparse", "dense", "reference"))
def test_case_2_ties_behind_a_convolution(kernels: str) -> None:
    """Where convolution, ReLU and pool are one kernel: all zero, all equal, and equal to zero."""
    model = nn.Sequential(nn.Conv2d(1, 8, 1, bias=False), nn.ReLU(), nn.MaxPool2d(2))
    model.load_state_dict({"0.weight": np.ones((8, 1, 1, 1))})
    x = np.repeat([0, 1, -1], 16).reshape(3, 1, 4, 4).astype(np.float32)
    dy = np.ones((3, 8, 2, 2), np.float32)
    _, dx, gradients = cl.vjp(model, x, dy, device="cpu", kernels=kernels)
    first = np.zeros((4, 4))
    first[::2, ::2] = 8
    np.testing.assert_array_equal(dx[:, 0], [0 * first, first, 0 * first])
    np.testing.assert_array_equal(gradients["0.weight"].ravel(), [4] * 8)


# Case 3: a resumed run is the run that never stopped.


class _StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step(self, moment: Moment) -> None:
        if moment.progress.step == self.step:
            moment.trainer.stop()


class _Watched:
    """A data set that keeps the images of every batch it gave, as bytes."""

    def __init__(self, data: Any) -> None:
        self.data = data
        self.given: list[bytes] = []

    def __len__(self) -> int:
        return len(self.data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.data, name)

    def batches(self, *args: Any, **options: Any) -> Any:
        whole = self.data.batches(*args, **{**options, "prefetch": 0})
        return _WatchedBatches(whole, self.given)


class _WatchedBatches:
    def __init__(self, whole: Any, given: list[bytes]) -> None:
        self.whole, self.given = whole, given

    def __len__(self) -> int:
        return len(self.whole)

    def epoch(self, *place: int) -> Iterator[Any]:
        for batch in self.whole.epoch(*place):
            self.given.append(batch.images.tobytes())
            yield batch


@both_devices
@pytest.mark.parametrize("stop", (1, 11, 16))
def test_case_3_resume_in_mid_epoch(tmp_path: Path, stop: int, device: str) -> None:
    digits = cl.data.load("digits")[0].take(150)  # 8 steps an epoch, the last of 10 images
    train = _Watched(digits)

    def trainer(out: Path | None, *callbacks: Callback) -> cl.Trainer:
        return cl.Trainer(
            small_network(),
            cl.optim.SGD(lr=0.05, momentum=0.9, weight_decay=1e-3),
            nn.CrossEntropyLoss(),
            batch_size=20,
            device=device,
            seed=3,
            schedule="one-cycle:max=0.1",
            augment=Augmentation(padding=2, flip=True),
            out=out,
            callbacks=callbacks,
        )

    straight = trainer(None)
    straight.fit(train, epochs=2)
    seen = list(train.given)
    assert len(set(seen)) == 16  # the second epoch has an order and draws of its own
    train.given.clear()
    with pytest.raises(TrainingInterrupted, match=f"after step {stop} "):
        trainer(tmp_path, _StopAt(stop)).fit(train, epochs=2)
    resumed = trainer(tmp_path)
    history = resumed.fit(train, epochs=2, resume=True)
    assert train.given == seen
    for name, value in straight.model.state_dict().items():
        np.testing.assert_array_equal(resumed.model.state_dict()[name], value, err_msg=name)
    assert [row.loss for row in history.epochs] == [r.loss for r in straight.history.epochs]


# Case 4: impossible geometry is an error when built or shaped, naming the layer and the sizes.


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda: nn.Conv2d(1, 2, 3), ("layer '0'", "3", "2")),
        (lambda: nn.MaxPool2d(3), ("layer '0'", "3", "2")),
        (lambda: nn.AvgPool2d(3), ("layer '0'", "3", "2")),
        (lambda: nn.Conv2d(6, 8, 3, groups=4), ("Conv2d(6, 8", "4 groups")),
        (lambda: nn.Conv2d(8, 6, 3, groups=4), ("Conv2d(8, 6", "4 groups")),
        (lambda: nn.Conv2d(1, 2, 1, groups=0), ("Conv2d", "groups", "0")),
        (lambda: nn.Conv2d(1, 2, 3, dilation=0), ("Conv2d", "dilation", "0")),
        (lambda: nn.Conv2d(1, 2, 2, dilation=2**31 - 1), ("layer '0'", "2147483648", "2")),
        (lambda: nn.MaxPool2d(2, dilation=2**31 - 1), ("layer '0'", "2147483648", "2")),
        (lambda: nn.Conv2d(1, 2, 1, padding=-1), ("Conv2d", "padding", "-1")),
        (lambda: nn.MaxPool2d(1, padding=-1), ("MaxPool2d", "padding", "-1")),
        (lambda: nn.Conv2d(1, 2, 1, stride=0), ("Conv2d", "stride", "0")),
        (lambda: nn.AvgPool2d(1, stride=0), ("AvgPool2d", "stride", "0")),
        (lambda: nn.Conv2d(1, 2, 0), ("Conv2d", "kernel", "0")),
        (lambda: nn.Conv2d(3, 2, 1), ("layer '0'", "3", "1")),
        (lambda: nn.Sequential(nn.Flatten(), nn.Linear(5, 2)), ("layer '0.1'", "5", "4")),
    ],
)
def test_case_4_impossible_geometry(build: Callable[[], nn.Module], names: tuple[str, ...]) -> None:
    x, dy = np.zeros((1, 1, 2, 2), np.float32), np.zeros((1, 2), np.float32)
    with pytest.raises(cl.ShapeError) as error:
        cl.vjp(nn.Sequential(build()), x, dy, device="reference")
    for name in names:
        assert name in str(error.value)


def test_case_4_on_the_command_line(tmp_path: Path) -> None:
    net = tmp_path / "net.py"
    net.write_text(
        "from convloom import nn\n"
        "def make_model():\n"
        "    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(5, 10))\n"
    )
    line = refused(1, "train", f"{net}:make_model", "--data", "digits", "--out", tmp_path / "run")
    assert "layer '2'" in line
    assert "72" in line  # 2 x 6 x 6
    assert not (tmp_path / "run").exists()


@both_devices
def test_case_4_no_images(device: str) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    x, dy = np.zeros((0, 3, 6, 8), np.float32), np.zeros((0, 4, 3, 4), np.float32)
    y, dx, gradients = cl.vjp(model, x, dy, device=device)
    assert (y.shape, dx.shape) == (dy.shape, x.shape)
    assert {name: value.shape for name, value in gradients.items()} == {
        "0.weight": (4, 3, 3, 3),
        "0.bias": (4,),
    }
    assert not any(value.any() for value in gradients.values())


# Case 5: damaged data sets are errors with path, expected and actual; nothing bad is used again.

_CONTENTS = idx_contents()
_IMAGES, _LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def _packed(content: bytes) -> dict[str, bytes]:
    return {".gz": gzip.compress(content)}


@pytest.mark.parametrize(
    ("file", "written", "words"),
    [
        (_IMAGES, {".gz": gzip.compress(_CONTENTS[_IMAGES])[:300]}, ("damaged",)),
        (_IMAGES, {".gz": b"<!DOCTYPE html><html>Not found</html>"}, ("web page",)),
        (_IMAGES, _packed(_CONTENTS[_IMAGES][:-30]), ("30 × 6 × 5", "900", "870")),
        (_LABELS, _packed(_CONTENTS[_LABELS][:-1]), ("30", "29")),
        (_LABELS, _packed(idx_bytes(np.zeros(29, np.uint8))), ("29 labels", "30 images")),
        (_IMAGES, _packed(_CONTENTS[_LABELS]), ("expected images", "labels file")),
        (_LABELS, _packed(_CONTENTS[_IMAGES]), ("expected labels", "images file")),
        (_IMAGES, _packed(struct.pack("<I", 0x803) + _CONTENTS[_IMAGES][4:]), ("little-endian",)),
    ],
)
def test_case_5_damaged_files(
    tmp_path: Path, file: str, written: dict[str, bytes], words: tuple[str, ...]
) -> None:
    folder = place(tmp_path / "set", _CONTENTS, ".gz")
    assert len(cl.data.load(folder)[0]) == 30
    for suffix, content in written.items():
        (folder / f"{file}{suffix}").write_bytes(content)
    with pytest.raises(cl.ConvloomError) as error:
        cl.data.load(folder)
    for word in (str(folder), *words):
        assert word in str(error.value)
    line = refused(1, "train", "lenet", "--data", folder, "--out", tmp_path / "run")
    assert str(folder) in line


def test_case_5_a_flipped_byte_is_never_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("CONVLOOM_DATA", raising=False)
    monkeypatch.setattr(locate, "SYSTEM_FOLDERS", (tmp_path / "system",))
    monkeypatch.setattr(fetch, "PAUSE", 0.0)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    flipped = bytearray(_CONTENTS[_IMAGES])
    flipped[100] ^= 1
    with serving() as site:
        known = known_idx("tiny", _CONTENTS, (site.base,))
        monkeypatch.setattr(catalog, "SETS", {"tiny": known})
        offered = {f"/{name}.gz": gzip.compress(text) for name, text in _CONTENTS.items()}
        site.files.update(offered)
        site.files[f"/{_IMAGES}.gz"] = gzip.compress(bytes(flipped))
        with pytest.raises(cl.ConvloomError, match=_IMAGES):
            cl.data.load("tiny")
        site.files.update(offered)
        right = cl.data.load("tiny")[0].images
        assert right.tobytes() == _CONTENTS[_IMAGES][16:]
        (kept,) = (tmp_path / "cache").rglob(f"{_IMAGES}*")
        kept.write_bytes(gzip.compress(bytes(flipped)) if kept.suffix == ".gz" else bytes(flipped))
        np.testing.assert_array_equal(cl.data.load("tiny")[0].images, right)


# Case 6: a saved network is always the old or the new one.


def _constant(value: float) -> nn.Sequential:
    return linear(np.full((10, 4000), value))


def _value_in(path: Path) -> float:
    weights = cl.load(path).state_dict()["1.weight"]
    assert (weights == weights[0, 0]).all()
    return float(weights[0, 0])


def _in_a_child(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return child


def test_case_6_killed_while_saving(tmp_path: Path) -> None:
    path, chance, floor = tmp_path / "net.safetensors", random.Random(0), 0.0
    _constant(0).save(path, input_shape=(1, 40, 100))

    def overwrite() -> None:
        for value in range(int(floor) + 1, int(floor) + 500):
            _constant(value).save(path, input_shape=(1, 40, 100))

    for _ in range(12):
        child = _in_a_child(overwrite)
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = _value_in(path)
        assert found >= floor
        floor = found
    _constant(-1).save(path, input_shape=(1, 40, 100))
    assert [each.name for each in tmp_path.iterdir()] == ["net.safetensors"]


def test_case_6_full_disk_and_truncation(tmp_path: Path) -> None:
    path = tmp_path / "net.safetensors"
    _constant(1).save(path, input_shape=(1, 40, 100))

    def full() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
        with pytest.raises(cl.ConvloomError, match=r"cannot write .*net\.safetensors"):
            _constant(2).save(path, input_shape=(1, 40, 100))

    _, status = os.waitpid(_in_a_child(full), 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert _value_in(path) == 1

    whole = path.read_bytes()
    for length in (0, 4, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(cl.ConvloomError, match=r"net\.safetensors"):
            cl.load(path)
    assert "net.safetensors" in refused(1, "eval", path, "--data", "digits")


# Case 7: loading is safe.


class _Payload:
    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.target),)


def test_case_7_a_pickle_runs_nothing(tmp_path: Path) -> None:
    path, trap = tmp_path / "net.safetensors", tmp_path / "it ran"
    zipped = tmp_path / "net.pt"
    torch.save({"0.weight": torch.zeros(1)}, zipped)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        path.write_bytes(pickle.dumps(_Payload(trap), protocol))
        for each in (path, zipped):
            with pytest.raises(cl.ConvloomError, match=each.name):
                cl.load(each)
            with pytest.raises(cl.ConvloomError, match=each.name):
                nn.load_weights(each)
        refused(1, "eval", path, "--data", "digits")
    assert not trap.exists()


def test_case_7_prefixes_and_strangers(tmp_path: Path) -> None:
    model = small_network().initialize(1)
    state = model.state_dict()
    wrapped = tmp_path / "wrapped.safetensors"
    safetensors.numpy.save_file({f"module.{name}": value for name, value in state.items()}, wrapped)
    other = small_network().initialize(2)
    with pytest.warns(UserWarning, match=r"module\."):
        other.load_state_dict(nn.load_weights(wrapped))
    for name, value in state.items():
        np.testing.assert_array_equal(other.state_dict()[name], value)

    twice = {f"module.module.{name}": value for name, value in state.items()}
    strangers = {f"features.{name}": value for name, value in state.items()}
    for strict in (True, False):
        for keys in (twice, strangers, {}):
            with pytest.raises(cl.ConvloomError):
                small_network().load_state_dict(keys, strict=strict)


# Case 8: metrics count samples, not batches.


@both_devices
def test_case_8_the_short_last_batch_in_metrics(device: str) -> None:
    logits = np.random.default_rng(0).standard_normal((10, 3)).astype(np.float32)
    labels = logits.argmax(1)
    labels[8:] = logits[8:].argmin(1)
    data = cl.data.from_arrays(logits[:, None, None], labels, classes="abc")
    trainer = cl.Trainer(
        linear(np.eye(3)), cl.optim.SGD(), nn.CrossEntropyLoss(), batch_size=4, device=device
    )
    found = trainer.evaluate(data)
    right = torch.nn.functional.cross_entropy(torch.tensor(logits).double(), torch.tensor(labels))
    assert (found["accuracy"], found["top5"], found["n"]) == (0.8, 1.0, 10)
    assert found["loss"] == pytest.approx(float(right), rel=1e-6)
    assert trainer.evaluate(data, batch_size=10)["loss"] == pytest.approx(found["loss"], rel=1e-6)


def test_case_8_drop_last_never_touches_evaluation() -> None:
    train, test = cl.data.load("digits")
    dropping = train.batches(100, shuffle=True, drop_last=True)
    assert sum(len(batch.labels) for batch in dropping.epoch(0)) == 1400
    assert sum(len(batch.labels) for batch in test.batches(100).epoch(0)) == len(test) == 360
    with pytest.raises(cl.ConvloomError, match="out of every evaluation"):
        test.batches(100, drop_last=True)


# Case 9: softmax cross-entropy of extreme logits, and labels out of range.


@pytest.mark.parametrize("kernels", ("auto", "reference"))
def test_case_9_extreme_logits(kernels: str) -> None:
    def step(logits: list[float], label: int) -> tuple[float, np.ndarray]:
        size = len(logits)
        compiled = cl.compile(
            linear(np.eye(size), [0] * size),
            nn.CrossEntropyLoss(),
            cl.optim.SGD(lr=0.0),
            batch_size=1,
            input_shape=(size, 1, 1),
            device="cpu",
            kernels=kernels,
        )
        loss = compiled(np.array(logits, np.float32).reshape(1, size, 1, 1), np.array([label]))
        return loss, compiled.read("1.bias.grad")

    loss, gradient = step([-431, 279, 427], 0)
    assert loss == 858
    np.testing.assert_allclose(gradient, [-1, 0, 1], atol=1e-30)
    loss, gradient = step([1e8, 1e8], 0)
    assert loss == pytest.approx(math.log(2), rel=1e-7)
    np.testing.assert_array_equal(gradient, [-0.5, 0.5])


@both_devices
@pytest.mark.parametrize("label", (-1, 10, -100, 2**40))
def test_case_9_labels_out_of_range(label: int, device: str) -> None:
    model = small_network().initialize(0)
    before = model.state_dict()
    step = cl.compile(
        model,
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.1),
        batch_size=4,
        input_shape=(1, 8, 8),
        device=device,
    )
    labels = np.array([0, 9, label, 3])
    with pytest.raises(cl.ConvloomError, match=f"sample 2 has label {label}"):
        step(np.ones((4, 1, 8, 8), np.float32), labels)
    for name, value in before.items():
        np.testing.assert_array_equal(model.state_dict()[name], value)


# Case 10: the short last batch is used in full, with its own mean.


@both_devices
def test_case_10_the_short_last_batch_in_training(device: str) -> None:
    rng = np.random.default_rng(0)
    images = rng.standard_normal((100, 5, 1, 1)).astype(np.float32)
    data = cl.data.from_arrays(images, rng.integers(0, 3, 100), classes="abc")
    start = rng.standard_normal((3, 5)).astype(np.float32)
    trainer = cl.Trainer(
        linear(start, [0, 0, 0]),
        cl.optim.SGD(lr=0.5),
        nn.CrossEntropyLoss(),
        batch_size=32,
        device=device,
        seed=4,
    )
    trainer.fit(data, epochs=1)

    weight, bias = start.astype(np.float64), np.zeros(3)
    sizes = []
    for batch in data.batches(32, seed=4, shuffle=True).epoch(0):
        x, labels = batch.images.reshape(-1, 5).astype(np.float64), batch.labels
        powers = np.exp(x @ weight.T + bias)
        slope = powers / powers.sum(1, keepdims=True)
        slope[np.arange(len(labels)), labels] -= 1
        slope /= len(labels)
        weight, bias = weight - 0.5 * slope.T @ x, bias - 0.5 * slope.sum(0)
        sizes.append(len(labels))
    assert sizes == [32, 32, 32, 4]
    np.testing.assert_allclose(trainer.model.state_dict()["1.weight"], weight, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(trainer.model.state_dict()["1.bias"], bias, rtol=1e-5, atol=1e-6)


# Case 11: SGD's rule, step by step.


def _unit_gradient(optimizer: Any, x: float, device: str) -> Callable[[], float]:
    """Steps of a network whose second logit is far ahead: its weight's gradient is x, exactly."""
    step = cl.compile(
        linear([[-1000], [1]], [0, 0]),
        nn.CrossEntropyLoss(),
        optimizer,
        batch_size=1,
        input_shape=(1, 1, 1),
        device=device,
    )
    step.write("1.bias", np.array([-1000, 0]))
    image = np.full((1, 1, 1, 1), x, np.float32)

    def weight_after_a_step() -> float:
        step(image, np.array([0]))
        return float(step.read("1.weight")[1, 0])

    return weight_after_a_step


@both_devices
def test_case_11_momentum(device: str) -> None:
    step = _unit_gradient(cl.optim.SGD(lr=0.1, momentum=0.9), 1, device)
    assert [step() for _ in range(3)] == pytest.approx([0.9, 0.71, 0.439], rel=1e-6)


@both_devices
def test_case_11_weight_decay(device: str) -> None:
    decaying = _unit_gradient(cl.optim.SGD(lr=0.1, weight_decay=0.5), 0, device)
    assert [decaying() for _ in range(2)] == pytest.approx([0.95, 0.9025], rel=1e-6)
    spared = _unit_gradient(
        cl.optim.SGD(lr=0.1, weight_decay=0.5, exclude=("1.weight",)), 0, device
    )
    assert [spared() for _ in range(2)] == [1, 1]


def test_case_11_on_the_command_line(tmp_path: Path) -> None:
    """Weight decay reaches the weights: without a rate to learn from, nothing else would."""
    runs = {decay: tmp_path / decay for decay in ("0", "1")}
    for decay, out in runs.items():
        given = "train lenet --data digits --epochs 1 --schedule constant --lr 0.001 --momentum 0"
        result = invoke(*given.split(), "--weight-decay", decay, "--out", out)
        assert result.exit_code == 0, result.output
    norms = {
        decay: float(np.linalg.norm(cl.load(out / "last.safetensors").state_dict()["0.weight"]))
        for decay, out in runs.items()
    }
    assert norms["1"] < 0.99 * norms["0"]
