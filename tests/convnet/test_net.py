from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom.convnet.costs import Read
from convloom.convnet.errors import ConfigError
from convloom.convnet.gradcheck import check_net
from convloom.convnet.net import Net, load
from convloom.convnet.optimizer import train_step
from convloom.nn.parameter import WeightsError
from tests.convnet.files import (
    CONV,
    DATA,
    POOL,
    RULES,
    SMALL,
    SPARSE,
    TAIL,
    edited,
    network,
    rules,
)


def net(text: str = SMALL, learning: str = RULES, size: int = 16) -> Net:
    made = network(text, size)
    return Net(made, rules(learning, made))


def test_a_file_is_a_network_that_trains(tmp_path: Path) -> None:
    (tmp_path / "layers.cfg").write_text(SMALL)
    (tmp_path / "params.cfg").write_text(RULES)
    model = load(tmp_path / "layers.cfg", tmp_path / "params.cfg", 16)
    assert model.input_shape == (3, 16, 16)
    step = cl.compile(
        model, model.cost.loss, cl.optim.SGD(lr=0.05, momentum=0.9),
        batch_size=8, input_shape=model.input_shape, device="cpu",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((8, 3, 16, 16)).astype(np.float32), np.arange(8) % 10
    losses = [step(x, y) for _ in range(30)]
    assert losses[-1] < 0.1 * losses[0]


def test_weights_begin_as_the_file_says() -> None:
    model = net(edited(SMALL, "initW=0.1", "initW=0.1\ninitB=0.5"))
    weights = model.initialize(0).state_dict()
    names = ["conv1.biases", "conv1.weights.0", "fc10.biases", "fc10.weights.0"]
    assert sorted(weights) == names
    assert weights["conv1.weights.0"].std() == pytest.approx(0.01, rel=0.1)
    np.testing.assert_array_equal(weights["fc10.biases"], np.full(10, 0.5, np.float32))


def test_parameters_go_and_come_in_the_layouts_of_2012() -> None:
    model = net().initialize(0)
    arrays = model.to_convnet()
    assert {name: array.shape for name, array in arrays.items()} == {
        "conv1/weights/0": (75, 8),
        "conv1/biases": (8,),
        "fc10/weights/0": (8 * 8 * 8, 10),
        "fc10/biases": (10,),
    }
    other = net()  # it needs no values before
    # Files of 2012 have biases as a row, and filters may have an axis each for rows and columns.
    arrays["conv1/biases"] = arrays["conv1/biases"].reshape(1, 8)
    arrays["conv1/weights/0"] = arrays["conv1/weights/0"].reshape(3, 5, 5, 8)
    other.from_convnet(arrays)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(other.state_dict()[name], value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv1/biases": np.zeros(7)}, r"conv1/biases must have shape \(8,\), it has \(7,\)"),
        ({"conv9/biases": np.zeros(7)}, "no conv9/biases"),
        ({"fc10/biases": np.full(10, "1")}, "fc10/biases must be an array of numbers, it is <U1"),
        (
            {"fc10/weights/0": np.zeros((10, 512))},
            r"fc10/weights/0 must have shape \(512, 10\), it has \(10, 512\)",
        ),
    ],
)
def test_parameters_that_do_not_fit_change_nothing(
    change: dict[str, np.ndarray], message: str
) -> None:
    model = net().initialize(0)
    before = model.state_dict()
    with pytest.raises(WeightsError, match=message):
        model.from_convnet({**net().initialize(1).to_convnet(), **change})
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def test_shared_weights_are_one_parameter() -> None:
    twin = CONV.replace("[conv1]", "[conv2]").replace(
        "channels=3", "channels=3\nweightSource=conv1"
    )
    both = edited(TAIL, "inputs=pool1", "inputs=pool1,conv2")
    learning = RULES + RULES[: RULES.index("[fc10]")].replace("conv1", "conv2")
    model = net(DATA + CONV + twin + POOL + both, learning).initialize(0)
    assert "conv2.weights.0" not in model.state_dict()
    assert model.trace((3, 16, 16), 2).specs["output"].shape == (2, 10)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("type=softmax", "type=neuron\nneuron=relu", r"\[logprob\] needs a softmax layer"),
    ],
)
def test_what_is_not_supported_says_so(old: str, new: str, message: str) -> None:
    with pytest.raises(cl.ConvloomError, match=message):
        net(edited(SMALL, old, new)).trace((3, 16, 16))


