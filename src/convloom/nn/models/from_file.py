"""A person's own network: ``path/net.py:make_model``."""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from convloom.nn.arguments import pair
from convloom.nn.models.registry import ModelError
from convloom.nn.module import Module

#: Taken when only a file is named.
DEFAULT = "make_model"


def from_file(
    spec: str,
    *,
    num_classes: int | None = None,
    in_channels: int | None = None,
    image_size: int | tuple[int, int] | None = None,
) -> Module:
    """Import a Python file and call one of its functions for a network.

    The file's folder is on ``sys.path`` meanwhile, as for a script. The function is given
    ``num_classes``, ``in_channels`` and ``image_size`` (height, width) if it takes them by name.

    Args:
        spec: ``path/net.py:make_model``; a Module subclass, or a Module, will do in place of a
            function, and ``make_model`` is meant if none is named.

    Raises:
        ModelError: no such file or function, an error inside it (with its file and line), or
            something else than a Module returned.
    """
    name, path = DEFAULT, Path(spec)
    if not path.is_file() and ":" in spec:
        head, _, name = spec.rpartition(":")
        path = Path(head)
    if not path.is_file():
        raise ModelError(f"there is no file {path}; a network is given as path/net.py:function")
    size = None if image_size is None else pair(image_size, "image_size")
    known = {"num_classes": num_classes, "in_channels": in_channels, "image_size": size}
    with _importable(path.resolve().parent):
        made = _object(_imported(path), name, path)
        if callable(made) and not isinstance(made, Module):
            arguments = _arguments(made, known, spec)
            with _explained(path, f"{name}()"):
                made = made(**arguments)
    return _checked(made, spec)


@contextlib.contextmanager
def _importable(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _imported(path: Path) -> ModuleType:
    # Not its bare name: a file called test.py or nn.py must not stand for another module.
    name = f"convloom_network_{path.stem}"
    module_spec = importlib.util.spec_from_file_location(name, path.resolve())
    if module_spec is None or module_spec.loader is None:
        raise ModelError(f"{path} is no Python file; its name must end in .py")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[name] = module  # dataclasses and pickle look it up
    with _explained(path, "importing it"):
        module_spec.loader.exec_module(module)
    return module


def _object(module: ModuleType, name: str, path: Path) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    own = [
        key
        for key, value in vars(module).items()
        if isinstance(value, Module) or getattr(value, "__module__", None) == module.__name__
    ]
    near = difflib.get_close_matches(name, own, n=1)
    hint = f"did you mean {near[0]}? " if near else ""
    raise ModelError(f"{path} defines no {name!r}; {hint}It defines {', '.join(own) or 'nothing'}")


def _arguments(function: Callable[..., Any], known: dict[str, Any], spec: str) -> dict[str, Any]:
    """What of ``known`` the function takes. Raises ModelError if it needs anything else."""
    parameters = inspect.signature(function).parameters.values()
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    by_name = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    given = {
        name: value
        for name, value in known.items()
        if value is not None and (takes_all or name in by_name)
    }
    needed = [
        p.name
        for p in parameters
        if p.default is p.empty
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        and p.name not in given
    ]
    if needed:
        raise ModelError(
            f"{spec} needs {', '.join(needed)}, which convloom does not give; it gives "
            f"{', '.join(known)}, so let other parameters have defaults"
        )
    return given


@contextlib.contextmanager
def _explained(path: Path, doing: str) -> Iterator[None]:
    try:
        yield
    except (Exception, SystemExit) as error:
        raise ModelError(f"{_place(path, error)}: {doing} failed: {_text(error)}") from error


def _place(path: Path, error: BaseException) -> str:
    """``net.py:12``: the last line of the person's own file that the error passed."""
    file = str(path.resolve())
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{path}:{error.lineno}"
    lines = [f.lineno for f in traceback.extract_tb(error.__traceback__) if f.filename == file]
    return f"{path}:{lines[-1]}" if lines else str(path)


def _text(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error.msg}"
    return f"{type(error).__name__}: {error}"


def _checked(made: Any, spec: str) -> Module:
    if isinstance(made, Module):
        return made
    hint = ""
    if type(made).__module__.partition(".")[0] == "torch" or any(
        kind.__module__.startswith("torch.") for kind in type(made).__mro__
    ):
        hint = "; that is PyTorch's, build it of convloom.nn"
    elif made is None:
        hint = "; is a return missing?"
    raise ModelError(f"{spec} gave {type(made).__name__}, not a convloom.nn.Module{hint}")
