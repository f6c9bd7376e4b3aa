"""Tracing: a network's ``forward`` runs once on symbolic tensors, which record what it asks for.

A ``SymbolicTensor`` has a shape and no values. Ops on it, its methods and the functions of
``nn.functional`` add nodes to a graph; each node is named after the module that asked for it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from convloom.ir import ConvloomError, Graph, GraphBuilder, Role, ShapeError, TensorSpec
from convloom.nn.parameter import Parameter
from convloom.ops import COUNTER_SPEC, Add, Dropout, Flatten, Op, ReLU, Unflatten
from convloom.random import stream_id

if TYPE_CHECKING:
    from convloom.nn.module import Module

#: Tensors that every graph may have; no parameter can have such a name.
RESERVED = frozenset({"input", "output", "target", "label", "loss", "correct", "hyper", "counter"})


class TraceError(ConvloomError, TypeError):
    """A ``forward`` that cannot become a graph; names the module and what it did."""


class SymbolicTensor:
    """A tensor inside ``forward``: it has a shape, and its values come only when a step runs.

    It can be added, concatenated (``nn.concat``), flattened, reshaped, rectified, and given to
    modules and to the functions of ``nn.functional``. ``shape[0]`` is the batch size.
    """

    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer = tracer
        self.name = name

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, the batch first: (N, C, H, W) for images."""
        return self.tracer.builder.spec(self.name).shape

    @property
    def dtype(self) -> str:
        """The element type, ``float32``."""
        return self.tracer.builder.spec(self.name).dtype

    @property
    def ndim(self) -> int:
        """Number of axes, the batch included."""
        return len(self.shape)

    def dim(self) -> int:
        """Number of axes, the batch included."""
        return self.ndim

    def size(self, dim: int | None = None) -> Any:
        """The shape, or one extent of it."""
        return self.shape if dim is None else self.shape[dim]

    def relu(self) -> SymbolicTensor:
        """0 where the element is at most 0, else the element."""
        return self.tracer.apply(ReLU(), self, function="relu")

    def add(self, other: Any) -> SymbolicTensor:
        """The sum of two tensors of one shape."""
        return self.__add__(other)

    def flatten(self, start_dim: int = 1, end_dim: int = -1) -> SymbolicTensor:
        """Merge axes of a sample; the batch, axis 0, stays (so torch's default, 0, is not ours)."""
        first, last = (_axis(self, dim) for dim in (start_dim, end_dim))
        if first == 0 < last:
            self.tracer.fail("flatten from axis 0 would merge the batch; use flatten(1)")
        if first >= last:
            return self
        merged = math.prod(self.shape[first : last + 1])
        return self._reshaped((*self.shape[1:first], merged, *self.shape[last + 1 :]), "flatten")

    def reshape(self, *shape: Any) -> SymbolicTensor:
        """The same elements in another shape; the batch stays first (``x.size(0)`` or -1)."""
        wished = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], Sequence) else shape
        return self._reshaped(_sample_shape(self, wished), "reshape")

    def view(self, *shape: Any) -> SymbolicTensor:
        """As ``reshape``."""
        return self.reshape(*shape)

    def __add__(self, other: Any) -> SymbolicTensor:
        if isinstance(other, int) and other == 0:  # where sum([a, b]) begins
            return self
        if not isinstance(other, SymbolicTensor):
            self.tracer.fail(
                f"a tensor was added to {_kind(other)}; only two tensors of one shape can be added"
            )
        return self.tracer.apply(Add(), self, other, function="add")

    __radd__ = __add__

    def _reshaped(self, sample: tuple[int, ...], function: str) -> SymbolicTensor:
        """This tensor with samples of another shape, flat in between."""
        flat = self if self.ndim == 2 else self.tracer.apply(Flatten(), self, function=function)
        if len(sample) == 1:
            return flat
        return self.tracer.apply(Unflatten(sample), flat, function=function)

    # What follows only explains what cannot be traced.

    def __bool__(self) -> bool:
        self._needs_values("if, while, and, or, not, assert")

    def __float__(self) -> float:
        self._needs_values("float(tensor)")

    def __int__(self) -> int:
        self._needs_values("int(tensor)")

    def __index__(self) -> int:
        self._needs_values("a tensor as an index")

    def __len__(self) -> int:
        self.tracer.fail("len(tensor) is not traced; use tensor.shape[0]")

    def __iter__(self) -> Iterator[Any]:
        self._needs_values("iterating over a tensor")

    def __getitem__(self, _: Any) -> Any:
        self._unsupported("indexing (tensor[...])")

    def __contains__(self, _: Any) -> bool:
        self._needs_values("`in`")

    def item(self) -> float:
        """Always an error: there are no values yet."""
        self._needs_values("tensor.item()")

    def numpy(self) -> Any:
        """Always an error: there are no values yet."""
        self._needs_values("tensor.numpy()")

    def __array__(self, *_: Any, **__: Any) -> Any:
        self._needs_values("a NumPy conversion")

    def __array_ufunc__(self, ufunc: Any, *_: Any, **__: Any) -> Any:
        self._needs_values(f"numpy.{ufunc.__name__}")

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> Any:
        self._needs_values(f"numpy.{function.__name__}")

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        name = getattr(function, "__name__", str(function))
        raise TraceError(
            f"torch.{name} cannot work on convloom's symbolic tensors; use the functions of "
            "convloom.nn and convloom.nn.functional"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.tracer.fail(
            f"tensors have no .{name} in convloom; they offer + , .relu(), .flatten(1), "
            ".reshape(), .shape and what nn.functional has",
            AttributeError,
        )

    def __repr__(self) -> str:
        return f"SymbolicTensor({self.name!r}, shape={self.shape})"

    def _needs_values(self, what: str) -> NoReturn:
        self.tracer.fail(
            f"{what} needs the tensor's values, but forward is only traced: one graph must serve "
            "every image, so it may depend on shapes and never on values"
        )

    def _unsupported(self, what: str) -> NoReturn:
        self.tracer.fail(f"{what} is not supported; tensors can be added, concatenated, reshaped")


class TraceAttributeError(TraceError, AttributeError):
    """A tensor method that does not exist; hasattr and getattr with a default work."""


def _explaining(symbol: str) -> Any:
    def method(self: SymbolicTensor, *_: Any) -> Any:
        self._unsupported(f"{symbol} between tensors")

    return method


def _comparing(symbol: str) -> Any:
    def method(self: SymbolicTensor, _: Any) -> Any:
        self._needs_values(f"tensor {symbol} …")

    return method


for _name, _symbol in {
    "sub": "-", "mul": "*", "truediv": "/", "floordiv": "//", "mod": "%", "pow": "**",
    "matmul": "@",
}.items():  # fmt: skip
    setattr(SymbolicTensor, f"__{_name}__", _explaining(_symbol))
    setattr(SymbolicTensor, f"__r{_name}__", _explaining(_symbol))
for _name, _symbol in {"neg": "-tensor", "abs": "abs(tensor)"}.items():
    setattr(SymbolicTensor, f"__{_name}__", _explaining(_symbol))
for _name, _symbol in {
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!=",
}.items():  # fmt: skip
    setattr(SymbolicTensor, f"__{_name}__", _comparing(_symbol))


class Tracer:
    """One run of ``forward``: the graph being built, and the modules we are inside of."""

    def __init__(self, root: Module) -> None:
        self.builder = GraphBuilder()
        self._root = root
        self._paths = {id(module): path for path, module in root.named_modules()}
        self._parameters = {id(p): name for name, p in root.named_parameters()}
        self._inside: list[tuple[Module, str]] = []
        self._streams: dict[str, int] = {}
        self._has_counter = False

    def run(self, input_shape: tuple[int, ...], batch_size: int) -> Graph:
        """The graph of the network's forward pass; see ``Module.trace``."""
        self.builder.declare("input", TensorSpec((batch_size, *input_shape)), Role.INPUT)
        for name, parameter in self._root.named_parameters():
            if name in RESERVED:
                raise TraceError(f"a parameter cannot be called {name!r}, graphs use that name")
            self.builder.declare(name, TensorSpec(parameter.shape), Role.PARAMETER)
        result = self._root(SymbolicTensor(self, "input"))
        output = self._checked_output(result)
        return _finished(self.builder, output)

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
        *inputs: SymbolicTensor | Parameter,
        function: str,
        extra: Sequence[str] = (),
    ) -> SymbolicTensor:
        """Add an op; returns its first output.

        Args:
            function: names the node where no layer of ours asked for it.
            extra: names of further outputs (``index``), which stay inside the graph.

        Raises:
            ShapeError: shapes that cannot fit; names the layer.
            TraceError: an input that belongs to another network or another trace.
        """
        names = [self._name_of(value, function) for value in inputs]
        return self._added(op, names, self._layer(function), extra)

    def dropout(self, x: SymbolicTensor, p: float) -> SymbolicTensor:
        """Dropout; each call has masks of its own, keyed by its layer and how often that ran."""
        layer = self._layer("dropout")
        times = self._streams[layer] = self._streams.get(layer, 0) + 1
        stream = stream_id(f"dropout:{layer}" + (f"#{times}" if times > 1 else ""))
        names = [self._name_of(x, "dropout"), self.counter()]
        return self._added(Dropout(p, stream), names, layer, ["mask"])

    def replay(self, op: Op, inputs: Sequence[str], layer: str, names: Sequence[str]) -> list[str]:
        """Add a node of a saved graph, under the path of the module that replays it."""
        joined = [self._joined(name) for name in names]
        return list(self.builder.add(op, inputs, layer=self._joined(layer), names=joined))

    def parameter(self, parameter: Parameter) -> str:
        """The tensor of a parameter; a shared one has one tensor."""
        name = self._parameters.get(id(parameter))
        if name is None:
            self.fail(
                f"{parameter} is not registered in this network; assign its module to an "
                "attribute in __init__, or keep modules in nn.ModuleList instead of a list"
            )
        return name

    def counter(self) -> str:
        """The control tensor (seed, step) that keys random masks."""
        if not self._has_counter:
            self.builder.declare("counter", COUNTER_SPEC, Role.CONTROL)
            self._has_counter = True
        return "counter"

    def fail(self, message: str, kind: type[Exception] | None = None) -> NoReturn:
        """Raise a TraceError that says where in the network it happened."""
        module, path = self._inside[-1] if self._inside else (self._root, "")
        where = f"layer {path!r} ({type(module).__name__})" if path else type(module).__name__
        error = TraceAttributeError if kind is AttributeError else TraceError
        raise error(f"forward of {where}: {message}")

    def _added(
        self, op: Op, inputs: Sequence[str], layer: str, extra: Sequence[str]
    ) -> SymbolicTensor:
        names = [f"{layer}.{end}" for end in ("out", *extra)]
        return SymbolicTensor(self, self.builder.add(op, inputs, layer=layer, names=names)[0])

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

    def _name_of(self, value: SymbolicTensor | Parameter, function: str) -> str:
        if isinstance(value, Parameter):
            return self.parameter(value)
        if not isinstance(value, SymbolicTensor):
            self.fail(f"{function} takes tensors of the network, it got {_kind(value)}")
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
            self.fail(f"it returned {_kind(result)}; a network returns exactly one tensor")
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


