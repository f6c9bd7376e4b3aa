"""The settings of a training run: from a recipe, a TOML file and flags, in this order.

``RunConfig`` is what a run folder keeps as ``run.toml``; ``convloom train run.toml`` reads the
same keys, written with ``-`` or ``_``.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from convloom import files
from convloom.ir import ConvloomError
from convloom.ops.precision import FP32, PRECISIONS
from convloom.training.feeding import INPUTS
from convloom.training.optim import SGD, AdamW, Optimizer, OptimizerError
from convloom.training.recipes import recipe
from convloom.training.schedules import Schedule, ScheduleError, parse_schedule

#: The file of a run folder that holds its settings.
CONFIG_NAME = "run.toml"


class ConfigError(ConvloomError, ValueError):
    """A setting that cannot be; the message names the file or flag, the key and what is allowed."""


@dataclass(frozen=True)
class RunConfig:
    """All settings of ``convloom train``. The defaults are those of a network without a recipe.

    Attributes:
        network: a name of the zoo, ``path/net.py:function``, or a layer file ``layers.cfg``.
        params: the parameter file of a layer file; its rates stand in place of an optimiser's.
        init_from: what a layer file's initWFunc, initBFunc and initCFunc copy from.
        tree: a JSON file with the class tree of the layer file's treefc; None takes a stand-in.
        data: name of the data set, or a folder that holds one.
        data_dir: folder that holds its files; None looks in the usual places.
        epochs: passes over the training set.
        batch_size: images in one step.
        optimizer: ``sgd`` or ``adamw``.
        lr: learning rate; the peak for a one-cycle schedule.
        momentum: of SGD.
        nesterov: Nesterov's form of SGD's momentum.
        beta1: first decay rate of AdamW.
        beta2: second decay rate of AdamW.
        eps: AdamW's.
        weight_decay: L2 penalty (SGD) or decoupled decay (AdamW).
        exclude: name patterns of parameters without weight decay.
        schedule: text form of a schedule (``convloom.training.schedules``).
        clip_norm: largest norm of all gradients together; None leaves them alone.
        label_smoothing: share of the target that is spread over all classes.
        resize: side of the squares that a folder's image files become; None for data sets whose
            images have one size.
        image_size: side of the crop that the network is given, at random where images are
            augmented, else from the middle; None takes images whole.
        crop: padding of the random crop in pixels; 0 means none.
        flip: whether images are mirrored at random.
        colour_noise: deviation of what is added along each axis of the pixels' colours.
        shuffle: whether every epoch has an order of its own; else the data set's, and for a folder
            of image files one random order.
        crop_border: of a layer file: pixels that the network's input leaves on each side of an
            image; training takes random parts of that size, and mirrors them where ``flip`` says.
        scalar_mean: of a layer file: subtract one number, not the mean image.
        batch_file: of a layer file: images of a batch file; None for the data set's own, else
            10,000.
        wupdate_freq: of a layer file: minibatches whose gradients make one update, their mean.
        on_bad_image: what to do with image files that cannot be decoded: ``error`` or ``skip``.
        seed: of initial weights, order, augmentation and dropout.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda-sim`` or ``reference``.
        kernels: highest rung of kernels; ``auto`` takes the best.
        precision: ``fp32``, ``tf32`` or ``bf16``: what operands of products are rounded to.
        input: how images reach a GPU: ``auto``, ``resident`` or ``stream``.
        out: the run folder; None saves nothing.
        checkpoint_every: steps between checkpoints within an epoch; 0 saves at its end only, and
            there as the Trainer says.
        log_every: steps between rows of the history's step table; 0 logs none.
    """

    network: str
    params: str | None = None
    init_from: str | None = None
    tree: str | None = None
    data: str = "fashion-mnist"
    data_dir: str | None = None
    epochs: int = 5
    batch_size: int = 64
    optimizer: str = "sgd"
    lr: float = 0.01
    momentum: float = 0.9
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    exclude: tuple[str, ...] = ()
    schedule: str = "constant"
    clip_norm: float | None = None
    label_smoothing: float = 0.0
    resize: int | None = None
    image_size: int | None = None
    crop: int = 0
    flip: bool = False
    colour_noise: float = 0.0
    shuffle: bool = True
    crop_border: int = 0
    scalar_mean: bool = False
    batch_file: int | None = None
    wupdate_freq: int = 1
    on_bad_image: str = "error"
    seed: int = 0
    device: str = "auto"
    kernels: str = "auto"
    precision: str = FP32
    input: str = "auto"
    out: str | None = None
    checkpoint_every: int = 0
    log_every: int = 50

    def make_optimizer(self) -> Optimizer:
        """The optimiser that these settings describe."""
        if self.optimizer == "adamw":
            return AdamW(
                lr=self.lr,
                betas=(self.beta1, self.beta2),
                eps=self.eps,
                weight_decay=self.weight_decay,
                exclude=self.exclude,
            )
        return SGD(
            lr=self.lr,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            nesterov=self.nesterov,
            exclude=self.exclude,
        )

    def make_schedule(self) -> Schedule:
        """The schedule that these settings describe."""
        return parse_schedule(self.schedule)

    def to_json(self) -> dict[str, Any]:
        """All settings as plain data; those that are None are left out."""
        return {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in asdict(self).items()
            if value is not None
        }

    def to_toml(self) -> str:
        """The settings as a file that ``read_toml`` reads back."""
        lines = (f"{key.replace('_', '-')} = {_toml(v)}" for key, v in self.to_json().items())
        return "\n".join(lines) + "\n"

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write ``run.toml`` into a run folder, paths made absolute; returns the file's path."""
        path = Path(folder) / CONFIG_NAME
        kept = replace(
            self,
            network=_absolute_network(self.network, layers=self.params is not None),
            params=None if self.params is None else os.path.abspath(self.params),
            init_from=None if self.init_from is None else os.path.abspath(self.init_from),
            tree=None if self.tree is None else os.path.abspath(self.tree),
            data=os.path.abspath(self.data) if os.path.isdir(self.data) else self.data,
            data_dir=None if self.data_dir is None else os.path.abspath(self.data_dir),
            out=None if self.out is None else os.path.abspath(self.out),
        )
        files.write_text(path, kept.to_toml())
        return path


