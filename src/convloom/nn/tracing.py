"""Tracing: a network's ``forward`` runs once on symbolic tensors, which record what it asks for.

A ``SymbolicTensor`` has a shape and no values. Ops on it, its methods and the functions of
``nn.functional`` add nodes to a graph; each node is named after the module that asked for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from convloom.ir import Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.nn.parameter import Buffer, Parameter
from convloom.nn.tensor import SymbolicTensor, TraceError, kind_of
from convloom.ops import COUNTER_SPEC, ChannelDropout, Dropout, NoisyReLU, Op
from convloom.random import stream_id

if TYPE_CHECKING:
    from convloom.nn.module import Module

#: Ops that read the counter, and have a stream of numbers of their own.
Drawing = Dropout | ChannelDropout | NoisyReLU

#: Tensors that every graph may have; no parameter can have such a name.
RESERVED = frozenset(
    {"input", "output", "target", "label", "loss", "costs", "correct", "hyper", "counter"}
)


class Tracer:
    """One run of ``forward``: the graph being built, and the modules we are inside of."""

    def __init__(self, root: Module) -> None:
        self.builder = GraphBuilder()
        self._root = root
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._variables = {id(v): name for name, v in root.named_variables()}
        #: {tensor: the buffer whose new value it is}, and {buffer: the tensors that it had}.
        self._buffer_of: dict[str, str] = {}
        self._values: dict[str, list[str]] = {}
        self._inside: list[tuple[Module, str]] = []
        self._streams: dict[str, int] = {}
        self._has_counter = False
        self._further: list[str] = []

    def run(self, input_shape: tuple[int, ...], batch_size: int) -> Graph:
        """The graph of the network's forward pass; see ``Module.trace``."""
        self.builder.declare("input", TensorSpec((batch_size, *input_shape)), Role.INPUT)
        for name, variable in self._root.named_variables():
            if name in RESERVED:
                raise TraceError(f"a parameter cannot be called {name!r}, graphs use that name")
            role = Role.PARAMETER if isinstance(variable, Parameter) else Role.STATE
            self.builder.declare(name, TensorSpec(variable.shape, variable.dtype), role)
            if role is Role.STATE:
                self._buffer_of[name], self._values[name] = name, [name]
        result = self._root(SymbolicTensor(self, "input"))
        output = self._checked_output(result)
        return _finished(self.builder, output, self._further, self._values)

    @contextlib.contextmanager
    def inside(self, module: Module) -> Iterator[None]:
        """While a module's forward runs, its path names the nodes."""
        path = self._paths.get(id(module))
        if path is None:  # made in forward, or kept in a plain list
            path = self._joined(type(module).__name__.lower())
        self._inside.append((module, path))
        try:
            yield
        except ShapeError as error:
            raise error.within(path) from None
        finally:
            self._inside.pop()

    def apply(
        self,
        op: Op,
        *inputs: SymbolicTensor | Parameter | Buffer,
        function: str,
        extra: Sequence[str] = (),
    ) -> SymbolicTensor:
        """Add an op; returns its first output. A buffer that it updates has the new value then.

        Args:
            function: names the node where no layer of ours asked for it.
            extra: names of further outputs (``index``), which stay inside the graph.

        Raises:
            ShapeError: shapes that cannot fit; names the layer.
            TraceError: an input that belongs to another network or another trace.
        """
        names = [self._name_of(value, function) for value in inputs]
        return self._added(op, names, self._layer(function), extra)

    def drawn(self, x: SymbolicTensor, op: Drawing, function: str = "dropout") -> SymbolicTensor:
        """An op that draws; each call has numbers of its own, keyed by its layer and how often that
        ran."""
        layer = self._layer(function)
        names = [self._name_of(x, function), self.counter()]
        extra = ["mask"][: op.arity_out - 1]
        return self._added(replace(op, stream=self._stream(layer)), names, layer, extra)

    def replay(self, op: Op, inputs: Sequence[str], layer: str, names: Sequence[str]) -> list[str]:
        """Add a node of a saved graph, under the path of the module that replays it."""
        path = self._joined(layer)
        if isinstance(op, Drawing) and path != layer:  # inside another network, numbers of its own
            op = replace(op, stream=self._stream(path))
        return self._built(op, inputs, path, [self._joined(name) for name in names])

    def also(self, x: SymbolicTensor) -> None:
        """Make a tensor an output of the network behind the one that ``forward`` returns.

        Losses that compare several tensors read them so; predictions leave them out.
        """
        self._further.append(self._name_of(x, "a further output"))

    def variable(self, variable: Parameter | Buffer) -> str:
        """The tensor of a parameter (a shared one has one tensor), or a buffer's newest value."""
        name = self._variables.get(id(variable))
        if name is None:
            self.fail(
                f"{variable} is not registered in this network; assign its module to an "
                "attribute in __init__, or keep modules in nn.ModuleList instead of a list"
            )
        return self._values[name][-1] if name in self._values else name

    def counter(self) -> str:
        """The control tensor (seed, step) that keys random masks."""
        if not self._has_counter:
            self.builder.declare("counter", COUNTER_SPEC, Role.CONTROL)
            self._has_counter = True
        return "counter"

    def fail(self, message: str, error: type[TraceError] = TraceError) -> NoReturn:
        """Raise a TraceError that says where in the network it happened."""
        module, path = self._inside[-1] if self._inside else (self._root, "")
        where = f"layer {path!r} ({type(module).__name__})" if path else type(module).__name__
        raise error(f"forward of {where}: {message}")

    def _stream(self, layer: str) -> int:
        times = self._streams[layer] = self._streams.get(layer, 0) + 1
        return stream_id(f"dropout:{layer}" + (f"#{times}" if times > 1 else ""))

    def _added(
        self, op: Op, inputs: Sequence[str], layer: str, extra: Sequence[str]
    ) -> SymbolicTensor:
        names = [f"{layer}.{end}" for end in ("out", *extra)]
        return SymbolicTensor(self, self._built(op, inputs, layer, names)[0])

    def _built(self, op: Op, inputs: Sequence[str], layer: str, names: Sequence[str]) -> list[str]:
        """Add a node; what it makes in a buffer's place is the buffer's value from now on."""
        made = list(self.builder.add(op, inputs, layer=layer, names=names))
        for out, into in op.inplace.items():
            buffer = self._buffer_of.get(inputs[into])
            if buffer is None:
                self.fail(f"{op.name} would overwrite {inputs[into]!r}, which is no buffer")
            self._buffer_of[made[out]] = buffer
            self._values[buffer].append(made[out])
        return made

    def _layer(self, function: str) -> str:
        if not self._inside:
            return function
        module, path = self._inside[-1]
        if getattr(module, "is_layer", False):
            return path or type(module).__name__.lower()
        return self._joined(function)

    def _joined(self, name: str) -> str:
        path = self._inside[-1][1] if self._inside else ""
        return f"{path}.{name}" if path and name else path or name

    def _name_of(self, value: SymbolicTensor | Parameter | Buffer, function: str) -> str:
        if isinstance(value, (Parameter, Buffer)):
            return self.variable(value)
        if not isinstance(value, SymbolicTensor):
            self.fail(f"{function} takes tensors of the network, it got {kind_of(value)}")
        if value.tracer is not self:
            self.fail(f"{function} was given a tensor kept from an earlier trace ({value.name!r})")
        return value.name

    def _checked_output(self, result: Any) -> str:
        if isinstance(result, (tuple, list, dict, set)):
            self.fail(
                f"it returned a {type(result).__name__} of {len(result)}; a network returns "
                "exactly one tensor"
            )
        if not isinstance(result, SymbolicTensor):
            self.fail(f"it returned {kind_of(result)}; a network returns exactly one tensor")
        name = self._name_of(result, "the output")
        if name == "input":
            self.fail("it returned its input as it came, so there is nothing to compute")
        return name


