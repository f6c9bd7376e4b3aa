"""An engine: one network bound to one device, with plans for every batch size that turns up.

All plans share the persistent arena (parameters, optimiser states, controls) and the kernels, so
the short last batch of an epoch costs a plan and no compilation.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.backends import Executable, Storage, get_backend, resolve_device
from convloom.backends.base import OutOfMemoryError
from convloom.backends.feeding import DeviceInput, device_input
from convloom.backends.locks import Lock
from convloom.compiler import compile_graph
from convloom.compiler.segment import below_segments, has_segment
from convloom.ir import ConvloomError, Graph, Plan, ShapeError, TensorSpec
from convloom.nn.losses import LossSum
from convloom.ops.control import HYPER
from convloom.ops.loss import check_targets
from convloom.ops.precision import FP32, check_precision
from convloom.training.arguments import check_model
from convloom.training.graphs import (
    INDEX,
    PROBABILITY,
    VALUE,
    Loss,
    Optimizer,
    TargetKind,
    evaluation_graph,
    prediction_graph,
    training_graph,
    usual_kind,
)
from convloom.training.layers import tensor_of
from convloom.training.protocols import StepResult

if TYPE_CHECKING:
    from convloom.nn import Module

_LOG = logging.getLogger("convloom")
#: Bound executables kept at a time; the least recently used goes first.
_KEPT_EXECUTABLES = 6


class Plans:
    """Plans by name, each made once, though several threads ask for it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._made: dict[tuple[Any, ...], Plan] = {}

    def get(self, key: tuple[Any, ...], make: Callable[[], Plan]) -> Plan:
        """The plan of a name; made, if nobody asked for it before."""
        with self._lock:
            if key not in self._made:
                self._made[key] = make()
            return self._made[key]


