"""Resident and streamed input: the same bits, reports and stops as when the host feeds each step.

On the simulator everywhere; ``-m gpu`` runs the same on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom import nn
from convloom.backends.feeding import Asked, Results
from convloom.data import ArrayDataset, Augmentation, from_arrays
from convloom.training import Callback, Moment, NonFiniteError, TrainingInterrupted, checkpoint
from convloom.training import feeding as feeds
from convloom.training.engine import Engine
from convloom.training.feeding import Course, InputError
from convloom.training.pace import Pace, Part
from convloom.training.protocols import StepResult
from convloom.training.trainer import TrainerError
from tests.training.helpers import images_and_labels, make_trainer, small_network

WAYS = ["resident", "stream"]
LAST = checkpoint.LAST


class HostFed(Engine):
    """The engine without its ways into the device's memory."""

    def device_input(self) -> None:
        return None


class Watcher(Callback):
    """Notes every step, and stops at one; ``lag`` lets later steps begin before."""

    def __init__(self, lag: bool = True, stop_at: int = 0) -> None:
        self.may_lag = lag  # type: ignore[misc]
        self.stop_at = stop_at
        self.steps: list[int] = []
        self.results: list[StepResult] = []
        self.checkpoints: list[tuple[int, dict[str, np.ndarray]]] = []

    def on_step(self, moment: Moment) -> None:
        assert moment.result is not None
        self.steps.append(moment.progress.step)
        self.results.append(moment.result)
        if moment.progress.step == self.stop_at:
            moment.trainer.stop()

    def on_checkpoint(self, moment: Moment, path: str) -> None:
        if Path(path).name == LAST:
            self.checkpoints.append((moment.progress.step, dict(checkpoint.load(path).state)))


