from __future__ import annotations

import re

import pytest

from convloom.convnet.errors import ConfigError
from convloom.convnet.rules import BiasRule, WeightRule, frozen
from convloom.convnet.schedules import RateSchedule
from tests.convnet.files import RULES, SMALL, edited, network, rules

NORM = """
[norm1]
type=cmrnorm
inputs=pool1
channels=8
size=5
"""
DROP = """
[hs1]
type=hs
inputs=pool1
keep=0.5
"""


def test_a_layer_learns_as_its_section_says() -> None:
    read = rules().layers
    assert read["conv1"].weights == (WeightRule(0.01, 0.9, 0.004),)
    assert read["conv1"].biases == BiasRule(0.02, 0.8)
    assert read["logprob"].coefficient == 1
    assert read["logprob"].top == 5
    assert read["pool1"].weights == ()


def test_every_input_has_rates_of_its_own() -> None:
    net = network(edited(SMALL, "inputs=pool1", "inputs=pool1,pool1"))
    text = edited(RULES, "epsW=0.1", "epsW=0.1,0.2")
    assert [rule.eps for rule in rules(text, net).layers["fc10"].weights] == [0.1, 0.2]
    with pytest.raises(ConfigError, match="needs 2 values, one for each input"):
        rules(edited(RULES, "epsW=0.1", "epsW=0.1,0.2,0.3"), net)


def test_schedules_are_read_also_where_they_carry_their_base() -> None:
    text = edited(RULES, "epsW=0.01", "epsW=0.01\nschedW=dexp[250,4]\nschedB=exp[tgtFactor=10]")
    rule = rules(text).layers["conv1"]
    assert rule.weights[0].schedule == RateSchedule("dexp", 250, steps=4)
    assert rule.biases is not None
    assert rule.biases.schedule == RateSchedule("exp", 10)
    carried = rules(edited(RULES, "epsW=0.01", "epsW=exp[base=0.03 ; tgtFactor=10]"))
    assert carried.layers["conv1"].weights[0].eps == 0.03


def test_norms_have_scale_and_power_and_may_have_them_in_the_layer_file() -> None:
    text = edited(SMALL, "inputs=pool1", "inputs=norm1").replace("[fc10]", NORM + "[fc10]")
    own = rules(RULES + "[norm1]\nscale=0.001\npow=0.75\nminDiv=2\n", network(text))
    assert (own.layers["norm1"].scale, own.layers["norm1"].min_divisor) == (0.001, 2.0)
    early = network(text.replace("size=5", "size=5\nscale=0.5\npow=0.25"))
    read = rules(RULES, early)
    assert (read.layers["norm1"].scale, read.layers["norm1"].pow) == (0.5, 0.25)
    assert any("[norm1] has its scale and pow in the layer file" in note for note in read.notes)
    with pytest.raises(ConfigError, match=r"\[norm1\] is missing; a cmrnorm layer needs"):
        rules(RULES, network(text))


def test_dropout_can_be_off() -> None:
    net = network(edited(SMALL, "inputs=pool1", "inputs=hs1").replace("[fc10]", DROP + "[fc10]"))
    assert rules(RULES + "[hs1]\nenable=false\n", net).layers["hs1"].enabled is False
    read = rules(RULES, net)
    assert read.layers["hs1"].enabled is True
    assert any("[hs1]" in note for note in read.notes)
    with pytest.raises(ConfigError, match=r"\[hs1\] enable is missing"):
        rules(RULES + "[hs1]\nkeep=0.5\n", net)


def test_a_section_without_a_layer_is_ignored_and_told() -> None:
    read = rules(RULES + "[conv9]\nepsW=1\n")
    assert any("[conv9] is no layer of layers.cfg and is ignored" in note for note in read.notes)


def test_files_that_were_swapped_are_told() -> None:
    with pytest.raises(
        ConfigError, match=r"^params.cfg: has a type in every section; is this a lay"
    ):
        rules(SMALL)
    with pytest.raises(ConfigError, match=r"\[conv1\] type is missing; is this a parameter file\?"):
        network(RULES)


def test_frozen_layers_are_named() -> None:
    assert frozen(rules()) == {"epsW": [], "epsB": []}
    twin = edited(SMALL, "inputs=pool1", "inputs=pool1,conv1")
    learning = edited(edited(RULES, "epsW=0.1", "epsW=0.1,0"), "epsB=0.02", "epsB=0")
    learning = edited(learning, "epsW=0.01", "epsW=0")
    assert frozen(rules(learning, network(twin))) == {
        "epsW": ["conv1", "fc10[1]"],
        "epsB": ["conv1"],
    }


def test_older_names_are_told() -> None:
    read = rules(edited(RULES, "epsW=0.01", "epsW=0.01\nsched=linear[1000]"))
    assert any("[conv1] sched is an older name" in note for note in read.notes)


@pytest.mark.parametrize(
    ("floor", "decay", "told"),
    [
        ("0", "0.004", []),
        ("0.5", "0", []),
        ("0.5", "0.004", ["wc does nothing where superEps is given"]),
        ("0.25", "0", ["superEps=0.25 may make weights that are not finite"]),
    ],
)
def test_what_super_eps_does_not_do_is_told(floor: str, decay: str, told: list[str]) -> None:
    learning = edited(RULES, "wc=0.004", f"wc={decay}\nsuperEps={floor}")
    notes = rules(learning).notes
    assert len(notes) == len(told)
    for note, wanted in zip(notes, told, strict=True):
        assert note.startswith(f"[conv1] {wanted}")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("epsW=0.01\n", "", "[conv1] epsW is missing"),
        ("epsW=0.01", "epsW=fast", "[conv1] epsW=fast must be a number"),
        ("epsW=0.01", "epsW=-1", "[conv1] epsW=-1 must be at least 0"),
        ("epsW=0.01", "epsW=exp[tgtFactor=2]", "[conv1] epsW=exp[tgtFactor=2] needs a base"),
        ("epsW=0.01", "epsW=1\nschedW=sine", "[conv1] schedW=sine must be default or one of"),
        (
            "epsW=0.01",
            "epsW=1\nschedW=exp[base=1;tgtFactor=2]",
            "[conv1] schedW=exp[base=1;tgtFactor=2] must have no base, which belongs to epsW",
        ),
        ("epsW=0.01", "epsW=1,2", "[conv1] epsW=1,2 needs one value"),
        ("epsW=0.01", "epsW=1\nwcNormMin=2", "[conv1] wcNormMin=2 must be at most wcNormMax"),
        ("coeff=1\n", "", "[logprob] coeff is missing"),
        ("[fc10]", "[fc11]", "[fc10] is missing; a fc layer needs a section of its own"),
    ],
)
def test_an_error_names_file_section_key_and_rule(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"params\.cfg(, line \d+)?: " + re.escape(message)):
        rules(edited(RULES, old, new))
