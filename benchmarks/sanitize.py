"""NVIDIA's compute-sanitizer over training steps of every rung: stray accesses, and races.

    python benchmarks/sanitize.py --out benchmarks/results/h200/sanitizer.txt
    python benchmarks/sanitize.py --tools memcheck --kernels naive,auto

For each rung, two full steps and a short last batch of LeNet (batches of 33), with resident and
with streamed input, each first kernel by kernel and then as a graph; then one epoch of a network of
all that LeNet has not: average pools, sums, concatenations, dropout, AdamW, clipping, crops. Exit
code 1 if a tool finds an error. Kernels should be in the cache already (--warm fills it), or the
compiler runs under the tool as well. Calls that fail are left out of the reports: cuda-core asks
the driver for what older ones do not have, and for parameters until there are no more.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import convloom as cl
from convloom import nn
from convloom.backends.cuda.selectors import RUNGS
from convloom.data import Augmentation, from_arrays
from convloom.nn.models import lenet

BATCH, SAMPLES, CLASSES = 33, 71, 10
TOOLS = ("memcheck", "racecheck")
_SUMMARY = re.compile(r"(ERROR|RACECHECK) SUMMARY: (\d+)")


class Rest(nn.Module):
    """One of every kind of layer that LeNet has not."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 8, 3, padding=1, stride=2)
        self.second = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.pool = nn.AvgPool2d(3, 2, padding=1)
        self.dropout = nn.Dropout(0.3)
        self.last = nn.Linear(16 * 7 * 7, CLASSES)

    def forward(self, x: nn.SymbolicTensor) -> nn.SymbolicTensor:
        x = nn.relu(self.first(x))
        x = nn.concat([x, nn.relu(x + self.second(x))])
        return self.last(nn.flatten(self.dropout(self.pool(x))))


def main() -> int:
    options = _options()
    if options.here:
        for rung in options.kernels:
            _train(rung)
        return 0
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on the path; it comes with the CUDA toolkit")
        return 2
    if options.warm:
        subprocess.run(_command(options.kernels), check=True, stdout=subprocess.DEVNULL)
    with ThreadPoolExecutor(len(options.tools)) as threads:
        found = list(threads.map(lambda tool: _checked(tool, options.kernels), options.tools))
    lines = [line for told, _ in found for line in told]
    sound = all(errors == 0 for _, errors in found)
    print("\n".join(lines))
    if options.out is not None:
        options.out.write_text("\n".join(lines) + "\n")
    return 0 if sound else 1


def _command(kernels: list[str]) -> list[str]:
    return [sys.executable, __file__, "--here", "--kernels", ",".join(kernels)]


def _checked(tool: str, kernels: list[str]) -> tuple[list[str], int]:
    """Run everything under a tool: what it said, and the number of errors."""
    run = ["compute-sanitizer", "--tool", tool, "--report-api-errors", "no"]
    done = subprocess.run(
        [*run, *_command(kernels)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines = [
        f"$ {' '.join(run)} python benchmarks/sanitize.py --here",
        *(line.rstrip() for line in done.stdout.splitlines()),
        f"exit code {done.returncode}",
    ]
    errors = [int(summary[2]) for summary in _SUMMARY.finditer(done.stdout)]
    return lines, sum(errors) if errors and done.returncode == 0 else 1


def _train(rung: str) -> None:
    """What the tools watch."""
    draw = np.random.default_rng(0)
    images = draw.integers(0, 256, (SAMPLES, 1, 28, 28), np.uint8)
    data = from_arrays(images, draw.integers(0, CLASSES, SAMPLES))
    for way in ("resident", "stream"):
        trainer = cl.Trainer(
            lenet(CLASSES, 1, 28),
            optimizer=cl.optim.SGD(lr=0.01, momentum=0.9),
            loss=nn.CrossEntropyLoss(),
            batch_size=BATCH,
            device="cuda",
            kernels=rung,
            input=way,
        )
        loss = trainer.fit(data, epochs=1, validation=data).column("loss")[-1]
        print(f"{rung}, {way}: lenet, {SAMPLES} images in batches of {BATCH}, loss {loss:.6f}")
    rest = cl.Trainer(
        Rest(),
        optimizer=cl.optim.AdamW(lr=0.001),
        loss=nn.CrossEntropyLoss(label_smoothing=0.1),
        batch_size=BATCH,
        device="cuda",
        kernels=rung,
        augment=Augmentation(padding=2, flip=True),
        clip_norm=1.0,
    )
    print(f"{rung}: the other layers, loss {rest.fit(data, epochs=1).column('loss')[-1]:.6f}")
    sys.stdout.flush()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    names = {"type": lambda text: text.split(",")}
    parser.add_argument("--tools", default=list(TOOLS), **names)
    parser.add_argument("--kernels", default=list(RUNGS), **names)
    parser.add_argument("--warm", action="store_true", help="fill the cache of kernels first")
    parser.add_argument("--out", type=Path, help="file for what the tools say")
    parser.add_argument("--here", action="store_true", help="train in this process, no tool")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