def first_tensor(value: Any) -> SymbolicTensor | None:
    """The first symbolic tensor in arguments, lists and dicts included."""
    if isinstance(value, SymbolicTensor):
        return value
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        for item in value:
            if (found := first_tensor(item)) is not None:
                return found
    return None


def _finished(
    builder: GraphBuilder,
    output: str,
    further: Sequence[str],
    values: Mapping[str, Sequence[str]],
) -> Graph:
    """The graph with its result named ``output``, without nodes and parameters it does not need.

    Args:
        further: outputs behind the result.
        values: {buffer: its value before the run, after its first update, …}.
    """
    graph = builder.build()
    needed, nodes = {"input", output, *further}, []
    for node in reversed(graph.nodes):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            nodes.append(node)
    made = {name for node in nodes for name in node.outputs}

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("output" if name == output else name for name in names)

    return Graph(
        nodes=tuple(
            replace(node, inputs=renamed(node.inputs), outputs=renamed(node.outputs))
            for node in reversed(nodes)
        ),
        specs={
            renamed((name,))[0]: spec
            for name, spec in graph.specs.items()
            if name in needed or name in made
        },
        roles={name: role for name, role in graph.roles.items() if name in needed},
        outputs=("output", *renamed(tuple(further))),
        updates={
            buffer: last
            for buffer, had in values.items()
            if (last := [name for name in had if name == buffer or name in made][-1]) != buffer
        },
    )
