"""benchmarks/measure_gpu.sh without a GPU, and with parts that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from convloom.backends.cuda import device
from tests.cli.running import environment

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "measure_gpu.sh"

#: A Python for which there is a GPU, and that cannot do a step of 4096 images of PyTorch's.
PYTHON = """#!/bin/bash
case "$*" in
    -c*) ;;
    *"bench pytorch"*4096*) echo '{"unfinished": '; exit 1 ;;
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


def test_a_part_that_fails_leaves_nothing(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    folder, parts = tmp_path / "new", ("ladder", "pytorch", "sanitizer", "times")
    done = measure(folder, *parts, PYTHON=str(python), TMPDIR=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["pytorch failed", "an error at 0x10", "sanitizer failed"]
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == ["ladder", "times"]
    names = ["ladder-lenet-4096.json", "ladder-lenet-64.json", "times-lenet.json"]
    assert sorted(os.listdir(folder)) == names
    assert sorted(os.listdir(tmp_path)) == ["new", "python"]
