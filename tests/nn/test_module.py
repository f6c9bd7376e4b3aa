"""Modules: registration, names, state dicts against PyTorch's, loading, binding, copies."""

from __future__ import annotations

import copy
import gc
import pickle
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

from convloom import nn
from convloom.compiler.interpret import interpret
from convloom.ir import ConvloomError

torch = pytest.importorskip("torch")


def block_class(lib: Any) -> Any:
    """A residual block with a shared activation, of torch.nn or of ours."""

    class Block(lib.Module):
        def __init__(self, channels: int) -> None:
            super().__init__()
            self.first = lib.Conv2d(channels, channels, 3, padding=1, bias=False)
            self.act = lib.ReLU()
            self.second = lib.Conv2d(channels, channels, 3, 1, 1)

        def forward(self, x: Any) -> Any:
            return self.act(self.second(self.act(self.first(x))) + x)

    return Block


def net_class(lib: Any, cat: Any) -> Any:
    """A network with everything in it, of torch.nn or of ours."""

    class Net(lib.Module):
        def __init__(self) -> None:
            super().__init__()
            block = block_class(lib)
            self.stem = lib.Conv2d(3, 8, 3, stride=2, padding=1)
            self.blocks = lib.ModuleList([block(8), block(8)])
            self.side = lib.Sequential(
                OrderedDict(pool=lib.AvgPool2d(3, 1, 1), conv=lib.Conv2d(8, 4, 1, groups=2))
            )
            self.head = lib.Linear(12 * 4 * 4, 5)

        def forward(self, x: Any) -> Any:
            x = self.stem(x).relu()
            for block in self.blocks:
                x = block(x)
            x = cat([x, self.side(x)], dim=1)
            return self.head(x.flatten(1))

    return Net


def twins() -> tuple[nn.Module, Any]:
    return net_class(nn, nn.cat)(), net_class(torch.nn, torch.cat)().double()


def reference(model: nn.Module, x: np.ndarray) -> np.ndarray:
    graph = model.trace(x.shape[1:], len(x))
    values = {name: value.astype(x.dtype) for name, value in model.state_dict().items()}
    return interpret(graph, {**values, "input": x})["output"]


def test_weights_move_both_ways() -> None:
    ours, theirs = twins()
    assert [(n, p.shape) for n, p in ours.named_parameters()] == [
        (n, tuple(p.shape)) for n, p in theirs.named_parameters()
    ]
    assert [n for n, _ in ours.named_modules()] == [n for n, _ in theirs.named_modules()]
    x = np.random.default_rng(0).normal(size=(3, 3, 8, 8))

    ours.load_state_dict(theirs.state_dict())
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(reference(ours, x), expected, rtol=1e-12, atol=1e-12)

    ours.load_state_dict({name: v + 0.01 for name, v in ours.state_dict().items()})
    theirs.load_state_dict({k: torch.from_numpy(v) for k, v in ours.state_dict().items()})
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(reference(ours, x), expected, rtol=1e-12, atol=1e-12)


def test_a_module_used_twice_is_in_the_state_twice() -> None:
    def shared(lib: Any) -> Any:
        conv = lib.Conv2d(2, 2, 1)
        return lib.Sequential(conv, lib.ReLU(), conv)

    ours, theirs = shared(nn), shared(torch.nn)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert [n for n, _ in ours.named_parameters()] == [n for n, _ in theirs.named_parameters()]
    ours.load_state_dict(theirs.state_dict())
    ours[0].weight.data = np.ones((2, 2, 1, 1))
    assert ours.state_dict()["2.weight"].tolist() == np.ones((2, 2, 1, 1)).tolist()


def test_parameters_are_drawn_once_and_by_name() -> None:
    first = nn.models.lenet().initialize(3)
    again = nn.models.lenet().initialize(3)
    other = nn.models.lenet().initialize(4)
    for name, value in first.state_dict().items():
        assert value.dtype == np.float32
        assert np.array_equal(value, again.state_dict()[name])
        assert name.endswith("bias") or not np.array_equal(value, other.state_dict()[name])
    before = first.state_dict()["0.weight"]
    first.initialize(5)
    assert np.array_equal(first.state_dict()["0.weight"], before)

    longer = nn.Sequential(nn.Conv2d(1, 16, 3), nn.Linear(3, 3)).initialize(3)
    assert np.array_equal(longer.state_dict()["0.weight"], before)
    seed0 = nn.models.lenet().initialize(0).state_dict()
    assert np.array_equal(nn.models.lenet().state_dict()["6.weight"], seed0["6.weight"])


def test_state_dict_is_a_copy() -> None:
    model = nn.Linear(2, 2)
    model.state_dict()["weight"][:] = 7
    assert not (model.state_dict()["weight"] == 7).any()


