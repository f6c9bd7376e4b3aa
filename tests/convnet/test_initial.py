"""Initial values that network files take from functions: copied, handed over, or left to initW."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

import convloom as cl
from convloom.convnet.errors import ConfigError
from convloom.convnet.net import Net, load
from convloom.training.checkpoint import LAST
from tests.convnet.files import DATA, edited

CONV = """
[conv1]
type=conv
inputs=data
channels=3
filters=8
filterSize=3
initW=0.01
partialSum=0
sharedBiases=false
gpu=0

[conv2]
type=conv
inputs=conv1
channels=8
filters=4
groups=2
filterSize=3
initW=0.1
partialSum=0
randSparse=1
filterChannels=8
"""
TAIL = """
[fc10]
type=fc
inputs=conv2,conv1
outputs=10
initW=0.1,0.1
initB=0.5

[probs]
type=softmax
inputs=fc10

[logprob]
type=cost.logreg
inputs=labels,probs
gpu=0
"""
PLAIN = DATA + CONV + TAIL
WISHES = {
    "conv1": "initWFunc=initw.makew(conv1)\ninitBFunc=initw.makeb(conv1)\n",
    "conv2": "initWFunc = initw.makew( conv2 )\ninitCFunc=initw.makec(conv2)\n",
    "fc10": "initWFunc=initw.makew(fc10)\ninitBFunc=initw.makeb(fc10)\n",
}
PARAMS = "".join(
    f"[{name}]\nepsW=0.1\nepsB=0.1\nmomW=0\nmomB=0\n" for name in ("conv1", "conv2", "fc10")
) + "[logprob]\ncoeff=1\n"  # fmt: skip


def wishing(**wishes: str) -> str:
    text = PLAIN
    for name, keys in (wishes or WISHES).items():
        text = edited(text, f"[{name}]\n", f"[{name}]\n{keys}")
    return text


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "params.cfg").write_text(PARAMS)
    (tmp_path / "plain.cfg").write_text(PLAIN)
    return tmp_path


def made(folder: Path, text: str, **options: Any) -> Net:
    (folder / "layers.cfg").write_text(text)
    return load(folder / "layers.cfg", folder / "params.cfg", 8, **options)


def teacher(folder: Path) -> Net:
    """A network with other weights, biases and connections than a new one."""
    net = load(folder / "plain.cfg", folder / "params.cfg", 8)
    net.initialize(7)
    arrays = {name: np.asarray(array) for name, array in net.to_convnet().items()}
    rng = np.random.default_rng(1)
    for name, array in arrays.items():
        if "biases" in name:
            arrays[name] = rng.standard_normal(array.shape).astype(np.float32)
    arrays["conv2/connections/0"] = arrays["conv2/connections/0"][::-1].copy()
    net.from_convnet(arrays)
    return net


def saved(net: Net, path: Path, form: str) -> Path:
    """The network's arrays in a file of some form."""
    if form == "npz":
        np.savez(path, **net.to_convnet())
    elif form == "safetensors":
        arrays = {name: np.ascontiguousarray(a) for name, a in net.to_convnet().items()}
        safetensors.numpy.save_file(arrays, path)
    elif form == "network":
        net.save(path)
    else:
        images = np.zeros((4, 3, 8, 8), np.float32)
        data = cl.data.from_arrays(images, np.arange(4), classes=[str(i) for i in range(10)])
        sgd = cl.optim.SGD(lr=0.0)
        cl.Trainer(net, sgd, net.cost.loss, device="cpu", out=path).fit(data, epochs=1)
        return path if form == "run" else path / LAST
    return path.with_suffix(".npz") if form == "npz" else path


@pytest.mark.parametrize("form", ["npz", "safetensors", "network", "run", "checkpoint"])
def test_layers_copy_from_any_file(files: Path, form: str) -> None:
    source = teacher(files)
    path = saved(source, files / "source", form)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net = made(files, wishing(), init_from=path)
    wanted = source.to_convnet()
    found = net.initialize(0).to_convnet()  # type: ignore[attr-defined]
    new = load(files / "plain.cfg", files / "params.cfg", 8).initialize(0).to_convnet()  # type: ignore[attr-defined]
    for name, array in found.items():
        expected = new if name == "conv2/biases" else wanted  # which nobody asked for
        np.testing.assert_array_equal(array, expected[name], err_msg=name)


