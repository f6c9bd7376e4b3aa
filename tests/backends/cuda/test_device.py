"""What a machine without a usable GPU is told."""

from __future__ import annotations

import logging
import os
import subprocess
import sys

import pytest

from convloom.backends import base, resolve_device
from convloom.backends.base import DeviceError
from convloom.backends.cuda import device
from convloom.backends.cuda.device import Chip, Found, architecture, capability_of, chip, complaint
from convloom.backends.cuda.gpu import open_gpu

HOPPER = Found(0, "", (13, 0), ((9, 0),))
NONE = Found(100, "CUDA_ERROR_NO_DEVICE", (13, 0))


@pytest.mark.parametrize(
    ("found", "environment", "bindings", "words"),
    [
        (Found(None), {}, (13, 0), ("no NVIDIA driver", "libcuda.so.1")),
        (NONE, {}, (13, 0), ("finds no GPU", "nvidia-smi")),
        (Found(0, "", (13, 0)), {}, (13, 0), ("finds no GPU",)),
        (NONE, {"CUDA_VISIBLE_DEVICES": ""}, (13, 0), ("is empty, which hides", "unset")),
        (NONE, {"CUDA_VISIBLE_DEVICES": "7"}, (13, 0), ("CUDA_VISIBLE_DEVICES=7", "names no GPU")),
        (Found(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH"), {}, (13, 0), ("MISMATCH", "restart")),
        (Found(999, "CUDA_ERROR_UNKNOWN"), {}, (13, 0), ("does not start", "nvidia-smi")),
        (Found(3, "CUDA_ERROR_NOT_INITIALIZED"), {}, (13, 0), ("forked", "spawn")),
        (HOPPER, {}, None, ("cuda-core is not installed", "pip install 'convloom[cuda13]'")),
        (
            Found(0, "", (12, 4), ((9, 0),)),
            {},
            None,
            ("cuda-core is not installed", "pip install 'convloom[cuda12]'"),
        ),
        (  # Volta, of whose compilers CUDA 12's is the last
            Found(0, "", (13, 0), ((7, 0),)),
            {},
            None,
            ("cuda-core is not installed", "pip install 'convloom[cuda12]'"),
        ),
        (
            Found(0, "", (11, 4), ((8, 0),)),
            {},
            None,
            ("cuda-core is not installed", "convloom[cuda12]", "update the driver to 525"),
        ),
        (
            Found(0, "", (12, 4), ((9, 0),)),
            {},
            (13, 5),
            ("CUDA 12.4", "CUDA 13", "580", "convloom[cuda12]"),
        ),
        (Found(0, "", (11, 8), ((8, 0),)), {}, (12, 9), ("CUDA 11.8", "525")),
        (
            Found(0, "", (13, 0), ((7, 0),)),
            {},
            (13, 0),
            ("compute capability 7.0", "7.5", "convloom[cuda12]"),
        ),
        (Found(0, "", (13, 0), ((3, 5),)), {}, (12, 8), ("compute capability 3.5", "5.0")),
        (HOPPER, {}, (14, 0), ("cuda-bindings 14",)),
    ],
)
def test_each_fault_has_its_message(
    found: Found,
    environment: dict[str, str],
    bindings: tuple[int, int] | None,
    words: tuple[str, ...],
) -> None:
    message = complaint(found, environment, bindings)
    assert message is not None
    for part in words:
        assert part in message


@pytest.mark.parametrize("bindings", [(12, 9), (13, 0), (13, 5)])
def test_nothing_is_missing(bindings: tuple[int, int]) -> None:
    assert complaint(HOPPER, {"CUDA_VISIBLE_DEVICES": "0"}, bindings) is None


def test_architectures() -> None:
    assert [architecture(c) for c in ((7, 5), (8, 6), (9, 0), (10, 0), (12, 0))] == [
        "sm_75",
        "sm_86",
        "sm_90a",
        "sm_100a",
        "sm_120",
    ]
    assert [capability_of(name) for name in ("sm_90", "90a", " SM_100a", "120", "75")] == [
        (9, 0),
        (9, 0),
        (10, 0),
        (12, 0),
        (7, 5),
    ]
    assert [capability_of(name) for name in ("", "hopper", "sm_9", "sm_90x")] == [None] * 4


def test_what_plans_are_made_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The GPU that is here, one that is not, and none."""
    here = Found(0, "", (13, 0), ((9, 0), (8, 0)), (114, 108))
    monkeypatch.setattr(device, "find", lambda: here)
    assert chip() == chip((9, 0)) == Chip(227 << 10, 114, True)
    assert chip((8, 6)) == Chip(99 << 10, 132, False)
    assert chip((12, 0)) == Chip(99 << 10, 132, True)
    assert chip((7, 5)).shared == 0
    monkeypatch.setattr(device, "find", lambda: NONE)
    assert chip() == chip((9, 0)) == device.HOPPER


def test_auto_is_the_cpu_and_says_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(logging.getLogger("convloom"), "propagate", True)
    monkeypatch.setattr(device, "missing", lambda: "it is made of wood")
    base._best_device.cache_clear()
    try:
        with caplog.at_level(logging.INFO, "convloom"):
            assert resolve_device("auto") == "cpu"
            assert resolve_device("auto") == "cpu"
        assert [r.getMessage() for r in caplog.records] == [
            "device auto is cpu: it is made of wood"
        ]
        base._best_device.cache_clear()
        monkeypatch.setattr(device, "missing", lambda: None)
        assert resolve_device("auto") == "cuda"
    finally:
        base._best_device.cache_clear()


def test_cuda_by_name_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "missing", lambda: "it is made of wood")
    with pytest.raises(DeviceError, match=r"device cuda .* made of wood; device cpu"):
        open_gpu.__wrapped__()


def test_a_machine_is_asked_in_a_moment() -> None:
    """Whatever this machine has, asking must neither fail nor hang, nor import cuda-core."""
    script = (
        "import sys; from convloom.backends.cuda import device; print(device.missing()); "
        "assert not [m for m in sys.modules if m.startswith('cuda.core.')]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60, env=environment)
