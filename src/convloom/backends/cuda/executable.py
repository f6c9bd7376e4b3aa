"""A plan bound to device memory: launches one by one the first time, a graph from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import cached_property

from convloom.backends.base import DeviceError, OutOfMemoryError
from convloom.backends.bound import BoundExecutable
from convloom.backends.cuda.gpu import Allocation, Call, Gpu
from convloom.backends.cuda.graph import Replay
from convloom.backends.cuda.launch import Argument, Fed, Phase, Tensor, launch_of
from convloom.backends.cuda.launch import Workspace as WorkspaceArgument
from convloom.backends.cuda.overlap import Access, Span
from convloom.backends.cuda.storage import CudaStorage, DeviceTensor
from convloom.ir import PERSISTENT, TRANSIENT, Buffer, Plan, Role, Step
from convloom.ir.printing import quantity

_LOG = logging.getLogger("convloom")
#: What the driver aligns allocations to, and so each arena inside ours.
_ALIGNMENT = 256


class CudaExecutable(BoundExecutable[DeviceTensor]):
    """Runs a plan. Kernels are compiled, and every address is fixed, on construction; those of a
    step that can make its own batch (fed.py) when they first run without a data set.

    Values that change from run to run (inputs, ``hyper``, ``counter``) are read from device memory
    by the kernels, so one captured graph serves all runs.

    Attributes:
        prologue: launches that come before the first of runs that follow each other directly.
    """

    def __init__(self, plan: Plan, storage: CudaStorage) -> None:
        storage.check(plan)
        self._storage = storage
        self._gpu = gpu = storage.gpu
        launches = [(step, launch_of(step)) for step in plan.steps]
        # Where a step can make its own batch, its other form is compiled when it first runs.
        own = [launch.phases for _, launch in launches if not launch.fed]
        before = [launch.prologue for _, launch in launches]
        others = [launch.others for _, launch in launches]
        gpu.load(phase.kernel for phases in (*before, *own, *others) for phase in phases)
        self._own = _allocate(plan, storage)
        self._arenas = _arena_addresses(plan, storage.arena, self._own)
        arenas = self._arenas

        def bind(name: str, buffer: Buffer) -> DeviceTensor:
            address = arenas[buffer.arena] + buffer.offset
            return DeviceTensor(name, plan.spec(name), gpu, address)

        super().__init__(plan, bind)
        self._before = [self._calls(step, launch.prologue) for step, launch in launches]
        self.prologue = [call for calls in self._before for call in calls]
        self._warm = False

    @cached_property
    def _steps(self) -> list[list[Callable[[], None]]]:
        """The launches of each step."""
        steps = self._plan.steps
        self._gpu.load(phase.kernel for step in steps for phase in launch_of(step).phases)
        return [self._calls(step, launch_of(step).phases) for step in steps]

    @cached_property
    def calls(self) -> list[Callable[[], None]]:
        """The launches of each run, in order; each is a function that asks for one."""
        return [call for calls in self._steps for call in calls]

    @cached_property
    def _replay(self) -> Replay:
        return Replay(self._gpu, self.calls, self.prologue)

    @property
    def storage(self) -> CudaStorage:
        """The persistent memory, shared with the network's other executables."""
        return self._storage

    @property
    def gpu(self) -> Gpu:
        """The device that it runs on."""
        return self._gpu

    def run(self) -> None:
        """Ask for every step once; ``read`` waits for the results.

        Inputs must have been written since the run before: their memory is reused within a run.

        Raises:
            DeviceError: a kernel cannot be launched, or failed (in the first run, which waits for
                each step, the message names it).
        """
        if self._warm:
            self._written.clear()
            self._replay.launch(1)
        else:
            self.warm_up()

    def warm_up(self) -> None:
        """One run, step by step, so that whatever is wrong shows with its name."""
        for index in range(len(self._steps)):
            self.run_step(index)
        self._warm = True

    def run_step(self, index: int) -> None:
        """Run one step alone and wait for it; its inputs must have been made.

        Raises:
            DeviceError: names the step.
        """
        for call in self._before[index]:
            call()
        self.launch_step(index)
        try:
            self._gpu.synchronize()
        except DeviceError as error:
            raise DeviceError(f"{self._title(self._plan.steps[index])}: {error}") from None

    def launch_step(self, index: int) -> None:
        """Ask for the launches of one step that ran before; for profiles, which time them."""
        self._written.clear()
        for call in self._steps[index]:
            call()

    def place(self, buffer: str) -> int:
        """The address of a tensor or workspace of the plan."""
        place = self._plan.buffers[buffer]
        return self._arenas[place.arena] + place.offset

    def _span(self, buffer: str) -> Span:
        first = self.place(buffer)
        return first, first + self._plan.buffers[buffer].nbytes

    def _calls(self, step: Step, phases: Sequence[Phase]) -> list[Callable[[], None]]:
        title = self._title(step)
        phases = [phase for phase in phases if phase.blocks > 0]
        hidden = _tensors(step) - set().union(*(_named(phase) for phase in phases))
        return [self._gpu.prepare(self._call(phase, step, title, hidden)) for phase in phases]

    def _call(self, phase: Phase, step: Step, title: str, hidden: set[str]) -> Call:
        words = tuple(self._word(argument, step) for argument in phase.arguments)
        access = self._access(phase, step, hidden)
        return Call(phase.kernel, words, phase.blocks, phase.threads, phase.shared, title, access)

    def _access(self, phase: Phase, step: Step, hidden: set[str]) -> Access:
        """What a phase reads and writes: whole tensors that it names, and the whole workspace.

        Tensors of the step that no phase names (``hidden``) count for every phase: a kernel may
        reach them through their neighbours.
        """
        outputs = set(step.node.outputs)
        named = _named(phase) | hidden
        reads, writes = sorted(named - outputs), sorted(named & outputs)
        if step.workspace and any(isinstance(one, WorkspaceArgument) for one in phase.arguments):
            writes.append(step.workspace)
        return Access(tuple(map(self._span, reads)), tuple(map(self._span, writes)))

    def _word(self, argument: Argument | Fed, step: Step) -> int | float:
        if isinstance(argument, Tensor):
            return self._tensors[argument.name].address + argument.offset
        if isinstance(argument, Fed):
            raise ValueError(f"{step.node.title} needs a data set for {argument.name}")
        if isinstance(argument, WorkspaceArgument):
            assert step.workspace is not None
            return self.place(step.workspace) + argument.offset
        return argument

    def _title(self, step: Step) -> str:
        """``conv1 (FusedConv2d) on 64×1×28×28 float32, …``."""
        shapes = ", ".join(str(self._plan.spec(name)) for name in step.node.inputs[:4])
        more = ", …" if len(step.node.inputs) > 4 else ""
        return f"{step.node.title} on {shapes}{more}"