def test_a_layer_copies_from_one_of_another_name(files: Path) -> None:
    arrays = {"old/weights/0": np.full((27, 8), 0.25), "old/biases": np.ones((1, 288))}
    np.savez(files / "old.npz", **arrays)
    keys = WISHES["conv1"].replace("(conv1)", "(old)")
    net = made(files, wishing(conv1=keys), init_from=files / "old.npz")
    found = net.initialize(0).to_convnet()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found["conv1/weights/0"], arrays["old/weights/0"])
    np.testing.assert_array_equal(found["conv1/biases"], np.ones(288))


def test_without_a_source_initw_stands_and_a_warning_says_so(files: Path) -> None:
    with pytest.warns(
        UserWarning,
        match=r"initw.makew, initw.makeb, initw.makec of conv1, conv2, "
        "fc10 are not run, initW and initB are used instead; .* --init-from FILE",
    ):
        net = made(files, wishing())  # fmt: skip
    plain = load(files / "plain.cfg", files / "params.cfg", 8)
    for name, array in plain.initialize(3).state_dict().items():
        np.testing.assert_array_equal(net.initialize(3).state_dict()[name], array)


def test_a_function_runs_only_where_it_is_handed_over(files: Path) -> None:
    """A file cannot name what is importable: the module of that name would say that it was run."""
    trap = files / "trap.py"
    trap.write_text("open('ran', 'w')\ndef make(*a, **k): open('ran', 'w')\n")
    asked: list[Any] = []

    def ours(*given: Any, params: list[str]) -> np.ndarray:
        asked.append((*given, params))
        return np.full(given[-1], float(params[0]))

    keys = "initWFunc=trap.make(0.5, x)\ninitBFunc=os.getcwd\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(files))
        patch.chdir(files)
        with pytest.warns(UserWarning, match="trap.make, os.getcwd of fc10 are not run"):
            made(files, wishing(fc10=keys))
        assert not (files / "ran").exists()
        with pytest.warns(UserWarning, match="os.getcwd of fc10 are not run"):
            net = made(files, wishing(fc10=keys), allow_code={"trap.make": ours})
        assert not (files / "ran").exists()
    assert asked == [
        ("fc10", 0, (128, 10), ["0.5", "x"]),
        ("fc10", 1, (288, 10), ["0.5", "x"]),
    ]
    assert (net.initialize(0).to_convnet()["fc10/weights/1"] == 0.5).all()  # type: ignore[attr-defined]
    assert (net.to_convnet()["fc10/biases"] == 0.5).all()


def test_a_function_may_stand_for_a_copy_and_make_biases_and_connections(files: Path) -> None:
    channels = np.tile(np.arange(8), 2)
    net = made(
        files, wishing(conv2="initCFunc=initw.makec(conv2)\ninitBFunc=own.biases\n"),
        allow_code={
            "initw.makec": lambda name, i, shape, params: channels.reshape(2, 8),
            "own.biases": lambda name, shape, params: np.arange(shape[0])[:, None],
        },
    )  # fmt: skip
    found = net.initialize(0).to_convnet()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(found["conv2/connections/0"], channels)
    np.testing.assert_array_equal(found["conv2/biases"], np.arange(8))


