"""convloom plan."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from convloom.backends import get_backend
from convloom.backends.cuda import device
from convloom.backends.cuda.device import Found
from tests.cli.running import DROPOUT_NET, invoke, refused, words


def steps(*given: object) -> list[dict[str, object]]:
    result = invoke("plan", *given, "--json")
    assert result.exit_code == 0, result.output
    found: list[dict[str, object]] = json.loads(result.stdout)["steps"]
    return found


def test_plan_is_a_table() -> None:
    result = invoke("plan", "lenet", "--batch-size", "8")
    assert result.exit_code == 0, result.output
    header = result.stdout.splitlines()[0].split()
    assert header == ["step", "layer", "op", "kernel", "output", "bytes", "FLOPs"]
    assert "8×16×26×26 float32" in result.stdout
    assert "lower bound" in result.stdout


def test_plan_json_has_shapes_bytes_and_flops() -> None:
    found = steps("lenet", "--batch-size", "8", "--data", "cifar10")
    assert [step["step"] for step in found] == list(range(len(found)))
    assert str(found[0]["inputs"][0]).startswith("8×3×32×32 float32")
    assert all(isinstance(step["bytes"], int) and step["bytes"] > 0 for step in found)
    assert {"rung", "kernel", "outputs", "flops"} <= set(found[0])
    assert found[-1]["op"] == "SGD"


def test_inference_has_neither_loss_nor_update() -> None:
    ops = {step["op"] for step in steps("lenet", "--inference", "--batch-size", "1")}
    assert not ops & {"SGD", "SoftmaxCrossEntropy"}


def test_kernels_and_device_are_capped() -> None:
    assert {step["rung"] for step in steps("lenet", "--kernels", "reference")} == {"reference"}
    assert {step["rung"] for step in steps("lenet", "--device", "reference")} == {"reference"}


def test_plans_of_cuda_need_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "find", lambda: Found(None))
    simulated = steps("lenet", "--batch-size", "8", "--device", "cuda-sim")
    assert steps("lenet", "--batch-size", "8", "--device", "cuda") == simulated
    (chain,) = steps("lenet", "--device", "cuda", "--kernels", "onchip")
    assert chain["op"] == "ChainUpdate"


def test_help_names_every_rung() -> None:
    shown = " ".join(invoke("plan", "--help").stdout.split())
    for device_ in ("cpu", "cuda"):
        *most, last = [rung for rung in get_backend(device_).rungs if rung != "auto"]
        assert f"{', '.join(most)} or {last} on" in shown


def test_precision_makes_a_chain_or_a_note() -> None:
    given = ("plan", "lenet", "--batch-size", "2", "--precision", "bf16")
    result = invoke(*given, "--device", "reference", "--json")
    document = json.loads(result.stdout)
    assert [step["op"] for step in document["steps"]] == ["ChainUpdate"]
    assert document["precision"] == "bf16"
    result = invoke(*given, "--device", "cpu", "--inference")
    assert "note: only on-chip segments compute in bf16; in fp32: 0 (Conv2d)" in result.stdout
    result = invoke("plan", "lenet", "--precision", "fp8")
    assert result.exit_code == 2
    assert "--precision must be 'fp32' or 'tf32' or 'bf16'" in result.stderr


def test_the_example_with_dropout_stays_on_chip() -> None:
    given = ("--data", "cifar10", "--batch-size", "128", "--device", "cuda", "--precision", "bf16")
    assert [step["op"] for step in steps(DROPOUT_NET, *given)] == ["ChainUpdate"]


@pytest.mark.parametrize("shape", ["3,20,24", "3x20x24", "3×20×24"])
def test_input_shape(shape: str) -> None:
    found = steps("vgg-small", "--batch-size", "2", "--input-shape", shape)
    assert str(found[0]["inputs"][0]).startswith("2×3×20×24 float32")


def test_ones_own_network(tmp_path: Path) -> None:
    path = tmp_path / "net.py"
    path.write_text(
        "from convloom import nn\n"
        "def make_model():\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    found = steps(f"{path}:make_model", "--data", "digits")
    assert "SGD" in {step["op"] for step in found}
    assert "layer '1'" in refused(1, "plan", f"{path}:make_model", "--data", "mnist")


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("lenet --input-shape 3,3", "--input-shape must be"),
        ("lenet --input-shape 0,3,3", "--input-shape must be"),
        ("lenet --batch-size 0", "--batch-size must be"),
        ("lenet --kernels nope", "kernels='nope'"),
        ("lenett", "did you mean lenet?"),
        ("lenet --data minst", "did you mean mnist?"),
    ],
)
def test_wrong_usage(given: str, part: str) -> None:
    assert part in refused(2, "plan", *words(given))


def test_images_too_small() -> None:
    assert "layer '0'" in refused(1, "plan", "lenet", "--input-shape", "1,2,2")
