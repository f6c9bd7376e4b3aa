"""``convloom build``: a network's GPU kernels, compiled ahead for any GPU; none is needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.plan import _images_of, _shape
from convloom.cli.terminal import Output, say, table

if TYPE_CHECKING:
    from convloom.backends.cuda.launch import Phase, Specialisation
    from convloom.backends.cuda.nvrtc import Cubin
    from convloom.backends.feeding import Crops
    from convloom.ir import Graph, Plan, TensorSpec
    from convloom.training.config import RunConfig

#: The kinds of GPU in use, oldest first: Turing to Blackwell.
ARCHITECTURES = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
_HEADER = ("kernel", "layers", "arch", "registers", "shared", "spilled", "code")


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "build",
        epilog=examples(
            "convloom build lenet",
            "convloom build lenet --arch sm_75,sm_80,sm_90,sm_120",
            "convloom build path/net.py:make_model --input-shape 3,32,32 --kernels naive --json",
        ),
    )(build)


def build(
    model: options.Model,
    arch: Annotated[
        str | None,
        typer.Option(
            metavar="SM,…",
            show_default=f"this machine's GPU, else {','.join(ARCHITECTURES)}",
            help="Architectures to compile for, as sm_90 or 90.",
        ),
    ] = None,
    batch_size: options.BatchSize = None,
    data: options.ShapeOf = None,
    input_shape: options.InputShape = None,
    kernels: options.Kernels = None,
    precision: options.Precision = None,
    as_json: options.Json = False,
) -> None:
    """Compile a network's CUDA kernels ahead, into the cache.

    Neither a GPU nor a driver is needed.

    One row a kernel and architecture: the layers that it serves, registers of a thread, bytes of
    shared memory of a block, bytes of registers that a thread keeps in local memory because they
    do not fit, and bytes of machine code. Later runs, on this machine or wherever the cache
    ($CONVLOOM_CACHE) is taken, compile nothing.
    """
    from convloom.backends.cuda.device import architecture
    from convloom.backends.cuda.nvrtc import shared_compiler
    from convloom.cli.runs import check_names, crops_of
    from convloom.training.config import resolve

    flags = {
        "network": model,
        "batch_size": batch_size,
        "data": data,
        "device": "cuda",
        "kernels": kernels,
        "precision": precision,
    }
    with as_usage():
        config = resolve({}, flags)
        check_names(config, needs_files=False)
    shape = _shape(input_shape)
    plans = {
        architecture(capability): _plans(config, shape, capability)
        for capability in _capabilities(arch)
    }
    for line in _precision_notes(plans):
        say(line)
    compiler, rows = shared_compiler(), []
    for name, made in plans.items():
        wanted = _kernels(made, crops_of(config))
        for kernel, cubin in compiler.compile(wanted, name).items():
            rows.append(_row(kernel, *wanted[kernel], name, cubin))
    Output(as_json).result(rows, _table(rows))


def _precision_notes(plans: Mapping[str, list[Plan]]) -> list[str]:
    """What training would tell: why not everything computes in the precision asked for.

    Args:
        plans: {architecture: its plans}; where some alone compute otherwise, they are named.
    """
    from convloom.training.engine import precision_notes

    told: dict[str, dict[str, None]] = {}
    for name, made in plans.items():
        for note in (note for plan in made for note in precision_notes(plan)):
            told.setdefault(note, {})[name] = None
    return [
        note if len(names) == len(plans) else f"{', '.join(names)}: {note}"
        for note, names in told.items()
    ]


def _plans(
    config: RunConfig, shape: tuple[int, int, int] | None, capability: tuple[int, int]
) -> list[Plan]:
    """Training, evaluation and prediction, as a GPU of this compute capability runs them."""
    from convloom.backends.cuda.backend import CudaBackend
    from convloom.cli.runs import make_network
    from convloom.compiler import compile_graph
    from convloom.ir import Role
    from convloom.nn import CrossEntropyLoss
    from convloom.training.graphs import INDEX, evaluation_graph, prediction_graph, training_graph

    known_shape, classes = _images_of(config)
    shape = shape or known_shape
    network = make_network(config.network, shape, classes)
    forward = network.trace(shape, config.batch_size)
    loss = CrossEntropyLoss(label_smoothing=config.label_smoothing)
    clips = config.clip_norm is not None
    # On chip, the few images of a last batch may be shared by blocks; batch norm takes two or more.
    training, last = (
        training_graph(given, loss, INDEX, config.make_optimizer(), clips)
        for given in (forward, network.trace(shape, 2))
    )
    backend = CudaBackend(capability=capability)

    def made(graph: Graph, held: Mapping[str, TensorSpec]) -> Plan:
        return compile_graph(graph, backend, config.kernels, held, config.precision)

    first = made(training, {})
    # Weights keep the order that training chose; those that were only loaded take the best.
    kept = (*forward.named(Role.PARAMETER), *forward.named(Role.STATE))
    held = {name: first.spec(name) for name in kept}
    plans = [first, made(last, held)]
    # Normalisation is folded into the filters of many images, not into those of few.
    for given in (forward, network.trace(shape, 1)):
        plans.append(made(evaluation_graph(given, loss, INDEX), held))
        plans += [made(prediction_graph(given), order) for order in (held, {})]
    return plans


def _kernels(plans: list[Plan], crops: Crops | None) -> dict[Specialisation, tuple[str, int]]:
    """{kernel: (the layers it serves, the most dynamic shared memory of a launch)}.

    Args:
        crops: how training images are augmented; streamed ones are on the host.
    """
    from convloom.backends.cuda.fed import fed_phases
    from convloom.backends.cuda.resident import kernels
    from convloom.backends.cuda.together import many_phases

    layers: dict[Specialisation, dict[str, None]] = {}
    shared: dict[Specialisation, int] = {}
    for plan in plans:
        phases: list[tuple[str, Phase]] = []
        _, *image = plan.spec("input").shape
        hyper = plan.graph.specs.get("hyper")
        for drawn in dict.fromkeys((None, crops if hyper else None)):
            ends = kernels((image[0], image[1], image[2]), hyper.size if hyper else 0, drawn)
            for kernel, name in zip(ends, ("input", "results"), strict=True):
                layers.setdefault(kernel, {})[name] = None
            fed = (*fed_phases(plan, ends[0]), *many_phases(plan, ends[0]))
            phases += [(plan.steps[0].node.layer, phase) for phase in fed]
        for step in plan.steps:
            launch = step.selection.launch
            made = (*launch.prologue, *launch.phases, *launch.others)
            phases += [(step.node.layer, one) for one in made]
        for layer, phase in phases:
            layers.setdefault(phase.kernel, {})[layer] = None
            shared[phase.kernel] = max(shared.get(phase.kernel, 0), phase.shared)
    return {kernel: (", ".join(users), shared.get(kernel, 0)) for kernel, users in layers.items()}


def _capabilities(given: str | None) -> list[tuple[int, int]]:
    """Of the architectures given. Raises UsageError for one that the compiler does not know."""
    from convloom.backends.cuda import device
    from convloom.backends.cuda.nvrtc import supported_architectures

    found = device.find()
    if given is None and found.capabilities:
        return [found.capabilities[0]]
    names = (given or ",".join(ARCHITECTURES)).split(",")
    known = supported_architectures()
    made = []
    for name in names:
        capability = device.capability_of(name)
        if capability is None or f"sm_{capability[0]}{capability[1]}" not in known:
            raise UsageError(
                f"--arch: {name.strip()!r} is no architecture that the installed NVRTC compiles "
                f"for; it knows {', '.join(known)}"
            )
        made.append(capability)
    return list(dict.fromkeys(made))


def _row(
    kernel: Specialisation, layers: str, shared: int, arch: str, cubin: Cubin
) -> dict[str, Any]:
    return {
        "kernel": kernel.source,
        "constants": dict(kernel.constants),
        "layers": layers,
        "arch": arch,
        "registers": cubin.usage.registers,
        "shared": cubin.usage.shared + shared,
        "spilled": cubin.usage.spilled,
        "code": len(cubin.code),
    }


def _table(rows: list[dict[str, Any]]) -> str:
    cells = [[str(row[name]) for name in _HEADER] for row in rows]
    return table(_HEADER, cells, left=(0, 1, 2))
