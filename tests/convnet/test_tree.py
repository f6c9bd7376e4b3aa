from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import convloom as cl
from convloom.convnet import ClassTree, ConfigError, TreeError, class_tree
from convloom.convnet.net import Net, load
from convloom.convnet.optimizer import TensorRule, optimizer_of
from convloom.convnet.tree import stand_in
from tests.convnet.files import RULES, SMALL, edited, network, rules
from tests.trees import TREES, Tables

PETS = {"beagle": "dog", "husky": "dog", "dog": "animal", "cat": "animal", "animal": None}
TREED = edited(SMALL, "type=fc\ninputs=pool1\noutputs=10", "type=treefc\ninputs=pool1")
#: Ten classes in two groups, the first of which has a group within.
TREE = (10, 10, 11, 11, 11, 12, 12, 12, 12, 12, 11, 13, 13, None)


def net(learning: str = RULES) -> Net:
    made = network(TREED, 16, classes=10, tree=TREE)
    return Net(made, rules(learning, made)).initialize(0)  # type: ignore[return-value]


def batch() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((6, 3, 16, 16)).astype(np.float32), np.arange(6)


# The tree of the classes


@pytest.mark.parametrize("tree", TREES, ids=str)
def test_tables_are_those_of_the_tree(tree: Tables) -> None:
    made = ClassTree(tuple(None if p < 0 else int(p) for p in tree.parents))
    for name, table in made.tables.items():
        np.testing.assert_array_equal(table, getattr(tree, name))
        assert table.dtype == np.int64
    assert (made.classes, made.nodes) == tree.paths.shape
    assert made.terms == tree.paths.sum()


def test_a_tree_by_names_takes_the_classes_in_their_order() -> None:
    assert class_tree(PETS, ("cat", "husky", "beagle")).parents == (4, 3, 3, 4, None)
    assert class_tree(PETS).parents == class_tree(PETS, 3).parents == (3, 3, 4, 4, None)
    rootless = {name: group for name, group in PETS.items() if group is not None}
    assert class_tree(rootless) == class_tree(PETS)
    assert class_tree([3, 3, 4, 4, None], ("cat", "husky", "beagle")) == class_tree(PETS)
    assert class_tree(ClassTree((1, None)), 1).nodes == 2
    assert class_tree({"all": None}).parents == (None,)


def test_a_tree_comes_from_a_file(tmp_path: Path) -> None:
    for source in (PETS, [3, 3, 4, 4, None]):
        (tmp_path / "tree.json").write_text(json.dumps(source))
        assert class_tree(tmp_path / "tree.json", 3).parents == (3, 3, 4, 4, None)
    (tmp_path / "tree.json").write_text(json.dumps(PETS), encoding="utf-8-sig")
    assert class_tree(tmp_path / "tree.json", 3).parents == (3, 3, 4, 4, None)