def load_config(folder: str | os.PathLike[str]) -> RunConfig:
    """The settings that a run folder keeps.

    Raises:
        ConfigError: the folder has no ``run.toml``, or it cannot be read.
    """
    path = Path(folder) / CONFIG_NAME
    if not path.is_file():
        raise ConfigError(
            f"{folder} is not a run folder: it has no {CONFIG_NAME}; "
            "give the folder that convloom train --out made"
        )
    return resolve(read_toml(path), {}, source=str(path), with_recipe=False)


def read_toml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The settings in a TOML file, each checked; keys may be written with ``-`` or ``_``.

    Raises:
        ConfigError: the file cannot be read, is not TOML, or has an unknown key or a wrong value.
    """
    try:
        content = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror or error}") from None
    try:
        raw = tomllib.loads(content)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not valid TOML: {error}") from None
    found: dict[str, Any] = {}
    for written, value in raw.items():
        key = written.replace("-", "_")
        if key in found:
            raise ConfigError(f"{path}: {written} is given twice")
        found[key] = checked(key, value, f"{path}: {written}", unknown=f"{path}: {written!r}")
    return found


def resolve(
    file: Mapping[str, Any],
    flags: Mapping[str, Any],
    *,
    source: str = "",
    with_recipe: bool = True,
) -> RunConfig:
    """Merge a network's recipe, a file's settings and flags; the later of them wins.

    A flag that is None was not given. Changing the optimiser drops the recipe's rates, which were
    found for another one, and takes the optimiser's own defaults. ``momentum = 0`` switches off a
    recipe's Nesterov form.

    Args:
        file: what ``read_toml`` gave; empty without a file.
        flags: {key of RunConfig: value or None}.
        source: the file's path, for messages.

    Raises:
        ConfigError: no network, a wrong value, or values that contradict each other.
    """
    given = {
        key: checked(key, value, f"--{key.replace('_', '-')}", unknown=repr(key))
        for key, value in flags.items()
        if value is not None
    }
    asked = {**file, **given}
    if "network" not in asked:
        raise ConfigError(
            f"{source or 'settings'}: network is missing; give network = 'lenet', say"
        )
    base = dict(recipe(asked["network"], layers="params" in asked)) if with_recipe else {}
    if asked.get("optimizer", "sgd") != base.get("optimizer", "sgd"):
        base = {key: value for key, value in base.items() if key not in _RATES}
        base |= _defaults_of(asked["optimizer"])
    if asked.get("momentum") == 0 and "nesterov" not in asked:
        base["nesterov"] = False
    config = RunConfig(**{**base, **asked})
    _check_together(config, asked, source)
    return config


def checked(key: str, value: Any, name: str, *, unknown: str = "") -> Any:
    """A setting's value in its final type.

    Raises:
        ConfigError: an unknown key, or a value outside what is allowed; ``name`` leads the message.
    """
    rule = _RULES.get(key)
    if rule is None:
        near = difflib.get_close_matches(key, _RULES, n=1)
        keys = ", ".join(known.replace("_", "-") for known in _RULES)
        hint = f"did you mean {near[0].replace('_', '-')}?" if near else f"known are {keys}"
        raise ConfigError(f"{unknown or repr(key)} is not a setting; {hint}")
    try:
        return rule.read(value)
    except ScheduleError as error:
        raise ConfigError(f"{name}: {error}") from None
    except (TypeError, ValueError):
        shown = json.dumps(value) if isinstance(value, (bool, str)) else repr(value)
        raise ConfigError(f"{name} must be {rule.allowed}, it is {shown}") from None


_RATES = ("optimizer", "lr", "momentum", "nesterov", "weight_decay", "beta1", "beta2", "eps")


def _defaults_of(optimizer: str) -> dict[str, Any]:
    if optimizer == "adamw":
        return {"lr": AdamW().lr, "weight_decay": AdamW().weight_decay}
    return {}


def _check_together(config: RunConfig, asked: Mapping[str, Any], source: str) -> None:
    where = f"{source}: " if source else ""
    foreign = ("momentum", "nesterov") if config.optimizer == "adamw" else ("beta1", "beta2", "eps")
    own_default = {field.name: field.default for field in fields(RunConfig)}
    for key in foreign:
        # A saved run.toml names every setting; only one that was changed contradicts.
        if key in asked and asked[key] != own_default[key]:
            raise ConfigError(f"{where}{key} is not a setting of optimizer {config.optimizer!r}")
    try:
        config.make_optimizer()
    except OptimizerError as error:
        raise ConfigError(f"{where}{error}") from None


@dataclass(frozen=True)
class _Rule:
    """How a key's value is read, and the words for what it may be."""

    allowed: str
    read: Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def _path(value: Any) -> str:
    return _text(os.fspath(value))


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _whole(least: int, most: int = 2**63 - 1) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ValueError
        return value

    return read


