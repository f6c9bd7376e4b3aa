"""Spatial layers inside networks: outputs and all gradients as NumPy's, through every pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import convloom as cl
from convloom import nn

NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "overlapping pools": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(3, 2),
        nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.ReLU(), nn.MaxPool2d(3, 2, 1, ties="all"),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    ),
    "clipped pools": lambda: nn.Sequential(
        nn.Conv2d(3, 5, 1), nn.MaxPool2d(3, 2, 1, outputs=5, ties="all"),
        nn.AvgPool2d(3, 2, count_include_pad=False, outputs=2), nn.AdaptiveMaxPool2d((3, 2)),
    ),
    "unshared": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, bias=False), nn.UnsharedBias(6, (7, 6)), nn.ReLU(),
        nn.LocallyConnected2d(6, 8, 3, (7, 6), 2, 1, groups=2), nn.ReLU(),
        nn.LocallyConnected2d(8, 2, (2, 3), (4, 3), bias=False), nn.Flatten(), nn.Linear(6, 3),
    ),
    "maps": lambda: nn.Sequential(
        nn.ReflectionPad2d((1, 2, 0, 3)), nn.Conv2d(3, 4, 3), nn.Upsample(scale_factor=2),
        nn.ReLU(), nn.Blur(3, 1.0), nn.Mirror(), nn.Nailbed(3), nn.ConstantPad2d(1, 2.0),
        nn.Upsample((4, 3), mode="bilinear"), nn.ReplicationPad2d(2),
    ),
    "transposed": lambda: nn.Sequential(
        nn.Conv2d(3, 6, 3, 2, 1), nn.ReLU(), nn.ConvTranspose2d(6, 4, 3, 2, 1, 1), nn.ReLU(),
        nn.ConvTranspose2d(4, 4, 2, 2, groups=2, bias=False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "cuda-sim"])
@pytest.mark.parametrize("network", NETWORKS)
def test_outputs_and_gradients(network: str, device: str) -> None:
    model = NETWORKS[network]()
    rng = np.random.default_rng(0)
    state = {k: rng.normal(size=v.shape).astype(np.float32) for k, v in model.state_dict().items()}
    model.load_state_dict(state)
    x = rng.normal(size=(3, 3, 9, 8)).astype(np.float32)
    shape = model.trace(x.shape[1:], len(x)).specs["output"].shape
    dy = rng.normal(size=shape).astype(np.float32)
    wanted = cl.vjp(model, x.astype(np.float64), dy.astype(np.float64), device="reference")
    got = cl.vjp(model, x, dy, device=device)
    for ours, exact in zip(_flat(got), _flat(wanted), strict=True):
        np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-5 * np.abs(exact).max())


def _flat(result: tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]) -> list[np.ndarray]:
    y, dx, gradients = result
    return [y, dx, *(gradients[name] for name in sorted(gradients))]