@pytest.fixture(params=["cuda-sim", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def data(count: int = 44, seed: int = 0) -> ArrayDataset:
    return images_and_labels(count, channels=2, seed=seed)


def trainer(device: str, way: str, **changes: Any) -> cl.Trainer:
    """Batches of 8 with crops, flips, dropout, clipping and a one-cycle schedule."""
    settings: dict[str, Any] = {
        "schedule": "one-cycle:max=0.1",
        "augment": Augmentation(padding=1),
        "clip_norm": 1.0,
        "engine": HostFed if way == "plain" else Engine,
        "device": device,
        "input": "auto" if way == "plain" else way,
        **changes,
    }
    return make_trainer(small_network(channels=2), **settings)


def assert_same_state(one: cl.Trainer, other: cl.Trainer) -> None:
    assert_same(one.engine.state(), other.engine.state())


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        np.testing.assert_array_equal(ours[name], value, err_msg=name)


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_every_way_gives_the_same_bits(device: str, way: str, lag: bool) -> None:
    """44 images in batches of 8: the last one is short. 20 to validate: the last one too."""
    ours, theirs = Watcher(lag), Watcher()
    fed, plain = (
        trainer(device, way, callbacks=[ours]),
        trainer(device, "plain", callbacks=[theirs]),
    )
    held_out = data(20, seed=1)
    got, wanted = fed.fit(data(), 3, held_out), plain.fit(data(), 3, held_out)
    assert_same_state(fed, plain)
    assert ours.results == theirs.results
    assert ours.steps == theirs.steps == list(range(1, 19))
    assert got.steps == wanted.steps
    for column in ("loss", "accuracy", "val_loss", "val_accuracy", "lr"):
        assert got.column(column) == wanted.column(column)
    assert fed.evaluate(data(), batch_size=7) == plain.evaluate(data(), batch_size=7)


@pytest.mark.parametrize("way", WAYS)
def test_adamw_and_mirrored_borders(device: str, way: str) -> None:
    """Its corrections change with each step, and come with the step's other values."""
    ends = []
    for one in (way, "plain"):
        made = trainer(
            device,
            one,
            optimizer=cl.optim.AdamW(lr=0.01),
            schedule="cosine",
            augment=Augmentation(padding=2, fill="reflect", flip=False),
        )
        made.fit(data(21), epochs=2)
        ends.append(made)
    assert_same_state(*ends)


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_crops_of_another_size_and_noise(device: str, noise: float) -> None:
    """Crops to another size and colour noise, of images that one device holds as they are."""
    size, draw = 4, np.random.default_rng(0)
    pixels = draw.integers(0, 256, (21, 3, 7, 300)).astype(np.uint8)
    train = from_arrays(pixels, np.arange(21) % 3, name="wide")  # crops begin beyond column 255
    held_out = train.take(9)
    ends = []
    for way in ("stream", "resident", "plain"):
        fill = "reflect" if noise else "zero"
        augment = Augmentation(padding=1, fill=fill, size=size, noise=noise)
        made = make_trainer(
            small_network(channels=3, size=size),
            augment=augment,
            device=device,
            input="auto" if way == "plain" else way,
            engine=HostFed if way == "plain" else Engine,
        )
        made.fit(train, epochs=2, validation=held_out.centre_crop(size))
        assert made.model.input_shape == (3, size, size)
        ends.append(made)
    for end in ends[:2]:
        assert_same_state(end, ends[2])
        assert end.history.column("val_loss") == ends[2].history.column("val_loss")


@pytest.mark.parametrize(
    "augment",
    [
        None,
        Augmentation(padding=1, shared=3),
        Augmentation(padding=0, size=4, shared=3),
        Augmentation(padding=0, size=4, noise=0.2, damped=True),
    ],
)
def test_mean_image_and_batch_files(device: str, augment: Augmentation | None) -> None:
    """29 images in files of 13, 9 and 7, batches of 4: sizes 4, 1 and 3 in turn, with dropout."""
    draw = np.random.default_rng(0)
    train = from_arrays(draw.integers(0, 256, (29, 3, 6, 6)).astype(np.uint8), np.arange(29) % 3)
    train = train.centred()
    size = augment.size if augment and augment.size else 6
    held_out = train.take(9).centre_crop(size)
    ends = []
    for way in ("stream", "resident", "plain"):
        made = make_trainer(
            small_network(channels=3, size=size),
            optimizer=cl.optim.SGD(lr=1e-5, momentum=0.9),  # of pixels as they are
            batch_size=4,
            augment=augment,
            shuffle=False,
            batch_files=(13, 9, 7),
            device=device,
            input="auto" if way == "plain" else way,
            engine=HostFed if way == "plain" else Engine,
        )
        made.fit(train, epochs=2, validation=held_out)
        ends.append(made)
    assert ends[0].steps_done == 2 * (4 + 3 + 2)
    for end in ends[:2]:
        assert_same_state(end, ends[2])
        assert end.history.column("val_loss") == ends[2].history.column("val_loss")
    assert ends[0].model.mean_image is not None
    assert ends[0].model.mean_image.shape == (3, size, size)


@pytest.mark.parametrize("way", WAYS)
def test_a_run_with_batch_files_resumes_in_mid_file(tmp_path: Path, device: str, way: str) -> None:
    settings: dict[str, Any] = {"shuffle": "once", "batch_files": (21, 15, 8)}
    train = data().centred()
    straight = trainer(device, "plain", **settings)
    straight.fit(train, 2)
    stopped = trainer(device, way, callbacks=[Watcher(False, 10)], out=tmp_path, **settings)
    with pytest.raises(TrainingInterrupted):
        stopped.fit(train, 2)
    with pytest.raises(checkpoint.ResumeError, match="batch files"):
        trainer(device, way, out=tmp_path, shuffle="once").fit(train, 2, resume=True)
    with pytest.raises(checkpoint.ResumeError, match="the training set"):
        trainer(device, way, out=tmp_path, **settings).fit(data(), 2, resume=True)
    resumed = trainer(device, way, out=tmp_path, **settings)
    resumed.model = cl.load(tmp_path / LAST)
    resumed.fit(train, 2, resume=True)
    assert_same_state(resumed, straight)


@pytest.mark.parametrize("count", [3, 8, 16])
@pytest.mark.parametrize("way", WAYS)
def test_one_short_batch_or_none(device: str, way: str, count: int) -> None:
    fed, plain = trainer(device, way), trainer(device, "plain")
    fed.fit(data(count), epochs=2, validation=data(5, seed=1))
    plain.fit(data(count), epochs=2, validation=data(5, seed=1))
    assert_same_state(fed, plain)


@pytest.mark.parametrize("way", WAYS)
def test_floats_are_not_normalised(device: str, way: str) -> None:
    pixels = data(20)
    floats = from_arrays(pixels.images.astype(np.float32) / 99, pixels.labels, classes=["a", *"bc"])
    fed, plain = trainer(device, way), trainer(device, "plain")
    fed.fit(floats, epochs=1, validation=floats)
    plain.fit(floats, epochs=1, validation=floats)
    assert_same_state(fed, plain)
    assert fed.history.column("val_loss") == plain.history.column("val_loss")


@pytest.mark.parametrize("lag", [True, False])
@pytest.mark.parametrize("way", WAYS)
def test_a_stop_leaves_the_weights_of_the_last_reported_step(
    tmp_path: Path, device: str, way: str, lag: bool
) -> None:
    """A watcher that may lag is told of some more steps, one that may not of none."""
    watcher = Watcher(lag, stop_at=4)
    stopped = trainer(device, way, callbacks=[watcher], out=tmp_path)
    with pytest.raises(TrainingInterrupted, match=r"resume with .*resume=True"):
        stopped.fit(data(), 3)
    done = watcher.steps[-1]
    assert watcher.steps == list(range(1, done + 1))
    assert done == 4 or lag
    assert int(stopped.engine.state()["counter"][1]) == stopped.steps_done == done
    plain = trainer(device, "plain", callbacks=[Watcher(stop_at=done)])
    with pytest.raises(TrainingInterrupted):
        plain.fit(data(), 3)
    assert_same_state(stopped, plain)


@pytest.mark.parametrize("way", WAYS)
def test_a_resumed_run_is_the_same_bits(tmp_path: Path, device: str, way: str) -> None:
    """Stopped in mid-epoch; the ways may even change in between."""
    held_out = data(20, seed=1)
    straight = trainer(device, "plain")
    straight.fit(data(), 2, held_out)
    with pytest.raises(TrainingInterrupted):
        trainer(device, way, callbacks=[Watcher(stop_at=3)], out=tmp_path).fit(data(), 2, held_out)
    resumed = trainer(device, "resident" if way == "stream" else "stream", out=tmp_path)
    resumed.model = cl.load(tmp_path / LAST)
    resumed.fit(data(), 2, held_out, resume=True)
    assert_same_state(resumed, straight)
    for column in ("loss", "val_loss"):
        assert resumed.history.column(column) == straight.history.column(column)


@pytest.mark.parametrize("way", WAYS)
def test_checkpoints_hold_exactly_their_step(
    tmp_path: Path, device: str, way: str, no_time: None
) -> None:
    ours, theirs = Watcher(), Watcher()
    trainer(device, way, callbacks=[ours], out=tmp_path / "a", checkpoint_every=4).fit(data(), 2)
    plain = trainer(device, "plain", callbacks=[theirs], out=tmp_path / "b", checkpoint_every=4)
    plain.fit(data(), 2)
    assert [step for step, _ in ours.checkpoints] == [4, 6, 8, 12, 12]
    for (step, got), (same, wanted) in zip(ours.checkpoints, theirs.checkpoints, strict=True):
        assert step == same == int(got["counter"][1])
        assert_same(got, wanted)


@pytest.mark.parametrize("way", WAYS)
def test_a_watcher_that_may_not_lag_sees_the_step_it_is_told_of(device: str, way: str) -> None:
    class Reads(Callback):
        def __init__(self) -> None:
            self.seen: list[dict[str, np.ndarray]] = []

        def on_step(self, moment: Moment) -> None:
            self.seen.append(moment.trainer.engine.state())

    ours, theirs = Reads(), Reads()
    trainer(device, way, callbacks=[ours]).fit(data(20), 1)
    trainer(device, "plain", callbacks=[theirs]).fit(data(20), 1)
    for got, wanted in zip(ours.seen, theirs.seen, strict=True):
        assert_same(got, wanted)


@pytest.mark.parametrize("way", WAYS)
def test_a_loss_that_is_not_finite_names_its_step(tmp_path: Path, device: str, way: str) -> None:
    pixels = data(24)
    images = pixels.images.astype(np.float32)
    order = pixels.batches(8, seed=3, shuffle=True).order(0)
    images[order[9]] = np.inf  # in the second batch
    broken = from_arrays(images, pixels.labels, classes=["a", "b", "c"])
    watcher = Watcher()
    made = trainer(device, way, augment=None, out=tmp_path, callbacks=[watcher])
    with pytest.raises(NonFiniteError, match="step 2 ") as caught:
        made.fit(broken, 1)
    assert caught.value.step == 2
    assert watcher.steps == [1]
    assert not (tmp_path / LAST).exists()


@pytest.mark.parametrize("way", WAYS)
def test_a_watcher_that_fails_leaves_nothing_on_its_way(device: str, way: str) -> None:
    class Fails(Watcher):
        def on_step(self, moment: Moment) -> None:
            super().on_step(moment)
            if moment.progress.step == 3:
                raise RuntimeError("enough")

    made = trainer(device, way, callbacks=[Fails()])
    with pytest.raises(RuntimeError, match="enough"):
        made.fit(data(), 1)
    made.callbacks.clear()
    made.fit(data(), 1)
    assert all(np.isfinite(value).all() for value in made.engine.state().values())


@pytest.mark.parametrize("way", WAYS)
def test_a_label_that_the_network_does_not_have(device: str, way: str) -> None:
    wrong = from_arrays(data(16).images, np.arange(16) % 5)
    with pytest.raises(cl.ConvloomError, match="3"):
        trainer(device, way, augment=None).fit(wrong, 1)


class Foreign:
    """A data set of a person's own, which gives batches and nothing else."""

    def __init__(self, inner: ArrayDataset, soft: bool = False) -> None:
        self.inner, self.soft = inner, soft
        self.name, self.digest, self.shape = "mine", inner.digest, inner.shape
        self.classes, self.mean, self.std = inner.classes, inner.mean, inner.std

    def __len__(self) -> int:
        return len(self.inner)

    def batches(self, batch_size: int, **options: Any) -> Any:
        return ForeignBatches(self.inner.batches(batch_size, **options), self.soft)


class ForeignBatches:
    def __init__(self, inner: Any, soft: bool) -> None:
        self.inner, self.soft = inner, soft

    def __len__(self) -> int:
        return len(self.inner)

    def epoch(self, epoch: int, start_batch: int = 0) -> Iterator[Any]:
        for batch in self.inner.epoch(epoch, start_batch):
            labels = np.eye(3, dtype=np.float32)[batch.labels] if self.soft else batch.labels
            yield type(batch)(batch.images, labels, batch.indices)


@pytest.mark.parametrize("soft", [False, True])
def test_a_data_set_that_only_gives_batches_is_streamed(device: str, soft: bool) -> None:
    mine = Foreign(data(20), soft)
    fed, plain = trainer(device, "auto"), trainer(device, "plain")
    fed.fit(mine, 2, mine)
    plain.fit(mine, 2, mine)
    assert_same_state(fed, plain)
    assert fed.history.column("val_loss") == plain.history.column("val_loss")
    with pytest.raises(InputError, match="mine gives its batches one by one"):
        trainer(device, "resident").fit(mine, 1)


def kind_of_feed(made: cl.Trainer, dataset: ArrayDataset) -> str:
    made.fit(dataset, 1)
    batches = dataset.batches(8)
    return feeds.make_feed(made.engine, batches, made.input, kind="train", data="rows").kind


def test_auto_keeps_what_fits_and_streams_the_rest(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from convloom.backends.cuda.input import CudaInput

    monkeypatch.setattr(CudaInput, "free_bytes", lambda self: 1 << 30)
    caplog.set_level("INFO", "convloom")
    # The command, tested in the same process, turns this off.
    monkeypatch.setattr(logging.getLogger("convloom"), "propagate", True)
    assert kind_of_feed(trainer("cuda-sim", "auto"), data(16)) == "resident"
    assert "streamed" not in caplog.text
    monkeypatch.setattr(CudaInput, "free_bytes", lambda self: 2000)
    assert kind_of_feed(trainer("cuda-sim", "auto"), data(16)) == "stream"
    assert "rows is streamed: with it, " in caplog.text
    assert kind_of_feed(trainer("cuda-sim", "resident"), data(16)) == "resident"


def test_other_devices_have_auto_only() -> None:
    assert kind_of_feed(trainer("reference", "auto"), data(8)) == "plain"
    for device in ("cpu", "reference"):
        for way in WAYS:
            made = trainer(device, way)
            with pytest.raises(InputError, match=f"'{way}' is for GPUs.*device {device} runs"):
                made.fit(data(8), 1)
            with pytest.raises(InputError, match="is for GPUs"):
                made.evaluate(data(8))
    with pytest.raises(TrainerError, match="'auto' or 'resident' or 'stream': 'pinned'"):
        trainer("cpu", "pinned")


def test_a_data_set_larger_than_the_memory_names_the_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from convloom.backends.base import DeviceError
    from convloom.backends.cuda.input import CudaInput

    def full(self: CudaInput, samples: Any) -> Any:
        raise DeviceError("only 5 bytes are free")

    monkeypatch.setattr(CudaInput, "upload", full)
    with pytest.raises(InputError, match=r"rows cannot be kept .*5 bytes are free.*'stream'"):
        trainer("cuda-sim", "resident").fit(data(8), 1)


# What needs no device.


def test_steps_until_something_must_be_settled() -> None:
    course = Course([{}] * 9, settled=lambda step: step % 4 == 3)
    assert course.until_settled(0, 9) == 4
    assert course.until_settled(2, 9) == 2
    assert course.until_settled(3, 9) == 1
    assert course.until_settled(0, 3) == 3
    assert course.until_settled(0, 0) == 1
    assert Course([{}]).until_settled(0, 64) == 1


class Script:
    """Parts of some steps each, and what was asked for and reported, in order."""

    def __init__(self, sizes: list[int], settled: tuple[int, ...] = ()) -> None:
        self.sizes, self.settled = sizes, settled
        self.log: list[str] = []
        self.closed = False

    def parts(self) -> Iterator[Part]:
        try:
            for number, size in enumerate(self.sizes):
                self.log.append(f"ask {number}")
                yield Part(Asked(size, self.results(number, size)), 8, number in self.settled)
        finally:
            self.closed = True

    def results(self, number: int, size: int) -> Any:
        def take() -> Results:
            self.log.append(f"take {number}")
            losses, none = np.full(size, number, np.float32), np.empty((size, 0), np.float32)
            return Results(losses, np.zeros((size, 2), np.int32), none)

        return take


def test_parts_are_asked_for_ahead_and_reported_in_order() -> None:
    pace, script = Pace(), Script([1, 2, 3, 1, 1, 1])
    pace._room = 1000
    reported = pace.reported(script.parts(), 3)  # type: ignore[arg-type]
    losses = [loss for results in reported for loss in results.losses]
    assert losses == [0, 1, 1, 2, 2, 2, 3, 4, 5]
    assert script.log[:5] == ["ask 0", "ask 1", "ask 2", "take 0", "ask 3"]
    assert script.closed


def test_nothing_follows_a_settled_part_before_its_report() -> None:
    script = Script([1, 1, 1, 1], settled=(1,))
    pace = Pace()
    pace._room = 1000
    list(pace.reported(script.parts(), 9))  # type: ignore[arg-type]
    assert script.log.index("take 1") < script.log.index("ask 2")
    assert script.log.index("ask 3") < script.log.index("take 2")


def test_whoever_leaves_early_waits_for_what_is_on_its_way() -> None:
    pace, script = Pace(), Script([1] * 9)
    pace._room = 1000
    results = pace.reported(script.parts(), 4)  # type: ignore[arg-type]
    next(results)
    results.close()  # type: ignore[attr-defined]
    asked = [line for line in script.log if line.startswith("ask")]
    assert [line for line in script.log if line.startswith("take")] == [
        line.replace("ask", "take") for line in asked
    ]
    assert script.closed


def test_slow_steps_go_one_by_one_and_fast_ones_together() -> None:
    pace = Pace()
    assert pace.most == 1
    pace._learn(20e-6)
    assert pace.most == 64
    pace._learn(0.5)
    assert pace.most == 1
    pace._learn(0.0)
    assert pace.most == 64


def test_raw_batches_become_the_normalised_ones() -> None:
    dataset = data(20)
    batches = dataset.batches(8, seed=3, shuffle=True, augment=Augmentation(padding=2), prefetch=1)
    order, draws = batches.order(1), batches.draws(1)
    assert draws is not None
    assert (draws.shape, draws.dtype, int(draws.max())) == ((20, 3), np.uint8, 4)
    assert batches.crops == (2, False, None, False)
    assert batches.shifts(1) is None
    for number, (raw, made) in enumerate(zip(batches.raw(1), batches.epoch(1), strict=True)):
        assert raw.images.dtype == np.uint8
        np.testing.assert_array_equal(
            cl.data.normalise(raw.images, dataset.mean, dataset.std), made.images
        )
        np.testing.assert_array_equal(raw.indices, order[8 * number :][:8])
        np.testing.assert_array_equal(raw.labels, made.labels)
    assert dataset.batches(8).draws(0) is None
    assert dataset.batches(8).crops is None


def test_the_network_is_one_with_everything() -> None:
    """What these tests train has dropout, whose masks depend on the step's number."""
    assert any(isinstance(layer, nn.Dropout) for layer in small_network().modules())
