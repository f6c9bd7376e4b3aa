"""A parameter file: how every layer of a network learns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from convloom.convnet import syntax
from convloom.convnet.errors import ConfigError
from convloom.convnet.layers import Cost, HalfSparse, Norm, Pool
from convloom.convnet.network import Layer, Network
from convloom.convnet.schedules import CONSTANT, RateSchedule, parse_schedule
from convloom.convnet.syntax import ConfigFile, Section
from convloom.convnet.values import Values

#: What superEps must be more than, so that a square root is never of a number below 0.
LEAST_FLOOR = 0.25

#: Older names that the final code read past.
_IGNORED = ("wcnorm", "sched")


@dataclass(frozen=True)
class WeightRule:
    """How one matrix of weights learns: V <- mom V - eps G - eps wc W; W <- W + V.

    Attributes:
        eps: learning rate; 0 freezes the weights, decay and limits included.
        norm_min, norm_max: bounds of a filter's deviation over its fan-in; no bound where
            ``norm_max`` is 0.
        ball: bound of a filter's length over its fan-in; none where 0.
        super_eps: where positive, gradients are divided by their own size, as ops/velocity.py has
            it; ``decay`` then does nothing.
    """

    eps: float
    momentum: float
    decay: float = 0.0
    ball: float = 0.0
    norm_min: float = 0.0
    norm_max: float = 0.0
    super_eps: float = 0.0
    schedule: RateSchedule = CONSTANT


@dataclass(frozen=True)
class BiasRule:
    """How biases learn: as weights do, without decay or limits."""

    eps: float
    momentum: float
    schedule: RateSchedule = CONSTANT


@dataclass(frozen=True)
class LayerRule:
    """What a parameter file says of one layer; what its type does not know is None or empty.

    Attributes:
        weights: one rule an input.
        scale, pow, min_divisor: of a response normalisation.
        enabled: whether an ``hs`` layer drops anything in training.
        do_max: whether a ``rand`` pool takes the maximum.
        coefficient: what a cost's gradient is multiplied by.
        top: the k of a cost's top-k error.
        half: (forward, backward) whether what crosses GPUs was rounded to float16 in 2012; here
            nothing crosses, and a note says so.
    """

    weights: tuple[WeightRule, ...] = ()
    biases: BiasRule | None = None
    scale: float | None = None
    pow: float | None = None
    min_divisor: float = 1.0
    enabled: bool | None = None
    do_max: bool | None = None
    coefficient: float | None = None
    top: int = 1
    half: tuple[bool, bool] = (False, False)


@dataclass(frozen=True)
class Rules:
    """The rules of a network's layers by name, and what was remedied."""

    file: str
    layers: dict[str, LayerRule] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def frozen(rules: Rules) -> dict[str, list[str]]:
    """{``epsW``: layers whose weights a rate of 0 freezes, ``epsB``: whose biases}; of several
    inputs each by its number, ``fc10[1]``."""
    found: dict[str, list[str]] = {"epsW": [], "epsB": []}
    for name, rule in rules.layers.items():
        still = [f"{name}[{i}]" for i, one in enumerate(rule.weights) if not one.eps]
        found["epsW"] += still if len(still) < len(rule.weights) else [name] * bool(still)
        if rule.biases is not None and not rule.biases.eps:
            found["epsB"].append(name)
    return found


def read_rules(path: str | Path, network: Network, *, strict: bool = False) -> Rules:
    """The rules in a parameter file for a network.

    Raises:
        ConfigError: what breaks a rule, with file, section and key.
    """
    return parse_rules(syntax.read(path, strict=strict), network, strict=strict)


