"""Networks in files: the way there and back, kills, and everything that is no network."""

from __future__ import annotations

import json
import os
import pickle
import random
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from convloom import nn
from convloom.files import FileError
from convloom.ir import ConvloomError
from convloom.nn.serialization import KEY


class Net(nn.Module):
    """Everything a saved graph can hold: sharing, dropout, concat, eleven layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=(1, 0), groups=1, bias=False)
        self.shared = nn.Conv2d(4, 4, 3, padding=1)
        self.again = self.shared
        self.drop = nn.Dropout(0.2)
        self.many = nn.Sequential(*(nn.Conv2d(8, 8, 1) for _ in range(11)))
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(8 * 4 * 3, 5)

    def forward(self, x: Any) -> Any:
        x = nn.relu(self.stem(x))
        x = nn.cat([self.shared(x) + x, self.again(x)])
        x = self.drop(self.many(nn.max_pool2d(x, 2)))
        return self.head(x.flatten(1))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "net.safetensors"


def saved(path: Path) -> nn.Module:
    model = Net()
    model.classes = ["a", "b", "c", "d", "ё"]
    model.normalization = ([0.1, 0.2, 0.3], [1, 2, 3])
    model.mean_image = np.linspace(0, 255, 3 * 8 * 8).reshape(3, 8, 8)
    model.save(path, input_shape=(3, 8, 8), extra={"recipe": "fast"})
    return model


def test_there_and_back(path: Path) -> None:
    model = saved(path)
    loaded = nn.load(path)
    assert loaded.trace((3, 8, 8), 1) == model.trace((3, 8, 8), 1)
    assert loaded.trace((3, 8, 8), 7) == model.trace((3, 8, 8), 7)
    assert loaded.classes == ("a", "b", "c", "d", "ё")
    assert loaded.normalization == ((0.1, 0.2, 0.3), (1.0, 2.0, 3.0))
    assert loaded.mean_image is not None
    np.testing.assert_array_equal(loaded.mean_image, model.mean_image)
    assert loaded.input_shape == (3, 8, 8)
    assert loaded.extra == {"recipe": "fast"}
    ours, theirs = model.state_dict(), loaded.state_dict()
    assert sorted(ours) == sorted(theirs)
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in loaded.named_parameters()]
    assert all(np.array_equal(value, theirs[name]) for name, value in ours.items())
    assert loaded.get_parameter("again.weight") is loaded.get_parameter("shared.weight")
    assert "parameters" in repr(loaded)


def test_saving_again_changes_nothing(path: Path, tmp_path: Path) -> None:
    saved(path)
    nn.load(path).save(tmp_path / "again")
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


def test_weights_alone(path: Path, tmp_path: Path) -> None:
    model = saved(path)
    other = Net()
    other.load_state_dict(nn.load_weights(path))
    assert all(np.array_equal(v, other.state_dict()[k]) for k, v in model.state_dict().items())

    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    assert set(load_file(path)) == {name for name, _ in model.named_parameters()}
    twin = torch.nn.Linear(3, 2).half()
    save_file(twin.state_dict(), tmp_path / "plain")
    layer = nn.Linear(3, 2)
    layer.load_state_dict(nn.load_weights(tmp_path / "plain"))
    assert np.array_equal(layer.state_dict()["weight"], twin.weight.detach().float().numpy())
    save_file(torch.nn.Linear(3, 2).bfloat16().state_dict(), tmp_path / "bf16")
    with pytest.raises(FileError, match="is BF16, which convloom does not read; convert it"):
        nn.load_weights(tmp_path / "bf16")


def test_a_bound_network_saves_its_live_weights(path: Path) -> None:
    class Store(dict[str, np.ndarray]):
        def read(self, name: str) -> np.ndarray:
            return self[name]

        write = dict.__setitem__

    model = nn.Linear(2, 2)
    store = Store(model.state_dict())
    model.bind(store)
    store["weight"] = np.full((2, 2), 3, np.float32)
    model.save(path, input_shape=(2,))
    assert (nn.load(path).state_dict()["weight"] == 3).all()


def test_the_shape_must_be_known(path: Path) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    with pytest.raises(ConvloomError, match=r"pass save\(path, input_shape=\(C, H, W\)\)"):
        model.save(path)
    model.trace((1, 2, 2), 5)
    model.save(path)
    assert nn.load(path).input_shape == (1, 2, 2)
    with pytest.raises(ConvloomError, match="extra must be plain JSON"):
        model.save(path, extra={"a": np.zeros(3)})
    with pytest.raises(ConvloomError, match="extra must be plain JSON"):
        model.save(path, extra={"a": float("nan")})
    with pytest.raises(FileError, match="cannot write"):
        model.save(path / "deeper")


# ---- killed writers

_WRITER = """
import sys
from convloom import nn
model = nn.Sequential(nn.Flatten(), nn.Linear(20_000, 4))
model.initialize(0)
print("ready", flush=True)
number = 0
while True:
    number += 1
    model.load_state_dict({name: v * 0 + number for name, v in model.state_dict().items()})
    model.save(sys.argv[1], input_shape=(20_000,), extra={"number": number})
