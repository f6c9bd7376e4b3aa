"""Many small networks: one network trained with other rates and seeds.

Members differ in what a compiled step reads from memory (rates, seed, schedule), never in what is
compiled into it, so all of them share plans and kernels. Each is trained as ``Trainer`` trains it
alone, and has the same bits (``train_many`` names the exception). A GPU is too large for one small
network: there the same two launches make a step of all members, where a step runs on chip as a
whole (together.py); else several are trained at a time, each in a thread with a stream of its own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from convloom.backends import get_backend, resolve_device
from convloom.backends.feeding import beside, has_device_input
from convloom.backends.locks import Lock
from convloom.ir import Graph
from convloom.training.arguments import check_optimizer
from convloom.training.engine import Engine, Plans
from convloom.training.ensemble import Ensemble, ManyError, Member
from convloom.training.loop import NonFiniteError
from convloom.training.optim import Optimizer
from convloom.training.protocols import Dataset
from convloom.training.together import ApartError, train_together, way_for
from convloom.training.trainer import Trainer

if TYPE_CHECKING:
    from convloom.nn import Module

_LOG = logging.getLogger("convloom")
#: What a member may set beside its optimiser's rates.
_OWN = ("seed", "schedule")
#: What only the whole may set; files and watchers of single members would meet in one place.
_NOT_HERE = ("out", "callbacks", "checkpoint_every")


def train_many(
    configs: Sequence[Mapping[str, Any]],
    train: Dataset,
    *,
    model: Callable[[], Module],
    optimizer: Optimizer,
    loss: Any,
    epochs: int,
    validation: Dataset | None = None,
    **settings: Any,
) -> Ensemble:
    """Train one network many times, each time with other rates and another seed.

    Each member has the bits that ``Trainer(...).fit(train, epochs, validation)`` alone gives it;
    but for the order of some sums where that one has a GPU's blocks share each image: in small
    batches on chip, from compute capability 9.0 on. One that diverges ends early, with its
    ``error``, and the others go on.

    On a GPU the same two launches make a step of all members that have equal networks, of as many
    as fit in its memory. Where steps do not run on chip as a whole several are trained at a time,
    each in a thread, and ``model`` may be called in threads. The log says which it is, and why.

    Args:
        configs: for each member what it changes: ``seed``, ``schedule``, and rates of the
            optimiser (``lr``, ``momentum``, ``weight_decay``, ``betas``, ``eps``).
        model: makes a new network; called once for each member. Members whose networks differ are
            trained as well, but share nothing.
        optimizer: whose rates the members change.
        validation: evaluated after each epoch; decides which member is best.
        settings: for all members, as ``Trainer`` takes them (``batch_size``, ``device`` …).

    Raises:
        ManyError: no member, or a setting that a member cannot have of its own.
        TrainingInterrupted: Ctrl-C; ``each_member`` gives those that are done by then.
    """
    members = each_member(
        configs,
        train,
        model=model,
        optimizer=optimizer,
        loss=loss,
        epochs=epochs,
        validation=validation,
        **settings,
    )
    where = {key: settings[key] for key in ("device", "precision") if key in settings}
    return Ensemble([*members], **where)


def each_member(
    configs: Sequence[Mapping[str, Any]],
    train: Dataset,
    *,
    model: Callable[[], Module],
    optimizer: Optimizer,
    loss: Any,
    epochs: int,
    validation: Dataset | None = None,
    **settings: Any,
) -> Iterator[Member]:
    """``train_many``, giving each member as soon as it is trained. All are checked first."""
    check_optimizer(optimizer)
    if refused := sorted(set(settings) & set(_NOT_HERE)):
        raise ManyError(f"{refused[0]} is for one Trainer, not for many members at once")
    wanted = [
        _Wanted(config, *_settings_of(config, optimizer, settings), loss) for config in configs
    ]
    if not wanted:
        raise ManyError("configs is empty; give one mapping for each member, {} for no change")
    course = _Course(train, validation, epochs, settings.get("device", "auto"))
    backend = get_backend(resolve_device(course.device))
    if len(wanted) > 1 and has_device_input(backend) and "engine" not in settings:
        return course.by_kind(wanted, model)
    return course.apart([(one, model) for one in wanted])


@dataclass(frozen=True)
class _Wanted:
    """A member that is to be trained.

    Attributes:
        rule, own: its optimiser, and its Trainer's settings.
    """

    config: Mapping[str, Any]
    rule: Optimizer
    own: Mapping[str, Any]
    loss: Any

    def trainer(self, network: Module, **engine: Any) -> Trainer:
        """What trains a network so."""
        return Trainer(network, self.rule, self.loss, **{**engine, **self.own})

    def graph(self, network: Module, train: Dataset) -> Graph:
        """What a network computes of two images, since batch norm may not be trained on one."""
        return network.trace(self.trainer(network).shape_of(train), 2)


class _Kinds:
    """Networks that compute the same share their plans; several threads may ask."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[tuple[Graph, Plans]] = []

    def plans(self, graph: Graph) -> Plans:
        """The plans of all networks that compute this."""
        with self._lock:
            for known, plans in self._known:
                if known == graph:
                    return plans
            self._known.append((graph, Plans()))
            return self._known[-1][1]