@pytest.mark.parametrize(
    "name",
    ["network", "rules", "cost", "_pieces", "_modules", "training", "images", "classes"],
)
def test_a_layer_cannot_have_the_name_of_what_a_network_has_itself(name: str) -> None:
    with pytest.raises(ConfigError, match=rf"^layers.cfg, line \d+: \[{name}\] ") as error:
        net(SMALL.replace("conv1", name), RULES.replace("conv1", name))
    assert "cannot have this name, which is taken by the network itself" in str(error.value)


@pytest.mark.parametrize(
    "name", ["input", "output", "loss", "forward", "weight", "a/b", "a b", "a.b", "..", "a.b.c"]
)
def test_other_names_are_a_layers_own(name: str) -> None:
    model = net(SMALL.replace("conv1", name), RULES.replace("conv1", name)).initialize(0)
    same = net().initialize(0)
    same.from_convnet({re.sub(f"^{name}/", "conv1/", k): v for k, v in model.to_convnet().items()})
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    np.testing.assert_array_equal(model.predict(x, device="cpu"), same.predict(x, device="cpu"))


def dotted(text: str) -> str:
    """A file whose every section has a dot in its name."""
    text = re.sub(r"^\[", "[a.", text, flags=re.M)
    return re.sub(
        "^inputs=(.*)$", lambda found: "inputs=a." + found[1].replace(",", ",a."), text, flags=re.M
    )


def test_sections_with_dots_are_layers_too() -> None:
    """They are trained, checked and read as those without."""
    layers, learning = dotted(SMALL), dotted(RULES)
    assert layers.count("a.") == 13
    model, plain = net(layers, learning).initialize(0), net()
    assert "[a.conv1] is a_conv1 as a module of the network" in model.notes
    assert set(model.to_convnet()) == {
        *("a.conv1/weights/0", "a.conv1/biases", "a.fc10/weights/0", "a.fc10/biases")
    }
    plain.from_convnet({name[2:]: array for name, array in model.to_convnet().items()})
    x = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    for _ in range(2):
        found, wanted = (train_step(one, x, np.arange(4), device="cpu") for one in (model, plain))
        assert found == wanted
    arrays = {name[2:]: array for name, array in model.to_convnet().items()}
    for name, array in plain.to_convnet().items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)
    rows = (cl.features(one, x, f"{stem}conv1") for one, stem in ((model, "a_"), (plain, "")))
    np.testing.assert_array_equal(next(rows), next(rows))
    np.testing.assert_array_equal(cl.features(model, x, "a_probs"), model.predict(x))
    report = check_net(model, device="cpu", entries=2)
    assert report.ok
    assert {row.layer for row in report.rows} == {"a.conv1", "a.pool1", "a.fc10"}


def test_sections_with_dots_copy_and_are_copied(tmp_path: Path) -> None:
    saved = net(dotted(SMALL), dotted(RULES)).initialize(3)
    saved.save(tmp_path / "net.safetensors")
    copied = dotted(SMALL).replace("[a.conv1]\n", "[a.conv1]\ninitWFunc=initw.makew(a.conv1)\n")
    (tmp_path / "layers.cfg").write_text(copied)
    (tmp_path / "params.cfg").write_text(dotted(RULES))
    files = tmp_path / "layers.cfg", tmp_path / "params.cfg"
    made = load(*files, 16, init_from=tmp_path / "net.safetensors")
    np.testing.assert_array_equal(
        made.state_dict()["a_conv1.weights.0"], saved.state_dict()["a_conv1.weights.0"]
    )


def test_modules_of_one_name_are_refused() -> None:
    both = edited(SMALL, "[pool1]", "[a_b]").replace("conv1", "a.b").replace("=pool1", "=a_b")
    with pytest.raises(ConfigError, match=r"\[a.b\] is a_b as a module .* and so is \[a_b\]; call"):
        network(both, 16)


def test_weights_that_became_nan_go_and_come_too() -> None:
    model = net().initialize(0)
    arrays = {name: np.full_like(array, np.nan) for name, array in model.to_convnet().items()}
    model.from_convnet(arrays)
    assert np.isnan(model.to_convnet()["fc10/weights/0"]).all()


def test_a_pool_may_start_inside_take_magnitudes_and_need_not_draw() -> None:
    def output(pool: str, learning: str = RULES) -> np.ndarray:
        model = net(edited(SMALL, "pool=max", pool), learning).initialize(0)
        x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
        return model.predict(x, device="cpu")

    drawn = RULES + "\n[pool1]\ndoMax=true\n"
    np.testing.assert_array_equal(output("pool=rand", drawn), output("pool=max"))
    with pytest.raises(ConfigError, match=r"\[pool1\] pool=rand draws by a rule .* doMax=true"):
        output("pool=rand", RULES + "\n[pool1]\ndoMax=false\n")
    # Behind a relu the greatest magnitude is the greatest number.
    np.testing.assert_array_equal(output("pool=maxabs"), output("pool=max"))
    assert not np.array_equal(output("pool=max\noutputsX=8\nstart=1"), output("pool=max"))