def _finished(builder: GraphBuilder, output: str) -> Graph:
    """The graph with its result named ``output`` and without parameters that nothing reads."""
    graph = builder.build()

    def renamed(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple("output" if name == output else name for name in names)

    nodes = tuple(
        type(node)(node.op, renamed(node.inputs), renamed(node.outputs), node.layer)
        for node in graph.nodes
    )
    read = {name for node in nodes for name in node.inputs}
    roles = {n: role for n, role in graph.roles.items() if role is Role.INPUT or n in read}
    specs = {
        renamed((name,))[0]: spec
        for name, spec in graph.specs.items()
        if name in roles or name not in graph.roles
    }
    return graph.replacing(nodes=nodes, specs=specs, roles=roles, outputs=("output",))


def _axis(tensor: SymbolicTensor, dim: int) -> int:
    axes = tensor.ndim
    if not -axes <= dim < axes:
        tensor.tracer.fail(f"axis {dim} does not exist in a tensor of shape {tensor.shape}")
    return dim % axes


def _sample_shape(tensor: SymbolicTensor, shape: tuple[Any, ...]) -> tuple[int, ...]:
    """The wished shape without the batch, its -1 filled in."""
    if not shape or not all(isinstance(n, int) for n in shape) or shape.count(-1) > 1:
        tensor.tracer.fail(f"reshape takes whole numbers, at most one of them -1, it got {shape}")
    size = math.prod(tensor.shape[1:])
    rest = list(shape[1:])
    if -1 in rest:
        known = math.prod(n for n in rest if n != -1)
        rest[rest.index(-1)] = size // known if known else 0
    if shape[0] not in (-1, tensor.shape[0]) or math.prod(rest) != size:
        tensor.tracer.fail(
            f"a tensor of shape {tensor.shape} cannot become {shape}: the batch must stay first "
            f"(write x.size(0) or -1) and a sample keeps its {size} elements"
        )
    return tuple(rest)


def _kind(value: Any) -> str:
    return "nothing (None)" if value is None else f"a {type(value).__name__}"