def parse_rules(file: ConfigFile, network: Network, *, strict: bool = False) -> Rules:
    """The rules of a parameter file that is read already; see read_rules."""
    if file.sections and all("type" in one.entries for one in file.sections.values()):
        raise ConfigError("has a type in every section; is this a layer file?", file.name)
    notes = list(file.notes)
    rules = {}
    for layer in network.layers:
        section = file.sections.get(layer.name, Section(layer.name, 0))
        values = Values(file.name, section, strict=strict)
        if layer.name not in file.sections:
            _check_missing(values, layer, strict, notes)
        rules[layer.name] = _rule(values, layer, notes)
        _note_unknown(values, layer, notes)
    names = {layer.name for layer in network.layers}
    notes += [
        f"{file.name}: [{name}] is no layer of {network.file} and is ignored"
        for name in file.sections
        if name not in names
    ]
    return Rules(file.name, rules, tuple(notes))


#: {key of a parameter file that shapes what a layer computes: the rule's attribute}; a run may go
#: on with other values. Rates and costs are the optimiser's and the loss's to tell.
_SHAPING = {"scale": "scale", "pow": "pow", "minDiv": "min_divisor", "enable": "enabled"}


def shaping(rules: Rules) -> dict[str, dict[str, float | bool]]:
    """{layer: {key: value}} of all that shapes what layers compute, as plain data."""
    found = {
        name: {key: getattr(rule, attribute) for key, attribute in _SHAPING.items()}
        for name, rule in rules.layers.items()
        if rule.scale is not None or rule.enabled is not None
    }
    return {
        name: {key: value for key, value in values.items() if value is not None}
        for name, values in found.items()
    }


def reshaped(
    rules: Rules, saved: Mapping[str, Mapping[str, float | bool]]
) -> tuple[Rules, list[str]]:
    """The rules with the values that ``shaping`` gave before, and a line for each that differs."""
    layers, changes = dict(rules.layers), []
    for name, values in shaping(rules).items():
        for key, now in values.items():
            before = saved.get(name, {}).get(key, now)
            if before == now:
                continue
            edited: dict[str, Any] = {_SHAPING[key]: before}
            layers[name] = replace(layers[name], **edited)
            then, new = (_shown(value) for value in (before, now))
            changes.append(f"[{name}] {key} was {then}, it is {new} from now on")
    return replace(rules, layers=layers), changes


def _shown(value: float | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value:g}"


def _check_missing(values: Values, layer: Layer, strict: bool, notes: list[str]) -> None:
    definition = layer.definition
    rand = isinstance(definition, Pool) and definition.kind == "rand"
    if not (definition.weighted or rand or isinstance(definition, HalfSparse | Norm | Cost)):
        return
    if isinstance(definition, Norm) and definition.scale is not None and not strict:
        return  # the layer file has what is needed; _norm notes it
    if isinstance(definition, HalfSparse) and not strict:
        notes.append(f"{values.file}: there is no [{layer.name}]; its dropout is taken as enabled")
        return
    raise values.error(f"is missing; a {layer.type} layer needs a section of its own")


def _rule(values: Values, layer: Layer, notes: list[str]) -> LayerRule:
    definition = layer.definition
    half = _quantised(values, layer, notes)
    if definition.weighted:
        return LayerRule(_weights(values, layer, notes), _biases(values, layer, notes), half=half)
    if isinstance(definition, Norm):
        return _norm(values, layer, definition, notes)
    if isinstance(definition, HalfSparse):
        return LayerRule(enabled=values.flag("enable", True if not values.section.line else None))
    if isinstance(definition, Pool) and definition.kind == "rand":
        return LayerRule(do_max=values.flag("doMax", False))
    if isinstance(definition, Cost):
        top = values.integer("topk", 1, least=1) if definition.kind == "logreg" else 1
        return LayerRule(coefficient=values.number("coeff"), top=top, half=half)
    return LayerRule(half=half)


