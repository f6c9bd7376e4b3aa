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