@pytest.mark.parametrize(
    ("tree", "classes", "message"),
    [
        ({"a": "b", "b": "c", "c": "a", "d": None}, None, "circle: a below b below c below a"),
        ([3, 2, 1, None], None, "circle: node 1 below node 2 below node 1"),
        ({str(i): str((i + 1) % 9) for i in range(9)}, None, "0 below 1 below 2 below 3 below 4 b"),
        ({"a": "b", "c": "d"}, None, "has 2 roots, and must have one: b, d"),
        ([2, None, None], None, "has 2 roots, and must have one: node 1, node 2"),
        ([], None, "has no nodes"),
        ({}, None, "has no nodes"),
        ([2, 2, None], 3, "has 2 leaves, the data set has 3 classes"),
        (PETS, 4, "has 3 leaves, the data set has 4 classes"),
        (PETS, ("cat", "husky", "beagel"), "has the leaf beagle, which is no .* mean beagel"),
        (PETS, ("cat", "husky", "beagle", "cow"), "has no leaf cow, which is a class"),
        (PETS, ("cat", "dog"), "has nodes below dog, which is a class; classes must be leaves"),
        (PETS, ("cat", "husky", "beagle", "cat"), "two classes are called cat"),
        ([1, 2, None, 2], None, "node 1 has nodes below it and node 3 has none; the classes must"),
        ([4, 4, None], None, "node 0 has the parent 4; it must be a node's number, 0 to 2, or nul"),
        ([2, True, None], None, "node 1 has the parent True"),
        ([2, 2.0, None], None, "node 1 has the parent 2.0"),
        ({"a": 1}, None, "'a' has the parent 1; both must be names"),
        (7, None, r"must be the parent of each node: an object \{node: parent\}, or an array"),
    ],
)
def test_what_is_no_tree_of_the_classes_is_refused(tree: Any, classes: Any, message: str) -> None:
    with pytest.raises(TreeError, match=f"^class tree: .*{message}"):
        class_tree(tree, classes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": "b", "a": "c"}', "tree.json: gives a two parents"),
        ("{", "tree.json: is not JSON: "),
        ("[1, 0]", "tree.json: goes round in a circle"),
        ("[" * 100_000, "tree.json: is not JSON: "),
        (f"[{'9' * 5000}]", "tree.json: is not JSON: "),
        ('"a"', "tree.json: must be the parent of each node"),
        ("[null, \udcff", "tree.json: is not JSON: 'utf-8' codec"),
        (None, "tree.json: cannot be read: No such file"),
    ],
)
def test_a_file_that_is_no_tree_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "tree.json"
    if text is not None:
        path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(ConfigError, match=message):
        class_tree(path)


@pytest.mark.parametrize("classes", (1, 2, 3, 4, 10, 1000))
def test_the_stand_in_has_equal_groups(classes: int) -> None:
    tree = stand_in(classes)
    assert tree.classes == classes
    groups = tree.tables["leaves"][classes:-1].tolist()
    assert len(groups) == (round(classes**0.5) if classes >= 4 else 0)
    assert max(groups, default=0) - min(groups, default=0) <= 1
    np.testing.assert_array_equal(tree.tables["order"], np.arange(classes))


def test_large_trees_take_no_time() -> None:
    tree = stand_in(10_184)
    assert tree.tables["leaves"][-1] == 10_184
    assert tree.terms == 3 * 10_184


# Its layer


def test_a_layer_has_a_column_for_each_node_and_a_bias_for_each_class() -> None:
    model = net()
    arrays = model.to_convnet()
    assert arrays["fc10/weights/0"].shape == (8 * 8 * 8, 14)
    assert arrays["fc10/biases"].shape == (10,)
    assert network(TREED, 16, tree=TREE)["fc10"].parameters == 512 * 14 + 10
    weights = arrays["fc10/weights/0"]
    assert weights[:, :10].std() == pytest.approx(0.1, rel=0.1)
    np.testing.assert_array_equal(weights[:, 10:], 0)
    plain = Net(network(SMALL, 16), rules(RULES, network(SMALL, 16))).initialize(0)
    np.testing.assert_array_equal(weights[:, :10], plain.to_convnet()["fc10/weights/0"])


def test_a_class_has_the_sum_of_the_columns_on_its_path() -> None:
    model, (x, _) = net(), batch()
    plain = Net(network(SMALL, 16), rules(RULES, network(SMALL, 16))).initialize(0)
    assert isinstance(plain, Net)
    rng, arrays = np.random.default_rng(1), model.to_convnet()
    columns = rng.standard_normal((512, 14)).astype(np.float32)
    arrays |= {"fc10/weights/0": columns, "fc10/biases": columns[0, :10]}
    model.from_convnet(arrays)
    np.testing.assert_array_equal(model.to_convnet()["fc10/weights/0"], columns)
    paths = Tables(**ClassTree(TREE).tables).paths.astype(np.float32)
    plain.from_convnet({**arrays, "fc10/weights/0": columns @ paths.T})
    ours, theirs = (one.predict(x, device="cpu") for one in (model, plain))
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-7)