@pytest.mark.parametrize(
    ("keys", "arrays", "message"),
    [
        ("initWFunc=initw.makew(a)", {"a/weights/0": np.ones((27, 9))},
         r"\[conv1\] initWFunc=initw.makew\(a\) needs weights/0 of a in .*a.npz to have shape "
         r"\(27, 8\), it has \(27, 9\)"),
        ("initWFunc=initw.makew(a)", {"a.weights.0": np.ones((8, 27))},
         r"to have shape \(8, 3, 3, 3\), it has \(8, 27\)"),
        ("initWFunc=initw.makew(a)", {"b/weights/0": np.ones((27, 8)), "c/biases": np.ones(8)},
         r"needs weights/0 of a layer a; .*a.npz has none, it has b, c"),
        ("initBFunc=initw.makeb(a)", {"a/biases": np.full(288, np.nan)}, "to be finite numbers"),
        ("initBFunc=initw.makeb(a)", {"a/biases": np.ones(8)}, r"\(288,\), it has \(8,\)"),
        ("initCFunc=initw.makec(a)", {"a/connections/0": np.ones(8)},
         "is for connections of a layer's own, and this one has none"),
        ("initWFunc=initw.makew(a,b)", {}, r"needs the name of one layer .* initw.makew\(conv1\)"),
        ("initWFunc=initw.makew", {}, "needs the name of one layer to copy from"),
        ("initWFunc=initw.makeb(a)", {}, "is not what initw.makeb makes; that is initBFunc"),
        ("initWFunc=makew(a)", {}, r"must be module.function or module.function\(parameter,...\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit(
    files: Path, keys: str, arrays: dict[str, np.ndarray], message: str
) -> None:
    np.savez(files / "a.npz", **arrays)
    with pytest.raises(ConfigError, match=message):
        made(files, wishing(conv1=keys + "\n"), init_from=files / "a.npz")


def test_connections_must_be_of_the_channels_there_are(files: Path) -> None:
    wish = wishing(conv2="initCFunc=initw.makec(a)\n")
    for bad in (np.full(16, 8), np.full(16, 0.5)):
        np.savez(files / "a.npz", **{"a/connections/0": bad})
        with pytest.raises(ConfigError, match=r"\[conv2\] .* cannot take connections/0 of a in"):
            made(files, wish, init_from=files / "a.npz")
    np.savez(files / "a.npz", **{"a.connections.0": np.full((16, 8, 1, 1), 0.5)})
    with pytest.raises(ConfigError, match="connections must pick one channel each"):
        made(files, wish, init_from=files / "a.npz")


def test_a_function_that_fails_is_named(files: Path) -> None:
    def fails(*_: Any, params: list[str]) -> np.ndarray:
        raise RuntimeError("no luck")

    wish = wishing(conv1="initWFunc=own.f\n")
    with pytest.raises(ConfigError, match=r"initWFunc=own.f failed for weights/0: Runtime"):
        made(files, wish, allow_code={"own.f": fails})
    with pytest.raises(ConfigError, match=r"needs what it gives for weights/0 to have shape"):
        made(files, wish, allow_code={"own.f": lambda *_, params: np.ones(3)})


def test_sources_that_say_nothing_or_cannot_be_read(files: Path) -> None:
    np.savez(files / "a.npz", x=np.array([{}], dtype=object))
    with pytest.raises(cl.ConvloomError, match=r"a\.npz is no npz file of plain arrays"):
        made(files, wishing(), init_from=files / "a.npz")
    with pytest.raises(cl.ConvloomError, match=r"none\.npz"):
        made(files, wishing(), init_from=files / "none.npz")
    with pytest.raises(cl.ConvloomError, match=r"no layer of layers\.cfg copies its initial"):
        made(files, PLAIN, init_from=files / "a.npz")
    with pytest.raises(cl.ConvloomError, match=r"allow_code has own\.f, which no layer of"):
        made(files, PLAIN, allow_code={"own.f": np.ones})


TWIN = """
[conv1b]
type=conv
inputs=data
channels=3
filters=8
filterSize=3
initW=0.01
partialSum=0
weightSource=conv1
initWFunc=initw.makew(a)
gpu=0
"""


def test_weights_of_another_layer_are_not_overwritten(files: Path) -> None:
    text = edited(DATA + CONV + TWIN + TAIL, "inputs=conv2,conv1", "inputs=conv2,conv1b")
    (files / "params.cfg").write_text(
        PARAMS + PARAMS[: PARAMS.index("[conv2]")].replace("v1", "v1b")
    )
    np.savez(files / "a.npz", **{"a/weights/0": np.ones((27, 8))})
    with pytest.raises(ConfigError, match="is for weights of a layer's own, and this one has none"):
        made(files, text, init_from=files / "a.npz")
