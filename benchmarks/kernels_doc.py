"""Writes the measured tables of docs/kernels.md and README.md from the results that are kept.

    python benchmarks/kernels_doc.py                  # rewrite the tables
    python benchmarks/kernels_doc.py --check          # exit code 1 if they are not the results'
    python benchmarks/kernels_doc.py --take FOLDER    # keep new results, then rewrite; plots too

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``; TABLES says what makes it.
Results are what the commands of docs/kernels.md write; FOLDER holds some of them, by these names.
The table of kernels comes from the first lines of each kernel's source.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from convloom.backends.cuda.nvrtc import SOURCES
from convloom.backends.cuda.selectors import RUNGS

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "h200"
DOCUMENTS = ("docs/kernels.md", "README.md")
#: Results of a person's own that --take keeps.
KEPT = (
    "agreement.json",
    "alexnet-fit.txt",
    "alexnet-step.txt",
    "build-lenet.json",
    "cifar10-resnet20.txt",
    "cifar10-vgg-small.txt",
    "ladder-lenet-64.json",
    "ladder-lenet-4096.json",
    "layers-128.json",
    "many-lenet.json",
    "onchip-lenet.json",
    "onchip-threads.json",
    "pytorch-alexnet-128.json",
    "pytorch-dropout-net-128.json",
    "pytorch-lenet-64.json",
    "pytorch-lenet-4096.json",
    "pytorch-mobilenet-v1-small-128.json",
    "pytorch-resnet18-128.json",
    "sanitizer.txt",
    "times-lenet.json",
    "train-mnist.txt",
    "train-mnist-bf16.txt",
    "train-mnist-naive.txt",
)
_TABLE = re.compile(r"(<!-- table: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
#: Options that say where a result went, which is nobody's business.
_PLACES = re.compile(r" (--out|--csv|--plot|--data-dir|--json)( [^ -][^ ]*)?(?= |$)")
#: Images a second of an epoch, which has more digits than its seconds.
_EPOCH = re.compile(r"^ +\d+/\d+ .* ([\d.]+)([kM]?) +[\d.]+ s$", re.MULTILINE)
_TRAINED = 60_000
#: Large networks that are timed beside PyTorch.
LARGE = ("alexnet", "resnet18", "mobilenet-v1-small")
#: A network that no kernel was made for, beside PyTorch.
_UNSEEN = "pytorch-dropout-net-128.json"
#: Of a network's layers, how many of the slower and of the faster ones are shown.
_SLOWER, _FASTER = 10, 5

Rows = Iterable[Sequence[str]]


def main() -> int:
    options = _options()
    if options.take is not None:
        _take(options.take)
    stale = []
    for name in DOCUMENTS:
        path = ROOT / name
        text = path.read_text(encoding="utf-8")
        wanted = written(text)
        if wanted != text:
            stale.append(name)
            if not options.check:
                path.write_text(wanted, encoding="utf-8")
    for name in stale:
        print(f"{name}: {'its tables are not those of the results' if options.check else 'new'}")
    return 1 if stale and options.check else 0


def written(text: str) -> str:
    """A document with all of its tables as they should be."""
    return _TABLE.sub(lambda m: f"{m[1]}{_made(m[2])}{m[3]}", text)


def _made(name: str) -> str:
    """A table, or a line where its results are not there yet."""
    try:
        return TABLES[name]()
    except FileNotFoundError as error:
        return f"Not measured yet: {Path(error.filename).name}.\n"


# The tables ---------------------------------------------------------------------------------------


def ladder(batch: int) -> str:
    """Rungs, then ways of feeding and launching; each adds one idea to the row before."""
    found = _result(f"ladder-lenet-{batch}.json")
    rows = [
        (
            f"**{row['name']}**",
            row["note"] or row["idea"],
            str(row["kernels"]),
            _number(row["us"], 1),
            _number(row["images_per_second"]),
            f"{100 * row['of_limit']:.1f} %",
            "" if row["gain"] is None else f"×{row['gain']:.2f}",
        )
        for row in found["rows"]
        if row["kind"] != "switch" and not row["failed"]
    ]
    peaks = found["peaks"]
    limit = next(row["limit_us"] for row in found["rows"] if row["limit_us"] is not None)
    note = (
        f"The limit is {limit:.1f} µs a step: {peaks['bandwidth'] / 1e9:,.0f} GB/s and "
        f"{peaks['flops'] / 1e12:.1f} TFLOP/s in fp32, measured in the same run."
    )
    header = ("row", "what it adds", "kernels", "µs a step", "images/s", "of the limit", "gain")
    return _table(header, rows, "llrrrrr") + f"\n{note} {_origin(found)}\n"


def switches(batch: int) -> str:
    """The whole with one idea taken out."""
    found = _result(f"ladder-lenet-{batch}.json")
    rows = [
        (row["name"], row["idea"], _number(row["us"], 1), f"×{row['gain']:.2f}")
        for row in _sound(found)
        if row["kind"] == "switch"
    ]
    header = ("without", "what is measured", "µs a step", "worth")
    return _table(header, rows, "llrr") + f"\n{_origin(found)}\n"


def times(batch: int) -> str:
    """Microseconds of each part of a step, alone, on every rung."""
    found = _result("times-lenet.json")
    rows = [row for row in found["rows"] if row["batch"] == batch]
    rungs = list(dict.fromkeys(row["kernels"] for row in rows))
    parts = list(dict.fromkeys(row["part"] for row in rows))
    parts.sort(key=lambda part: ("backward" in part, part == "update"))

    def total(**wanted: str) -> float:
        mine = [r for r in rows if all(r[name] == value for name, value in wanted.items())]
        return float(sum(row["us"] for row in mine))

    best = [
        " + ".join(
            dict.fromkeys(
                source
                for row in rows
                if (row["kernels"], row["part"]) == (_last(rows, part), part)
                for source in row["sources"]
            )
        )
        for part in parts
    ]
    made = [
        (part, *(_number(total(kernels=r, part=part) or None, 1) for r in rungs), kernels)
        for part, kernels in zip(parts, best, strict=True)
    ]
    made.append(("**sum**", *(f"**{total(kernels=rung):,.1f}**" for rung in rungs), ""))
    header = ("part", *rungs, "kernels of the highest rung")
    return _table(header, made, "l" + "r" * len(rungs) + "l") + f"\n{_origin(found)}\n"


def _last(rows: list[dict[str, Any]], part: str) -> str:
    """The highest rung that has a part of its own for it."""
    return str([row["kernels"] for row in rows if row["part"] == part][-1])


def pytorch(name: str) -> str:
    """Our rows and PyTorch's, steps and end to end."""
    found = _result(name)
    rows = [
        (
            row["what"],
            row["engine"],
            row["name"] + "".join(f", {k} {v}" for k, v in row["settings"].items()),
            _number(row["us"], 1),
            _number(row["images_per_second"]),
            "" if row["busy"] is None else f"{100 * row['busy']:.0f} %",
            "" if row["ratio"] is None else f"×{row['ratio']:.2f}",
        )
        for row in found["rows"]
        if row["images_per_second"] is not None
    ]
    header = ("what", "engine", "row", "µs a step", "images/s", "GPU busy", "against PyTorch")
    return _table(header, rows, "lllrrrr") + f"\n{_origin(found)}\n"