def test_gradients_are_right_in_float64() -> None:
    model = net()
    x = np.random.default_rng(0).standard_normal((2, 3, 16, 16))
    y, _, grads = cl.vjp(model, x, np.ones((2, 10)), device="reference")
    assert y.dtype == np.float64
    for name in ("fc10.weights.0", "fc10.biases"):
        value, step = model.state_dict()[name], 2.0**-10
        direction = np.random.default_rng(1).integers(-1, 2, value.shape).astype(np.float32)
        ends = []
        for sign in (1, -1):
            moved = value + sign * step * direction
            model.load_state_dict({name: moved}, strict=False)
            ends.append((moved.astype(np.float64), cl.vjp(model, x, 0 * y, device="reference")[0]))
        (high, above), (low, below) = ends
        model.load_state_dict({name: value}, strict=False)
        assert (above - below).sum() == pytest.approx((grads[name] * (high - low)).sum(), rel=1e-6)


def test_without_its_tree_a_stand_in_is_taken_and_said() -> None:
    made = network(TREED, 16, classes=10)
    assert made["fc10"].parameters is None
    with pytest.warns(UserWarning, match=r"\[fc10\] needs the tree of its 10 classes.* of 4 inner"):
        model = Net(made, rules(RULES, made))
    np.testing.assert_array_equal(
        model.initialize(0).state_dict()["fc10.tree.parents"], stand_in(10).tables["parents"]
    )


def test_a_tree_without_a_layer_for_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no treefc layer, and a class tree is for such"):
        network(SMALL, 16, tree=TREE)
    with pytest.raises(ConfigError, match="cannot be for 0 classes"):
        network(TREED, 16, classes=0)


# How it learns


def test_rates_are_those_of_the_file_without_a_schedule() -> None:
    learning = edited(RULES, "epsW=0.1\n", "epsW=0.1\nwc=0.01\nschedW=exp[10]\n")
    model = net(learning)
    (rule,) = (r for r in optimizer_of(model).rules if r.name == "fc10.weights.0")
    assert rule == TensorRule("fc10.weights.0", 0.1, 0.9, 0.01, "default", None, "fc10.tree.leaves")
    assert "[fc10] schedW does nothing for the weights of a treefc" in model.notes


@pytest.mark.parametrize("device", ("reference", "cpu", "cuda-sim"))
def test_steps_are_the_rule_applied_to_each_node(device: str) -> None:
    model, (x, y) = net(edited(RULES, "epsW=0.1\n", "epsW=0.1\nwc=0.3\n")), batch()
    w = model.state_dict()["fc10.weights.0"]
    v, leaves = np.zeros_like(w), ClassTree(TREE).tables["leaves"][:, None]
    step = cl.compile(
        model, model.cost.loss, optimizer_of(model), batch_size=6, input_shape=(3, 16, 16),
        device=device,
    )  # fmt: skip
    losses = []
    for _ in range(4):
        losses.append(step(x, y))
        g = step.read("fc10.weights.0.grad")
        v = 0.9 * v - (0.1 / leaves) * (g + (0.3 / leaves) * w)
        w = w + v
        np.testing.assert_allclose(step.read("fc10.weights.0"), w, rtol=2e-5, atol=2e-6)
    assert losses[-1] < 0.7 * losses[0]


def test_the_tree_is_saved_with_the_weights(tmp_path: Path) -> None:
    model, (x, _) = net(), batch()
    model.save(tmp_path / "net.safetensors")
    again = cl.load(tmp_path / "net.safetensors")
    np.testing.assert_array_equal(again.predict(x, device="cpu"), model.predict(x, device="cpu"))


def test_load_takes_a_tree(tmp_path: Path) -> None:
    for name, text in (("l.cfg", TREED), ("p.cfg", RULES), ("t.json", json.dumps(TREE))):
        (tmp_path / name).write_text(text)
    files = tmp_path / "l.cfg", tmp_path / "p.cfg", 16
    model = load(*files, classes=10, tree=tmp_path / "t.json")
    assert model.state_dict()["fc10.tree.parents"].tolist() == [*TREE[:-1], -1]
    with pytest.raises(ConfigError, match=r"t.json: has 10 leaves, the data set has 11 classes"):
        load(*files, classes=11, tree=tmp_path / "t.json")