#: A member that is to be trained, and what gives its network.
_Pair = tuple[_Wanted, "Callable[[], Module]"]


@dataclass(frozen=True)
class _Course:
    """What all members learn from, and for how long."""

    train: Dataset
    validation: Dataset | None
    epochs: int
    device: str

    def by_kind(self, wanted: Sequence[_Wanted], model: Callable[[], Module]) -> Iterator[Member]:
        """Train members together that have equal networks; give all in order."""
        networks = [model() for _ in wanted]
        if len({id(network) for network in networks}) < len(networks):
            raise ManyError("model gave one network twice; it must make a new one each time")
        done: dict[int, Member] = {}
        given = 0
        for numbers in self._groups(wanted, networks):
            own = [(wanted[number], networks[number]) for number in numbers]
            for number, member in zip(numbers, self._kind(own), strict=True):
                done[number] = member
                while given in done:
                    yield done.pop(given)
                    given += 1

    def apart(self, pairs: Sequence[_Pair]) -> Iterator[Member]:
        """Train each member by itself, on a GPU several at a time, and give them in order."""
        running, kinds = set[Trainer](), _Kinds()

        def one(wanted: _Wanted, network: Callable[[], Module]) -> Member:
            model, error = network(), None
            plans = kinds.plans(wanted.graph(model, self.train))
            trainer = wanted.trainer(model, engine=partial(Engine, plans=plans))
            running.add(trainer)
            try:
                trainer.fit(self.train, self.epochs, self.validation)
            except NonFiniteError as diverged:
                error = diverged.with_traceback(None)  # which holds all that trained
            finally:
                running.discard(trainer)
            return Member(dict(wanted.config), model, trainer.history, error)

        return _trained([partial(one, *pair) for pair in pairs], self.device, running)

    def _groups(self, wanted: Sequence[_Wanted], networks: Sequence[Module]) -> list[list[int]]:
        """The numbers of members with equal networks, in the order of each kind's first."""
        kinds, found = _Kinds(), dict[Plans, list[int]]()
        for number, (one, network) in enumerate(zip(wanted, networks, strict=True)):
            found.setdefault(kinds.plans(one.graph(network, self.train)), []).append(number)
        return list(found.values())

    def _kind(self, own: Sequence[tuple[_Wanted, Module]]) -> Iterator[Member]:
        """Train members with equal networks together, if they can be."""
        makers = [partial(wanted.trainer, network) for wanted, network in own]
        try:
            if len(own) == 1:
                raise ApartError("it is the only one of its kind")
            way = way_for(makers[0], self.train, self.validation)
        except ApartError as why:
            _LOG.info("members that train apart: %d, because %s", len(own), why)
            yield from self.apart([(wanted, partial(_same, network)) for wanted, network in own])
            return
        _LOG.info("%s", way.describe(len(own)))
        start = 0
        for count in way.groups(len(own)):
            part = slice(start, start + count)
            outcomes = train_together(way, makers[part], self.train, self.validation, self.epochs)
            for (wanted, network), outcome in zip(own[part], outcomes, strict=True):
                yield Member(dict(wanted.config), network, outcome.history, outcome.error)
            start += count


def _same(network: Module) -> Module:
    return network


def _trained(
    jobs: Sequence[Callable[[], Member]], device: str, running: set[Trainer]
) -> Iterator[Member]:
    """Do the jobs, on a GPU several at a time, and give what they return in order."""
    count, begin = beside(get_backend(resolve_device(device)))
    if min(count, len(jobs)) == 1:
        for job in jobs:
            yield job()
        return
    with ThreadPoolExecutor(count, "convloom-member", initializer=begin) as threads:
        futures = [threads.submit(job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BaseException:
            for future in futures:
                future.cancel()
            for trainer in tuple(running):
                trainer.stop()
            raise


def _settings_of(
    config: Mapping[str, Any], optimizer: Optimizer, shared: Mapping[str, Any]
) -> tuple[Optimizer, dict[str, Any]]:
    """A member's optimiser and Trainer settings. Raises ManyError for what it cannot change."""
    own = {key: value for key, value in config.items() if key in _OWN}
    rates = {key: value for key, value in config.items() if key not in _OWN}
    known = {field.name for field in fields(optimizer)}  # type: ignore[arg-type]
    for key in rates:
        if key not in known:
            allowed = ", ".join([*_OWN, *sorted(known)])
            raise ManyError(f"a member cannot set {key!r}; it can set {allowed}")
    rule = replace(optimizer, **rates)  # type: ignore[type-var]
    if rule.op(()) != optimizer.op(()) or rule.exclude != optimizer.exclude:
        raise ManyError(
            f"{', '.join(rates)}: members share their kernels, so they can change rates but not "
            f"the rule; {optimizer.kind}'s own form is compiled"
        )
    return rule, {**shared, **own}
