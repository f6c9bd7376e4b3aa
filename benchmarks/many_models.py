"""How fast many networks train with the same launches, beside one network at a large batch.

    python benchmarks/many_models.py --members 1,32,256 --precision bf16

First steps alone, on data that lies on the device: one network at batch 4096, then so many members
at batch 64 each, in the same run; a figure is the median of five rounds, after one that is not
counted. Then whole trainings with ``train_many`` on a data set, order and rates of every epoch
included: images a second of the epochs behind the first (of all, where there is but one), and the
members' accuracies beside those of a few networks that were trained alone, with whether their
weights are the same bits. The last line is all of it as JSON; ``--out FILE`` keeps it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import convloom as cl
from convloom import nn
from convloom.backends.cuda.gpu import open_gpu
from convloom.backends.cuda.onchip.config import ALONE, using
from convloom.backends.feeding import Asked, Job, Samples
from convloom.data import ArrayDataset
from convloom.inspection.environment import environment
from convloom.nn import models
from convloom.normalise import coefficients
from convloom.training.engine import Engine

ROUNDS, LONGEST = 5, 64
SGD = cl.optim.SGD(lr=0.01, momentum=0.9)
#: Members' learning rates, in turns.
RATES = (0.005, 0.01, 0.02)


def main() -> None:
    given = arguments()
    train, test = cl.data.load(given.data)
    assert isinstance(train, ArrayDataset)
    build = builder(given.network, train)
    counts = [int(count) for count in given.members.split(",")]
    asked = {key: value for key, value in vars(given).items() if key != "out"}
    options = [f"--{key} {value}" for key, value in asked.items()]
    gpu = open_gpu().name if given.device == "cuda" else None
    document: dict[str, Any] = {"environment": environment(given.device, gpu)}
    document["environment"]["command"] = f"python benchmarks/many_models.py {' '.join(options)}"
    alone = steps(given, build, train, given.single, 0)
    document["one"] = alone
    document["steps"] = [
        with_share(steps(given, build, train, given.batch, count), alone) for count in counts
    ]
    document["training"] = []
    if given.epochs:
        singles = [single(given, build, train, test, number) for number in range(given.singles)]
        for count in counts:
            row = training(given, build, train, test, count, singles)
            document["training"].append(with_share(row, alone))
    text = json.dumps(document)
    if given.out:
        Path(given.out).write_text(text + "\n", encoding="utf-8")
    print(text)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--members", default="1,32,256", help="how many, a row each")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--network", default="lenet")
    parser.add_argument("--kernels", default="auto")
    parser.add_argument("--batch", type=int, default=64, help="of each member")
    parser.add_argument("--single", type=int, default=4096, help="batch of the one network")
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--epochs", type=int, default=3, help="of whole trainings; 0: none")
    parser.add_argument("--singles", type=int, default=4, help="networks that are trained alone")
    parser.add_argument("--images", type=int, default=2_000_000, help="of a round of steps")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", default="", help="a file for the JSON")
    return parser.parse_args()


def builder(name: str, train: ArrayDataset) -> Callable[[], nn.Module]:
    """What makes a network of the zoo for a data set's images."""
    channels, height, width = train.shape
    return lambda: models.build(
        name, num_classes=len(train.classes), in_channels=channels, image_size=(height, width)
    )


