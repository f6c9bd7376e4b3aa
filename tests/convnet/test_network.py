from __future__ import annotations

import re
from typing import Any

import pytest

from convloom.convnet.describe import rows
from convloom.convnet.errors import ConfigError
from tests.convnet.files import CONV, DATA, POOL, SMALL, TAIL, edited, network


def test_rows_tell_what_each_layer_gives_and_learns() -> None:
    assert rows(network()) == [
        ["data", "data", 3, 32, 32, 0],
        ["labels", "data", 1, None, None, 0],
        ["conv1", "conv", 8, 32, 32, 3 * 25 * 8 + 8],
        ["pool1", "pool", 8, 16, 16, 0],
        ["fc10", "fc", 10, None, None, 8 * 16 * 16 * 10 + 10],
        ["probs", "softmax", 10, None, None, 0],
        ["logprob", "cost.logreg", 0, None, None, 0],
    ]


@pytest.mark.parametrize(
    ("side", "size", "stride", "start", "outputs"),
    [(32, 3, 2, 0, 16), (16, 3, 2, 0, 8), (8, 3, 2, 0, 4), (55, 3, 2, 0, 27), (7, 3, 3, -1, 3)],
)
def test_pools_count_the_window_that_hangs_over(
    side: int, size: int, stride: int, start: int, outputs: int
) -> None:
    pool = edited(edited(POOL, "sizeX=3", f"sizeX={size}"), "stride=2", f"stride={stride}")
    net = network(DATA + CONV + pool + f"start={start}\n" + TAIL, side)
    assert net["pool1"].extent.side == outputs


@pytest.mark.parametrize(
    ("side", "size", "stride", "padding", "out"),
    [(32, 5, 1, 2, 32), (224, 11, 4, 0, 55), (8, 3, 2, 0, 4), (9, 3, 2, 0, 4), (10, 3, 3, 0, 4)],
)
def test_convolutions_count_the_module_that_hangs_over(
    side: int, size: int, stride: int, padding: int, out: int
) -> None:
    conv = edited(CONV, "filterSize=5", f"filterSize={size}")
    conv = edited(edited(conv, "stride=1", f"stride={stride}"), "padding=2", f"padding={padding}")
    assert network(DATA + conv + POOL + TAIL, side)["conv1"].extent.side == out


def test_filters_are_counted_by_the_group_and_biases_by_what_they_serve() -> None:
    conv2 = """
[conv2]
type=conv
inputs=conv1
channels=8
filters=4
groups=4
filterSize=3
padding=1
initW=0.1
partialSum=0
sharedBiases={}
"""
    pool = edited(edited(POOL, "inputs=conv1", "inputs=conv2"), "channels=8", "channels=16")
    for shared, biases in (("1", 16), ("false", 16 * 32 * 32)):
        net = network(DATA + CONV + conv2.format(shared) + pool + TAIL)
        assert net["conv2"].extent.channels == 16
        assert net["conv2"].parameters == 16 * 2 * 9 + biases


def test_unshared_filters_are_counted_at_every_place() -> None:
    net = network(edited(SMALL, "type=conv", "type=local"))
    assert net["conv1"].parameters == (3 * 25 * 8 + 8) * 32 * 32


def test_fc_has_a_matrix_for_every_input_and_one_bias() -> None:
    fc = edited(TAIL, "inputs=pool1", "inputs=pool1,pool1")
    net = network(DATA + CONV + POOL + edited(fc, "initW=0.1", "initW=0.001,0.1"))
    assert net["fc10"].parameters == 2 * 2048 * 10 + 10
    assert net["fc10"].definition.initial.weights == (0.001, 0.1)  # type: ignore[attr-defined]


def test_one_value_serves_all_inputs_except_in_the_original() -> None:
    fc = edited(TAIL, "inputs=pool1", "inputs=pool1,pool1")
    net = network(DATA + CONV + POOL + fc)
    assert net["fc10"].definition.initial.weights == (0.1, 0.1)  # type: ignore[attr-defined]
    full = edited(DATA + CONV + POOL + fc, "filters=8", "filters=16")
    full = full.replace("channels=8", "channels=16")
    with pytest.raises(
        ConfigError, match=r"\[fc10\] initW=0.1 needs 2 values, one for each input$"
    ):
        network(full, strict=True)


def test_labels_of_several_classes_are_as_wide_as_what_they_are_compared_with() -> None:
    tail = TAIL.replace("softmax", "neuron\nneuron=logistic").replace("logreg", "crossent2")
    net = network(DATA + CONV + POOL + tail)
    assert net["labels"].extent.count == 10


def test_images_have_the_channels_that_their_reader_says() -> None:
    assert network(edited(SMALL, "channels=3", "channels=1"))["data"].extent.channels == 1


def test_nailbed_and_blur_keep_channels() -> None:
    fixed = """
[blur0]
type=blur
inputs=data
channels=3
filterSize=9
stdev=4
gpu=0
[nails0]
type=nailbed
inputs=blur0
channels=3
stride=4
"""
    net = network(DATA + fixed + edited(CONV, "inputs=data", "inputs=nails0") + POOL + TAIL, 30)
    assert net["nails0"].extent.side == 8
    assert net["nails0"].definition.start == 1  # type: ignore[attr-defined]