def test_the_largest_of_several_inputs() -> None:
    twin = CONV.replace("[conv1]", "[conv2]").replace("neuron=relu\n", "")
    largest = "\n[most]\ntype=eltmax\ninputs=conv1,conv2\n"
    pool = edited(POOL, "inputs=conv1", "inputs=most")
    learning = RULES + RULES[: RULES.index("[fc10]")].replace("conv1", "conv2")
    model = net(DATA + CONV + twin + largest + pool + TAIL, learning).initialize(0)
    arrays = model.to_convnet()
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    # relu(v) is the larger of itself and v; a bias so low leaves relu(v) alone.
    low = {f"conv2/{key}": arrays[f"conv1/{key}"] for key in ("weights/0", "biases")}
    model.from_convnet({**arrays, **low})
    same = model.predict(x, device="cpu")
    model.from_convnet({**arrays, "conv2/biases": np.full(8, -99.0)})
    np.testing.assert_array_equal(model.predict(x, device="cpu"), same)


def test_random_connections_are_drawn_once_and_kept(tmp_path: Path) -> None:
    pool = edited(POOL, "inputs=conv1", "inputs=conv2")
    text = DATA + CONV + SPARSE + pool + TAIL
    learning = RULES + RULES[: RULES.index("[fc10]")].replace("conv1", "conv2")
    model = net(text, learning).initialize(0)
    channels = model.to_convnet()["conv2/connections/0"]
    assert sorted(channels[:8]) == sorted(channels[8:]) == list(range(8))
    assert list(channels[:8]) != list(range(8))
    model.save(tmp_path / "net.safetensors")
    again = cl.load(tmp_path / "net.safetensors")
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    np.testing.assert_array_equal(again.predict(x, device="cpu"), model.predict(x, device="cpu"))
    other = model.to_convnet()
    other["conv2/connections/0"] = np.arange(16) % 8
    model.from_convnet(other)
    np.testing.assert_array_equal(model.to_convnet()["conv2/connections/0"], np.arange(16) % 8)


def test_connections_that_are_not_there_change_nothing() -> None:
    pool = edited(POOL, "inputs=conv1", "inputs=conv2")
    learning = RULES + RULES[: RULES.index("[fc10]")].replace("conv1", "conv2")
    model = net(DATA + CONV + SPARSE + pool + TAIL, learning).initialize(0)
    before = model.state_dict()
    arrays = {name: 0 * array for name, array in model.to_convnet().items()}
    arrays["conv2/connections/0"] = np.full(16, 8)
    with pytest.raises(WeightsError, match="connections must be numbers of 8 channels"):
        model.from_convnet(arrays)
    for name, value in model.state_dict().items():
        np.testing.assert_array_equal(value, before[name])


def logistic(readers: str) -> str:
    """The small network with a logistic output, its cost, and what else reads that output."""
    tail = TAIL[: TAIL.index("[probs]")].replace("outputs=10", "outputs=10\nneuron=logistic")
    cost = "\n[logprob]\ntype=cost.crossent2\ninputs=labels,fc10\ngpu=0\n"
    return DATA + CONV + POOL + tail + readers + cost


def test_a_logistic_output_is_compared_before_its_neuron() -> None:
    model = net(logistic(""))
    assert model.cost.outputs == (Read("fc10", with_neuron=False),)
    assert model.trace((3, 16, 16)).nodes[-1].title.startswith("fc10 (Linear")


def test_dropout_keeps_its_scale_in_training_and_multiplies_in_tests() -> None:
    drop = "\n[hs1]\ntype=hs\ninputs=pool1\nkeep=0.5\n"
    text = edited(SMALL, "inputs=pool1", "inputs=hs1").replace("[fc10]", drop + "[fc10]")
    titles = [
        node.title for node in net(text, RULES + "[hs1]\nenable=1\n").trace((3, 16, 16)).nodes
    ]
    assert any("Dropout" in title for title in titles)
    off = net(text, RULES + "[hs1]\nenable=0\n").trace((3, 16, 16))
    assert not any("Dropout" in node.title for node in off.nodes)
    plain = net().initialize(0)
    halved = net(text, RULES + "[hs1]\nenable=1\n")
    halved.load_state_dict(plain.state_dict())
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16)).astype(np.float32)
    logits = [np.log(one.predict(x, device="cpu")) for one in (halved, plain)]
    half, whole = (rows - rows.mean(axis=1, keepdims=True) for rows in logits)
    np.testing.assert_allclose(half, 0.5 * whole, rtol=1e-3, atol=1e-5)