def unseen() -> str:
    """A network that no kernel was made for, in bf16."""
    note = "\nPyTorch's rows are in NCHW; its channels_last rows have not been measured yet.\n"
    return pytorch(_UNSEEN) + ("" if _has_formats() else note)


def _has_formats() -> bool:
    """Whether PyTorch was timed in channels_last too."""
    return any("channels_last" in row["name"] for row in _result(_UNSEEN)["rows"])


def zoo() -> str:
    """Large networks, a row each, beside PyTorch's two ways to run them."""
    made, dates = [], set()
    for network in LARGE:
        found = _result(f"pytorch-{network}-128.json")
        rows = {row["name"]: row for row in found["rows"]}
        ours = rows["auto"]
        made.append(
            (
                network,
                *(_milliseconds(rows.get(name)) for name in ("eager", "compile", "auto")),
                _number(ours["images_per_second"]),
                "" if ours["ratio"] is None else f"×{ours['ratio']:.2f}",
            )
        )
        dates.add(found["environment"]["date"][:10])
    command = _PLACES.sub("", found["environment"]["command"]).replace(network, "NETWORK")
    header = ("network", "PyTorch eager", "compile", "convloom", "images/s", "against PyTorch")
    note = (
        f"Milliseconds a step; against the faster of PyTorch's (`{command}`, "
        f"PyTorch {found['environment']['versions']['torch']}, {', '.join(sorted(dates))})."
    )
    return _table(header, made, "lrrrrr") + f"\n{note}\n"


