"""Modules made of modules."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

from convloom.nn.module import Module
from convloom.nn.parameter import Parameter
from convloom.nn.tensor import SymbolicTensor, TraceError


class _Ordered(Module):
    """Modules in an order, named by their position unless they were given names."""

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter([module for module in self._modules.values() if module is not None])

    def __setitem__(self, index: int, module: Module) -> None:
        self.add_module(self._key(index), _checked(module))

    def __delitem__(self, index: int) -> None:
        del self._modules[self._key(index)]
        self._renumber()

    def append(self, module: Module) -> Self:
        """Add a module at the end; returns self."""
        self.add_module(str(len(self)), _checked(module))
        return self

    def extend(self, modules: Iterable[Module]) -> Self:
        """Add modules at the end; returns self."""
        for module in list(modules):
            self.append(module)
        return self

    def insert(self, index: int, module: Module) -> Self:
        """Add a module before the one at ``index``; returns self."""
        if not -len(self) <= index <= len(self):
            raise IndexError(f"cannot insert at {index}: there are {len(self)} modules")
        modules = list(self)
        modules.insert(index, _checked(module))
        self._modules.clear()
        return self.extend(modules)

    def _key(self, index: int) -> str:
        keys = list(self._modules)
        position = operator.index(index)
        if not -len(keys) <= position < len(keys):
            raise IndexError(f"module {index} does not exist: there are {len(keys)}")
        return keys[position]

    def _renumber(self) -> None:
        if all(key.isdecimal() for key in self._modules):
            modules = list(self)
            self._modules.clear()
            self.extend(modules)


class Sequential(_Ordered):
    """Modules applied one after another: ``Sequential(a, b)``, or an OrderedDict of named ones."""

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(str(name), _checked(module))
        else:
            self.extend(modules)

    def forward(self, x: SymbolicTensor) -> SymbolicTensor:
        for module in self:
            x = module(x)
        return x

    def __getitem__(self, index: int | slice) -> Any:
        """The module at a position; a slice is a Sequential that shares the modules."""
        if isinstance(index, slice):
            return type(self)(dict(list(self._modules.items())[index]))
        return self._modules[self._key(index)]


class ModuleList(_Ordered):
    """A list whose modules are registered; ``forward`` of its owner decides what runs."""

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return type(self)(list(self)[index])
        return self._modules[self._key(index)]

    def forward(self, *_: Any) -> SymbolicTensor:
        raise TraceError("a ModuleList cannot be called; call its modules, or use Sequential")


def _checked(module: Any) -> Module:
    if isinstance(module, Module):
        return module
    hint = ""
    if isinstance(module, type):
        hint = f"; write {module.__name__}() for a layer"
    elif isinstance(module, (list, tuple)):
        hint = "; unpack a list with *"
    elif isinstance(module, Parameter):
        hint = "; parameters are attributes of a module"
    elif type(module).__module__.partition(".")[0] == "torch":
        hint = "; this one is PyTorch's, use the layer of convloom.nn"
    raise TypeError(f"only modules can be put here, not {type(module).__name__}{hint}")