def test_what_the_original_refused_is_remedied_and_said() -> None:
    text = edited(SMALL, "neuron=relu\ngpu=0\n", "neuron=relu\n")
    assert any("[conv1] names no gpu; 0 is taken" in note for note in network(text).notes)
    strict = text.replace("filters=8", "filters=16").replace("channels=8", "channels=16")
    with pytest.raises(ConfigError, match=r"\[conv1\] gpu is required"):
        network(strict, strict=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "type=conv",
            "type=convol",
            r"[conv1] type=convol is no layer type; did you mean",
        ),
        ("inputs=conv1", "inputs=conv2", "[pool1] inputs=conv2 names conv2, and there is no such"),
        ("inputs=conv1", "inputs=fc10", "[pool1] inputs=fc10 names fc10, which stands below"),
        ("inputs=pool1", "inputs=conv1", "[pool1] is read by no layer"),
        ("filterSize=5", "filterSize=40", "[conv1] filterSize=40 must be at most"),
        ("filterSize=5\n", "", "[conv1] filterSize is missing"),
        ("stride=1", "stride=0", "[conv1] stride=0 must be at least 1"),
        ("stride=2", "stride=4", "[pool1] stride=4 must be at most sizeX"),
        ("initW=0.01", "initW=small", "[conv1] initW=small must be a number, not 'small'"),
        ("initW=0.01\n", "", "[conv1] initW is missing"),
        ("type=conv", "type=rscale", "[conv1] type=rscale is a type that no known network file"),
        (
            "partialSum=1",
            "partialSum=3",
            "[conv1] partialSum=3 must be 0 or divide the 1024 places",
        ),
        ("neuron=relu", "neuron=tanh[1]", "[conv1] neuron=tanh[1] must be tanh[a,b]"),
        ("channels=8", "channels=7", "[pool1] channels=7 does not fit"),
        ("pool=max", "pool=median", "[pool1] pool=median must be one of max, avg"),
        ("outputs=10", "outputs=ten", "[fc10] outputs=ten must be a whole number"),
        ("inputs=labels,probs", "inputs=probs", "[logprob] inputs=probs must be 2 for cost.logreg"),
        ("filters=8", "filters=8\nrandSparse=1", "[conv1] randSparse=1 needs more than one group"),
    ],
)
def test_an_error_names_file_section_key_and_rule(old: str, new: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"layers\.cfg, line \d+: " + re.escape(message)):
        network(edited(SMALL, old, new))


@pytest.mark.parametrize("size", [0, -1, 6.0, "6", True])
def test_a_size_is_a_whole_number_of_pixels(size: Any) -> None:
    with pytest.raises(ConfigError, match=r"^layers.cfg: input size .* whole number of at least 1"):
        network(size=size)


@pytest.mark.parametrize("classes", [2.5, True])
def test_classes_are_counted_or_named(classes: Any) -> None:
    with pytest.raises(ConfigError, match="needs classes by name or their number, not"):
        network(classes=classes)


def test_labels_of_a_number_that_no_data_set_has_are_told() -> None:
    assert not network(edited(SMALL, "dataIdx=1", "dataIdx=2")).notes
    notes = network(edited(SMALL, "dataIdx=1", "dataIdx=7")).notes
    assert any("[labels] dataIdx=7 is read as the labels" in note for note in notes)


@pytest.mark.parametrize("indented", [" [conv1]", "\t[conv1]"])
def test_an_indented_section_is_told(indented: str) -> None:
    with pytest.raises(
        ConfigError, match=r"\[conv1\] is indented, which continues the value above"
    ):
        network(edited(SMALL, "\n[conv1]", f"\n{indented}"))


def test_a_cost_hands_nothing_on() -> None:
    more = "\n[more]\ntype=softmax\ninputs=logprob\n"
    with pytest.raises(ConfigError, match="a cost, which hands nothing on"):
        network(SMALL + more)


def test_a_key_that_means_nothing_is_told() -> None:
    notes = network(edited(SMALL, "sizeX=3", "sizeX=3\nsizY=3")).notes
    assert any("[pool1] sizy means nothing to a pool layer" in note for note in notes)


@pytest.mark.parametrize("cost", ["cost.logreg", "cost.crossent2", "cost.rflickr", "cost.sum2"])
def test_there_is_an_output_for_every_class(cost: str) -> None:
    text = edited(SMALL, "type=cost.logreg", f"type={cost}")
    if cost == "cost.sum2":
        less = "[less]\ntype=eltsum\ninputs=labels,probs\ncoeffs=1,-1\ngpu=0\n\n[logprob]"
        text = edited(
            edited(text, "cost.sum2\ninputs=labels,probs", "cost.sum2\ninputs=less"),
            "[logprob]",
            less,
        )
    name = "less" if cost == "cost.sum2" else "logprob"
    assert not network(text, classes=10).notes
    said = rf"\[{name}\] compares labels of 11 classes with the 10 outputs of probs; there must be"
    with pytest.raises(ConfigError, match=rf"^layers.cfg, line \d+: {said}"):
        network(text, classes=11)
    (note,) = network(text, classes=9).notes
    assert note.endswith("9 classes with the 10 outputs of probs; the last ones stand for no class")