def _milliseconds(row: dict[str, Any] | None) -> str:
    return "" if row is None or row["us"] is None else f"{row['us'] / 1e3:,.1f}"


def layers(network: str) -> str:
    """Where a network's layers are slower than PyTorch's, and where faster; alike ones as one."""
    found = _result("layers-128.json")
    rows = next((one["rows"] for one in found["networks"] if one["network"] == network), None)
    if rows is None:
        return f"Not measured: {network} failed.\n"
    groups = sorted(_alike(rows), key=_lost, reverse=True)
    slower = [group for group in groups if _lost(group) > 0]
    faster = [group for group in reversed(groups) if _lost(group) <= 0]
    made = [_layer_cells(group) for group in (*slower[:_SLOWER], *faster[:_FASTER])]
    for title, part in (("all slower", slower), ("all faster", faster), ("all", groups)):
        total = {"direction": f"**{title}**", "names": [], "what": "", "kernels": ()}
        made.append(_layer_cells(total | {key: sum(g[key] for g in part) for key in _TIMES}))
    header = ("pass", "layers", "sizes", "kernels", "µs", "PyTorch", "limit", "lost")
    return _table(header, made, "llllrrrr") + f"\n{_origin(found)}\n"


_TIMES = ("us", "pytorch_us", "limit_us")


def _alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Passes of the same sizes and kernels as one, with the sums of their times.

    Where a result does not say sizes, each layer is a row of its own.
    """
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        what, kernels = row.get("what", ""), tuple(row["kernels"])
        key = row["direction"], what or row["layer"], kernels
        blank = {"direction": row["direction"], "what": what, "kernels": kernels}
        group = groups.setdefault(key, blank | {"names": []} | dict.fromkeys(_TIMES, 0.0))
        group["names"].append(row["layer"])
        for time in _TIMES:
            group[time] += row[time]
    return list(groups.values())


def _lost(group: dict[str, Any]) -> float:
    return float(group["us"] - group["pytorch_us"])


def _layer_cells(group: dict[str, Any]) -> tuple[str, ...]:
    first, *more = group["names"] or [""]
    return (
        group["direction"],
        f"{first} and {len(more)} more" if more else first,
        group["what"],
        ", ".join(group["kernels"]),
        *(f"{group[key]:,.1f}" for key in _TIMES),
        f"{_lost(group):+,.1f}".replace("-", "−"),
    )


def onchip(file: str = "onchip-lenet.json") -> str:
    """Whole steps on chip, a column a variant."""
    found = _result(file)
    rows = [row for row in found["rows"] if "us" in row and "error" not in row]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    steps: dict[tuple[str, int], dict[str, float]] = {}
    for row in rows:
        steps.setdefault((row["precision"], row["batch"]), {})[row["variant"]] = row["us"]
    made = [
        (
            f"{precision}, {batch}",
            *(_number(us.get(variant), 1) for variant in variants),
            _number(1e6 * batch / min(us.values())),
        )
        for (precision, batch), us in steps.items()
    ]
    header = ("precision, batch", *(f"`{name}`" for name in variants), "images/s, best")
    told = "Microseconds a step; an empty cell has the kernels of one to its left, or none."
    told = " ".join([told, *([found["note"]] if "note" in found else []), _origin(found)])
    return _table(header, made, "l" + "r" * (len(variants) + 1)) + f"\n{told}\n"


def many() -> str:
    """Steps of many networks at once, beside one network at a large batch."""
    found = _result("many-lenet.json")
    rows = [
        (
            str(row["members"]),
            str(row["batch"]),
            _number(row["us a step"], 1),
            _number(row["images/s"]),
            f"{100 * row['share of one']:.0f} %" if "share of one" in row else "",
        )
        for row in (found["one"], *found["steps"])
    ]
    header = ("networks", "batch of each", "µs a step of all", "images/s", "of the first row")
    return _table(header, rows, "rrrrr") + f"\n{_origin(found)}\n"


def usage() -> str:
    """What the compiler made of LeNet's kernels, for every architecture."""
    rows: list[dict[str, Any]] = _result("build-lenet.json")
    arches = list(dict.fromkeys(row["arch"] for row in rows))
    kernels: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in rows:
        kernels.setdefault((row["kernel"], row["layers"]), {})[row["arch"]] = row
    made = [
        (
            kernel,
            layers,
            *(str(on[arch]["registers"]) if arch in on else "–" for arch in arches),
            str(max(row["shared"] for row in on.values())),
            str(max(row["spilled"] for row in on.values())),
        )
        for (kernel, layers), on in sorted(kernels.items())
    ]
    header = ("kernel", "layers", *arches, "shared", "spilled")
    note = (
        "Registers of a thread on each architecture; the most bytes of shared memory of a block, "
        "and of registers that a thread spills, on any of them "
        f"(`convloom build lenet --arch {','.join(arches)}`)."
    )
    return _table(header, made, "ll" + "r" * (len(arches) + 2)) + f"\n{note}\n"


