"""What the documents show is run: code and commands, links, and the examples."""

from __future__ import annotations

import re
import runpy
import shlex
import shutil
import struct
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import convloom as cl
from convloom import nn
from convloom.backends.cpu import jit, selectors
from convloom.backends.cpu.selectors import elementwise
from convloom.backends.cpu.toolchain import find_compiler
from convloom.ir import TensorSpec
from convloom.ops.base import Op
from tests.backends.harness import compare
from tests.ops.gradcheck import check

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])


def blocks(document: str, language: str) -> list[str]:
    """The fenced code blocks of a language."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.fixture
def tiny_fashion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with the examples and 128 + 64 random images as fashion-mnist."""
    folder = tmp_path / "data" / "fashion-mnist"
    folder.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for part, n in (("train", 128), ("t10k", 64)):
        images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
        labels = rng.integers(0, 10, n, dtype=np.uint8)
        header = struct.pack(">4i", 2051, n, 28, 28)
        (folder / f"{part}-images-idx3-ubyte").write_bytes(header + images.tobytes())
        header = struct.pack(">2i", 2049, n)
        (folder / f"{part}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.setenv("CONVLOOM_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(document: str, **given: object) -> dict[str, object]:
    """Run the Python of a document, one block after the other; what it leaves, by name."""
    names: dict[str, object] = given
    for block in blocks(document, "python"):
        exec(compile(block, document, "exec"), names)
    return names


def test_readme_begins_with_the_two_commands() -> None:
    first, second = blocks("README.md", "sh")[0].splitlines()
    assert first.startswith("make train ")
    assert second.startswith("make test ")
    assert (ROOT / "README.md").read_text().startswith("```sh\nmake train")


def test_readme_python(tiny_fashion: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = run_python("README.md")
    assert "val accuracy" in capsys.readouterr().out
    assert np.shape(names["probabilities"]) == (8, 10)
    gradients, exact = names["gradients"], names["exact"]
    assert isinstance(gradients, dict)
    assert isinstance(exact, dict)
    for name, value in exact.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(gradients[name], value, rtol=0, atol=1e-4 * scale, err_msg=name)


def test_convnet_python(tiny_fashion: Path) -> None:
    names = run_python("docs/convnet.md")
    assert isinstance(names["matrices"], dict)
    assert names["matrices"]["fc10/weights/0"].shape == (32 * 7 * 7, 10)
    assert np.shape(names["rows"]) == (8, 10)


def test_learn_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib", reason="pip install 'convloom[plot]'")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    train, _ = cl.data.load("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Conv2d(4, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 10),
    )
    loss, rule = nn.CrossEntropyLoss(), cl.optim.SGD(lr=0.01)
    history = cl.Trainer(model, rule, loss, batch_size=64, device="cpu").fit(train, epochs=1)
    watch = ["3.out", "3.out.grad"]
    step = cl.compile(
        model, loss, rule, batch_size=64, input_shape=(1, 8, 8), device="cpu", watch=watch
    )
    images, labels = train.images[:64], train.labels[:64]
    x = train.normalise(images)
    run_python(
        "docs/learn.md",
        cl=cl,
        model=model,
        step=step,
        x=x,
        y=labels,
        images=images,
        labels=labels,
        history=history,
    )
    assert (tmp_path / "maps.png").is_file()


def test_learn_breaks_at_the_line_that_sums() -> None:
    (session,) = (block for block in blocks("docs/learn.md", "sh") if "(gdb)" in block)
    folder = re.search(r"directory (\S+)", session)
    place = re.search(r"break (\S+):(\d+)", session)
    assert folder is not None
    assert place is not None
    lines = (ROOT / folder[1] / place[1]).read_text().splitlines()
    assert "sum = fmaf(" in lines[int(place[2]) - 1]


@pytest.mark.parametrize(
    ("document", "wanted"),
    [
        ("README.md", "convnet data eval features plan predict resume show sweep train"),
        ("docs/convnet.md", "check-grads convnet eval show train"),
    ],
)
def test_commands(document: str, wanted: str, tiny_fashion: Path) -> None:
    """Every convloom command of a document, in its order, on the small data."""
    for name in ("shirt.png", "boot.png"):
        Image.fromarray(np.full((28, 28), 90, np.uint8)).save(tiny_fashion / name)
    commands = [
        shlex.split(line, comments=True)
        for block in blocks(document, "sh")
        for line in block.splitlines()
        if line.startswith("convloom ")
    ]
    assert " ".join(sorted({words[1] for words in commands})) == wanted
    for words in commands:
        done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
        assert done.returncode == 0, f"{shlex.join(words)}\n{done.stderr}"


@dataclass(frozen=True)
class SquareGrad(Op):
    """What CONTRIBUTING's first step asks for beside Square."""

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        return (TensorSpec(inputs[0].shape, inputs[0].dtype),)

    def reference(self, *inputs: np.ndarray) -> tuple[np.ndarray, ...]:
        dy, x = inputs
        return (2 * x * dy,)


def square() -> Op:
    """CONTRIBUTING's operation."""
    names: dict[str, object] = {
        "dataclass": dataclass,
        "Op": Op,
        "TensorSpec": TensorSpec,
        "SquareGrad": SquareGrad,
        "__name__": __name__,
    }
    (block,) = blocks("CONTRIBUTING.md", "python")
    exec(compile(block, "CONTRIBUTING.md", "exec"), names)
    made = names["Square"]
    assert isinstance(made, type)
    op = made()
    assert isinstance(op, Op)
    return op


def test_contributing_operation() -> None:
    check(square(), [np.random.default_rng(0).standard_normal((2, 3, 5))], torch.square)


def test_contributing_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if find_compiler() is None:
        pytest.skip("no C++ compiler was found")
    sources = tmp_path / "cpu"
    shutil.copytree(jit.SOURCES, sources)
    (block,) = blocks("CONTRIBUTING.md", "cpp")
    (sources / "square.cpp").write_text(block)
    monkeypatch.setattr(jit, "SOURCES", sources)
    monkeypatch.setenv("CONVLOOM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(elementwise._SOURCES, "Square", "square")
    family = (*selectors.FAMILIES["elementwise"], "Square")
    monkeypatch.setitem(selectors.FAMILIES, "elementwise", family)
    x = np.arange(-20_000, 20_000).reshape(5, 8, 10, 100).astype(np.float32) % 64
    compare(square(), x, exact=True, require="dense")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_and_paths_exist(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        assert (document.parent / link).exists(), link
    for name in re.findall(r"`((?:\w+/)+[\w.]*)`", text):
        homes = (ROOT, ROOT / "src" / "convloom", *ROOT.glob("src/convloom/*"))
        if "NAME" not in name:
            assert any((home / name).exists() for home in homes), name


def test_the_example_with_dropout_on_chip() -> None:
    make_model = runpy.run_path(str(ROOT / "examples" / "dropout_net.py"))["make_model"]
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((2, 3, 32, 32), np.float32), np.array([3, 7])

    def losses(device: str) -> list[float]:
        model, rule = make_model(10, 3, (32, 32)), cl.optim.SGD(lr=1e-4)
        engine = {"device": device, "precision": "bf16"}
        step = cl.compile(
            model, nn.CrossEntropyLoss(), rule, batch_size=2, input_shape=(3, 32, 32), **engine
        )
        return [step(x, y) for _ in range(3)]

    exact, found = losses("reference"), losses("cuda-sim")
    assert len({round(loss, 1) for loss in exact}) == 3  # the update and the mask tell
    assert found == pytest.approx(exact, rel=1e-2)


def test_examples_run(tiny_fashion: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(ROOT / "examples" / "step_through.py"), run_name="__main__")
    assert "=== 5. compiled against reference" in capsys.readouterr().out
