"""The compiler's two public doors: ``compile`` a whole training step, and ``vjp``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from convloom.backends import get_backend, resolve_device
from convloom.compiler import compile_graph, differentiate
from convloom.compiler.interpret import interpret
from convloom.ir import Graph, GraphBuilder, Plan, Role, ShapeError
from convloom.nn.arguments import whole
from convloom.ops.precision import FP32
from convloom.training import arguments
from convloom.training.engine import Engine
from convloom.training.graphs import Loss, Optimizer, check_training

if TYPE_CHECKING:
    from convloom.nn import Module


class TrainingStep:
    """A compiled training step: call it with a batch, read and write its tensors.

    The model's ``state_dict()`` reads the newest weights from here.
    """

    def __init__(self, engine: Engine, batch_size: int) -> None:
        self._engine = engine
        self._overrides: dict[str, float] = {}
        self.batch_size = batch_size

    @property
    def plan(self) -> Plan:
        """The plan for full batches; ``print(step.plan)`` shows it as a table."""
        return self._engine.plan(self.batch_size)

    @property
    def device(self) -> str:
        """The device it runs on; never ``auto``."""
        return self._engine.device

    def __call__(self, x: np.ndarray, y: np.ndarray) -> float:
        """One step: forward, loss, backward, update.

        Args:
            x: float32 images (n, C, H, W); n is usually ``batch_size``, any other n works too.
            y: class numbers (n,), probabilities (n, classes), or what else the loss takes: for a
                loss of values, numbers of the output's shape.

        Returns:
            The mean loss of the batch, before the update.
        """
        self._set_rates()
        return self._engine.train_step(x, y).loss

    def set_hyper(self, **values: float) -> None:
        """Change rates from the next step on (``lr=0.1``); nothing is compiled again.

        Raises:
            KeyError: a name that is not among the optimizer's ``slots``.
        """
        self._engine.set_hyper(**values)
        self._overrides.update(values)

    def _set_rates(self) -> None:
        """The optimiser's values for this step (AdamW's change with it), then the user's."""
        optimizer, done = self._engine.optimizer, self._engine.steps_done
        rates = {} if optimizer is None else optimizer.hyper(done)
        self._engine.set_hyper(**{**rates, **self._overrides})

    def read(self, name: str) -> np.ndarray:
        """A copy of a tensor: ``0.weight``, ``0.weight.grad``, ``0.weight.momentum``, ``output``.

        Raises:
            KeyError: no such tensor, or one whose memory was used again; names what can be read.
        """
        return self._engine.read(name)

    def write(self, name: str, value: np.ndarray) -> None:
        """Replace a parameter, optimiser state or control."""
        self._engine.write(name, value)

    def state_dict(self) -> dict[str, np.ndarray]:
        """The parameters, as the model's own ``state_dict()`` gives them."""
        return self._engine.model.state_dict()

    def watch(self, x: np.ndarray, y: np.ndarray) -> str | None:
        """One step run kernel by kernel; names the first that made a NaN or Inf, or None."""
        self._set_rates()
        return self._engine.watched_step(x, y)


def compile(
    model: Module,
    loss: Loss,
    optimizer: Optimizer,
    *,
    batch_size: int,
    input_shape: tuple[int, int, int],
    device: str = "auto",
    kernels: str = "auto",
    seed: int = 0,
    clip_norm: float | None = None,
    watch: Sequence[str] = (),
    precision: str = FP32,
) -> TrainingStep:
    """Compile the whole training step of a network for exact shapes.

    Args:
        input_shape: (C, H, W) of one image.
        device: ``auto`` (the GPU where one can be used), ``cpu``, ``cuda``, ``cuda-sim`` or
            ``reference`` (NumPy).
        kernels: ``auto``, or the highest rung of the device's ladder to use.
        seed: of parameters not set yet and of dropout masks.
        clip_norm: clip gradients to this global norm.
        watch: names of tensors that ``read`` shall read after a step although nothing else needs
            them by then, ``3.out`` or ``3.out.grad``; those that fusion never stores are made
            beside it. Everything else keeps its bits.
        precision: ``fp32``, ``tf32`` or ``bf16``: what the operands of convolutions and Linear
            layers are rounded to, where the device has such kernels; sums, losses, weights and
            updates stay float32. ``plan.notes`` names the layers that compute in fp32.

    Raises:
        ConvloomError: shapes that cannot fit (naming the layer), an unknown device, rung or
            precision, a tensor that there is not, or an argument out of range.
    """
    arguments.check_loss(loss)
    arguments.check_optimizer(optimizer)
    size = whole(batch_size, "batch_size")
    engine = Engine(
        model,
        loss=loss,
        optimizer=optimizer,
        input_shape=arguments.image_shape(input_shape),
        device=device,
        kernels=kernels,
        seed=arguments.checked_seed(seed),
        max_norm=arguments.checked_clip_norm(clip_norm),
        watch=(watch,) if isinstance(watch, str) else watch,
        precision=precision,
    )
    return TrainingStep(engine, size)