def agreement() -> str:
    """How far each engine is from float64 after 100 steps."""
    found = _result("agreement.json")
    rows = [
        (name, *(f"{figure['mean']:.1e}" for figure in figures.values()))
        for name, figures in found["float64"].items()
    ]
    counts = {
        count: max(one[count] for one in found["steps"].values())
        for count in next(iter(found["steps"].values()))
    }
    apart = ", ".join(f"{value:.1e} over {count} steps" for count, value in counts.items())
    same = "; ".join(
        f"{device}: {', '.join(what for what, holds in bits.items() if holds)}"
        for device, bits in found["bits"].items()
    )
    header = ("engine", *(f"{name}" for name in next(iter(found["float64"].values()))))
    note = f"{found['note']} " if "note" in found else ""
    return (
        _table(header, rows, "lrrr")
        + f"\n{note}Losses of cpu and cuda differ by at most {apart}. The same bits: {same}. "
        + f"{_origin(found)}\n"
    )


def sanitizer() -> str:
    """The last words of each tool."""
    lines = (RESULTS / "sanitizer.txt").read_text().splitlines()
    told = [line for line in lines if line.startswith("$ ") or "SUMMARY" in line]
    return "```\n" + "\n".join(line.removeprefix("========= ") for line in told) + "\n```\n"


def training() -> str:
    """Five epochs of MNIST from end to end, on the whole ladder and on its lowest rung."""
    rows = []
    for name, kernels in (
        ("train-mnist.txt", "auto"),
        ("train-mnist-bf16.txt", "auto, --precision bf16"),
        ("train-mnist-naive.txt", "naive"),
    ):
        if not (RESULTS / name).exists():
            continue
        text = (RESULTS / name).read_text()
        seconds = _seconds(text)
        accuracy = re.search(r"test accuracy ([\d.]+) %", text)
        first = re.search(r"first step after ([\d.]+) s, ([\d.]+) s in all", text)
        assert accuracy is not None, name
        assert first is not None, name
        rows.append(
            (
                f"`{kernels}`",
                f"{seconds:.3f} s",
                _number(5 * _TRAINED / seconds),
                f"{accuracy[1]} %",
                f"{first[1]} s",
                f"{first[2]} s",
            )
        )
    header = ("kernels", "training", "images/s", "test accuracy", "first step after", "in all")
    return _table(header, rows, "lrrrrr")


def _seconds(text: str) -> float:
    """Of all epochs of MNIST that `convloom train` told of."""
    scales = {"": 1.0, "k": 1e3, "M": 1e6}
    return sum(_TRAINED / (float(n) * scales[scale]) for n, scale in _EPOCH.findall(text))


def kernels() -> str:
    """Every kernel file: what it adds to the rung below, and what limits it."""
    parts = []
    for folder in sorted(path for path in SOURCES.iterdir() if any(path.glob("*.cu"))):
        files = {path.stem: path for path in folder.glob("*.cu")}
        rungs = [rung for rung in RUNGS if rung in files]
        rungs += sorted(files.keys() - set(rungs))
        rows = [_kernel(files[rung]) for rung in rungs]
        parts.append(f"**{folder.name}**\n\n" + _table(("rung", "idea", "limit"), rows, "lll"))
    return "\n".join(parts)