"""


@pytest.mark.parametrize("kills", [8, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_writers_leave_a_whole_network(path: Path, kills: int) -> None:
    nn.Sequential(nn.Flatten(), nn.Linear(20_000, 4, init="constant(0)")).save(
        path, input_shape=(20_000,), extra={"number": 0}
    )
    chance = random.Random(kills)
    for _ in range(kills):
        command = [sys.executable, "-c", _WRITER, str(path)]
        writer = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(chance.random() * 0.03)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        loaded = nn.load(path)
        assert (loaded.state_dict()["1.weight"] == loaded.extra["number"]).all()
    loaded.save(path)
    assert os.listdir(path.parent) == [path.name]


# ---- what is no network


class Payload:
    """Runs a command when it is unpickled."""

    def __init__(self, proof: Path) -> None:
        self.proof = proof

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.proof}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_is_refused_and_nothing_runs(path: Path, tmp_path: Path, protocol: int) -> None:
    proof = tmp_path / "it ran"
    path.write_bytes(pickle.dumps({"weight": Payload(proof)}, protocol))
    for load in (nn.load, nn.load_weights):
        with pytest.raises(FileError, match=rf"{path.name} is "):
            load(path)
    assert not proof.exists()


def test_a_pytorch_file_is_refused_with_advice(path: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    proof = tmp_path / "ran"
    for new_format in (True, False):
        torch.save(Payload(proof), path, _use_new_zipfile_serialization=new_format)
        with pytest.raises(FileError, match=r"pickle; convloom never loads .*save_file"):
            nn.load(path)
    assert not proof.exists()


def test_plain_weights_are_no_network(path: Path) -> None:
    safetensors.numpy.save_file({"weight": np.zeros(3, np.float32)}, path)
    with pytest.raises(FileError, match=r"no network; build the model .*load_state_dict"):
        nn.load(path)


def test_truncated_anywhere(path: Path) -> None:
    saved(path)
    whole = path.read_bytes()
    for length in (0, 1, 7, 8, 9, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(FileError, match=r"net\.safetensors .*safetensors file"):
            nn.load(path)


@pytest.mark.parametrize(
    "content",
    [
        b"<!DOCTYPE html><html></html>",
        b"\x1f\x8b" + bytes(100),
        b"\xff" * 100,
        bytes(100),
        struct.pack("<Q", 2**63) + b"{}",
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 5) + b"{nope",
        struct.pack("<Q", 92) + json.dumps({"a": {"dtype": "F32", "shape": [2**62, 2**62],
                                                  "data_offsets": [0, 4]}}).encode()[:92],
    ],
)  # fmt: skip
def test_garbage(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"net\.safetensors"):
        nn.load(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"cannot read .*/none: No such file"):
        nn.load(tmp_path / "none")
    with pytest.raises(OSError, match="is a folder"):
        nn.load(tmp_path)


def changed(path: Path, change: Any) -> None:
    """Rewrite the description of a saved network."""
    saved(path)
    with safetensors.safe_open(path, framework="np") as file:
        data = json.loads(file.metadata()[KEY])
    tensors = safetensors.numpy.load_file(path)
    text = change(data)
    metadata = {KEY: text if isinstance(text, str) else json.dumps(data)}
    safetensors.numpy.save_file(tensors, path, metadata)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(version=2), r"saved in format 2, this convloom reads 1; use a newer"),
        (lambda d: d.__delitem__("version"), r"description is damaged"),
        (lambda d: "[1, 2]", r"description is damaged"),
        (lambda d: "{nonsense", r"description is damaged"),
        (lambda d: "[" * 100_000, r"description is damaged"),
        (lambda d: d.pop("graph"), r"network is damaged: it has no 'graph'"),
        (lambda d: d.update(graph=3), r"network is damaged"),
        (lambda d: d.update(graph=[]), r"network is damaged"),
        (lambda d: d.update(input_shape=None), r"network is damaged"),
        (lambda d: d.update(input_shape=[3, float("nan"), 8]), r"damaged.*NaN"),
        (lambda d: d.update(input_shape=[3, 8.5, 8]), r"network is damaged.*whole number"),
        (lambda d: d.update(input_shape=[3, 11, 8]), r"network is damaged: .*layer 'head'"),
        (lambda d: d.update(classes=7), r"network is damaged"),
        (lambda d: d.update(normalization={"mean": [1]}), r"network is damaged"),
        (lambda d: d["mean_image"].update(data="AAAA"), r"network is damaged"),
        (lambda d: d.update(parameters=["nothing"]), r"network is damaged: it has no 'nothing'"),
        (lambda d: d.update(aliases={"x": "y"}), r"network is damaged: it has no 'y'"),
        (lambda d: d["graph"][0].update(op={"op": "Evil"}), r"unknown operation 'Evil'"),
        (lambda d: d["graph"][0]["op"].update(bogus=1), r"has no attribute bogus"),
        (lambda d: d["graph"][0]["op"].update(stride="x"), r"network is damaged"),
        (lambda d: d["graph"][0]["op"].update(stride=[0, 0]), r"stride must be at least 1"),
        (lambda d: d["graph"][0].update(outputs=[]), r"network is damaged"),
        (lambda d: d["graph"][0].update(inputs=["input"]), r"network is damaged"),
        (lambda d: d["graph"][0]["inputs"].__setitem__(1, "gone"), r"reads 'gone'"),
        (lambda d: d["graph"][-1].update(outputs=["other"]), r"it has no 'output'"),
    ],
)
def test_damaged_descriptions(path: Path, change: Any, says: str) -> None:
    changed(path, change)
    with pytest.raises(FileError, match=rf"(?s)net\.safetensors.*{says}"):
        nn.load(path)
