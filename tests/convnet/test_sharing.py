"""weightSource: inputs that take the weights of another; quantF and quantB, which do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom.convnet.errors import ConfigError
from convloom.convnet.net import Net
from convloom.convnet.optimizer import optimizer_of, train_step
from convloom.nn.parameter import WeightsError
from convloom.training.optim import OptimizerError
from tests.convnet.files import DATA, edited, network, rules


def conv(name: str, keys: str = "") -> str:
    return (
        f"\n[{name}]\ntype=conv\ninputs=data\nchannels=3\nfilters=4\nfilterSize=3\ninitW=0.1\n"
        f"partialSum=0\ngpu=0\n{keys}"
    )


def fc(name: str, inputs: str, keys: str = "") -> str:
    return f"\n[{name}]\ntype=fc\ninputs={inputs}\noutputs=5\ninitW=0.1\ngpu=0\n{keys}"


COST = "\n[probs]\ntype=softmax\ninputs=sum\n"
COST += "\n[logprob]\ntype=cost.logreg\ninputs=labels,probs\ngpu=0\n"
SUM = "\n[sum]\ntype=eltsum\ninputs={}\n"
#: {parameter where nothing is shared: the one that stands for it where weights are}.
SHARED = {
    "b.weights.0": "a.weights.0",
    "f.weights.1": "f.weights.0",
    "g.weights.0": "f.weights.0",
}
CONVS = DATA + conv("a") + conv("b", "weightSource=a\n") + fc("f", "a,b", "weightSource=,f[0]\n")
CONVS += fc("g", "b", "weightSource=f[1]\n") + SUM.format("f,g") + COST


def learning(**layers: dict[str, Any]) -> str:
    text = ""
    for name in ("a", "b", "f", "g"):
        rates = {"epsW": 0.1, "epsB": 0.2, "momW": 0.5, "momB": 0, **layers.get(name, {})}
        text += f"[{name}]\n" + "".join(f"{key}={value}\n" for key, value in rates.items())
    return text + "[logprob]\ncoeff=1\n"


def net(text: str = CONVS, size: int = 5, **layers: dict[str, Any]) -> Net:
    made = network(text, size)
    return Net(made, rules(learning(**layers), made)).initialize(0)  # type: ignore[return-value]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 3, 5, 5)).astype(np.float32), np.arange(6) % 5


def test_shared_weights_are_one_parameter_and_biases_are_not() -> None:
    model = net()
    names = {name for name, _ in model.named_parameters()}
    assert names == {"a.weights.0", "a.biases", "b.biases", "f.weights.0", "f.biases", "g.biases"}
    assert model.owners() == {("b", 0): ("a", 0), ("f", 1): ("f", 0), ("g", 0): ("f", 0)}
    x, _ = batch()
    w = model.state_dict()
    apart = network(CONVS.replace("weightSource", "# weightSource"), 5)
    twin = Net(apart, rules(learning(), apart)).initialize(0)
    twin.load_state_dict({**w, **{name: w[owner] for name, owner in SHARED.items()}})
    ours, theirs = (one.predict(x, device="cpu") for one in (model, twin))
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_gradients_of_all_that_share_add_and_the_owner_updates() -> None:
    model = net(b={"epsW": 0.7, "momW": 0.1})
    x, y = batch()
    before = model.state_dict()
    apart = network(CONVS.replace("weightSource", "# weightSource"), 5)
    twin = Net(apart, rules(learning(), apart)).initialize(0)
    twin.load_state_dict({**before, **{n: before[owner] for n, owner in SHARED.items()}})
    step = cl.compile(
        twin, twin.cost.loss, optimizer_of(twin), batch_size=6, input_shape=(3, 5, 5), device="cpu"
    )
    step(x, y)
    grads = {name: step.read(f"{name}.grad") for name in twin.state_dict()}
    train_step(model, x, y, device="cpu")
    after = model.state_dict()
    for owner in ("a.weights.0", "f.weights.0"):
        total = grads[owner] + sum(grads[n] for n, one in SHARED.items() if one == owner)
        np.testing.assert_allclose(after[owner], before[owner] - 0.1 * total, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(
        after["b.biases"], before["b.biases"] - 0.2 * grads["b.biases"], rtol=1e-4, atol=1e-6
    )


def test_arrays_of_2012_have_a_shared_matrix_in_each_place() -> None:
    model = net()
    arrays = model.to_convnet()
    np.testing.assert_array_equal(arrays["b/weights/0"], arrays["a/weights/0"])
    model.from_convnet({name: 2 * array for name, array in arrays.items()})
    np.testing.assert_array_equal(model.to_convnet()["b/weights/0"], 2 * arrays["a/weights/0"])
    with pytest.raises(WeightsError, match="a/weights/0 and b/weights/0 are one matrix, and must"):
        model.from_convnet({**arrays, "b/weights/0": 0 * arrays["b/weights/0"]})


@pytest.mark.parametrize(
    ("layer", "rates", "message"),
    [
        ("g", {"epsW": 0.2}, r"\[g\] takes the weights of \[f\], so its epsW=0.2 and sched"),
        ("g", {"schedW": "exp[10]"}, r"must be those there, epsW=0.1 and schedW=default"),
        ("b", {"epsW": 0}, r"\[b\] takes the weights of \[a\], so its epsW=0 "),
    ],
)  # fmt: skip
def test_rates_that_one_sum_of_gradients_cannot_have(
    layer: str, rates: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptimizerError, match=message):
        optimizer_of(net(**{layer: rates}))
    optimizer_of(net(**{layer: rates, "a": {"epsW": 0}, "f": {"epsW": 0}}))  # all frozen


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("weightSource=a\n", "weightSource=c\n", r"\[b\] weightSource=c names c, and there is no"),
        ("weightSource=a\n", "weightSource=f\n", "names f, which stands below"),
        ("weightSource=a\n", "weightSource=a[1]\n", r"needs a conv with an input 1"),
        ("weightSource=a\n", "weightSource=a[x]\n", r"must be a layer or layer\[number of "),
        ("weightSource=a\n", "weightSource=b\n", "names input 0 of the layer itself; weights are"),
        ("weightSource=f[1]\n", "weightSource=a\n", r"weightSource=a needs a fc with an input 0"),
        ("inputs=b\n", "inputs=data\n", r"same shape: f\[1\] has \(5, 36\), this input \(5, 75"),
    ],
)  # fmt: skip
def test_sources_that_cannot_be(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        net(edited(CONVS, old, new))


def test_another_gpu_is_refused_where_the_original_refused_it() -> None:
    text = edited(
        CONVS, "partialSum=0\ngpu=0\nweightSource=a", "partialSum=0\ngpu=1\nweightSource=a"
    )
    text = text.replace("initW=0.1\ngpu=0\nweightSource=,", "initW=0.1,0.1\ngpu=0\nweightSource=,")
    text = text.replace("filters=4", "filters=16")
    network(text, 5)
    with pytest.raises(ConfigError, match=r"\[b\] weightSource=a needs a on the same gpu"):
        network(text, 5, strict=True)


def test_fp16_between_gpus_is_taken_and_said_to_do_nothing() -> None:
    made = network(CONVS, 5)
    for key in ("quantF", "quantB"):
        notes = rules(learning(a={key: "half"}), made).notes
        assert (
            "[a] asks for float16 between GPUs; nothing crosses them here, so nothing is rou"
            in (" ".join(notes))
        )
        assert not [n for n in rules(learning(a={key: "default"}), made).notes if "float16" in n]
        with pytest.raises(ConfigError, match=rf"\[a\] {key}=int8 must be one of default, half"):
            rules(learning(a={key: "int8"}), made)
