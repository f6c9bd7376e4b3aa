"""Data sets that several threads read on streams of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from convloom.backends.cuda.queues import Sharing, own_gpu, own_sharing
from convloom.backends.cuda.resident import ResidentData
from convloom.backends.feeding import Samples
from tests.backends.cuda.hostgpu import HostGpu
from tests.backends.cuda.networks import pixels


def test_a_data_set_is_copied_once_for_all_threads(gpu: HostGpu, objects: Path) -> None:
    other, sharing, made = HostGpu(objects), Sharing(), 0
    one = pixels()
    scale = np.ones(2, np.float32)

    def upload(gpu: HostGpu, scale: np.ndarray) -> ResidentData:
        samples = Samples(one.images, one.labels, scale, scale)

        def make() -> ResidentData:
            nonlocal made
            made += 1
            return ResidentData(gpu, one.images, one.labels, scale, scale)

        return sharing.upload(samples, gpu, make)

    first, second = upload(gpu, scale), upload(other, scale)
    assert made == 1
    assert first.addresses == second.addresses
    assert (first.gpu, second.gpu) == (gpu, other)
    assert upload(gpu, 2 * scale).addresses != first.addresses
    assert made == 2


def test_threads_that_did_not_begin_have_the_common_stream() -> None:
    assert own_gpu() is None
    assert own_sharing() is None
