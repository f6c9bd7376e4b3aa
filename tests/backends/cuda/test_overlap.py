"""Dependencies of launches, from the bytes that they read and write."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from convloom.backends.cuda.backend import CudaBackend
from convloom.backends.cuda.executable import CudaExecutable
from convloom.backends.cuda.gpu import Call
from convloom.backends.cuda.overlap import Access, dependencies
from tests.backends.cuda.hostgpu import HostGpu, latest_first
from tests.backends.cuda.networks import bound, train_plan


def reads(*spans: tuple[int, int]) -> Access:
    return Access(spans, ())


def writes(*spans: tuple[int, int]) -> Access:
    return Access((), spans)


class TestDependencies:
    def test_readers_wait_for_the_last_writer(self) -> None:
        launches = [writes((0, 8)), writes((0, 8)), reads((4, 6)), reads((7, 9)), reads((8, 9))]
        assert dependencies(launches) == [(), (0,), (1,), (1,), ()]

    def test_writers_wait_for_readers(self) -> None:
        launches = [reads((0, 8)), reads((8, 16)), writes((4, 12)), writes((20, 24))]
        assert dependencies(launches) == [(), (), (0, 1), ()]

    def test_neighbouring_bytes_are_not_shared(self) -> None:
        assert dependencies([writes((0, 8)), writes((8, 16)), reads((8, 16))]) == [(), (), (1,)]

    def test_what_follows_from_others_is_left_out(self) -> None:
        chain = [writes((0, 4)), Access(((0, 4),), ((4, 8),)), reads((0, 4), (4, 8))]
        assert dependencies(chain) == [(), (0,), (1,)]

    def test_who_writes_over_a_part_hides_only_that_part(self) -> None:
        launches = [writes((0, 16)), writes((0, 8)), reads((8, 16)), reads((0, 8))]
        assert dependencies(launches) == [(), (0,), (0,), (1,)]

    def test_own_bytes_are_no_wait(self) -> None:
        assert dependencies([Access(((0, 8),), ((0, 8),))] * 3) == [(), (0,), (1,)]

    def test_unknown_access_waits_for_all_and_all_wait_for_it(self) -> None:
        launches = [reads((0, 1)), writes((1, 2)), None, reads((5, 6)), None, None]
        assert dependencies(launches) == [(), (), (0, 1), (2,), (3,), (4,)]

    def test_empty_spans_and_no_launches(self) -> None:
        assert dependencies([]) == []
        assert dependencies([writes((0, 0)), writes((0, 0), (0, 4)), reads((0, 4))]) == [
            (),
            (),
            (1,),
        ]

    @given(
        st.lists(
            st.lists(st.tuples(st.integers(0, 12), st.integers(1, 5), st.booleans()), max_size=3),
            max_size=9,
        )
    )
    @settings(max_examples=150, deadline=None)
    def test_whoever_shares_bytes_keeps_their_order(
        self, drawn: list[list[tuple[int, int, bool]]]
    ) -> None:
        launches = [
            Access(
                tuple((at, at + size) for at, size, written in spans if not written),
                tuple((at, at + size) for at, size, written in spans if written),
            )
            for spans in drawn
        ]
        waits = dependencies(launches)
        behind: list[set[int]] = []
        for others in waits:
            behind.append(set(others).union(*(behind[other] for other in others)))
        for (i, one), (j, two) in itertools.combinations(enumerate(launches), 2):
            wrote, writing = bytes_of(one.writes), bytes_of(two.writes)
            shared = wrote & (writing | bytes_of(two.reads)) or bytes_of(one.reads) & writing
            assert not shared or i in behind[j]
        for others, far in zip(waits, behind, strict=True):
            assert not any(set(others) & behind[other] for other in others)
            assert far == set().union(others, *(behind[other] for other in others))


def bytes_of(spans: tuple[tuple[int, int], ...]) -> set[int]:
    return {address for first, end in spans for address in range(first, end)}


class TestGraphs:
    def test_order_of_the_stand_in_keeps_dependencies(self) -> None:
        assert latest_first([(), (0,), (), (1, 2)]) == [2, 0, 1, 3]

    def test_a_training_step_has_launches_side_by_side(
        self, backend: CudaBackend, gpu: HostGpu, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What has nothing to do with each other: the metrics, and the loss and all behind it."""
        calls: list[Call] = []
        prepare = gpu.prepare
        monkeypatch.setattr(gpu, "prepare", lambda call: calls.append(call) or prepare(call))
        executable = bound(backend, train_plan(backend, 6))
        assert isinstance(executable, CudaExecutable)
        assert len(executable.calls) == len(calls)
        waits = dependencies([call.access for call in calls])
        assert all(call.access is not None and call.access.writes for call in calls)
        (top,) = (i for i, call in enumerate(calls) if call.kernel.name == "topk_naive")
        loss = [i for i, call in enumerate(calls) if "cross_entropy" in call.kernel.name]
        assert loss
        assert not any(top in waits[i] or i in waits[top] for i in loss)
        assert latest_first(waits) != list(range(len(calls)))

    def test_tensors_that_no_argument_names_count_for_every_launch(
        self, backend: CudaBackend
    ) -> None:
        executable = bound(backend, train_plan(backend, 6))
        assert isinstance(executable, CudaExecutable)
        step = executable.plan.steps[0]
        phase = step.selection.launch.phases[0]
        everything = {*step.node.inputs, *step.node.outputs}
        whole = executable._access(phase, step, everything)
        assert len(whole.reads) + len(whole.writes) == len(everything)
        spans = [
            (tensor.address, tensor.spec.nbytes)
            for tensor in map(executable._tensors.__getitem__, step.node.outputs)
        ]
        assert list(whole.writes) == [(at, at + nbytes) for at, nbytes in spans]


def test_replays_in_another_order_give_the_same_bits(backend: CudaBackend, gpu: HostGpu) -> None:
    """The stand-in runs a graph's launches in an order of its own; a watched run does not."""
    graphed, watched = (bound(backend, train_plan(backend, 6)) for _ in range(2))
    draw = np.random.default_rng(0)
    for _ in range(4):
        images = draw.standard_normal(graphed.plan.spec("input").shape).astype(np.float32)
        labels = draw.integers(0, 5, 6)
        for one in (graphed, watched):
            one.write("input", images)
            one.write("target", labels)
        graphed.run()
        watched.run_watched()
    assert gpu.replayed == 3
    for name in watched.plan.graph.gradients:
        assert graphed.storage.read(name).tobytes() == watched.storage.read(name).tobytes()
