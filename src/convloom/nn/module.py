"""What a network is: modules that hold parameters, buffers and further modules, as in torch.nn."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from convloom.ir import ConvloomError, Graph, ShapeError
from convloom.nn import runtime
from convloom.nn.arguments import whole
from convloom.nn.parameter import Buffer, Parameter, Source, Variable
from convloom.nn.tensor import TraceError
from convloom.nn.tracing import Tracer, first_tensor
from convloom.nn.weights import match

_Path = str | os.PathLike[str]


class Normalization(NamedTuple):
    """What training did to images: ``(x / 255 - mean) / std``, a number a channel."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class LoadedKeys(NamedTuple):
    """What ``load_state_dict(strict=False)`` left alone."""

    missing_keys: tuple[str, ...]
    unexpected_keys: tuple[str, ...]


class Module:
    """Base class of layers and networks.

    Subclass it, assign layers, Parameters and Buffers to attributes in ``__init__``, and write
    ``forward`` in ordinary Python; it runs on symbolic tensors when the network is traced. Names
    and shapes of ``state_dict()`` are those of the same network in PyTorch.

    ``input_shape``, ``classes`` and ``normalization`` describe what the network was trained on;
    the Trainer sets them, ``save`` stores them.
    """

    #: Layers of ours name their nodes by their path alone.
    is_layer = False
    training: bool
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Buffer | None]
    _modules: dict[str, Module | None]
    forward: Callable[..., Any]

    def __new__(cls, *_: Any, **__: Any) -> Any:
        """Registers exist before ``__init__``, so a subclass may forget to call ours."""
        self = super().__new__(cls)
        self.__dict__.update(_parameters={}, _buffers={}, _modules={}, training=True)
        return self

    def __init__(self) -> None:
        """Nothing to do; accepts no arguments."""

    # ---- registration

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self.register_parameter(name, value)
        elif isinstance(value, Buffer):
            self.register_buffer(name, value)
        elif isinstance(value, Module):
            self.add_module(name, value)
        elif value is None and (register := self._register_of(name)) is not None:
            register[name] = None
        else:
            self._forget(name)
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> Any:
        for register in ("_parameters", "_buffers", "_modules"):
            found = self.__dict__.get(register, {})
            if name in found:
                return found[name]
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        if not self._forget(name):
            object.__delattr__(self, name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self._parameters, *self._buffers, *self._modules]

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Make a parameter part of this module under a name."""
        self._register(self._parameters, name, parameter)

    def register_buffer(self, name: str, value: Buffer | np.ndarray | None) -> None:
        """Make an array that is not learnt part of this module under a name."""
        buffer = value if value is None or isinstance(value, Buffer) else Buffer(value)
        self._register(self._buffers, name, buffer)

    def add_module(self, name: str, module: Module | None) -> None:
        """Make a module part of this one under a name."""
        self._register(self._modules, name, module)

    register_module = add_module

    def _register(self, register: dict[str, Any], name: str, value: Any) -> None:
        if not name or "." in name:
            raise ConvloomError(f"a name of a module must not be empty or hold a dot: {name!r}")
        if isinstance(getattr(type(self), name, None), property):
            raise ConvloomError(f"{type(self).__name__}.{name} cannot be a parameter or module")
        if name not in register:
            self._forget(name)
            self.__dict__.pop(name, None)
        register[name] = value

    def _register_of(self, name: str) -> dict[str, Any] | None:
        """The register that holds a name."""
        registers: tuple[dict[str, Any], ...] = (self._parameters, self._buffers, self._modules)
        return next((register for register in registers if name in register), None)

    def _forget(self, name: str) -> bool:
        """Take a name out of the registers; False if it was in none."""
        register = self._register_of(name)
        if register is not None:
            del register[name]
        return register is not None

    # ---- walking

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(name, module) of each module directly inside, each module once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if module is not None and id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def children(self) -> Iterator[Module]:
        """The modules directly inside."""
        return (module for _, module in self.named_children())

    def named_modules(
        self, memo: set[Module] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) of this module (its path is ``prefix``) and all inside, each once."""
        memo = set() if memo is None else memo
        if remove_duplicate and self in memo:
            return
        memo.add(self)
        yield prefix, self
        for name, module in self._modules.items():
            if module is not None:
                yield from module.named_modules(memo, _joined(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all inside, each once."""
        return (module for _, module in self.named_modules())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(name, parameter) of every parameter, in order of registration, each once."""
        for name, variable in self.named_variables(prefix, recurse, remove_duplicate):
            if isinstance(variable, Parameter):
                yield name, variable

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter, each once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Buffer]]:
        """(name, buffer) of every buffer, in order of registration, each once."""
        for name, variable in self.named_variables(prefix, recurse, remove_duplicate):
            if isinstance(variable, Buffer):
                yield name, variable

    def buffers(self, recurse: bool = True) -> Iterator[Buffer]:
        """Every buffer, each once."""
        return (buffer for _, buffer in self.named_buffers(recurse=recurse))

    def named_variables(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Variable]]:
        """(name, parameter or buffer) in the order of ``state_dict``, each once."""
        seen: set[int] = set()
        modules = (
            self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
            if recurse
            else iter([(prefix, self)])
        )
        for path, module in modules:
            for name, variable in (*module._parameters.items(), *module._buffers.items()):
                if variable is None or (remove_duplicate and id(variable) in seen):
                    continue
                seen.add(id(variable))
                yield _joined(path, name), variable

    def get_submodule(self, target: str) -> Module:
        """The module at a path. Raises AttributeError if there is none."""
        module = self
        for name in target.split(".") if target else ():
            found = module._modules.get(name)
            if found is None:
                raise AttributeError(f"{type(module).__name__} has no module {name!r} ({target})")
            module = found
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter of a name. Raises AttributeError if there is none."""
        found = dict(self.named_parameters(remove_duplicate=False)).get(target)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def apply(self, function: Callable[[Module], Any]) -> Module:
        """Call a function with every module, inner ones first; returns self."""
        for child in self.children():
            child.apply(function)
        function(self)
        return self

    def train(self, mode: bool = True) -> Module:
        """Set ``training`` here and inside.

        It does not change what layers compute: a training step drops out, evaluation does not.
        """
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Module:
        """``train(False)``."""
        return self.train(False)

    # ---- values

    def initialize(self, seed: int = 0) -> Module:
        """Draw every parameter that has no value yet; returns self.

        A value is a function of seed, parameter name (in this module) and element alone.
        """
        for name, parameter in self.named_parameters():
            parameter.initialize(seed, name)
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """{name: a copy of the value}, with PyTorch's names, shapes and layouts.

        Parameters and buffers, module by module. Parameters without a value are drawn first, with
        seed 0. While a compiled step owns the weights they are read from it. A parameter
        registered twice has both names, as in PyTorch.
        """
        self.initialize(0)
        return {
            name: variable.data for name, variable in self.named_variables(remove_duplicate=False)
        }

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> LoadedKeys:
        """Replace parameters and buffers by arrays of the same names and shapes.

        Arrays are NumPy's, or PyTorch tensors.

        Keys that only fit without the ``module.`` that DataParallel puts before them are taken
        without it, with a warning. Nothing is replaced unless everything fits.

        Args:
            strict: whether names must be the same; otherwise missing and extra ones are left
                alone, but at least one must fit. Shapes must always fit.

        Raises:
            WeightsError: naming every key that is missing, unexpected or of another shape.
        """
        own = dict(self.named_variables(remove_duplicate=False))
        matched = match(state_dict, own, strict=strict, title=type(self).__name__)
        for name, array in matched.arrays.items():
            own[name].data = array
        return LoadedKeys(matched.missing, matched.unexpected)

    def bind(self, source: Source, owner: object | None = None) -> None:
        """Let the weights live in ``source``, which holds them already under their names here.

        Values are pulled from an earlier source first; the last binding wins. Those that the
        source does not have (``read`` raises KeyError), since no op reads them, stay as they are.
        The source is held as long as this network; with ``owner``, only until that object is
        gone, when the values are pulled back. ``source`` must then not refer to ``owner``.
        """
        self.release()
        bound = []
        for name, variable in self.named_variables():
            with contextlib.suppress(KeyError):
                source.read(name)
                variable.bind(source, name)
                bound.append(variable)
        if owner is not None:
            weakref.finalize(owner, _release, bound, source).atexit = False

    def release(self, source: Source | None = None) -> None:
        """Pull the weights back from the source they are bound to (only ``source``, if given)."""
        for _, variable in self.named_variables():
            variable.release(source)

    # ---- what the network was trained on

    @property
    def input_shape(self) -> tuple[int, ...] | None:
        """(C, H, W) of the images it takes, or None if nobody said."""
        return self.__dict__.get("_input_shape")

    @input_shape.setter
    def input_shape(self, shape: Sequence[int] | None) -> None:
        self.__dict__["_input_shape"] = None if shape is None else _checked_shape(shape)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes in the order of the logits, or None if nobody said."""
        return self.__dict__.get("_classes")

    @classes.setter
    def classes(self, names: Sequence[str] | None) -> None:
        ok = names is None or (
            not isinstance(names, str)
            and isinstance(names, Sequence)
            and all(isinstance(name, str) for name in names)
        )
        if not ok:
            raise ConvloomError(
                f"Module.classes holds the names of the classes, not {names!r}; call an attribute "
                "of your own otherwise (num_classes)"
            )
        self.__dict__["_classes"] = None if names is None else tuple(names)

    @property
    def normalization(self) -> Normalization | None:
        """(mean, std) by channel that training used, or None if nobody said."""
        return self.__dict__.get("_normalization")

    @normalization.setter
    def normalization(self, value: tuple[Sequence[float], Sequence[float]] | None) -> None:
        self.__dict__["_normalization"] = None if value is None else _checked_normalization(value)

    @property
    def mean_image(self) -> np.ndarray | None:
        """The mean of the training images, float32 (C, H, W) from 0 to 255, which is subtracted
        from pixels in place of the mean of ``normalization``; None where that has its place."""
        return self.__dict__.get("_mean_image")

    @mean_image.setter
    def mean_image(self, value: np.ndarray | None) -> None:
        if value is not None:
            value = np.array(value, np.float32)
            if value.ndim != 3 or not np.isfinite(value).all():
                raise ConvloomError(
                    f"mean_image must hold finite numbers (C, H, W), it has shape {value.shape}"
                )
            value.flags.writeable = False
        self.__dict__["_mean_image"] = value

    # ---- what it does

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        """Run ``forward`` on the symbolic tensors of a trace."""
        tensor = first_tensor([*inputs, *options.values()])
        if tensor is None:
            given = ", ".join(type(value).__name__ for value in inputs) or "nothing"
            raise TraceError(
                f"{type(self).__name__} was called with {given}; modules are called inside "
                "forward, with its tensors. For values use predict(images), convloom.vjp, "
                "convloom.compile or a Trainer"
            )
        if not callable(getattr(self, "forward", None)):
            raise TraceError(f"{type(self).__name__} has no forward(self, x); write one")
        with tensor.tracer.inside(self):
            return self.forward(*inputs, **options)

    def trace(self, input_shape: Sequence[int], batch_size: int = 1) -> Graph:
        """The graph of the forward pass for exact shapes.

        Args:
            input_shape: (C, H, W) of one image, or (features,).
            batch_size: images at a time; 0 is allowed.

        Returns:
            A graph from ``input`` to ``output``; parameters have their ``state_dict`` names, and
            ``counter`` (seed, step) is declared if the network draws random masks.

        Raises:
            ShapeError: shapes that cannot fit; names the layer and the sizes.
            TraceError: a ``forward`` that depends on values, or returns anything but one tensor.
        """
        shape = _checked_shape(input_shape)
        graph = Tracer(self).run(shape, whole(batch_size, "batch_size", least=0))
        self.__dict__["_traced_shape"] = shape
        return graph

    def predict(
        self, images: np.ndarray, *, batch_size: int = 256, device: str = "auto"
    ) -> np.ndarray:
        """Class probabilities, float32 (N, classes).

        Args:
            images: (N, C, H, W), or (C, H, W) for one. uint8 is normalised as in training,
                ``(x / 255 - mean) / std``; float32 is taken as given.
            batch_size: images at a time.
            device: ``auto`` (the GPU where one can be used), ``cpu``, ``cuda``, ``cuda-sim`` or
                ``reference`` (NumPy).
        """
        return runtime.predictor()(self, images, batch_size=batch_size, device=device)

    def save(
        self,
        path: _Path,
        *,
        input_shape: Sequence[int] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """Write network, weights, classes and normalisation to one safetensors file, atomically.

        ``convloom.load`` rebuilds the network without this class. See nn/serialization.py.

        Args:
            input_shape: (C, H, W); needed only if the network was never trained or traced.
            extra: further JSON data to keep with it.

        Raises:
            ConvloomError: no input shape is known.
            FileError: the file cannot be written; an old file is unchanged.
        """
        from convloom.nn.serialization import save

        save(self, path, input_shape=input_shape, extra=extra)

    # ---- text

    def extra_repr(self) -> str:
        """What stands between the brackets of ``repr``."""
        return ""

    def __repr__(self) -> str:
        lines = []
        for name, module in self._modules.items():
            lines.append(f"({name}): " + repr(module).replace("\n", "\n  "))
        extra = self.extra_repr()
        if not lines:
            return f"{type(self).__name__}({extra})"
        inner = "\n  ".join([extra, *lines] if extra else lines)
        return f"{type(self).__name__}(\n  {inner}\n)"


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _release(variables: Sequence[Variable], source: Source) -> None:
    for variable in variables:
        variable.release(source)


def _checked_shape(shape: Sequence[int]) -> tuple[int, ...]:
    if isinstance(shape, int) or not len(shape):
        raise ShapeError(f"input_shape must be (C, H, W) of one image, it is {shape!r}")
    return tuple(whole(extent, "each extent of input_shape", least=0) for extent in shape)


def _checked_normalization(value: tuple[Sequence[float], Sequence[float]]) -> Normalization:
    try:
        mean, std = (tuple(float(v) for v in np.atleast_1d(part)) for part in value)
    except (TypeError, ValueError):
        raise ConvloomError(
            f"normalization must be (means, stds), a number a channel, not {value!r}"
        ) from None
    if len(mean) != len(std) or not all(np.isfinite((*mean, *std))) or not all(s > 0 for s in std):
        raise ConvloomError(f"normalization needs as many means as positive stds, it is {value!r}")
    return Normalization(mean, std)
