"""One training step, taken apart: from a network's forward to the numbers its kernels wrote.

    python examples/step_through.py            # on the small digits set, which ships with convloom

docs/learn.md explains each part. Nothing here is special to the example: these are the functions
that the Trainer calls, in the order it calls them.
"""

import numpy as np

import convloom as cl
from convloom import nn
from convloom.backends import get_backend
from convloom.compiler import compile_graph
from convloom.compiler.interpret import interpret
from convloom.ir import Graph, Role
from convloom.ops.control import HYPER
from convloom.training.graphs import INDEX, training_graph


def show(title: str, text: object) -> None:
    """A part of the walk under its heading."""
    print(f"\n=== {title}\n{text}")


def names_of(graph: Graph) -> str:
    """The graph's nodes, one a line, without shapes."""
    return "\n".join(
        f"{', '.join(node.outputs)} = {node.op.name}({', '.join(node.inputs)})"
        for node in graph.nodes
    )


def main() -> None:
    """Trace, differentiate, compile, run, and compare with NumPy."""
    train, _ = cl.data.load("digits")
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(72, 10)
    ).initialize(seed=0)
    loss, optimizer = nn.CrossEntropyLoss(), cl.optim.SGD(lr=0.1, momentum=0.9)

    # 1. forward runs once, on symbolic tensors, and leaves a graph.
    forward = model.trace(train.shape, batch_size=32)
    show("1. forward", forward)

    # 2. Loss, gradients and update are further nodes of the same graph.
    graph = training_graph(forward, loss, INDEX, optimizer, clip=False)
    show("2. the whole training step", names_of(graph))

    # 3. The compiler's passes make a plan of it: layouts, fusion, kernels, memory.
    backend = get_backend("cpu")
    plan = compile_graph(graph, backend)
    show("3. the plan", plan)

    # 4. The backend compiles the kernels and binds the plan to memory. One call is one step.
    storage = backend.storage(plan)
    executable = backend.executable(plan, storage)
    weights = model.state_dict()
    for name, value in weights.items():
        executable.write(name, value)
    hyper = np.zeros(len(HYPER))
    for name, rate in optimizer.hyper(0).items():
        hyper[HYPER.index(name)] = rate
    images, labels = train.normalise(train.images[:32]), train.labels[:32]
    given = {
        "hyper": hyper,
        "loss.grad": np.ones((), np.float32),
        "input": images,
        "target": labels,
    }
    for name, value in given.items():
        executable.write(name, value)
    executable.run()
    show("4. one step", f"loss {float(executable.read('loss')):.6f}")

    # 5. The same graph, every op by its NumPy reference: what the kernels are tested against.
    states = {
        name: np.zeros(graph.specs[name].shape, np.float32) for name in graph.named(Role.STATE)
    }
    reference = interpret(graph, {**weights, **states, **given})
    rows = []
    for name in weights:
        grad = graph.gradients[name]
        error = np.abs(executable.read(grad) - reference[grad]).max()
        rows.append(f"{grad:<16} largest difference {error:.1e}")
    show("5. compiled against reference", "\n".join(rows))


if __name__ == "__main__":
    main()
