"""``convloom plan``: the compiled step of a network as a table; nothing is run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from convloom.cli import options
from convloom.cli.errors import UsageError, as_usage
from convloom.cli.options import examples
from convloom.cli.terminal import Output

if TYPE_CHECKING:
    from convloom.ir import Plan
    from convloom.training.config import RunConfig


def register(app: typer.Typer) -> None:
    """Add the command to the application."""
    app.command(
        "plan",
        epilog=examples(
            "convloom plan lenet --batch-size 64",
            "convloom plan path/net.py:make_model --input-shape 3,32,32 --kernels dense",
            "convloom plan lenet --data mnist --inference --json",
        ),
    )(plan)


def plan(
    model: options.Model,
    batch_size: options.BatchSize = None,
    data: options.ShapeOf = None,
    input_shape: options.InputShape = None,
    inference: Annotated[
        bool, typer.Option("--inference", help="Only the forward pass, as predict runs it.")
    ] = False,
    device: options.Device = None,
    kernels: options.Kernels = None,
    precision: options.Precision = None,
    as_json: options.Json = False,
) -> None:
    """Print the plan of a network's training step.

    One row a step: its layer, kernel and rung, the shapes it works on, the bytes it moves and the
    floating-point operations it does; then what memory the plan takes. Where a whole chain of
    layers runs on chip, its stages and their memory are shown; where not, the reason. Plans of cuda
    need no GPU, and are then those of an H100.
    """
    from convloom.cli.runs import check_names
    from convloom.training.config import resolve

    flags = {
        "network": model,
        "batch_size": batch_size,
        "data": data,
        "device": device,
        "kernels": kernels,
        "precision": precision,
    }
    with as_usage():
        config = resolve({}, flags)
        check_names(config, needs_files=False)
    output = Output(as_json)
    with output.alone_on_stdout():
        made = _compiled(config, _shape(input_shape), inference=inference)
    output.result(made.to_json(), str(made))


def _compiled(config: RunConfig, shape: tuple[int, int, int] | None, *, inference: bool) -> Plan:
    from convloom.backends import get_backend, resolve_device
    from convloom.cli.runs import make_network
    from convloom.compiler import compile_graph
    from convloom.nn import CrossEntropyLoss
    from convloom.training.graphs import INDEX, prediction_graph, training_graph

    known_shape, classes = _images_of(config)
    shape = shape or known_shape
    graph = make_network(config.network, shape, classes).trace(shape, config.batch_size)
    if inference:
        graph = prediction_graph(graph)
    else:
        loss = CrossEntropyLoss(label_smoothing=config.label_smoothing)
        clips = config.clip_norm is not None
        graph = training_graph(graph, loss, INDEX, config.make_optimizer(), clips)
    backend = get_backend(resolve_device(config.device))
    return compile_graph(graph, backend, config.kernels, precision=config.precision)


def _images_of(config: RunConfig) -> tuple[tuple[int, int, int], int]:
    """Image shape and number of classes of a data set; only a person's own folder is read."""
    from convloom.cli.images import network_shape, with_sizes
    from convloom.cli.runs import load_data
    from convloom.data import catalog

    known = catalog.find(config.data)
    if known is not None:
        return known.shape, len(known.classes)
    if config.data == catalog.IMAGENET:
        side = config.image_size or 224
        return (3, side, side), 1000
    config = with_sizes(config, ())
    train, _ = load_data(config.data, None, Output(), resize=config.resize)
    return network_shape(config, train), len(train.classes)


def _shape(text: str | None) -> tuple[int, int, int] | None:
    """``3,32,32`` or ``3x32x32``. Raises UsageError for anything else."""
    if text is None:
        return None
    parts = text.lower().replace("×", ",").replace("x", ",").split(",")
    if len(parts) != 3 or not all(part.strip().isdecimal() and int(part) for part in parts):
        raise UsageError(f"--input-shape must be three whole numbers such as 3,32,32, not {text!r}")
    channels, height, width = (int(part) for part in parts)
    return channels, height, width