def _weights(values: Values, layer: Layer, notes: list[str]) -> tuple[WeightRule, ...]:
    count = len(layer.inputs)
    schedule = _schedule(values, "schedW")
    rates = [_rate(values, "epsW", text, schedule) for text in values.texts("epsW", count)]
    momentum = values.numbers("momW", count)
    decay = values.numbers("wc", count, 0.0)
    ball = values.numbers("wball", count, 0.0, least=0.0)
    low, high = [0.0] * count, [0.0] * count
    if layer.type == "conv":
        low = list(values.numbers("wcNormMin", count, 0.0, least=0.0))
        high = list(values.numbers("wcNormMax", count, 0.0, least=0.0))
        if any(a > b for a, b in zip(low, high, strict=True)):
            raise values.error("must be at most wcNormMax", "wcNormMin")
    super_eps = values.number("superEps", 0.0, least=0.0)
    _check_tree(values, layer, rates, notes)
    rules = tuple(
        WeightRule(eps, momentum[i], decay[i], ball[i], low[i], high[i], super_eps, falling)
        for i, (eps, falling) in enumerate(rates)
    )
    notes += _adaptive_notes(layer.name, rules)
    return rules


def _adaptive_notes(name: str, rules: Sequence[WeightRule]) -> Iterator[str]:
    """What a person may not expect of superEps."""
    floor = rules[0].super_eps
    if floor and any(rule.decay for rule in rules):
        yield f"[{name}] wc does nothing where superEps is given, as in the original"
    if 0 < floor <= LEAST_FLOOR:
        yield (
            f"[{name}] superEps={floor:g} may make weights that are not finite: the original adds "
            f"the mean gradient under the root, which only a superEps above {LEAST_FLOOR:g} makes "
            "safe"
        )


def _biases(values: Values, layer: Layer, notes: list[str]) -> BiasRule:
    eps, schedule = _rate(values, "epsB", values.text("epsB"), _schedule(values, "schedB"))
    return BiasRule(eps, values.number("momB"), schedule)


def _check_tree(
    values: Values, layer: Layer, rates: list[tuple[float, RateSchedule]], notes: list[str]
) -> None:
    if layer.type == "treefc" and any(schedule != CONSTANT for _, schedule in rates):
        notes.append(f"[{layer.name}] schedW does nothing for the weights of a treefc")


def _schedule(values: Values, key: str) -> RateSchedule:
    schedule = _parsed_schedule(values, key, values.text(key, "default"))
    if schedule.base is not None:
        rate = key.replace("sched", "eps")
        raise values.error(f"must have no base, which belongs to {rate}", key)
    return schedule


def _parsed_schedule(values: Values, key: str, text: str) -> RateSchedule:
    try:
        return parse_schedule(text, strict=values.strict)
    except ValueError as error:
        raise values.error(str(error), key) from error


def _rate(
    values: Values, key: str, text: str, schedule: RateSchedule
) -> tuple[float, RateSchedule]:
    """A rate: a number, or in later files a schedule that carries its base."""
    if "[" in text and not values.strict:
        own = _parsed_schedule(values, key, text)
        if own.base is None:
            raise values.error("needs a base: exp[base=0.01;tgtFactor=10]", key)
        return own.base, own
    return values.as_number(key, text, least=0.0), schedule


def _norm(values: Values, layer: Layer, definition: Norm, notes: list[str]) -> LayerRule:
    scale, power = definition.scale, definition.pow
    if scale is not None and not ("scale" in values and "pow" in values):
        notes.append(
            f"[{layer.name}] has its scale and pow in the layer file; they are taken there"
        )
    else:
        scale, power = values.number("scale"), values.number("pow")
    divisor = values.number("minDiv", 1.0) if layer.type == "cmrnorm" else 1.0
    return LayerRule(scale=scale, pow=power, min_divisor=divisor)


def _quantised(values: Values, layer: Layer, notes: list[str]) -> tuple[bool, bool]:
    forms = ("default", "half")
    half = tuple(values.choice(key, forms, "default") == "half" for key in ("quantF", "quantB"))
    if any(half):
        notes.append(
            f"[{layer.name}] asks for float16 between GPUs; nothing crosses them here, so "
            "nothing is rounded"
        )
    return half[0], half[1]


def _note_unknown(values: Values, layer: Layer, notes: list[str]) -> None:
    for key in values.unknown():
        if key in _IGNORED:
            notes.append(f"[{layer.name}] {key} is an older name that the final code ignored")
        else:
            notes.append(f"[{layer.name}] {key} means nothing to a {layer.type} layer")
