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
        if there and name.endswith(".txt"):
            command, *lines = (tool.RESULTS / name).read_text().splitlines()
            assert re.match(r"\$ (convloom|python benchmarks/|compute-sanitizer) ?", command)
            assert not any(re.search(r"/(root|tmp|home)/", line) for line in lines), name


def test_every_kernel_says_what_limits_it(tool: ModuleType) -> None:
    """Lowest rungs say what they compute, the others what they change."""
    for path in tool.SOURCES.glob("*/*.cu"):
        _, idea, limit = tool._kernel(path)
        assert idea, path
        assert limit, f"{path} does not say its limit"


def row(layer: str, us: float, pytorch: float, **more: Any) -> dict[str, Any]:
    times = {"us": us, "pytorch_us": pytorch, "limit_us": 0.5}
    made = {"layer": layer, "direction": "forward", "what": "1×1", "kernels": ["Conv2d [tiled]"]}
    return {**made, **times, **more}


def cells(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines[2:]]


@pytest.fixture
def results(tool: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the tables are made of from now on."""
    monkeypatch.setattr(tool, "RESULTS", tmp_path)
    monkeypatch.setattr(tool, "_result", lambda name: json.loads((tmp_path / name).read_text()))
    return tmp_path


def test_layers_alike_are_one_row_and_losses_come_first(tool: ModuleType, results: Path) -> None:
    rows = [
        row("a", 1.0, 9.0, what="fast"),
        row("b", 5.0, 4.0),
        row("c", 7.0, 2.0),
        row("d", 9.0, 5.0, direction="backward"),
        *(row(f"s{n}", 2.0, 1.9 - n / 1e3, what=f"slow {n}") for n in range(10)),
        *(row(f"f{n}", 1.0, 2.0, what=f"faster {n}") for n in range(10)),
    ]
    found = {
        "networks": [{"network": "alexnet", "rows": rows}],
        "environment": {"command": "python benchmarks/x.py", "date": "2026-01-02T03:04:05"},
    }
    (results / "layers-128.json").write_text(json.dumps(found))
    made = cells(tool.layers("alexnet"))
    assert made[0] == [
        "forward", "b and 1 more", "1×1", "Conv2d [tiled]", "12.0", "6.0", "1.0", "+6.0"
    ]  # fmt: skip
    assert made[1][:2] == ["backward", "d"]
    assert [one[1] for one in made[2:10]] == [f"s{n}" for n in range(9, 1, -1)]
    assert made[10][1:] == ["a", "fast", "Conv2d [tiled]", "1.0", "9.0", "0.5", "−8.0"]
    assert len(made) == 10 + 5 + 3
    assert [one[0] for one in made[-3:]] == ["**all slower**", "**all faster**", "**all**"]
    assert made[-3][-1] == "+11.0"  # those that are not shown count too
    assert made[-2][-1] == "−18.0"
    assert made[-1][-4:] == ["52.0", "59.0", "12.0", "−7.0"]
    assert tool.layers("resnet18") == "Not measured: resnet18 failed.\n"
    for one in rows:
        del one["what"]
    (results / "layers-128.json").write_text(json.dumps(found))
    assert [one[1] for one in cells(tool.layers("alexnet"))[:3]] == ["c", "d", "b"]


def test_a_way_of_pytorch_that_could_not_run_leaves_a_gap(tool: ModuleType, results: Path) -> None:
    for network in tool.LARGE:
        times = {"eager": 4000.0, "compile": None, "auto": 2000.0}
        rows = [
            {"name": name, "us": us, "images_per_second": us and 1.28e8 / us, "ratio": 2.0}
            for name, us in times.items()
        ]
        command = f"convloom bench pytorch {network} --json"
        versions = {"torch": "2"}
        there = {"command": command, "date": "2026-01-02T03:04:05", "versions": versions}
        found = {"rows": rows, "environment": there}
        (results / f"pytorch-{network}-128.json").write_text(json.dumps(found))
    table = tool.zoo()
    assert cells(table)[0] == ["alexnet", "4.0", "", "2.0", "64,000", "×2.00"]
    assert "`convloom bench pytorch NETWORK`, PyTorch 2, 2026-01-02)" in table


@pytest.mark.parametrize("formats", [False, True])
def test_it_is_told_what_pytorch_was_not_timed_in(
    tool: ModuleType, results: Path, formats: bool
) -> None:
    found = json.loads((ROOT / "benchmarks/results/h200" / tool._UNSEEN).read_text())
    found["rows"] = [one for one in found["rows"] if "channels_last" not in one["name"]]
    if formats:
        found["rows"].append({**found["rows"][0], "name": "eager, channels_last"})
    (results / tool._UNSEEN).write_text(json.dumps(found))
    for network in tool.LARGE:
        rows = [{"name": "auto", "ratio": 1.5}]
        (results / f"pytorch-{network}-128.json").write_text(json.dumps({"rows": rows}))
    assert ("have not been measured yet" in tool.unseen()) == (not formats)
    assert tool._readme_ratios().endswith("PyTorch's best." if formats else "best in NCHW.")
    assert "alexnet 1.50, resnet18 1.50 and mobilenet-v1-small 1.50 times" in tool._readme_ratios()
    rows = [{"name": "auto", "ratio": None}]
    (results / "pytorch-resnet18-128.json").write_text(json.dumps({"rows": rows}))
    assert "alexnet 1.50, resnet18 (not measured) and" in tool._readme_ratios()


def test_the_front_page_says_how_runs_ended(tool: ModuleType, results: Path) -> None:
    fit = "epoch 10: loss 1.0, right in training 9%, known 60%, 5.5 s\n"
    last = "epoch 20: loss 0.1, right in training 98%, known 100%, 8.6 s\n"
    (results / "alexnet-step.txt").write_text("memory 3 GB (x)\n12.6 ms a step of 64, copied\n")
    head = "device cuda, sgd, seed 3\n   9/10  1.0\n"
    end = "10/10  0.9\ntest accuracy 90.39 %, loss 0.8\nfirst step after 3.1 s, 1:46 in all\n"
    (results / "cifar10-vgg-small.txt").write_text(head + end)
    (results / "cifar10-resnet20.txt").write_text("(seed 0)\n 70/70  1\ntest accuracy 91 %\n")
    (results / "alexnet-fit.txt").write_text(fit + last)
    text = " ".join(tool.readme_trained().split())
    assert "learns 100 photographs by heart in 20 epochs, 9 seconds in all" in text
    assert "step of 64 images takes 3 GB and 13 ms" in text
    assert "ends at 90.39 % (seed 3, 10 epochs, 1:46 in all); [resnet20]" in text
    assert "ends at 91 % (seed 0, 70 epochs)" in text
    (results / "alexnet-fit.txt").write_text(fit)
    assert "100 photographs to 60 % in 10 epochs" in tool.readme_trained()


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
