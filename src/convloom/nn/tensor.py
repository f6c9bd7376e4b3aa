"""Symbolic tensors: what ``forward`` works on, and what they say when they cannot be traced."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from convloom.ir import ConvloomError
from convloom.ops import Add, Flatten, ReLU, Unflatten

if TYPE_CHECKING:
    from convloom.nn.tracing import Tracer


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
                f"a tensor was added to {kind_of(other)}; only tensors of one shape can be added"
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
            TraceAttributeError,
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


def kind_of(value: Any) -> str:
    """What a value is, for messages: ``a value of type int``."""
    return "nothing (None)" if value is None else f"a value of type {type(value).__name__}"
