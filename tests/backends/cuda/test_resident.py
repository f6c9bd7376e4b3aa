"""Steps over a resident data set give the bits of steps fed by the host."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from convloom import normalise
from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.graph import REPETITIONS
from convloom.backends.cuda.resident import Crops, ResidentData, ResidentSteps
from convloom.data import Augmentation
from convloom.ir import ConvloomError, ShapeError
from convloom.ops.control import hyper_vector
from tests.backends.cuda.hostgpu import HostGpu
from tests.backends.cuda.networks import (
    SHAPE,
    assert_same_bits,
    bound,
    evaluate_plan,
    parameters,
    pixels,
    train_plan,
    write_batch,
)

MEAN, STD = (0.31, 0.52), (0.27, 0.19)
N = 5


def data_on(gpu: HostGpu, samples: int = 40) -> ResidentData:
    one = pixels(samples)
    return ResidentData(gpu, one.images, one.labels, *normalise.coefficients(MEAN, STD))


def tables(steps: int, samples: int = 40, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """An order and rates that differ from step to step."""
    draw = np.random.default_rng(3)
    order = draw.integers(0, samples, (steps, n))
    rates = [hyper_vector({"lr": 0.1 / (1 + step), "momentum": 0.9}) for step in range(steps)]
    return order, np.array(rates)


def by_hand(
    executable: CudaExecutable, order: np.ndarray, rates: np.ndarray, first_step: int = 0
) -> Iterator[tuple[float, list[int]]]:
    """The same steps, each batch normalised and written by the host."""
    one = pixels()
    for step, (samples, row) in enumerate(zip(order, rates, strict=True)):
        images = normalise.normalise(one.images[samples], MEAN, STD)
        write_batch(executable, images, one.labels[samples])
        executable.write("hyper", row)
        executable.write("counter", np.array([7, first_step + step], np.uint64))
        executable.run()
        yield float(executable.read("loss")), executable.read("correct").tolist()


def trainer(backend: CudaBackend, n: int = N) -> CudaExecutable:
    made = bound(backend, train_plan(backend, n))
    assert isinstance(made, CudaExecutable)
    return made


@pytest.mark.parametrize("steps", (1, 2, 21))
def test_same_bits_as_the_host_path(backend: CudaBackend, gpu: HostGpu, steps: int) -> None:
    resident, fed = trainer(backend), trainer(backend)
    order, rates = tables(steps)
    results = ResidentSteps(resident, data_on(gpu)).train(order, rates, first_step=4)
    wanted = list(by_hand(fed, order, rates, first_step=4))
    assert results.losses.dtype == np.float32
    assert results.losses.tolist() == [loss for loss, _ in wanted]
    assert results.corrects.tolist() == [correct for _, correct in wanted]
    assert_same_bits(parameters(resident), parameters(fed))
    assert resident.storage.read("counter").tolist() == [7, 4 + steps - 1]
    np.testing.assert_array_equal(resident.storage.read("hyper"), rates[-1])


def test_epochs_and_short_batches_share_the_data(backend: CudaBackend, gpu: HostGpu) -> None:
    data = data_on(gpu)
    full, fed = trainer(backend), trainer(backend)
    rest = backend.executable(train_plan(backend, 3), full.storage)
    fed_rest = backend.executable(train_plan(backend, 3), fed.storage)
    steps, last = ResidentSteps(full, data), ResidentSteps(rest, data)
    done = 0
    for epoch in range(3):
        order, rates = tables(4 + 6 * epoch)  # tables grow
        short, short_rates = tables(1, n=3)
        steps.train(order, rates, first_step=done)
        list(by_hand(fed, order, rates, first_step=done))
        done += len(order)
        last.train(short, short_rates, first_step=done)
        list(by_hand(fed_rest, short, short_rates, first_step=done))
        done += 1
    assert_same_bits(parameters(full), parameters(fed))


def test_evaluation_updates_nothing(backend: CudaBackend, gpu: HostGpu) -> None:
    training = trainer(backend)
    plan = evaluate_plan(backend, N)
    evaluation = backend.executable(plan, training.storage)
    before = parameters(training)
    order, _ = tables(3)
    results = ResidentSteps(evaluation, data_on(gpu)).train(order, None)
    one = pixels()
    for loss, samples in zip(results.losses, order, strict=True):
        images = normalise.normalise(one.images[samples], MEAN, STD)
        write_batch(evaluation, images, one.labels[samples])
        evaluation.run()
        assert loss == evaluation.read("loss")
    assert_same_bits(parameters(training), before)


@pytest.mark.parametrize("padding", (0, 3))
@pytest.mark.parametrize("fill", ("zero", "reflect"))
@pytest.mark.parametrize("flip", (False, True))
def test_crops_are_those_of_the_host(
    backend: CudaBackend, gpu: HostGpu, padding: int, fill: str, flip: bool
) -> None:
    one, augmentation = pixels(), Augmentation(padding, fill, flip)
    drawn = augmentation.draw(11, 2, len(one.labels))
    draws = np.stack([drawn.row, drawn.column, drawn.flip.astype(np.uint8)], axis=1)
    executable, fed = trainer(backend), trainer(backend)
    steps = ResidentSteps(executable, data_on(gpu), Crops(padding, fill == "reflect"))
    order, rates = tables(8)
    for samples, row in zip(order, rates, strict=True):
        before = parameters(executable)
        (loss,) = steps.train(samples[None], row[None], draws=draws).losses
        for name, value in before.items():
            fed.storage.write(name, value)
        cropped = augmentation.apply(one.images[samples], drawn, samples)
        write_batch(fed, normalise.normalise(cropped, MEAN, STD), one.labels[samples])
        fed.write("hyper", row)
        fed.run()
        assert loss == fed.read("loss")
        assert_same_bits(parameters(executable), parameters(fed))


def test_one_graph_holds_many_steps(backend: CudaBackend, gpu: HostGpu) -> None:
    steps = ResidentSteps(trainer(backend), data_on(gpu))
    order, rates = tables(2 * REPETITIONS + 1)
    steps.train(order, rates)
    launches, replays = len(gpu.launched), gpu.replayed
    assert replays <= 5
    steps.train(order[:-1], rates[:-1])
    assert len(gpu.launched) == launches  # only the very first step goes launch by launch


def test_results_come_while_later_steps_run(backend: CudaBackend, gpu: HostGpu) -> None:
    steps = ResidentSteps(trainer(backend), data_on(gpu))
    order, rates = tables(REPETITIONS + 9)
    parts = list(steps.chunks(order, rates))
    assert len(parts[0].losses) == 1
    assert sum(len(part.losses) for part in parts) == len(order)


def test_stopping_early_reports_all_that_ran(backend: CudaBackend, gpu: HostGpu) -> None:
    stopped, fed = trainer(backend), trainer(backend)
    order, rates = tables(6 * REPETITIONS)
    reported = 0

    def enough() -> bool:
        return reported > 0

    for part in ResidentSteps(stopped, data_on(gpu)).chunks(order, rates, stop=enough):
        reported += len(part.losses)
    assert 0 < reported < len(order)
    list(by_hand(fed, order[:reported], rates[:reported]))
    assert_same_bits(parameters(stopped), parameters(fed))


def test_no_steps(backend: CudaBackend, gpu: HostGpu) -> None:
    order, rates = tables(0)
    results = ResidentSteps(trainer(backend), data_on(gpu)).train(order, rates)
    assert results.losses.shape == (0,)
    assert results.corrects.shape == (0, 2)


def test_what_does_not_fit_is_refused(backend: CudaBackend, gpu: HostGpu) -> None:
    data = data_on(gpu)
    steps = ResidentSteps(trainer(backend), data)
    order, rates = tables(2)
    with pytest.raises(ShapeError, match=r"order must be \(steps, 5\)"):
        steps.train(order[:, :4], rates)
    with pytest.raises(ConvloomError, match="the data set has 40"):
        steps.train(order + 40, rates)
    with pytest.raises(ShapeError, match=r"rates must be \(2, 9\), they are \(1, 9\)"):
        steps.train(order, rates[:1])
    with pytest.raises(ShapeError, match="they are None"):
        steps.train(order, None)
    with pytest.raises(ShapeError, match="not augmented"):
        steps.train(order, rates, draws=np.zeros((40, 3), np.uint8))
    cropped = ResidentSteps(trainer(backend), data, Crops(2))
    with pytest.raises(ShapeError, match=r"uint8 \(40, 3\)"):
        cropped.train(order, rates)
    with pytest.raises(ConvloomError, match="beyond the padding of 2"):
        cropped.train(order, rates, draws=np.full((40, 3), 5, np.uint8))
    assert gpu.launched == []
    one = pixels()
    scale, shift = normalise.coefficients(MEAN, STD)
    with pytest.raises(ShapeError, match="float32 images of 2 channels came with 2 scales"):
        ResidentData(gpu, one.images.astype(np.float32), one.labels, scale, shift)
    with pytest.raises(ShapeError, match="labels of shape"):
        ResidentData(gpu, one.images, one.labels[1:], scale, shift)
    with pytest.raises(ShapeError, match="3 scales"):
        ResidentData(gpu, one.images, one.labels, np.ones(3, np.float32), shift)
    other = ResidentData(gpu, one.images[:, :, 1:], one.labels, scale, shift)
    with pytest.raises(ShapeError, match="the plan takes images"):
        ResidentSteps(trainer(backend), other)


def test_size_of_the_data_is_known(gpu: HostGpu) -> None:
    data = data_on(gpu)
    assert data.nbytes == 40 * int(np.prod(SHAPE)) + 40 * 8 + 2 * 4 * 2