def readme() -> str:
    """What the front page says of the GPU."""
    large = (RESULTS / "ladder-lenet-4096.json").exists()
    peers = _result("pytorch-lenet-64.json")["rows"]
    best = max(row["images_per_second"] for row in _ways("ladder-lenet-64.json"))
    at_4096 = ""
    if large:
        speeds = (row["images_per_second"] for row in _ways("ladder-lenet-4096.json"))
        at_4096 = f" and at {_number(max(speeds))} at batch 4096"
    graph = next(row["images_per_second"] for row in peers if row["name"] == "graph")
    loading = max(
        row["images_per_second"] or 0
        for row in peers
        if row["engine"] == "pytorch" and row["what"] == "end to end"
    )
    fed = next(row["images_per_second"] for row in peers if row["name"] == "resident")
    found = _result("pytorch-lenet-64.json")["environment"]
    seconds = _seconds((RESULTS / "train-mnist.txt").read_text())
    return _wrapped(
        f"On one NVIDIA H200 in fp32 ({found['date'][:10]}, PyTorch {found['versions']['torch']}), "
        f"lenet trains at {_number(best)} images/s at batch 64{at_4096} "
        f"(`convloom bench ladder lenet`). End to end at batch 64 that is {_number(fed)}, "
        f"beside {_number(graph)} of PyTorch's CUDA graph with data already on the device and at "
        f"most {_number(loading)} through its DataLoader (`convloom bench pytorch lenet`). Five "
        f"epochs of MNIST (`convloom train lenet --data mnist --epochs 5`) take {seconds:.2f} s of "
        f"training. {_readme_ratios()} "
        "[docs/kernels.md](docs/kernels.md) has all figures, kernel by kernel."
    )


def _readme_ratios() -> str:
    """How steps of other networks stand to PyTorch's fastest."""

    def ratio(name: str) -> str:
        rows = _result(f"pytorch-{name}-128.json")["rows"]
        found = next(row["ratio"] for row in rows if row["name"] == "auto")
        return "(not measured)" if found is None else f"{found:.2f}"

    *most, last = (f"{network} {ratio(network)}" for network in LARGE)
    best = "PyTorch's best" + ("" if _has_formats() else " in NCHW")
    return (
        f"At batch 128 convloom takes steps of {', '.join(most)} and {last} times as fast as "
        "the faster of PyTorch eager and torch.compile, and those of "
        f"[examples/dropout_net.py](examples/dropout_net.py) in bf16 {ratio('dropout-net')} times "
        f"as fast as {best}."
    )


def readme_trained() -> str:
    """What the front page says of networks that were trained on the GPU."""
    fit, step = ((RESULTS / f"alexnet-{part}.txt").read_text() for part in ("fit", "step"))
    epochs, known, seconds = re.findall(r"^epoch (\d+): .* known (\d+)%, ([\d.]+) s$", fit, re.M)[
        -1
    ]
    learnt = "by heart" if known == "100" else f"to {known} %"
    memory = re.search(r"^memory ([\d.]+ [kMG]B)", step, re.M)
    time = re.search(r"^([\d.]+) ms a step of (\d+)", step, re.M)
    assert memory is not None
    assert time is not None
    trained = "; ".join(_recipe(network) for network in ("vgg-small", "resnet20"))
    return _wrapped(
        f"There the AlexNet of 2012 learns 100 photographs {learnt} in {epochs} epochs, "
        f"{float(seconds):.0f} seconds in all, and its training step of {time[2]} images takes "
        f"{memory[1]} and {float(time[1]):.0f} ms, copies from the host included "
        "(`benchmarks/alexnet.py`, [fit](benchmarks/results/h200/alexnet-fit.txt), "
        "[step](benchmarks/results/h200/alexnet-step.txt)). On CIFAR-10, by the recipes that "
        f"`convloom train NETWORK --data cifar10` takes, {trained} "
        "([other settings](benchmarks/results/cifar10_h200.txt))."
    )


def _recipe(network: str) -> str:
    """How a run of a network's recipe on CIFAR-10 ended."""
    text = (RESULTS / f"cifar10-{network}.txt").read_text()
    accuracy = re.search(r"^test accuracy ([\d.]+ %)", text, re.M)
    epochs = re.search(r"^ *(\d+)/\1 ", text, re.M)
    seed = re.search(r"seed (\d+)", text)
    time = re.search(r"^first step after .*, (\S+(?: s)?) in all$", text, re.M)
    assert accuracy is not None, network
    assert epochs is not None, network
    assert seed is not None, network
    took = "" if time is None else f", {time[1]} in all"
    link = f"[{network}](benchmarks/results/h200/cifar10-{network}.txt)"
    return f"{link} ends at {accuracy[1]} (seed {seed[1]}, {epochs[1]} epochs{took})"


def _ways(name: str) -> list[dict[str, Any]]:
    return [row for row in _result(name)["rows"] if row["kind"] == "way" and not row["failed"]]


