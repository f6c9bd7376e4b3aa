"""docs/kernels.md and README.md say what the kept results and the kernel sources say."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kernels_doc", ROOT / "benchmarks/kernels_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("document", ["docs/kernels.md", "README.md"])
def test_tables_are_those_of_the_results(tool: ModuleType, document: str) -> None:
    text = (ROOT / document).read_text(encoding="utf-8")
    assert tool._TABLE.search(text)
    assert tool.written(text) == text, "run python benchmarks/kernels_doc.py"


def test_every_table_and_every_result_is_shown(tool: ModuleType) -> None:
    text = "".join((ROOT / name).read_text(encoding="utf-8") for name in tool.DOCUMENTS)
    assert {match[2] for match in tool._TABLE.finditer(text)} == set(tool.TABLES)
    plots = {name.replace(".json", ".png") for name in tool.KEPT if name.startswith("ladder")}
    assert {path.name for path in tool.RESULTS.iterdir()} <= {*tool.KEPT, *plots}


def test_the_tests_of_promises_exist() -> None:
    text = (ROOT / "docs/kernels.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)((?:::\w+)+)`", text)
    assert len(named) > 30
    for file, names in named:
        source = (ROOT / "tests" / file).read_text(encoding="utf-8")
        for name in names.split("::")[1:]:
            kind = "class" if name.startswith("Test") else "def"
            assert re.search(rf"^ *{kind} {name}\b", source, re.MULTILINE), f"{file}::{name}"


def test_results_say_what_made_them_and_not_where(tool: ModuleType) -> None:
    for name in tool.KEPT:
        there = (tool.RESULTS / name).exists()
        if there and name.endswith(".json") and name != "build-lenet.json":
            found = json.loads((tool.RESULTS / name).read_text())["environment"]
            assert found["hardware"]["device"] == "cuda"
            assert re.match(r"(convloom|python benchmarks/)", found["command"])
            assert "/tmp" not in found["command"]


def test_every_kernel_says_what_limits_it(tool: ModuleType) -> None:
    """Lowest rungs say what they compute, the others what they change."""
    for path in tool.SOURCES.glob("*/*.cu"):
        _, idea, limit = tool._kernel(path)
        assert idea, path
        assert limit, f"{path} does not say its limit"


def test_new_results_are_kept_without_their_folder(
    tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, kept = tmp_path / "new", tmp_path / "kept"
    given.mkdir()
    kept.mkdir()
    found: dict[str, Any] = json.loads((tool.RESULTS / "ladder-lenet-64.json").read_text())
    found["environment"]["command"] = "convloom bench ladder lenet --out /x/y --rounds 3 --json"
    (given / "ladder-lenet-64.json").write_text(json.dumps(found))
    (given / "sanitizer.txt").write_text("ERROR SUMMARY: 0 errors\n")
    (given / "other.txt").write_text("not asked for")
    monkeypatch.setattr(tool, "RESULTS", kept)
    tool._take(given)
    assert sorted(path.name for path in kept.iterdir()) == [
        "ladder-lenet-64.json",
        "ladder-lenet-64.png",
        "sanitizer.txt",
    ]
    made = json.loads((kept / "ladder-lenet-64.json").read_text())
    assert made["environment"]["command"] == "convloom bench ladder lenet --rounds 3"
    assert (kept / "ladder-lenet-64.png").stat().st_size < 100_000
