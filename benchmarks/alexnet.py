"""AlexNet (the paper's) from JPEG files to a network that knows them, and what its step takes.

    python benchmarks/alexnet.py fit DIR               # DIR/train/CLASS/*.JPEG; until all is known
    python benchmarks/alexnet.py step --batch-size 512  # memory of one step, and its time

``fit`` begins as the paper's network does and learns the middle 224×224 of 256×256 by AdamW in
batches of 25, with dropout; what it knows is counted without. ``step`` copies its batch from the
host each time, as ``cl.compile`` does.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import convloom as cl
from convloom import nn
from convloom.nn import models

SIDE = 224
AT_A_TIME = 10


def fit(folder: str, device: str, epochs: int) -> bool:
    """Whether every image was known in the end; prints how it came to that."""
    began = time.perf_counter()
    images, _ = cl.data.load(folder, resize=256)
    middle = images.centre_crop(SIDE)
    model = models.alexnet(num_classes=len(images.classes), image_size=SIDE)
    trainer = cl.Trainer(
        model,
        cl.optim.AdamW(lr=2e-4, weight_decay=0.0),
        nn.CrossEntropyLoss(),
        batch_size=25,
        device=device,
    )
    known = 0.0
    while known < 1.0 and trainer.epochs_done < epochs:
        row = trainer.fit(middle, AT_A_TIME)[-1]
        known = trainer.evaluate(middle)["accuracy"]
        print(
            f"epoch {trainer.epochs_done}: loss {row.loss:.3f}, right in training "
            f"{row.accuracy:.0%}, known {known:.0%}, {time.perf_counter() - began:.1f} s",
            flush=True,
        )
    parts = [model.predict(crop, device=device) for crop in cl.data.ten_crops(images.images, SIDE)]
    share = (np.mean(parts, axis=0).argmax(axis=1) == images.labels).mean()
    print(f"known in ten crops, of which eight are new: {share:.0%}")
    return known == 1.0


def step(batch_size: int, device: str, repetitions: int = 3) -> None:
    """Print what one training step with 1000 classes takes."""
    draw = np.random.default_rng(0)
    images = draw.standard_normal((batch_size, 3, SIDE, SIDE), np.float32)
    labels = draw.integers(0, 1000, batch_size)
    made = cl.compile(
        models.alexnet(),
        nn.CrossEntropyLoss(),
        cl.optim.SGD(lr=0.01, momentum=0.9),
        batch_size=batch_size,
        input_shape=(3, SIDE, SIDE),
        device=device,
    )
    made(images, labels)
    began = time.perf_counter()
    for _ in range(repetitions):
        made(images, labels)
    seconds = (time.perf_counter() - began) / repetitions
    (memory,) = (line for line in str(made.plan).splitlines() if line.startswith("memory "))
    print(memory)
    print(f"{1e3 * seconds:.1f} ms a step of {batch_size}, copies from the host included")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("fit", "step"))
    parser.add_argument("folder", nargs="?", help="of images, for fit")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--epochs", type=int, default=150, help="at most, for fit")
    parser.add_argument("--batch-size", type=int, default=512, help="for step")
    arguments = parser.parse_args()
    if arguments.what == "step":
        step(arguments.batch_size, arguments.device)
        return 0
    if arguments.folder is None:
        parser.error("fit needs the folder of images")
    return 0 if fit(arguments.folder, arguments.device, arguments.epochs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