NOISY = edited(SMALL, "neuron=relu", "neuron=nrelu")
NOISY_LAYER = (
    edited(SMALL, "neuron=relu\n", "")
    + """
[more]
type=neuron
inputs=fc10
neuron=nrelu

[size]
type=cost.sum2
inputs=more
gpu=0
"""
)


@pytest.mark.parametrize("text", (NOISY, NOISY_LAYER), ids=("neuron", "layer"))
def test_noise_is_that_of_the_reference_and_drawn_anew(text: str) -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((4, 3, 16, 16)).astype(np.float32), np.arange(4)
    losses = {}
    for device in ("reference", "cpu", "cuda-sim"):
        model = net(text, RULES + "\n[size]\ncoeff=0.01\n").initialize(1)
        step = cl.compile(
            model, model.cost.loss, cl.optim.SGD(lr=0.0), batch_size=4, input_shape=(3, 16, 16),
            device=device, seed=5,
        )  # fmt: skip
        losses[device] = [step(x, y) for _ in range(3)]
    for found in losses.values():
        np.testing.assert_allclose(found, losses["reference"], rtol=1e-5)
        assert len(set(found)) == 3


def test_noise_in_tests_is_the_same_each_time_and_in_a_saved_network(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 3, 16, 16)).astype(np.float32)
    model = net(NOISY).initialize(1)
    model.save(tmp_path / "net.safetensors")
    first, plain = model.predict(x, device="cpu"), net().initialize(1).predict(x, device="cpu")
    np.testing.assert_array_equal(first, model.predict(x, device="cpu"))
    loaded = cl.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(first, loaded.predict(x, device="cpu"))
    for device in ("reference", "cuda-sim"):
        np.testing.assert_allclose(loaded.predict(x, device=device), first, rtol=1e-4)
    assert np.abs(first - plain).max() > 1e-4


def test_neurons_are_layers_of_their_own() -> None:
    made = network(SMALL, 16)
    layers = [node.layer for node in Net(made, rules(of=made)).trace((3, 16, 16)).nodes]
    assert layers[:3] == ["conv1", "conv1_neuron", "pool1"]


def test_predictions_of_a_logistic_cost_are_its_neurons_values(tmp_path: Path) -> None:
    text = edited(SMALL, "outputs=10\ninitW=0.1\n", "outputs=10\ninitW=0.1\nneuron=logistic\n")
    text = edited(text, "\n[probs]\ntype=softmax\ninputs=fc10\n", "")
    text = edited(text, "cost.logreg\ninputs=labels,probs", "cost.crossent2\ninputs=labels,fc10")
    crossent = net(text).initialize(0)
    flickr = net(text.replace("crossent2", "rflickr")).initialize(0)
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)
    crossent.save(tmp_path / "net.safetensors")
    for model in (crossent, cl.load(tmp_path / "net.safetensors")):
        found, wanted = (one.predict(x, device="cpu") for one in (model, flickr))
        np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert net().initialize(0).predict(x, device="cpu").sum(axis=1) == pytest.approx(1)


@pytest.mark.parametrize("neuron", ["ident", "relu"])
def test_features_of_a_softmax_are_the_predictions(tmp_path: Path, neuron: str) -> None:
    model = net(edited(SMALL, "outputs=10\n", f"outputs=10\nneuron={neuron}\n")).initialize(0)
    model.save(tmp_path / "net.safetensors")
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)
    for one in (model, cl.load(tmp_path / "net.safetensors")):
        made, wanted = cl.features(one, x, "probs", device="cpu"), one.predict(x, device="cpu")
        np.testing.assert_array_equal(made, wanted)
    with pytest.raises(cl.ConvloomError, match="there is no layer 'logprob'"):
        cl.features(model, x, "logprob", device="cpu")


def test_features_of_a_softmax_that_is_read_on_are_its_own() -> None:
    text = edited(
        SMALL, "[logprob]", "[more]\ntype=fc\ninputs=probs\noutputs=10\ninitW=1\n\n[p2]\n"
    )
    text = edited(
        text, "[p2]\n\ntype=cost", "[p2]\ntype=softmax\ninputs=more\n[logprob]\ntype=cost"
    )
    learning = RULES + RULES[RULES.index("[fc10]") : RULES.index("[logprob]")].replace(
        "fc10", "more"
    )
    model = net(text.replace("labels,probs", "labels,p2"), learning).initialize(0)
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)
    scores = cl.features(model, x, "fc10", device="cpu").astype(np.float64)
    wanted = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(cl.features(model, x, "probs", device="cpu"), wanted, rtol=1e-5)
