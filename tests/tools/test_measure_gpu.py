"""benchmarks/measure_gpu.sh without a GPU, and with parts that fail."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from convloom.backends.cuda import device
from tests.cli.running import environment

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "measure_gpu.sh"
KEPT = runpy.run_path(str(SCRIPT.with_name("kernels_doc.py")))["KEPT"]

#: A Python for which there is a GPU and everything goes well.
GOOD = """#!/bin/bash
case "$*" in
    -c*"print(origin"*) echo "a GPU; today; versions" ;;
    -c*) ;;
    *agreement.py*) echo "{}" > "${@: -1}/agreement.json" ;;
    *"convloom train"*) echo "kept"; echo "saved in ${@: -1}" ;;
    *--out*) echo "{}" > "${@: -1}" ;;
    *"alexnet.py fit"*) [ -d "$3" ] && echo "$3 has training images alone" && echo "known" ;;
    *) echo "{}" ;;
esac
"""

#: One that cannot do a step of 4096 images of PyTorch's, nor one of resnet18; alone the first two
#: networks' layers can be timed; and AlexNet learns nothing.
PYTHON = """#!/bin/bash
case "$*" in
    -c*) ;;
    *"alexnet.py fit"*) echo "epoch 150"; exit 1 ;;
    *"bench pytorch"*4096* | *"bench pytorch resnet18"*) echo '{"unfinished": '; exit 1 ;;
    *layers_vs_pytorch.py*) echo '{"networks": 2}' > "${@: -1}"; echo "a traceback" >&2; exit 1 ;;
    *sanitize.py*) echo "an error at 0x10"; echo report > "${@: -1}"; exit 1 ;;
    *--out*) echo "{}" > "${@: -1}" ;;
    *) echo "{}" ;;
esac
"""


def measure(folder: Path, *parts: str, **changes: str) -> subprocess.CompletedProcess[str]:
    given = ["bash", str(SCRIPT), str(folder), *parts]
    return subprocess.run(given, env=environment(**changes), capture_output=True, text=True)


def test_without_a_gpu_it_refuses_at_once(tmp_path: Path) -> None:
    done = measure(tmp_path / "new", PYTHON=sys.executable, CUDA_VISIBLE_DEVICES="-1")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("measure_gpu.sh: nothing is measured, no GPU can be used: ")
    if device.missing() is not None:
        assert line.endswith(device.missing() or "")
    assert (done.stdout, list(tmp_path.iterdir())) == ("", [])


def test_an_unknown_part_is_refused_at_once(tmp_path: Path) -> None:
    done = measure(tmp_path / "new", "ladder", "ls")
    assert (done.returncode, list(tmp_path.iterdir())) == (2, [])
    assert done.stderr.startswith("measure_gpu.sh: there is no part ls;")


def written(path: Path, script: str) -> Path:
    path.write_text(script)
    path.chmod(0o755)
    return path


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return written(tmp_path / "python", PYTHON)


def test_one_command_makes_all_that_is_kept(tmp_path: Path) -> None:
    """But for what needs no GPU: docs/kernels.md has the command for it."""
    good, data, folder = written(tmp_path / "good", GOOD), tmp_path / "data", tmp_path / "new"
    (data / "imagenet-sample").mkdir(parents=True)
    done = measure(folder, PYTHON=str(good), TMPDIR=str(tmp_path), CONVLOOM_DATA=str(data))
    assert (done.returncode, done.stderr) == (0, "")
    assert set(os.listdir(folder)) == set(KEPT) - {"build-lenet.json"}
    assert (folder / "cifar10-resnet20.txt").read_text().splitlines() == [
        "$ convloom train resnet20 --data cifar10 --device cuda",
        "a GPU; today; versions",
        "kept",
    ]
    assert (folder / "alexnet-fit.txt").read_text().splitlines() == [
        "$ python benchmarks/alexnet.py fit PHOTOGRAPHS --device cuda",
        "a GPU; today; versions",
        "known",
    ]
    assert sorted(os.listdir(tmp_path)) == ["data", "good", "new"]


@pytest.mark.parametrize("there", [True, False])
def test_without_photographs_a_step_of_alexnet_is_kept(
    tmp_path: Path, python: Path, there: bool
) -> None:
    if there:
        (tmp_path / "imagenet-sample").mkdir()
    folder = tmp_path / "new"
    done = measure(folder, "alexnet", PYTHON=str(python), CONVLOOM_DATA=str(tmp_path))
    assert done.returncode == 1
    first, *_, last = done.stderr.splitlines()
    assert first == ("epoch 150" if there else "failed: there is no folder imagenet-sample in "
                     f"{tmp_path}, which $CONVLOOM_DATA names")  # fmt: skip
    assert last == "alexnet failed"
    assert os.listdir(folder) == ["alexnet-step.txt"]


def test_what_fails_leaves_nothing_and_costs_nothing_else(tmp_path: Path, python: Path) -> None:
    folder, parts = tmp_path / "new", ("ladder", "pytorch", "sanitizer", "times", "train")
    done = measure(folder, *parts, PYTHON=str(python), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        f"failed: {python} -m convloom bench pytorch lenet --device cuda --batch-size 4096 "
        "--seconds 0.3 --workers 0,1,4 --skip compile --json",
        "pytorch failed",
        "an error at 0x10",
        "failed: sanitized",
        "sanitizer failed",
    ]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["ladder", "times", "train"]
    assert sorted(os.listdir(folder)) == [
        "ladder-lenet-4096.json",
        "ladder-lenet-64.json",
        "pytorch-lenet-64.json",
        "times-lenet.json",
        "train-mnist-bf16.txt",
        "train-mnist-naive.txt",
        "train-mnist.txt",
    ]
    assert sorted(os.listdir(tmp_path)) == ["new", "python"]


def test_large_networks_are_kept_one_by_one(tmp_path: Path, python: Path) -> None:
    folder = tmp_path / "new"
    done = measure(folder, "zoo", "layers", PYTHON=str(python), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    failed, *more = done.stderr.splitlines()
    assert failed.startswith(f"failed: {python} -m convloom bench pytorch resnet18 --device cuda")
    assert more == ["zoo failed", "a traceback", "layers failed"]
    assert sorted(os.listdir(folder)) == [
        "layers-128.json",
        "pytorch-alexnet-128.json",
        "pytorch-mobilenet-v1-small-128.json",
    ]
    assert sorted(os.listdir(tmp_path)) == ["new", "python"]