TABLES: dict[str, Callable[[], str]] = {
    "ladder-64": lambda: ladder(64),
    "ladder-4096": lambda: ladder(4096),
    "switches-64": lambda: switches(64),
    "times-64": lambda: times(64),
    "times-4096": lambda: times(4096),
    "pytorch-64": lambda: pytorch("pytorch-lenet-64.json"),
    "pytorch-4096": lambda: pytorch("pytorch-lenet-4096.json"),
    "zoo": zoo,
    **{f"layers-{network}": partial(layers, network) for network in LARGE},
    "unseen": unseen,
    "onchip": onchip,
    "onchip-threads": partial(onchip, "onchip-threads.json"),
    "many": many,
    "usage": usage,
    "agreement": agreement,
    "sanitizer": sanitizer,
    "training": training,
    "kernels": kernels,
    "readme": readme,
    "readme-trained": readme_trained,
}


# What they are made of ----------------------------------------------------------------------------


def _kernel(path: Path) -> tuple[str, str, str]:
    """(rung with a link to its file, what it adds, limit), from the comment that opens a source."""
    comment = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("//"):
            break
        comment.append(line.removeprefix("//").strip())
    paragraphs = " ".join(line or "\n" for line in comment).split("\n")
    text = " ".join(paragraphs).strip()
    what, _, limit = text.partition("Limit:")
    if not limit:
        what, _, limit = text.partition("Limit: ")
    against = re.search(r"Against (?:the )?[\w ]+?: .*", what)
    idea = against[0] if against else " ".join(paragraphs[0].split())
    link = f"[{path.stem}](../{path.relative_to(ROOT)})"
    return link, _cell(idea), _cell(limit)


def _sound(found: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that work. A switch that runs a rung which the whole does not is no switch."""
    whole = [row for row in found["rows"] if row["kind"] == "way"][-1]
    return [
        row
        for row in found["rows"]
        if not row["failed"]
        and (row["kind"] != "switch" or row["rungs"].keys() <= whole["rungs"].keys())
    ]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("*", "\\*").replace("<", "&lt;")


@cache
def _result(name: str) -> Any:
    return json.loads((RESULTS / name).read_text())


def _origin(found: dict[str, Any]) -> str:
    where = found["environment"]
    command = _PLACES.sub("", where["command"])
    return f"`{command}`, {where['date'][:10]}."


def _number(value: float | None, digits: int = 0) -> str:
    """Three significant digits and a half are what such figures bear."""
    if value is None:
        return ""
    return f"{value:,.{digits}f}" if digits else f"{round(value, -len(str(int(value))) + 3):,.0f}"


def _table(header: Sequence[str], rows: Rows, sides: str) -> str:
    """Markdown; ``sides`` says l or r for each column."""
    rules = ["---" if side == "l" else "---:" for side in sides]
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, rules, *rows))


def _wrapped(text: str, width: int = 100) -> str:
    lines, line = [], ""
    for word in re.findall(r"[^\s`]*`[^`]*`\S*|\S+", text):  # code stays on one line
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = word
        else:
            line = f"{line} {word}".strip()
    return "\n".join([*lines, line]) + "\n"


# Keeping results ----------------------------------------------------------------------------------


def _take(folder: Path) -> None:
    for name in KEPT:
        source = folder / name
        if not source.exists():
            continue
        text = source.read_text(encoding="utf-8")
        if name.endswith(".json"):
            found = json.loads(text)
            if isinstance(found, dict):
                found["environment"]["command"] = _PLACES.sub("", found["environment"]["command"])
            text = json.dumps(found, indent=1, ensure_ascii=False) + "\n"
        text = text.partition("\nnext:\n")[0].rstrip() + "\n"  # what `train` says comes next
        (RESULTS / name).write_text(text, encoding="utf-8")
        print(f"kept {name}")
        if name.startswith("ladder"):
            _plot(found, RESULTS / name.replace(".json", ".png"))


def _plot(found: dict[str, Any], path: Path) -> None:
    """Bars and roofline, in few colours, so that the file is small."""
    from PIL import Image

    from convloom.inspection.ladder import Ladder, Row
    from convloom.inspection.peaks import Peaks
    from convloom.inspection.plots import plot_ladder

    rows = tuple(Row(**row) for row in _sound(found))
    fields = {name: found[name] for name in ("network", "device", "batch_size", "rounds")}
    study = Ladder(
        **fields, rows=rows, peaks=Peaks(**found["peaks"]), environment=found["environment"]
    )
    plot_ladder(study, path)
    with Image.open(path) as image:
        small = image.convert("RGB").quantize(32, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--take", type=Path, metavar="FOLDER", help="new results to keep")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
