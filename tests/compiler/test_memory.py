"""Nothing that is alive at once may overlap, blocks keep their shape, and little is wasted."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import pytest

from convloom import nn
from convloom.compiler import compile_graph
from convloom.compiler.inference import for_inference
from convloom.compiler.memory import assign_memory
from convloom.ir import GRADIENTS, PERSISTENT, TRANSIENT, Buffer, Plan
from tests.compiler.helpers import AnyBackend, lenet, training


def plan_of(model: nn.Module, shape: tuple[int, int, int], batch: int = 8, workspace: int = 0):
    return compile_graph(training(model, shape, batch), AnyBackend(workspace=workspace))


def assert_sound(plan: Plan) -> None:
    distinct = {id(buffer): buffer for buffer in plan.buffers.values()}.values()
    for buffer in distinct:
        assert buffer.offset % 64 == 0
        assert buffer.offset + buffer.nbytes <= plan.arenas[buffer.arena]
    for one, two in combinations(distinct, 2):
        alive_together = one.first <= two.last and two.first <= one.last
        apart = (
            one.arena != two.arena
            or one.offset + one.nbytes <= two.offset
            or two.offset + two.nbytes <= one.offset
        )
        assert apart or not alive_together, (one, two)


@pytest.mark.parametrize("workspace", [0, 1000])
def test_no_overlap_of_what_lives_together(workspace: int) -> None:
    plan = plan_of(lenet(), (1, 10, 10), workspace=workspace)
    assert_sound(plan)
    for step in plan.steps:
        for name in (*step.node.inputs, *step.node.outputs):
            assert name in plan.buffers
        assert (step.workspace in plan.buffers) == bool(workspace)


def test_every_value_lives_from_its_maker_to_its_last_reader() -> None:
    plan = plan_of(lenet(), (1, 10, 10))
    for index, step in enumerate(plan.steps):
        for name in (*step.node.inputs, *step.node.outputs):
            buffer = plan.buffers[name]
            assert buffer.first <= index <= buffer.last, name
    for name in plan.graph.kept():
        assert plan.buffers[name].last == len(plan.steps)


def test_parameters_gradients_and_states_are_parallel_blocks() -> None:
    plan = plan_of(lenet(), (1, 10, 10))
    names = list(plan.graph.gradients)
    starts = [plan.buffers[name].offset for name in names]
    grads = [plan.buffers[plan.graph.gradients[name]].offset for name in names]
    momenta = [plan.buffers[f"{name}.momentum"].offset for name in names]
    assert starts == grads
    assert [offset - momenta[0] for offset in momenta] == [s - starts[0] for s in starts]
    assert all(plan.buffers[name].arena == PERSISTENT for name in names)
    assert all(plan.buffers[plan.graph.gradients[n]].arena == GRADIENTS for n in names)


def test_updates_are_in_place_and_views_cost_nothing() -> None:
    plan = plan_of(lenet(), (1, 10, 10))
    for state, value in plan.graph.updates.items():
        assert plan.buffers[state] == plan.buffers[value]
    assert plan.buffers["5.out"] == plan.buffers["4.out"]
    assert not any(step.node.op.name in ("Flatten", "Unflatten") for step in plan.steps)


def test_the_seed_network_wastes_little() -> None:
    model = nn.models.build("lenet")
    plan = plan_of(model, (1, 28, 28), 64)
    fixed = plan.arenas[PERSISTENT] + plan.arenas[GRADIENTS]
    total, bound = sum(plan.arenas.values()), fixed + plan.transient_bound
    assert total <= 1.3 * bound
    assert plan.transient_bound <= plan.arenas[TRANSIENT]


def test_memory_is_used_again_late_where_that_costs_little() -> None:
    model = nn.models.build("lenet")
    plan = plan_of(model, (1, 28, 28), 64)
    roomy = assign_memory(plan.graph, plan.steps, apart=4)
    assert_sound(replace(plan, buffers=roomy.buffers, arenas=roomy.arenas))
    assert roomy.transient_bound == plan.transient_bound
    assert plan.arenas[TRANSIENT] <= roomy.arenas[TRANSIENT] <= 1.25 * plan.arenas[TRANSIENT]
    assert nearest(roomy.buffers) > 4 >= nearest(plan.buffers)


def nearest(buffers: Mapping[str, Buffer]) -> int:
    """Fewest steps from a tensor's last use to the first of another in the same memory."""
    own = [buffer for buffer in buffers.values() if buffer.arena == TRANSIENT]
    distances = [
        two.first - one.last
        for one, two in itertools.permutations(own, 2)
        if one.offset < two.offset + two.nbytes and two.offset < one.offset + one.nbytes
        if two.first > one.last
    ]
    return min(distances, default=len(buffers))


def test_room_is_left_out_where_it_costs_much() -> None:
    layers = [layer for _ in range(20) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    plan = compile_graph(for_inference(nn.Sequential(*layers).trace((4, 16, 16), 2)), AnyBackend())
    assert assign_memory(plan.graph, plan.steps, apart=9).arenas == dict(plan.arenas)


def test_a_deep_chain_reuses_memory() -> None:
    layers = [layer for _ in range(20) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.ReLU())]
    graph = for_inference(nn.Sequential(*layers).trace((4, 16, 16), 2))
    plan = compile_graph(graph, AnyBackend())
    assert_sound(plan)
    one = 2 * 4 * 16 * 16 * 4
    assert plan.arenas[TRANSIENT] <= 3 * one
