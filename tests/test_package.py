"""The public face: the names that ``import convloom as cl`` offers, and when they are loaded."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom import nn

ROOT = Path(__file__).resolve().parent.parent


def python(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT / "src",
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip()


def test_every_public_name_is_there() -> None:
    for name in cl.__all__:
        assert getattr(cl, name) is not None
    assert set(cl.__all__) <= set(dir(cl))
    assert cl.nn is nn
    assert cl.concat is nn.concat


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Trainr'"):
        _ = cl.Trainr


def test_import_alone_loads_nothing_of_weight() -> None:
    code = "import sys, convloom; print(*{'numpy', 'safetensors', 'typer'} & set(sys.modules))"
    assert python(code) == ""


def test_version_is_the_packages() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert cl.__version__ == project["version"]


def test_a_network_predicts_without_further_imports() -> None:
    code = (
        "import numpy as np\n"
        "from convloom import nn\n"
        "model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))\n"
        "x = np.ones((2, 1, 2, 2), np.float32)\n"
        "print(model.predict(x, device='reference').shape)"
    )
    assert python(code) == "(2, 3)"


def test_the_example_of_the_readme(tmp_path: Path) -> None:
    train, test = cl.data.load("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 10)
    )
    trainer = cl.Trainer(
        model,
        optimizer=cl.optim.SGD(lr=0.05, momentum=0.9),
        loss=nn.CrossEntropyLoss(),
        batch_size=64,
        device="auto",
        seed=0,
    )
    history = trainer.fit(train, epochs=1, validation=test)
    assert len(history) == 1
    figures = trainer.evaluate(test)
    assert set(figures) == {"loss", "accuracy", "top5", "n"}
    model.save(tmp_path / "net.safetensors")
    probabilities = cl.load(tmp_path / "net.safetensors").predict(test.images[:5])
    assert probabilities.shape == (5, 10)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    step = cl.compile(
        model,
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.01),
        batch_size=64,
        input_shape=(1, 8, 8),
        device="cpu",
        kernels="auto",
        seed=0,
    )
    assert "conv2d" in str(step.plan)
    x = np.zeros((64, 1, 8, 8), np.float32)
    assert np.isfinite(step(x, np.zeros(64, np.int64)))
    assert step.read("0.weight.grad").shape == step.read("0.weight").shape
    y, dx, grads = cl.vjp(model, x, np.ones((64, 10), np.float32), device="cpu")
    assert (y.shape, dx.shape, set(grads)) == ((64, 10), x.shape, set(model.state_dict()))