def _real(holds: Callable[[float], bool]) -> Callable[[Any], float]:
    def read(value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ValueError
        if not math.isfinite(value) or not holds(value):
            raise ValueError
        return float(value)

    return read


def _choice(*names: str) -> _Rule:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError
        return str(value)

    return _Rule(" or ".join(repr(name) for name in names), read)


def _patterns(value: Any) -> tuple[str, ...]:
    found = (value,) if isinstance(value, str) else tuple(value)
    return tuple(_text(pattern) for pattern in found)


def _schedule(value: Any) -> str:
    parse_schedule(_text(value))
    return str(value)


_AT_LEAST_0 = _Rule("a number of at least 0", _real(lambda v: v >= 0))
_SHARE = _Rule("a number from 0 to below 1", _real(lambda v: 0 <= v < 1))
_FLAG = _Rule("true or false", _flag)
_NAME = _Rule("a name", _text)
_FOLDER = _Rule("a path", _path)

_RULES: dict[str, _Rule] = {
    "network": _Rule("the name of a network, path/net.py:function or a layer file", _text),
    "params": _FOLDER,
    "init_from": _FOLDER,
    "tree": _FOLDER,
    "data": _NAME,
    "data_dir": _FOLDER,
    "epochs": _Rule("a whole number of at least 1", _whole(1)),
    "batch_size": _Rule("a whole number of at least 1", _whole(1)),
    "optimizer": _choice("sgd", "adamw"),
    "lr": _AT_LEAST_0,
    "momentum": _SHARE,
    "nesterov": _FLAG,
    "beta1": _SHARE,
    "beta2": _SHARE,
    "eps": _Rule("a number above 0", _real(lambda v: v > 0)),
    "weight_decay": _AT_LEAST_0,
    "exclude": _Rule("a list of name patterns such as '*.bias'", _patterns),
    "schedule": _Rule("a schedule such as 'one-cycle' or 'step:every=10,gamma=0.1'", _schedule),
    "clip_norm": _Rule("a number above 0", _real(lambda v: v > 0)),
    "label_smoothing": _SHARE,
    "resize": _Rule("a whole number of pixels, 1 or more", _whole(1)),
    "image_size": _Rule("a whole number of pixels, 1 or more", _whole(1)),
    "crop": _Rule("a whole number of pixels, 0 for no crop", _whole(0)),
    "flip": _FLAG,
    "colour_noise": _AT_LEAST_0,
    "shuffle": _FLAG,
    "crop_border": _Rule("a whole number of pixels, 0 for no crop", _whole(0)),
    "scalar_mean": _FLAG,
    "batch_file": _Rule("a whole number of images, 1 or more", _whole(1)),
    "wupdate_freq": _Rule("a whole number of minibatches, 1 or more", _whole(1)),
    "on_bad_image": _choice("error", "skip"),
    "seed": _Rule("a whole number from 0 to 2⁶³−1", _whole(0)),
    "device": _NAME,
    "kernels": _NAME,
    "precision": _choice(*PRECISIONS),
    "input": _choice(*INPUTS),
    "out": _FOLDER,
    "checkpoint_every": _Rule("a whole number of steps, 0 for epochs only", _whole(0)),
    "log_every": _Rule("a whole number of steps, 0 for none", _whole(0)),
}


def _toml(value: Any) -> str:
    """A value in TOML; JSON's strings, lists, numbers and booleans are nearly TOML's."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text.replace("\x7f", "\\u007f")


def _absolute_network(network: str, *, layers: bool) -> str:
    if layers:
        return os.path.abspath(network)
    path, colon, function = network.rpartition(":")
    return f"{os.path.abspath(path)}:{function}" if colon and path.endswith(".py") else network