def test_forgetting_super_init_and_reassignment() -> None:
    class Careless(nn.Module):
        def __init__(self) -> None:
            self.a = nn.Linear(2, 2)
            self.a = nn.Linear(2, 3)
            self.b = nn.ReLU()
            self.b = 3
            self.c = nn.Parameter(np.zeros(2))
            del self.c

    model = Careless()
    assert [n for n, _ in model.named_modules()] == ["", "a"]
    assert model.a.out_features == 3
    assert model.b == 3
    with pytest.raises(AttributeError, match="Careless has no attribute 'c'"):
        _ = model.c


def test_walking_and_text() -> None:
    model = nn.Sequential(nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.1)), nn.Identity(54))
    assert model.get_submodule("0.1") is model[0][1]
    assert model.get_parameter("0.0.bias") is model[0][0].bias
    with pytest.raises(AttributeError, match="no module '7'"):
        model.get_submodule("0.7")
    seen: list[str] = []
    model.apply(lambda module: seen.append(type(module).__name__))
    assert seen == ["Linear", "Dropout", "Sequential", "Identity", "Sequential"]
    assert not model.eval()[0][1].training
    assert model.train()[0][1].training
    assert repr(model) == (
        "Sequential(\n"
        "  (0): Sequential(\n"
        "    (0): Linear(in_features=2, out_features=2, bias=True)\n"
        "    (1): Dropout(p=0.1, inplace=False)\n"
        "  )\n"
        "  (1): Identity()\n"
        ")"
    )


# ---- loading


def weights(model: nn.Module) -> dict[str, np.ndarray]:
    return {name: np.full_like(value, 2) for name, value in model.state_dict().items()}


def test_module_prefix_is_stripped_once_with_a_message() -> None:
    model = nn.Sequential(nn.Linear(3, 2))
    with pytest.warns(UserWarning, match=r"2 keys begin with 'module\.'"):
        model.load_state_dict({f"module.{k}": v for k, v in weights(model).items()})
    assert (model.state_dict()["0.weight"] == 2).all()
    with pytest.raises(nn.WeightsError, match="no key matches"):
        model.load_state_dict({f"module.module.{k}": v for k, v in weights(model).items()})


def test_a_module_called_module_keeps_its_prefix(recwarn: pytest.WarningsRecorder) -> None:
    model = nn.Sequential(OrderedDict(module=nn.Linear(3, 2)))
    model.load_state_dict(weights(model))
    assert not recwarn.list
    with pytest.warns(UserWarning, match="loaded without it"):
        model.load_state_dict({f"module.{k}": v for k, v in weights(model).items()})


def test_every_misfit_is_named_and_nothing_changes() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    before = model.state_dict()
    state = weights(model)
    state["0.weight"] = np.zeros((2, 4))
    del state["1.bias"]
    state["2.weight"] = np.zeros(1)
    with pytest.raises(nn.WeightsError) as caught:
        model.load_state_dict(state)
    message = str(caught.value)
    assert "missing '1.bias'" in message
    assert "unexpected '2.weight'" in message
    assert "'0.weight' has shape (2, 4), the network needs (2, 3)" in message
    with pytest.raises(nn.WeightsError, match="has shape"):
        model.load_state_dict(state, strict=False)
    for name, value in model.state_dict().items():
        assert np.array_equal(value, before[name])


def test_lenient_loading() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    state = {"0.weight": np.full((2, 3), 4), "other": np.zeros(1)}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert missing == ("0.bias", "1.weight", "1.bias")
    assert unexpected == ("other",)
    assert (model.state_dict()["0.weight"] == 4).all()
    for nothing in ({"conv.weight": np.zeros(1)}, {}):
        with pytest.raises(nn.WeightsError, match="no key matches"):
            model.load_state_dict(nothing, strict=False)


@pytest.mark.parametrize("value", ["text", {"a": 1}, [[1, 2], [3]], None, np.array([1j])])
def test_values_must_be_numbers(value: Any) -> None:
    with pytest.raises(nn.WeightsError, match="'bias'"):
        nn.Linear(1, 1).load_state_dict({"weight": np.ones((1, 1)), "bias": value})
    with pytest.raises(nn.WeightsError, match="takes a dict"):
        nn.Linear(1, 1).load_state_dict([value])


# ---- binding


class Store:
    """Live weights, as a compiled step has them."""

    def __init__(self, values: dict[str, np.ndarray]) -> None:
        self.values = {name: value.copy() for name, value in values.items()}

    def read(self, name: str) -> np.ndarray:
        return self.values[name].copy()

    def write(self, name: str, value: np.ndarray) -> None:
        self.values[name] = value.copy()


class Step:
    """Something that owns a Store, and may go away."""


def test_a_bound_network_reads_and_writes_through() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    store = Store(model.state_dict())
    model.bind(store)
    store.values["0.weight"][:] = 5
    assert (model.state_dict()["0.weight"] == 5).all()
    assert (model[0].state_dict()["weight"] == 5).all()  # inner modules see it too
    model.load_state_dict(weights(model))
    assert (store.values["0.weight"] == 2).all()
    model[0].bias.data = [1.0, 2.0]
    assert store.values["0.bias"].tolist() == [1.0, 2.0]
    model.initialize(9)
    assert (model.state_dict()["0.weight"] == 2).all()