def _tensors(step: Step) -> set[str]:
    return {*step.node.inputs, *step.node.outputs}


def _named(phase: Phase) -> set[str]:
    """The tensors among a phase's arguments."""
    return {one.name for one in phase.arguments if isinstance(one, Tensor)}


def own_arenas(plan: Plan) -> dict[str, int]:
    """{arena: offset in the executable's one allocation}, the persistent one left out."""
    offsets, end = {}, 0
    for name, nbytes in plan.arenas.items():
        if name != PERSISTENT:
            offsets[name] = end
            end += -(-nbytes // _ALIGNMENT) * _ALIGNMENT
    return {**offsets, "": end}


def _arena_addresses(plan: Plan, persistent: Allocation, own: Allocation) -> dict[str, int]:
    offsets = own_arenas(plan)
    return {
        name: persistent.address if name == PERSISTENT else own.address + offsets[name]
        for name in plan.arenas
    }


def _allocate(plan: Plan, storage: CudaStorage) -> Allocation:
    """Memory for all of a plan that is its own; a plan larger than those before is announced.

    Raises:
        OutOfMemoryError: it does not fit; says how far, and what would.
    """
    gpu = storage.gpu
    need, free = own_arenas(plan)[""], gpu.free_bytes()
    if need > storage.announced:
        storage.announced = need
        total = quantity(need + storage.arena.nbytes)
        _LOG.info("batches of %d take %sB of memory on %s", _batch_size(plan), total, gpu.name)
    if need > free:
        raise OutOfMemoryError(too_large(plan, need, free, gpu.name))
    try:
        return gpu.allocate(need)
    except OutOfMemoryError as error:
        # Free memory in pieces, or taken by another process meanwhile.
        raise OutOfMemoryError(f"{too_large(plan, need, free, gpu.name)} ({error})") from None


def too_large(plan: Plan, need: int, free: int, device: str) -> str:
    """What to say of a plan that takes ``need`` bytes where ``free`` are left."""
    largest = sorted(
        ((buffer.nbytes, name) for name, buffer in _places(plan).items()), reverse=True
    )[:5]
    shown = ", ".join(f"{name} {quantity(nbytes)}B" for nbytes, name in largest)
    text = (
        f"the plan needs {quantity(need)}B of memory and {quantity(free)}B are free on {device}; "
        f"its largest buffers are {shown}"
    )
    batch = _batch_size(plan)
    transient = plan.arenas.get(TRANSIENT, 0)
    fits = (free - (need - transient)) * batch // max(1, transient)
    if batch > 1 and fits > 0:
        return f"{text}; of batches of {batch} images, those of up to about {fits} would fit"
    return f"{text}; no batch of any size would fit, so free memory that other programs use"


def _places(plan: Plan) -> dict[str, Buffer]:
    """One name for each piece of memory that is the plan's own."""
    first = {
        (buffer.arena, buffer.offset, buffer.first): (name, buffer)
        for name, buffer in reversed(list(plan.buffers.items()))
        if buffer.arena != PERSISTENT
    }
    return dict(first.values())


def _batch_size(plan: Plan) -> int:
    inputs = [plan.spec(name).shape for name in plan.graph.named(Role.INPUT)]
    return next((shape[0] for shape in inputs if shape), 0)