class Engine:
    """Runs training, evaluation and prediction steps of one model.

    With an optimizer the engine becomes the home of the model's weights: ``model.state_dict()``
    reads its memory for as long as the engine lives, and gets the values back afterwards. Without
    one it works on a copy, which ``pull_weights`` renews. Steps asked for by several threads run
    one after the other.

    Args:
        model: the network; parameters not set yet are drawn with ``seed``.
        loss: for training and evaluation; prediction needs none.
        optimizer: for training.
        input_shape: (C, H, W) of one image.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda-sim`` or ``reference``.
        kernels: ``auto``, or the highest rung of the device's ladder to use.
        seed: of initial parameters and dropout masks.
        max_norm: clip gradients to this global norm; None leaves them alone.
        watch: tensors of the training step to keep for ``read``, besides those that are kept.
        precision: ``fp32``, ``tf32`` or ``bf16``: what operands of products are rounded to, where
            a kernel can. A warning in the log names the layers that compute in fp32 none the less.
        layer: what ``predict`` gives, a layer's last tensor or any other; None for the network's
            output. For engines without loss alone.
        plans: those of engines that are like this one in everything but weights, rates and seed.
        storage: makes the memory of everything that lives between steps; None: the device does.

    Raises:
        ConvloomError: a device that is not there, an unknown rung or precision, shapes that
            cannot fit, no such tensor to watch, no such layer.
    """

    def __init__(
        self,
        model: Module,
        *,
        loss: Loss | None = None,
        optimizer: Optimizer | None = None,
        input_shape: tuple[int, int, int],
        device: str = "auto",
        kernels: str = "auto",
        seed: int = 0,
        max_norm: float | None = None,
        watch: Sequence[str] = (),
        precision: str = FP32,
        layer: str | None = None,
        plans: Plans | None = None,
        storage: Callable[[Plan], Storage] | None = None,
    ) -> None:
        check_model(model)
        assert layer is None or loss is None
        self._layer = layer
        self.model = model
        self.loss = loss
        self.optimizer = optimizer
        self.input_shape = input_shape
        self.device = resolve_device(device)
        self.kernels = kernels
        self.seed = seed
        self.max_norm = max_norm
        self.watch = tuple(watch)
        self.precision = check_precision(precision)
        self._told: set[str] = set()
        self.steps_done = 0
        self._backend = get_backend(self.device)
        self.lock = Lock()
        self._plans = Plans() if plans is None else plans
        self._make_storage = storage or self._backend.storage
        self._executables: OrderedDict[tuple[Any, ...], Executable] = OrderedDict()
        self._current: Executable | None = None
        self._initial_hyper = {**optimizer.hyper(0)} if optimizer is not None else {}
        slots = HYPER if optimizer is None else optimizer.slots
        self._slots = {name: slot for slot, name in enumerate(slots)}
        #: What lies in memory already, in an order that every further plan must keep to.
        self._held: Mapping[str, TensorSpec] = {}
        #: The network for one image, and what it gives.
        self.forward = self._trace(1)
        self.output = self.forward.specs[self.forward.outputs[0]]
        self._kind = INDEX if loss is None else usual_kind(loss, self.output)
        self._least_classes = self._classes_of_all()
        self._storage = self._new_storage()

    @property
    def classes(self) -> int:
        """Number of logits."""
        return self.output.shape[-1]

    @property
    def figures(self) -> tuple[str, ...]:
        """Names of what a step reports as ``costs``; those of a loss of several."""
        return self.loss.figures if isinstance(self.loss, LossSum) else ()

    def plan(self, batch_size: int) -> Plan:
        """The training step's plan for targets as the last step had them, first class numbers."""
        return self._training_plan(batch_size, self._kind)

    def set_hyper(self, **values: float) -> None:
        """Set learning rate, momentum and the like; they hold until set again.

        Raises:
            KeyError: a name that is not among the optimizer's ``slots``.
        """
        if "hyper" not in self._storage.layouts:
            return
        current = self._storage.read("hyper")
        for name, value in values.items():
            current[self._slot(name)] = value
        self._storage.write("hyper", current)

    def train_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        """Forward, backward and update of one batch (n, C, H, W); any n ≥ 1.

        Raises:
            ConvloomError: images or targets that do not fit the network; nothing has run then.
        """
        if self.loss is None or self.optimizer is None:
            raise ConvloomError("training needs a loss and an optimizer; this engine has none")
        with self.lock:
            executable = self._loaded_for_training(images, targets)
            executable.run()
            self.steps_done += 1
            return self._result(executable, len(images))

    def evaluate_step(self, images: np.ndarray, targets: np.ndarray) -> StepResult:
        """Loss and right answers of one batch; nothing is updated, dropout is off."""
        if self.loss is None:
            raise ConvloomError("evaluation needs a loss; this engine has none")
        x, target, kind = self._checked(images, targets)
        key = ("evaluate", len(x), kind.name)
        with self.lock:
            executable = self._executable(key, lambda: self._evaluation_plan(len(x), kind))
            self._write_batch(executable, x, target, kind)
            executable.run()
            return self._result(executable, len(x))

    def device_input(self) -> DeviceInput | None:
        """The ways into the device's memory; None where that is the host's own."""
        return device_input(self._backend, self._storage)

    def executable(self, kind: str, batch_size: int) -> Executable:
        """What runs steps for class numbers; ``kind`` is ``train`` or ``evaluate``."""
        with self.lock:
            key = (kind, batch_size, INDEX.name)
            return self._executable(key, lambda: self.plan_of(kind, batch_size))

    def plan_of(self, kind: str, batch_size: int) -> Plan:
        """The plan of what ``executable`` gives."""
        make = self._training_plan if kind == "train" else self._evaluation_plan
        return make(batch_size, INDEX)

    def prepare(self, kind: str, batch_size: int) -> None:
        """Compile and bind what ``executable`` gives; the tensors that ``read`` reads stay."""
        current = self._current
        self.executable(kind, batch_size)
        self._current = current

    def ran(self, executable: Executable, updates: int) -> None:
        """Take note of steps that were asked for; ``read`` reads the last one's tensors."""
        self._current = executable
        self.steps_done += updates

    def hyper_rows(
        self, values: Sequence[Mapping[str, float]], row: np.ndarray | None = None
    ) -> np.ndarray:
        """``hyper`` as ``set_hyper`` would leave it each time, float64 (n, slots).

        Args:
            row: what it is before; None asks the device, which waits for all that it is doing.

        Raises:
            KeyError: a name that is not among the optimizer's ``slots``.
        """
        row = self.hyper() if row is None else row.copy()
        rows = np.tile(row, (len(values), 1))
        if all(named.keys() == values[0].keys() for named in values):
            for name in values[0] if values else ():
                rows[:, self._slot(name)] = [named[name] for named in values]
            return rows
        for i, named in enumerate(values):
            for name, value in named.items():
                row[self._slot(name)] = value
            rows[i] = row
        return rows

    def hyper(self) -> np.ndarray:
        """The values of all slots, float64; zeros where nothing is updated."""
        if "hyper" in self._storage.layouts:
            return self._storage.read("hyper")
        return np.zeros(len(self._slots))

    def begin_steps(self) -> None:
        """Have the device know the seed, before steps that the host does not make."""
        with self.lock:
            self._write_counter()

    def check_labels(self, labels: np.ndarray) -> None:
        """Raises ConvloomError for class numbers that the network does not have."""
        check_targets(labels, self._least_classes)

    def predict(self, images: np.ndarray) -> np.ndarray:
        """The network's output, logits (n, classes), for float32 images (n, C, H, W); or what its
        ``layer`` makes of them."""
        x = self._checked_images(images)
        with self.lock:
            executable = self._executable(("predict", len(x)), lambda: self._prediction(len(x)))
            executable.write("input", x)
            executable.run()
            return executable.read(executable.plan.graph.outputs[0])

    def read(self, name: str) -> np.ndarray:
        """A copy of a parameter, state or control, or of any tensor the last step kept.

        Raises:
            KeyError: no such tensor, or one whose memory was used again; names what can be read.
        """
        if name in self._storage.layouts:
            return self._storage.read(name)
        if self._current is None:
            known = ", ".join(self._storage.layouts)
            raise KeyError(f"nothing has run yet, so only {known} can be read, not {name!r}")
        return self._current.read(name)

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace a parameter, state or control.

        Raises:
            KeyError: no such tensor.
            ShapeError: a value of another shape.
        """
        if name not in self._storage.layouts:
            known = ", ".join(self._storage.layouts)
            raise KeyError(f"cannot write {name!r}; what lives between steps is {known}")
        self._storage.write(name, np.asarray(value))

    def state(self, names: Iterable[str] | None = None) -> dict[str, np.ndarray]:
        """Copies of everything that lives between steps, logical shapes, by name; or of what
        ``names`` has of it."""
        lives = [n for n in self._storage.layouts if n not in ("counter", "hyper", "loss.grad")]
        lives.append("counter")
        asked = set(lives if names is None else names)
        return {name: self._held_between_steps(name) for name in lives if name in asked}

    def _held_between_steps(self, name: str) -> np.ndarray:
        if name == "counter":
            return np.array([self.seed, self.steps_done], np.uint64)
        return self._storage.read(name)

    def load_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Replace everything that ``state`` names.

        Raises:
            KeyError: a name this network does not have; nothing has been replaced then.
        """
        unknown = [n for n in state if n not in self._storage.layouts and n != "counter"]
        if unknown:
            raise KeyError(f"this network has no tensor {', '.join(unknown)}")
        for name, value in state.items():
            if name == "counter":
                self.seed, self.steps_done = (int(v) for v in value)
            else:
                self.write(name, value)

    def pull_weights(self) -> None:
        """Take over the model's current weights."""
        weights = self.model.state_dict()
        with self.lock:
            for name in self._storage.layouts:
                if name in weights:
                    self._storage.write(name, weights[name])

    def hold_weights(self) -> None:
        """Become the home of the model's weights, with the values they have here.

        They may have found another home since this engine was made: another engine's, say.
        """
        self.model.bind(self._storage, owner=self)

    def watched_step(self, images: np.ndarray, targets: np.ndarray) -> str | None:
        """A training step run one kernel at a time.

        Returns:
            The title of the first step that made a NaN or Inf, or None.
        """
        with self.lock:
            executable = self._loaded_for_training(images, targets)
            chained = has_segment(executable.plan)
            before = self._persistent() if chained else {}
            found = executable.run_watched()
            if found is not None and chained:
                for name, value in before.items():
                    self._storage.write(name, value)
                found = self._watched_layers(images, targets) or found
            self.steps_done += 1
            return found

    def _persistent(self) -> dict[str, np.ndarray]:
        return {name: self._storage.read(name) for name in self._storage.layouts}

    def _watched_layers(self, images: np.ndarray, targets: np.ndarray) -> str | None:
        """What the layers of an on-chip segment make one by one, in fp32."""
        x, target, kind = self._checked(images, targets)
        graph = self._training_graph(len(x), kind)
        rung = below_segments(self._backend)

        def made() -> Plan:
            return compile_graph(graph, self._backend, rung, self._held)

        executable = self._executable(("layers", len(x), kind.name), made)
        self._write_batch(executable, x, target, kind)
        return executable.run_watched()

    # What follows makes plans and moves batches.

    def _classes_of_all(self) -> int:
        """How many classes every output that is compared with class numbers has at least."""
        if not isinstance(self.loss, LossSum):
            return self.classes
        outputs = [self.forward.specs[name] for name in self.forward.outputs]
        read = [outputs[term.output] for term in self.loss.terms if term.reads_target]
        return min(spec.shape[-1] for spec in (self.output, *read))

    def _trace(self, batch_size: int) -> Graph:
        graph = self.model.trace(self.input_shape, batch_size)
        if self._layer is None:
            return graph
        return graph.replacing(outputs=(tensor_of(graph, self._layer),))

    def _prediction(self, batch_size: int) -> Plan:
        return self._compiled(prediction_graph(self._trace(batch_size)))

    def _evaluation_plan(self, batch_size: int, kind: TargetKind) -> Plan:
        assert self.loss is not None
        loss = self.loss
        return self._plan(
            ("evaluate", batch_size, kind.name),
            lambda: self._compiled(evaluation_graph(self._trace(batch_size), loss, kind)),
        )

    def _training_plan(self, batch_size: int, kind: TargetKind) -> Plan:
        return self._plan(
            ("train", batch_size, kind.name),
            lambda: self._compiled(self._training_graph(batch_size, kind), self.watch),
        )

    def _training_graph(self, batch_size: int, kind: TargetKind) -> Graph:
        assert self.loss is not None and self.optimizer is not None
        clip = self.max_norm is not None
        return training_graph(self._trace(batch_size), self.loss, kind, self.optimizer, clip)

    def _compiled(self, graph: Graph, watch: Sequence[str] = ()) -> Plan:
        plan = compile_graph(graph, self._backend, self.kernels, self._held, self.precision, watch)
        for note in precision_notes(plan):
            if note not in self._told:
                _LOG.warning(note)
                self._told.add(note)
        return plan

    def _plan(self, key: tuple[Any, ...], make: Callable[[], Plan]) -> Plan:
        return self._plans.get(key, make)

    def _new_storage(self) -> Storage:
        """Memory for everything that lives between steps, filled with the model's parameters."""
        trains = self.loss is not None and self.optimizer is not None
        # Of two images, since batch norm may not be trained on one.
        plan = self._training_plan(2, self._kind) if trains else self._prediction(1)
        self.model.initialize(self.seed)
        self._storage = storage = self._make_storage(plan)
        self._held = storage.layouts
        self.pull_weights()
        if "loss.grad" in storage.layouts:
            storage.write("loss.grad", np.ones((), np.float32))
        self.set_hyper(**self._initial_hyper)
        if self.max_norm is not None:
            self.set_hyper(max_norm=self.max_norm)
        if trains:
            self.hold_weights()
        return storage

    def _executable(self, key: tuple[Any, ...], plan: Callable[[], Plan]) -> Executable:
        found = self._executables.get(key)
        if found is None:
            found = self._bound(self._plan(key, plan))
            self._executables[key] = found
            if len(self._executables) > _KEPT_EXECUTABLES:
                self._executables.popitem(last=False)
        self._executables.move_to_end(key)
        self._current = found
        return found

    def _bound(self, plan: Plan) -> Executable:
        """The plan on memory of its own; where there is no room, other batch sizes' is freed."""
        try:
            return self._backend.executable(plan, self._storage)
        except OutOfMemoryError:
            idle = [key for key, one in self._executables.items() if one is not self._current]
            if not idle:
                raise
            for key in idle:
                del self._executables[key]
        return self._backend.executable(plan, self._storage)

    def _loaded_for_training(self, images: np.ndarray, targets: np.ndarray) -> Executable:
        """What runs a training step on this batch, which it holds; to be called with the lock."""
        x, target, kind = self._checked(images, targets)
        self._kind = kind
        key = ("train", len(x), kind.name)
        executable = self._executable(key, lambda: self._training_plan(len(x), kind))
        self._write_batch(executable, x, target, kind)
        self._write_counter()
        return executable

    def _write_counter(self) -> None:
        if "counter" in self._storage.layouts:
            self._storage.write("counter", np.array([self.seed, self.steps_done], np.uint64))

    def _write_batch(
        self, executable: Executable, x: np.ndarray, target: np.ndarray, kind: TargetKind
    ) -> None:
        executable.write("input", x)
        executable.write("target", target)
        if kind is PROBABILITY:
            executable.write("label", target.argmax(axis=1).astype(np.int64))

    def _slot(self, name: str) -> int:
        if name not in self._slots:
            raise KeyError(f"unknown hyper value {name!r}; known are {', '.join(self._slots)}")
        return self._slots[name]

    def _result(self, executable: Executable, n: int) -> StepResult:
        loss, outputs = float(executable.read("loss")), executable.plan.graph.outputs
        figures = executable.read("costs").tolist() if "costs" in outputs else ()
        costs = dict(zip(self.figures, figures, strict=True))
        if "correct" not in outputs:  # targets that name no class
            return StepResult(loss, 0, 0, n, costs)
        correct = executable.read("correct")
        return StepResult(loss, int(correct[0]), int(correct[1]), n, costs)

    def _checked(
        self, images: np.ndarray, targets: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, TargetKind]:
        x = self._checked_images(images)
        target = np.asarray(targets)
        if len(x) == 0:
            raise ShapeError("a training or evaluation step needs at least one image")
        if target.ndim == 0:
            raise ShapeError(
                f"targets must be class numbers (N,) or probabilities (N, classes), not {targets!r}"
            )
        if len(target) != len(x):
            raise ShapeError(f"{len(x)} images came with {len(target)} targets")
        assert self.loss is not None
        if VALUE.name in self.loss.targets and not (target.ndim == 1 and self._names(target)):
            return x, self._values(target), VALUE
        if target.ndim == 1:
            check_targets(target, self._least_classes)
            return x, target.astype(np.int64, copy=False), INDEX
        if PROBABILITY.name not in self.loss.targets:
            raise ShapeError(
                f"the loss compares class numbers (N,), the targets have shape {target.shape}"
            )
        check_targets(target, self.classes)
        return x, target.astype(np.float32, copy=False), PROBABILITY

    def _names(self, target: np.ndarray) -> bool:
        """Whether targets of one axis are class numbers of an output (N, classes)."""
        return np.issubdtype(target.dtype, np.integer) and len(self.output.shape) == 2

    def _values(self, target: np.ndarray) -> np.ndarray:
        """Targets of the output's own shape, float32."""
        wanted = self.output.shape[1:]
        if target.shape[1:] != wanted or target.dtype.kind not in "fiub":
            raise ShapeError(
                f"{type(self.loss).__name__} compares the output with real numbers of its shape, "
                f"{('N', *wanted)}; the targets are {target.dtype} of shape {target.shape}"
            )
        return target.astype(np.float32, copy=False)

    def _checked_images(self, images: np.ndarray) -> np.ndarray:
        x = np.asarray(images)
        if x.ndim != 4 or x.shape[1:] != self.input_shape:
            raise ShapeError(
                f"the network takes images of shape (N, {', '.join(map(str, self.input_shape))}), "
                f"it got {x.shape}"
            )
        if x.dtype != np.float32:
            if not np.issubdtype(x.dtype, np.floating):
                raise ConvloomError(
                    f"the network takes float32 images, it got {x.dtype}; normalise them first "
                    "(the Trainer and Module.predict do it for uint8 images)"
                )
            x = x.astype(np.float32)
        return x


def precision_notes(plan: Plan) -> tuple[str, ...]:
    """Why not everything computes in the precision that was asked for; nothing of fp32."""
    if plan.precision == FP32:
        return ()
    return tuple(f"precision {plan.precision}: {note}" for note in plan.notes)