def vjp(
    model: Module,
    x: np.ndarray,
    dy: np.ndarray,
    *,
    device: str = "auto",
    kernels: str = "auto",
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
    """Output, input gradient and parameter gradients: the vector-Jacobian product at ``x``.

    Args:
        x: input (N, C, H, W); N may be 0.
        dy: gradient of the output, of the output's shape.
        device: ``reference`` computes with NumPy in ``x``'s own float dtype; others in float32.
        seed: of parameters not set yet and of dropout masks (training mode).

    Returns:
        ``(y, dx, {parameter: gradient})``.
    """
    arguments.check_model(model)
    x, dy = (_real(value, what) for value, what in ((x, "x"), (dy, "dy")))
    model.initialize(arguments.checked_seed(seed))
    forward = model.trace(tuple(x.shape[1:]), len(x))
    graph, wanted = _vjp_graph(forward, dy)
    device = resolve_device(device)
    values = {**model.state_dict(), "input": x, "output.grad": dy}
    if graph.role("counter") is Role.CONTROL:
        values["counter"] = np.array([seed, 0], np.uint64)
    names = [graph.outputs[0], *(graph.gradients[name] for name in wanted)]
    if device == "reference":
        y, *grads = _interpreted(graph, values, names, np.result_type(x.dtype, np.float32))
    else:
        y, *grads = run_once(graph, values, names, device, kernels)
    by_name = dict(zip(wanted, grads, strict=True))
    dx = by_name.pop("input", np.zeros_like(x))
    weights = model.state_dict()
    missing = {
        name: np.zeros_like(weights[name])
        for name, _ in model.named_parameters()
        if name not in by_name
    }
    return y, dx, {**missing, **by_name}


def _real(value: np.ndarray, what: str) -> np.ndarray:
    array = np.asarray(value)
    if array.dtype.kind not in "fiub":
        raise ShapeError(f"{what} must hold real numbers, it holds {array.dtype}")
    return array


def _vjp_graph(forward: Graph, dy: np.ndarray) -> tuple[Graph, list[str]]:
    check_training(forward)
    builder = GraphBuilder(forward)
    output = forward.outputs[0]
    spec = builder.spec(output)
    if dy.shape != spec.shape:
        raise ShapeError(f"dy has shape {dy.shape}, the output has {spec.shape}")
    builder.declare("output.grad", spec, Role.INPUT)
    sources = [*forward.named(Role.PARAMETER), "input"]
    graph = differentiate(builder.build(), output, "output.grad", sources)
    return graph, [name for name in sources if name in graph.gradients]


def _interpreted(
    graph: Graph, values: dict[str, np.ndarray], names: list[str], dtype: np.dtype[Any]
) -> list[np.ndarray]:
    cast = {
        name: value.astype(dtype) if np.issubdtype(value.dtype, np.floating) else value
        for name, value in values.items()
    }
    known = interpret(graph, cast)
    return [np.array(known[name]) for name in names]


def run_once(
    graph: Graph,
    values: Mapping[str, np.ndarray],
    names: Sequence[str],
    device: str,
    kernels: str = "auto",
    watch: Sequence[str] = (),
) -> list[np.ndarray]:
    """Compile a graph, run it once, and read tensors.

    Args:
        values: at least those that come from outside the graph, by name.
        names: what to read: outputs, gradients and what is watched.
        watch: further tensors to keep, those that fusion never stores included.
    """
    backend = get_backend(device)
    plan = compile_graph(graph, backend, kernels, watch=watch)
    executable = backend.executable(plan, backend.storage(plan))
    for name in graph.roles:
        executable.write(name, values[name].astype(graph.specs[name].dtype, copy=False))
    executable.run()
    return [executable.read(name) for name in names]