def steps(
    given: argparse.Namespace,
    build: Callable[[], nn.Module],
    train: ArrayDataset,
    batch: int,
    members: int,
) -> dict[str, Any]:
    """Training steps; of one network by itself if ``members`` is 0."""
    engine = Engine(
        build(),
        loss=nn.CrossEntropyLoss(),
        optimizer=SGD,
        input_shape=train.shape,
        device=given.device,
        kernels=given.kernels,
        precision=given.precision,
    )
    device = engine.device_input()
    assert device is not None, f"device {given.device} has no memory of its own"
    images = max(1, members) * batch
    count = max(1, given.images // images // LONGEST) * LONGEST
    draw = np.random.default_rng(0)
    orders = [draw.integers(0, len(train), (count, batch)) for _ in range(max(1, members))]
    rows = [engine.hyper_rows([{"lr": 1e-3}] * count) for _ in orders]
    data = device.upload(Samples(train.images, train.labels, *coefficients(train.mean, train.std)))
    if members:
        plan = engine.plan(batch)
        samples = Samples(train.images, train.labels, *coefficients(train.mean, train.std))
        if why := device.refusal(plan, samples, None):
            raise SystemExit(f"members cannot run together: {why}")
        memory = device.members([Job(plan, data, None, count)], members)
        for member in range(members):
            storage = memory.storage(member, plan)
            for name, value in engine.model.state_dict().items():
                storage.write(name, value)
            storage.write("loss.grad", np.ones((), np.float32))
        together = memory.runner(0)
        seconds, losses = rounds(lambda: together.begin(orders, rows), together)
    else:
        runner = device.resident(engine.executable("train", batch), data, None)
        seconds, losses = rounds(lambda: runner.begin(orders[0], rows[0]), runner)
    assert np.isfinite(losses).all()
    return shown(
        {
            "members": max(1, members),
            "batch": batch,
            "us a step": 1e6 * seconds / count,
            "images/s": images * count / seconds,
        }
    )


def rounds(begin: Callable[[], None], runner: Any) -> tuple[float, np.ndarray]:
    """Median seconds of all steps, and the last losses; tables are written before the clock runs.

    The device is idle then, because the results of the round before have been awaited.
    """
    seconds = []
    for _ in range(ROUNDS + 1):
        begin()
        waiting: list[Asked] = []
        began = time.perf_counter()
        while runner.left:
            waiting.append(runner.ask(LONGEST))
        results = [asked.results() for asked in waiting]
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds[1:]), results[-1].losses


def settings(given: argparse.Namespace) -> dict[str, Any]:
    return {
        **{"batch_size": given.batch, "device": given.device, "kernels": given.kernels},
        **{"precision": given.precision, "log_every": 0, "input": "resident"},
    }


def single(
    given: argparse.Namespace, build: Callable[[], nn.Module], train: Any, test: Any, number: int
) -> cl.Trainer:
    """Member ``number``, alone."""
    optimizer = cl.optim.SGD(lr=RATES[number % len(RATES)], momentum=0.9)
    trainer = cl.Trainer(build(), optimizer, nn.CrossEntropyLoss(), seed=number, **settings(given))
    with using(ALONE):  # a block an image, as for members
        history = trainer.fit(train, given.epochs, test)
    shown({"alone": number, "accuracy": history[-1].val_accuracy, "images/s": pace(history)})
    return trainer


def training(
    given: argparse.Namespace,
    build: Callable[[], nn.Module],
    train: Any,
    test: Any,
    count: int,
    singles: list[cl.Trainer],
) -> dict[str, Any]:
    """All of a training of so many members."""
    configs = [{"seed": i, "lr": RATES[i % len(RATES)]} for i in range(count)]
    began = time.perf_counter()
    ensemble = cl.train_many(
        configs,
        train,
        model=build,
        optimizer=SGD,
        loss=nn.CrossEntropyLoss(),
        epochs=given.epochs,
        validation=test,
        **settings(given),
    )
    seconds = time.perf_counter() - began
    sound = [member.last.val_accuracy for member in ensemble if member.error is None]
    both = list(zip(ensemble, singles, strict=False))
    same = [
        all(
            member.model.state_dict()[name].tobytes() == value.tobytes()
            for name, value in one.model.state_dict().items()
        )
        for member, one in both
    ]
    return shown(
        {
            "members": count,
            "seconds in all": seconds,
            "images/s": count * pace(ensemble.members[0].history),
            "accuracy": summary(sound),
            "diverged": count - len(sound),
            "accuracy of those trained alone": summary(
                [one.history[-1].val_accuracy for _, one in both]
            ),
            "bits as alone": f"{sum(same)} of {len(same)}",
        }
    )


def pace(history: Any) -> float:
    """Images a second of the epochs behind the first."""
    values = history.column("images_per_second")
    return float(statistics.median(values[1:] or values))


def summary(values: list[Any]) -> dict[str, float]:
    """Mean, standard deviation, least and greatest."""
    return {
        "mean": statistics.fmean(values),
        "spread": statistics.pstdev(values),
        "least": min(values),
        "greatest": max(values),
    }


def with_share(row: dict[str, Any], alone: dict[str, Any]) -> dict[str, Any]:
    """The row, with its images a second as a share of those of the one network."""
    share = row["images/s"] / alone["images/s"]
    print(f"  {100 * share:.1f} % of one at batch {alone['batch']}", flush=True)
    return {**row, "share of one": share}


def shown(row: dict[str, Any]) -> dict[str, Any]:
    print(row, flush=True)
    return row


if __name__ == "__main__":
    main()