def test_the_last_binding_wins() -> None:
    model = nn.Linear(2, 2)
    first = Store(model.state_dict())
    model.bind(first)
    first.values["weight"][:] = 5
    second = Store(model.state_dict())
    model.bind(second)
    first.values["weight"][:] = 6
    assert (model.state_dict()["weight"] == 5).all()
    second.values["weight"][:] = 7
    model.release(first)  # no longer the source: nothing happens
    assert (model.state_dict()["weight"] == 7).all()
    model.release()
    second.values["weight"][:] = 8
    assert (model.state_dict()["weight"] == 7).all()


def test_what_the_source_does_not_have_stays() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)).initialize(1)
    state = model.state_dict()
    model.bind(Store({name: value for name, value in state.items() if name != "1.bias"}))
    model.load_state_dict(weights(model))
    assert (model.state_dict()["1.bias"] == 2).all()


def test_values_come_back_when_the_owner_goes() -> None:
    model, step = nn.Linear(2, 2), Step()
    store = Store(model.state_dict())
    model.bind(store, owner=step)
    store.values["weight"][:] = 5
    del step
    gc.collect()
    store.values["weight"][:] = 6
    assert (model.state_dict()["weight"] == 5).all()


def test_an_owner_that_lost_its_binding_may_go() -> None:
    model, step = nn.Linear(2, 2), Step()
    first, second = Store(model.state_dict()), Store(model.state_dict())
    model.bind(first, owner=step)
    model.bind(second)
    second.values["weight"][:] = 7
    del step
    gc.collect()
    assert (model.state_dict()["weight"] == 7).all()


def test_copies_are_free_of_the_step() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    store = Store(model.state_dict())
    model.bind(store)
    twin, sent = copy.deepcopy(model), pickle.loads(pickle.dumps(model[0]))
    store.values["0.weight"][:] = 5
    for other in (twin, sent):
        assert not any((value == 5).any() for value in other.state_dict().values())
    assert twin[0].weight is twin[1].weight


# ---- parameters, descriptions


def test_parameter_values() -> None:
    parameter = nn.Parameter(np.arange(6).reshape(2, 3))
    assert (parameter.shape, parameter.ndim, parameter.numel()) == ((2, 3), 2, 6)
    assert np.asarray(parameter).dtype == np.float32
    with pytest.raises(nn.WeightsError, match=r"\(3, 2\) was given to Parameter\(shape=\(2, 3\)\)"):
        parameter.data = np.zeros((3, 2))
    with pytest.raises(TypeError, match="an array, or a shape and an initialiser"):
        nn.Parameter((2, 3))
    with pytest.raises(ConvloomError, match="no value yet"):
        _ = nn.Linear(2, 2).weight.data
    with pytest.raises(AttributeError):
        parameter.requires_grad = False


def test_what_it_was_trained_on() -> None:
    model = nn.Linear(2, 2)
    assert (model.input_shape, model.classes, model.normalization) == (None, None, None)
    model.input_shape = [1, 28, 28]
    model.classes = ["cat", "dog"]
    assert model.mean_image is None
    for image in (np.zeros((3, 4)), np.full((1, 2, 2), np.inf)):
        with pytest.raises(ConvloomError, match=r"mean_image must hold finite numbers \(C, H, W\)"):
            model.mean_image = image
    model.normalization = (np.array([0.5]), [0.25])
    assert model.input_shape == (1, 28, 28)
    assert model.classes == ("cat", "dog")
    assert model.normalization == ((0.5,), (0.25,))
    assert model.normalization is not None
    assert model.normalization.std == (0.25,)
    with pytest.raises(ConvloomError, match="holds the names of the classes, not 10"):
        model.classes = 10
    for wrong in (0.5, ([0.5], [0.0]), ([0.5, 0.5], [1.0]), ([float("nan")], [1.0])):
        with pytest.raises(ConvloomError, match="normalization"):
            model.normalization = wrong
    with pytest.raises(ConvloomError, match=r"input_shape.*whole number"):
        model.input_shape = (1, 2.5, 3)


def test_names_that_cannot_be() -> None:
    model = nn.Module()
    with pytest.raises(ConvloomError, match="must not be empty or hold a dot"):
        model.add_module("a.b", nn.ReLU())
    with pytest.raises(ConvloomError, match="cannot be a parameter or module"):
        model.classes = nn.Linear(2, 2)


def test_predict_goes_to_whoever_registered(monkeypatch: pytest.MonkeyPatch) -> None:
    from convloom.nn import runtime

    monkeypatch.setattr(runtime, "_predictor", None)
    model, images = nn.Linear(2, 2), np.zeros((1, 1, 2, 2), np.uint8)
    with pytest.raises(ConvloomError, match=r"import it first"):
        model.predict(images)
    nn.set_predictor(lambda model, images, **options: (model, images, options))
    assert model.predict(images, device="cpu") == (
        model,
        images,
        {"batch_size": 256, "device": "cpu"},
    )
