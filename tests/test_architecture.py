"""The import contract: who may know whom. docs/architecture.md explains why.

Every import counts, also those inside functions and those for type checkers only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parent.parent / "src" / "convloom"

#: {package: the packages of convloom that it may import}; itself and ANYONE go without saying.
MAY_IMPORT = {
    "ir": set(),
    "ops": {"ir"},
    "nn": {"ops", "ir"},
    "data": set(),
    "kernels": set(),
    "backends": {"ops", "ir"},
    "compiler": {"backends", "ops", "ir"},
    "training": {"compiler", "backends", "nn", "ops", "ir"},
    "parallel": {"training", "compiler", "backends", "ops", "ir"},
    "convnet": {"training", "compiler", "backends", "nn", "ops", "ir", "data"},
    "interop": {"training", "compiler", "backends", "nn", "ops", "ir"},
    "inspection": {"training", "compiler", "backends", "nn", "ops", "ir"},
    "serving": {"training", "compiler", "backends", "nn", "ops", "ir", "data"},
    "cli": None,  # everything
}
#: Modules without dependencies of their own that all may use.
ANYONE = ("random", "files", "normalise", "ir.errors")
#: What the public face of the package consists of; only cli may import these.
FACADE = ("__init__", "__main__", "optim")
#: {library: the packages that may import it}; other libraries are free for all.
LIBRARIES = {
    "typer": {"cli"},
    "rich": {"cli"},
    "torch": {"interop"},
    "matplotlib": {"inspection"},
    "cuda": {"backends", "parallel"},
    "PIL": {"data", "cli", "serving"},
}


def imports(path: Path, module: str) -> Iterator[tuple[int, str]]:
    """(line, absolute dotted name) of everything that a file imports.

    ``from a import b`` gives a.b, whether b is a module or a name in one.
    """
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            start = ".".join([*above, *filter(None, [node.module])])
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


def violations(source: Path) -> list[str]:
    """One line for every import under ``source`` that the contract does not allow."""
    found = []
    for path in sorted(source.rglob("*.py")):
        relative = path.relative_to(source)
        module = ".".join(["convloom", *relative.with_suffix("").parts]).removesuffix(".__init__")
        owner = relative.parts[0].removesuffix(".py")
        for line, name in imports(path, module):
            if complaint := objection(owner, module, name):
                found.append(f"{relative}:{line}: {complaint}")
    return found


def objection(owner: str, module: str, name: str) -> str:
    """Why ``module``, which lies in ``owner``, may not import ``name``; empty if it may."""
    root, _, inner = name.partition(".")
    if root != "convloom":
        users = LIBRARIES.get(root)
        return (
            "" if users is None or owner in users else f"{root} is for {', '.join(sorted(users))}"
        )
    if owner in FACADE or owner == "cli" or inner == "__version__":
        return ""
    if any(inner == one or inner.startswith(f"{one}.") for one in ANYONE):
        return ""
    target = inner.split(".")[0]
    if f"convloom.{owner}" == module and owner not in MAY_IMPORT:
        return f"{owner} is for all, so it may import only {', '.join(ANYONE)}, not {name}"
    if target == owner or target in (MAY_IMPORT[owner] or ()):
        return ""
    return f"{owner} may not import {target or 'the package as a whole'}"


def test_imports_go_one_way() -> None:
    assert violations(SOURCE) == []


def test_every_package_has_its_place() -> None:
    packages = {path.name for path in SOURCE.iterdir() if path.is_dir()} - {"__pycache__"}
    assert packages <= set(MAY_IMPORT)
    modules = {path.stem for path in SOURCE.glob("*.py")}
    assert modules <= {*FACADE, *ANYONE}


def test_kernels_are_sources_only() -> None:
    kernels = [path for path in (SOURCE / "kernels").rglob("*") if path.is_file()]
    assert kernels
    assert {path.suffix for path in kernels} <= {".cpp", ".h", ".cu", ".cuh"}


def test_cpu_kernels_use_no_cpp_standard_library() -> None:
    """C++ headers (``<vector>``) have no suffix; C headers (``<pthread.h>``) do."""
    for path in (SOURCE / "kernels" / "cpu").glob("*"):
        included = re.findall(r"^\s*#\s*include\s*<([^>]+)>", path.read_text(), re.MULTILINE)
        assert [name for name in included if not name.endswith(".h")] == [], path.name


@pytest.mark.parametrize(
    ("place", "line", "complaint"),
    [
        (
            "ops/relu.py",
            "from convloom.compiler import compile_graph",
            "ops may not import compiler",
        ),
        ("ops/relu.py", "from ..nn import Module", "ops may not import nn"),
        ("ops/relu.py", "def f():\n    import convloom.nn.layers", "ops may not import nn"),
        ("ops/__init__.py", "from ..nn import Module", "ops may not import nn"),
        ("data/idx.py", "from convloom.ir import TensorSpec", "data may not import ir"),
        ("data/idx.py", "import convloom", "data may not import the package as a whole"),
        ("training/trainer.py", "from convloom import data", "training may not import data"),
        ("backends/cpu/jit.py", "import rich.console", "rich is for cli"),
        ("files.py", "from convloom.ops import Op", "files is for all"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, place: str, line: str, complaint: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    (found,) = violations(tmp_path)
    assert found.startswith(place)
    assert complaint in found


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("data/idx.py", "from convloom.ir.errors import ConvloomError"),
        ("data/idx.py", "from convloom.files import replacing"),
        ("data/idx.py", "from convloom import files"),
        ("training/trainer.py", "from convloom import __version__"),
        ("training/trainer.py", "from .history import History"),
        ("cli/train.py", "import convloom"),
        ("optim.py", "from convloom.training.optim import SGD"),
    ],
)
def test_what_is_allowed_passes(tmp_path: Path, place: str, line: str) -> None:
    path = tmp_path / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(line + "\n")
    assert violations(tmp_path) == []
