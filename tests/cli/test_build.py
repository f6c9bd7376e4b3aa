"""convloom build."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convloom.backends.cuda import device
from convloom.backends.cuda.device import Found
from tests.cli.running import invoke, refused, words

pytest.importorskip("cuda.core", reason="needs cuda-core: pip install 'convloom[cuda13]'")

#: A network of few kernels.
NET = """
from convloom import nn


def make_model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""


@pytest.fixture
def net(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("CONVLOOM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "net.py").write_text(NET)
    return f"{tmp_path / 'net.py'}:make_model"


def test_kernels_are_compiled_once_for_each_architecture(net: str, tmp_path: Path) -> None:
    given = ("build", net, "--data", "digits", "--kernels", "naive", "--arch", "75,sm_90")
    first = invoke(*given, "--json")
    assert first.exit_code == 0, first.output
    rows = json.loads(first.stdout)
    assert {row["arch"] for row in rows} == {"sm_75", "sm_90a"}
    assert {"linear_fprop/naive", "sgd/naive", "gather/naive"} <= {row["kernel"] for row in rows}
    assert all(row["registers"] > 0 and row["spilled"] == 0 and row["code"] > 0 for row in rows)
    (linear,) = (
        row for row in rows if row["kernel"] == "linear_fprop/naive" and "75" in row["arch"]
    )
    assert linear["layers"] == "1"
    cached = sorted((tmp_path / "cache" / "cuda").iterdir())
    assert len(cached) == len(rows)
    again = invoke(*given)
    assert "compiling" not in again.stderr
    assert sorted((tmp_path / "cache" / "cuda").iterdir()) == cached
    assert again.stdout.splitlines()[0].split() == [
        "kernel",
        "layers",
        "arch",
        "registers",
        "shared",
        "spilled",
        "code",
    ]


def test_this_machines_gpu_is_the_default(net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda: Found(0, "", (13, 0), ((8, 6),)))
    result = invoke("build", net, "--data", "digits", "--json")
    assert {row["arch"] for row in json.loads(result.stdout)} == {"sm_86"}


def precision_notes(net: str, precision: str, *capabilities: tuple[int, int]) -> list[str]:
    from convloom.cli.build import _plans, _precision_notes
    from convloom.training.config import resolve

    flags = {"network": net, "data": "digits", "device": "cuda", "precision": precision}
    config = resolve({}, flags)
    return _precision_notes(
        {device.architecture(one): _plans(config, (1, 8, 8), one) for one in capabilities}
    )


IN_FP32 = "precision bf16: only on-chip segments compute in bf16; in fp32: 1 (Linear)"


@pytest.fixture
def normalised(net: str) -> str:
    """A network that no GPU keeps on chip."""
    path = Path(net.partition(":")[0])
    path.write_text(NET.replace("nn.Linear(64, 10)", "nn.Linear(64, 10), nn.BatchNorm1d(10)"))
    return net


def test_it_says_which_layers_are_computed_in_fp32(net: str) -> None:
    assert precision_notes(net, "fp32", (7, 5), (9, 0)) == []
    assert precision_notes(net, "bf16", (9, 0)) == []
    lines = precision_notes(net, "bf16", (7, 5), (9, 0))
    assert f"sm_75: {IN_FP32}" in lines
    assert all(line.startswith("sm_75: ") for line in lines)


def test_what_holds_for_every_architecture_is_said_once(normalised: str) -> None:
    assert precision_notes(normalised, "bf16", (8, 0), (9, 0)).count(IN_FP32) == 1


def test_it_warns_of_precisions_as_training_does(
    normalised: str, caplog: pytest.LogCaptureFixture
) -> None:
    from convloom.nn import CrossEntropyLoss, models
    from convloom.optim import SGD
    from convloom.training.engine import Engine

    Engine(
        models.build(normalised, num_classes=10, in_channels=1, image_size=(8, 8)),
        loss=CrossEntropyLoss(),
        optimizer=SGD(lr=0.1),
        input_shape=(1, 8, 8),
        device="cuda-sim",
        precision="bf16",
    )
    trained = {f"convloom: {record.getMessage()}" for record in caplog.records}
    words = ("--data", "digits", "--precision", "bf16", "--arch", "90", "--json")
    result = invoke("build", normalised, *words)
    assert result.exit_code == 0, result.output
    assert f"convloom: {IN_FP32}" in trained
    assert trained <= set(result.stderr.splitlines())


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("lenet --arch sm_33", "'sm_33' is no architecture"),
        ("lenet --arch hopper", "it knows sm_75"),
        ("lenet --arch 90 --kernels nope", "kernels='nope'"),
        ("lenett", "did you mean lenet?"),
    ],
)
def test_wrong_usage(given: str, part: str) -> None:
    assert part in refused(2, "build", *words(given))


def test_the_recipe_s_crops_are_compiled_too() -> None:
    """vgg-small's recipe augments: resident data wants a gather kernel of its own."""
    from convloom.backends.cuda.resident import kernels
    from convloom.backends.feeding import Crops
    from convloom.cli.build import _kernels, _plans
    from convloom.cli.runs import crops_of
    from convloom.training.config import resolve

    config = resolve({}, {"network": "vgg-small", "data": "cifar10", "device": "cuda"})
    assert crops_of(config) == Crops(4)
    wanted = _kernels(_plans(config, (3, 32, 32), (9, 0)), crops_of(config))
    assert kernels((3, 32, 32), 9, Crops(4))[0] in wanted
    assert kernels((3, 32, 32), 9, None)[0] in wanted


def test_what_few_images_run_is_compiled_too() -> None:
    """The last batch of an evaluation, or one image to predict."""
    from convloom.cli.build import _kernels, _plans
    from convloom.training.config import resolve

    def built(size: int) -> set[tuple[str, object]]:
        flags = {"network": "resnet20", "data": "cifar10", "device": "cuda", "batch_size": size}
        plans = _plans(resolve({}, flags), (3, 32, 32), (9, 0))
        return {(kernel.source, kernel.constants) for kernel in _kernels(plans, None)}

    assert ("batch_norm_scale/naive", (("AFFINE", 1),)) in built(128)
    assert built(16) <= built(128)


@pytest.mark.parametrize(
    ("capability", "limit", "on_chip"),
    [((7, 5), 64, False), ((8, 6), 99, False), ((9, 0), 227, True), ((12, 0), 99, False)],
)
def test_plans_are_those_of_the_gpu_that_is_built_for(
    capability: tuple[int, int], limit: int, on_chip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fits on chip on Hopper does not on most others; the GPU that is here does not matter."""
    from convloom.cli.build import _kernels, _plans
    from convloom.training.config import resolve

    monkeypatch.setattr(device, "find", lambda: Found(0, "", (13, 0), ((8, 0),)))
    config = resolve({}, {"network": "lenet", "device": "cuda", "kernels": "onchip"})
    plans = _plans(config, (1, 28, 28), capability)
    assert [step.node.op.name for step in plans[0].steps].count("ChainUpdate") == on_chip
    assert all(shared <= limit << 10 for _, shared in _kernels(plans, None).values())
