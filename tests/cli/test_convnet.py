from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import convloom as cl
from convloom.data import Augmentation
from convloom.ir import ConvloomError
from convloom.training import checkpoint
from convloom.training.config import load_config
from tests.cli.running import invoke, refused
from tests.convnet.files import RULES, SMALL, edited
from tests.data.tiny import idx_bytes


def written(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    return path


def test_describe_prints_rows(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", SMALL)
    params = written(tmp_path, "params.cfg", RULES)
    result = invoke("convnet", "describe", layers, params, "--size", 32, "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)[2] == ["conv1", "conv", 8, 32, 32, 608]
    shown = invoke("convnet", "describe", layers, "--size", 32).stdout
    assert [line.split() for line in shown.splitlines()][6][:2] == ["fc10", "fc"]


def test_remedies_are_said_on_stderr(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", edited(SMALL, "neuron=relu\ngpu=0\n", ""))
    result = invoke("convnet", "describe", layers, "--size", 32)
    assert result.exit_code == 0
    assert "[conv1] names no gpu; 0 is taken" in result.stderr


def test_initial_values_that_are_not_run_are_said(tmp_path: Path) -> None:
    text = edited(SMALL, "[conv1]\n", "[conv1]\ninitWFunc=initw.makew(conv1)\n")
    result = invoke("convnet", "describe", written(tmp_path, "layers.cfg", text), "--size", 32)
    assert result.exit_code == 0
    assert "initw.makew of conv1 are not run, initW and initB are used" in result.stderr
    text = text.replace("initw.makew(conv1)", "initw")
    message = refused(2, "convnet", "describe", written(tmp_path, "layers.cfg", text))
    assert "[conv1] initWFunc=initw must be module.function" in message


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", edited(SMALL, "stride=2", "stride=x"))
    assert "[pool1] stride=x must be a whole number" in refused(2, "convnet", "describe", layers)
    assert "No such file" in refused(2, "convnet", "describe", tmp_path / "none.cfg")


#: Rates for pixels from 0 to 255.
GENTLE = """
[conv1]
epsW=0.0001
epsB=0.001
momW=0.9
momB=0.8
wc=0.004

[fc10]
epsW=0.0003
epsB=0.001
momW=0.9
momB=0.9

[logprob]
coeff=1
topk=5
"""


def trained(folder: Path, *more: object) -> Path:
    """A run of one epoch on the digits."""
    layers = written(folder, "layers.cfg", edited(SMALL, "channels=3", "channels=1"))
    params = written(folder, "params.cfg", GENTLE)
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    result = invoke("train", *words, "--device", "cpu", "--out", folder / "run", *more)
    assert result.exit_code == 0, result.output
    return folder / "run"


def test_a_network_file_trains_and_is_saved_whole(tmp_path: Path) -> None:
    run = trained(tmp_path)
    (tmp_path / "layers.cfg").unlink()
    result = invoke("eval", run, "--data", "digits", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["accuracy"] > 0.3
    assert list(found["costs"]) == ["logprob", "logprob.top1_error", "logprob.top5_error"]
    assert found["costs"]["logprob"] == found["loss"]
    assert found["costs"]["logprob.top1_error"] == pytest.approx(1 - found["accuracy"])
    shown = invoke("eval", run, "--data", "digits").stdout.splitlines()[-1]
    assert re.fullmatch(r"logprob [0-9.]+, top-1 error [0-9.]+ %, top-5 error [0-9.]+ %", shown)


def test_costs_are_reported_by_name_while_a_network_file_trains(tmp_path: Path) -> None:
    layers = edited(SMALL, "channels=3", "channels=1") + "\n[size]\ntype=cost.sum2\ninputs=fc10\n"
    layers = written(tmp_path, "layers.cfg", layers)
    params = written(tmp_path, "params.cfg", GENTLE + "\n[size]\ncoeff=0.001\n")
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    result = invoke("train", *words, "--device", "cpu", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    shown = r"logprob [0-9.]+, top-1 error [0-9.]+ %, top-5 error [0-9.]+ %; size [0-9.]+"
    assert re.search(rf"^  training: {shown}$", result.stdout, re.MULTILINE)
    assert re.search(rf"^      test: {shown}$", result.stdout, re.MULTILINE)
    (row,) = json.loads((tmp_path / "run" / "history.json").read_text())["epochs"]
    costs = row["val_costs"]
    assert row["val_loss"] == pytest.approx(costs["logprob"] + 0.001 * costs["size"], rel=1e-5)
    assert "costs.size" in (tmp_path / "run" / "history.csv").read_text()
    found = json.loads(invoke("eval", tmp_path / "run", "--json").stdout)
    assert found["costs"] == pytest.approx(costs, rel=1e-5)


def test_an_edited_parameter_file_counts_from_a_resume_on(tmp_path: Path) -> None:
    run = trained(tmp_path)
    settings = (run / "run.toml").read_text()
    (run / "run.toml").write_text(edited(settings, "epochs = 1\n", "epochs = 2\n"))
    written(tmp_path, "params.cfg", edited(GENTLE, "epsW=0.0001", "epsW=0.001"))
    with pytest.warns(UserWarning, match="from now on") as told:
        result = invoke("resume", run)
    assert result.exit_code == 0, result.output
    changes = [str(one.message).partition(": ")[2] for one in told]
    assert "conv1.weights.0: eps was 0.0001, it is 0.001 from now on" in changes
    assert not [change for change in changes if "fc10" in change or "biases" in change]


def test_initial_weights_are_copied_and_a_resume_needs_them_no_more(tmp_path: Path) -> None:
    first = trained(tmp_path / "first")
    text = edited(SMALL, "channels=3", "channels=1")
    text = edited(text, "[conv1]\n", "[conv1]\ninitWFunc=initw.makew(conv1)\n")
    layers = written(tmp_path, "layers.cfg", text)
    params = written(tmp_path, "params.cfg", edited(GENTLE, "epsW=0.0001", "epsW=0"))
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    second = ("train", *words, "--device", "cpu", "--out", tmp_path / "second")
    with pytest.warns(UserWarning, match=r"initw\.makew of conv1 are not run, initW and initB"):
        assert invoke(*second).exit_code == 0
    result = invoke(*second, "--init-from", first, "--overwrite")
    assert result.exit_code == 0, result.output
    ends = [cl.load(run / "last.safetensors") for run in (tmp_path / "second", first)]
    found, given = (end.state_dict() for end in ends)
    np.testing.assert_array_equal(found["conv1.weights.0"], given["conv1.weights.0"])
    (first / "last.safetensors").unlink()
    settings = (tmp_path / "second" / "run.toml").read_text()
    (tmp_path / "second" / "run.toml").write_text(edited(settings, "epochs = 1\n", "epochs = 2\n"))
    with pytest.warns(UserWarning, match="from now on"):  # of the schedule's length
        result = invoke("resume", tmp_path / "second")
    assert result.exit_code == 0, result.output
    assert "--init-from is for layer files" in refused(2, "train", "lenet", "--init-from", first)


def test_rates_beside_a_parameter_file_are_refused(tmp_path: Path) -> None:
    words = ("--layers", "l.cfg", "--params", "p.cfg")
    assert "--lr is not for --layers: p.cfg says" in refused(2, "train", *words, "--lr", 0.1)
    assert "give a MODEL, or --layers and --params" in refused(2, "train")
    assert "a layer file needs its parameter file" in refused(2, "train", "--layers", "l.cfg")


def test_files_are_read_before_data_are_fetched(tmp_path: Path) -> None:
    layers, params = written(tmp_path, "l.cfg", SMALL), written(tmp_path, "p.cfg", RULES)
    none, broken = tmp_path / "none.cfg", written(tmp_path, "broken.cfg", "[conv1\n")
    fetched = ("--data", "cifar100", "--data-dir", tmp_path / "nowhere")
    for pair, message in {
        (layers, none): "none.cfg: cannot be read",
        (none, params): "none.cfg: cannot be read",
        (broken, params): "broken.cfg, line 1: '[conv1' stands before",
        (layers, broken): "broken.cfg, line 1: '[conv1' stands before",
    }.items():
        words = ("--layers", pair[0], "--params", pair[1])
        assert message in refused(2, "train", *words, *fetched)
    words = ("--layers", layers, "--params", params, "--tree", broken)
    assert "broken.cfg: is not JSON" in refused(2, "train", *words, *fetched)


def test_a_layer_file_is_one_by_its_option_not_by_its_name(tmp_path: Path) -> None:
    text = edited(SMALL, "channels=3", "channels=1")
    layers, params = written(tmp_path, "net.save", text), written(tmp_path, "par.txt", GENTLE)
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    result = invoke("train", *words, "--device", "cpu", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert load_config(tmp_path / "run").batch_size == 128
    assert invoke("resume", tmp_path / "run").exit_code == 0
    assert "--params is for a layer file" in refused(2, "train", "lenet", "--params", params)
    assert "net.save --params FILE" in refused(2, "train", "--layers", layers)
    assert "train --layers a.cfg --params" in refused(2, "plan", "a.cfg")


def test_what_is_frozen_is_said(tmp_path: Path) -> None:
    text = edited(SMALL, "channels=3", "channels=1")
    layers = written(tmp_path, "layers.cfg", text)
    params = written(tmp_path, "params.cfg", edited(GENTLE, "epsW=0.0003", "epsW=0"))
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    result = invoke("train", *words, "--device", "cpu", "--out", tmp_path / "run")
    assert "frozen: weights of fc10 by epsW=0\n" in result.output


def test_resuming_a_finished_run_says_that_nothing_is_left(tmp_path: Path) -> None:
    result = invoke("resume", trained(tmp_path))
    assert result.exit_code == 0
    assert "nothing was left to do: all epochs are done, 1; for more, write" in result.output
    assert "frozen" not in result.output


def test_images_of_another_shape_are_refused(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", SMALL)
    params = written(tmp_path, "params.cfg", RULES)
    words = ("--layers", layers, "--params", params, "--data", "digits")
    message = refused(1, "train", *words, "--out", tmp_path / "run")
    assert "takes images of shape (3, 8, 8), the data set has (1, 8, 8)" in message


#: How a network that takes parts of images may be tested.
VIEWS = ((), ("--multiview",))


class TestHabits:
    """What --layers does to images."""

    def test_mean_image_and_batch_files(self, tmp_path: Path) -> None:
        run = trained(tmp_path)
        config, model = load_config(run), cl.load(run / "last.safetensors")
        train, _ = cl.data.load("digits")
        assert (config.batch_size, config.shuffle, config.flip) == (128, False, False)
        assert model.mean_image is not None
        np.testing.assert_array_equal(model.mean_image, cl.data.mean_image(train.images))
        assert model.normalization is not None
        assert model.normalization.std == (1 / 255,)
        history = json.loads((run / "history.json").read_text())
        assert history["epochs"][0]["step"] == -(-1437 // 128)

    def test_the_steps_are_the_api_s(self, tmp_path: Path) -> None:
        run = trained(
            tmp_path, "--batch-file", 500, "--batch-size", 100, "--seed", 3, "--wupdate-freq", 4
        )
        train, test = cl.data.load("digits")
        files = cl.convnet.batch_files(train, 500)
        assert files == (500, 500, 437)
        net = cl.convnet.load(tmp_path / "layers.cfg", tmp_path / "params.cfg", 8)
        updates = cl.convnet.updates(files, 100)
        rule = cl.convnet.optimizer_of(net, steps=sum(updates), files=updates, seed=3, every=4)
        trainer = cl.Trainer(
            net, rule, net.cost.loss, batch_size=100, seed=3, shuffle=False, batch_files=files,
            device="cpu",
        )  # fmt: skip
        history = trainer.fit(train.centred(), 1, test.centred(train))
        assert history[-1].step == 15
        for name, value in cl.load(run / "last.safetensors").state_dict().items():
            np.testing.assert_array_equal(value, net.state_dict()[name], err_msg=name)

    def test_crop_border(self, tmp_path: Path) -> None:
        run = trained(tmp_path, "--crop-border", 1, "--scalar-mean", "--shuffle")
        config, model = load_config(run), cl.load(run / "last.safetensors")
        assert (config.crop_border, config.image_size, config.flip, config.shuffle) == (1, 6, 1, 1)
        assert model.input_shape == (1, 6, 6)
        assert model.mean_image is None
        settings = checkpoint.load(run / "last.safetensors").settings
        assert settings["augment"] == repr(Augmentation(padding=0, flip=True, size=6))
        assert (settings["shuffle"], settings["batch_files"]) == (True, [1437])
        (run / "run.toml").write_text(
            edited((run / "run.toml").read_text(), "epochs = 1\n", "epochs = 2\n")
        )
        with pytest.warns(UserWarning, match="steps was 12, it is 24 from now on"):
            assert invoke("resume", run).exit_code == 0

    def test_views_and_features(self, tmp_path: Path) -> None:
        """A run with a border is tested on the middle, or on nine views."""
        run = trained(tmp_path, "--crop-border", 1)
        model, (_, test) = cl.load(run / "last.safetensors"), cl.data.load("digits")
        history = json.loads((run / "history.json").read_text())
        plain = json.loads(invoke("eval", run, "--json", "--device", "cpu").stdout)
        assert plain["accuracy"] == history["epochs"][0]["val_accuracy"] > 0.2
        found = json.loads(invoke("eval", run, "--multiview", "--json", "--device", "cpu").stdout)
        views = [model.predict(v, device="cpu") for v in cl.data.nine_views(test.images, 6)]
        mean = np.mean(views, axis=0)
        assert found["accuracy"] == (mean.argmax(1) == test.labels).mean()
        assert (found["multiview"], plain["multiview"]) == (True, False)
        out, words = tmp_path / "f.npz", ("--device", "cpu", "--json", "--out", tmp_path / "f.npz")
        told = invoke("features", run, "--layer", "conv1_neuron", *words)
        assert json.loads(told.stdout)["shape"] == [360, 8 * 6 * 6]
        with np.load(out) as file:
            rows = cl.features(model, cl.data.centre_crop(test.images, 6), "conv1_neuron")
            np.testing.assert_array_equal(file["features"], rows)
            np.testing.assert_array_equal(file["labels"], test.labels)
            assert rows.min() == 0
        assert invoke("features", run, "--layer", "conv1", "--multiview", *words).exit_code == 0
        with np.load(out) as file:
            assert file["features"].min() < 0
        Image.fromarray(test.images[0, 0]).save(tmp_path / "digit.png")
        shown = json.loads(invoke("predict", run, tmp_path / "digit.png", "--json").stdout)
        middle = model.predict(cl.data.centre_crop(test.images[:1], 6), device="cpu")
        best = shown["images"][0]["top"][0]
        assert best["probability"] == pytest.approx(middle.max(), rel=1e-5)
        message = refused(2, "features", run, "--layer", "fc1", *words)
        assert "no layer 'fc1'; did you mean fc10? there are conv1, conv1_neuron, pool1" in message
        bad = ("features", run, "--layer", "fc10", "--out", "f.csv")
        assert ".npz or .safetensors files, not to f.csv" in refused(2, *bad)
        larger = tmp_path / "larger"
        larger.mkdir()
        for name in ("train", "t10k"):
            images, labels = np.zeros((10, 9, 9), np.uint8), np.arange(10, dtype=np.uint8)
            (larger / f"{name}-images-idx3-ubyte").write_bytes(idx_bytes(images))
            (larger / f"{name}-labels-idx1-ubyte").write_bytes(idx_bytes(labels))
        message = refused(1, "eval", run, "--data", larger)
        assert (
            "what a border of 1 leaves of images of 8×8 pixels, those of larger are 1×9×9"
            in message
        )

    def test_a_file_alone_knows_its_border(self, tmp_path: Path) -> None:
        run = trained(tmp_path, "--crop-border", 1)
        words = ("--json", "--device", "cpu")
        wanted = [json.loads(invoke("eval", run, *words, *more).stdout) for more in VIEWS]
        lone = (run / "last.safetensors").rename(tmp_path / "lone.safetensors")
        for more, of_run in zip(VIEWS, wanted, strict=True):
            found = json.loads(invoke("eval", lone, "--data", "digits", *words, *more).stdout)
            assert (found["accuracy"], found["loss"]) == (of_run["accuracy"], of_run["loss"])
        Image.fromarray(cl.data.load("digits")[1].images[0, 0]).save(tmp_path / "digit.png")
        shown = json.loads(invoke("predict", lone, tmp_path / "digit.png", "--json").stdout)
        images = cl.data.centre_crop(cl.data.load("digits")[1].images[:1], 6)
        best = shown["images"][0]["top"][0]["probability"]
        assert best == pytest.approx(cl.load(lone).predict(images, device="cpu").max(), rel=1e-5)

    def test_a_file_alone_that_knows_of_no_border(self, tmp_path: Path) -> None:
        """As those of networks that were made in Python."""
        layers = written(tmp_path, "layers.cfg", edited(SMALL, "channels=3", "channels=1"))
        lone, params = tmp_path / "lone.safetensors", written(tmp_path, "params.cfg", RULES)
        cl.convnet.load(layers, params, 6).initialize(0).save(lone)
        message = refused(1, "eval", lone, "--data", "digits")
        assert (
            "those of digits are 1×8×8; if it was trained with --crop-border, give its" in message
        )
        net = cl.convnet.load(layers, params, 6, border=1).initialize(0)
        net.__dict__["_extra"]["convnet"]["border"] = -1
        net.save(lone)
        message = refused(1, "eval", lone, "--data", "digits")
        assert "what the network says of its border is damaged (-1)" in message
        for wrong in (-1, 1.5, True):
            with pytest.raises(ConvloomError, match="border must be a whole number of pixels"):
                cl.convnet.load(layers, params, 6, border=wrong)

    def test_a_folder_of_image_files(self, tmp_path: Path, image_folder: Path) -> None:
        layers = written(tmp_path, "layers.cfg", SMALL)
        params = written(tmp_path, "params.cfg", GENTLE)
        words = ("--layers", layers, "--params", params, "--data", image_folder, "--epochs", 1)
        flags = ("--resize", 32, "--colour-noise", 0.1, "--device", "cpu", "--out", tmp_path / "a")
        result = invoke("train", *words, *flags)
        assert result.exit_code == 0, result.output
        assert "pixels 0 to 255 less the mean image, minibatches in the order" in result.stdout
        tested = invoke("eval", tmp_path / "a", "--multiview", "--device", "cpu", "--json")
        model, (_, test) = (
            cl.load(tmp_path / "a" / "last.safetensors"),
            cl.data.load(image_folder, resize=32),
        )
        views = [model.predict(v, device="cpu") for v in cl.data.ten_views(test.images, 28)]
        own = np.mean(views, axis=0)[np.arange(len(test)), test.labels]
        assert json.loads(tested.stdout)["loss"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
        settings = checkpoint.load(tmp_path / "a" / "last.safetensors").settings
        assert settings["shuffle"] == "once"
        lone = (tmp_path / "a" / "last.safetensors").rename(tmp_path / "lone.safetensors")
        words = ("--data", image_folder, "--multiview", "--device", "cpu", "--json")
        found, of_run = (json.loads(one.stdout) for one in (invoke("eval", lone, *words), tested))
        assert found["loss"] == of_run["loss"]
        assert settings["augment"] == repr(
            Augmentation(padding=0, flip=True, size=28, noise=0.1, damped=True, shared=32)
        )

    def test_refusals(self, tmp_path: Path) -> None:
        words = ("train", "--layers", "l.cfg", "--params", "p.cfg")
        for flag in (("--augment",), ("--crop", 4), ("--image-size", 24)):
            assert "not for --layers; give --crop-border" in refused(2, *words, *flag)
        own = (("--crop-border", 4), ("--scalar-mean",), ("--batch-file", 9), ("--wupdate-freq", 2))
        for flag in own:
            message = refused(2, "train", "lenet", *flag)
            assert f"{flag[0]} is for layer files, --layers" in message
        whole = trained(tmp_path)
        message = refused(2, "eval", whole, "--multiview")
        assert "--multiview is for networks that take a part" in message
        both = ("eval", whole, "--multiview", "--ten-crop")
        assert "--ten-crop or --multiview, not both" in refused(2, *both)
        layers, params = tmp_path / "layers.cfg", tmp_path / "params.cfg"
        flags = ("--data", "digits", "--crop-border", 4, "--out", tmp_path / "b")
        message = refused(1, "train", "--layers", layers, "--params", params, *flags)
        assert "a crop border of 4 leaves nothing of images of 8×8 pixels" in message
        flags = ("--data", "digits", "--batch-size", 500, "--epochs", 2, "--out", tmp_path / "b")
        few = ("train", "--layers", layers, "--params", params, *flags, "--wupdate-freq")
        assert "updates nothing: the training has 6 minibatches in all" in refused(1, *few, 7)
        assert not (tmp_path / "b").exists()
        still = written(tmp_path, "still.cfg", edited(GENTLE, "coeff=1", "coeff=0"))
        again = ("--data", "digits", "--out", whole, "--overwrite")
        message = refused(1, "train", "--layers", layers, "--params", still, *again)
        assert "coeff is 0 for [logprob]" in message
        assert (whole / "last.safetensors").is_file()  # of the run that was to be replaced
        result = invoke(*few, 6, "--device", "cpu")
        assert result.exit_code == 0, result.output


#: The digits, by the strokes they are written with.
STROKES = {
    **dict.fromkeys("089", "rings"),
    **dict.fromkeys("147", "lines"),
    **dict.fromkeys("2356", "bows"),
    **dict.fromkeys(("rings", "bows"), "round"),
    **{"round": "digit", "lines": "digit"},
}
TREED = edited(SMALL, "type=fc\ninputs=pool1\noutputs=10", "type=treefc\ninputs=pool1")


def treed(folder: Path) -> tuple[object, ...]:
    """The words that train a small network with a softmax tree on the digits."""
    layers = written(folder, "layers.cfg", edited(TREED, "channels=3", "channels=1"))
    params = written(folder, "params.cfg", GENTLE)
    words = ("--layers", layers, "--params", params, "--data", "digits", "--epochs", 1)
    return (*words, "--device", "cpu", "--out", folder / "run")


def test_a_class_tree_is_counted(tmp_path: Path) -> None:
    layers = written(tmp_path, "layers.cfg", TREED)
    result = invoke("convnet", "describe", layers, "--size", 32, "--json")
    assert json.loads(result.stdout)[4] == ["fc10", "treefc", 1000, None, None, None]
    assert "[fc10] has as many parameters as its class tree makes it" in result.stderr
    words = ("convnet", "describe", layers, "--size", 32, "--json")
    tree = written(tmp_path, "tree.json", json.dumps(STROKES))
    result = invoke(*words, "--tree", tree)
    assert json.loads(result.stdout)[4] == ["fc10", "treefc", 10, None, None, 2048 * 15 + 10]
    assert not result.stderr
    message = refused(2, *words, "--tree", tree, "--classes", 9)
    assert "tree.json: has 10 leaves, the data set has 9 classes" in message


def test_a_softmax_tree_trains_and_goes_on_with_the_same_tree(tmp_path: Path) -> None:
    tree = written(tmp_path, "tree.json", json.dumps(STROKES))
    result = invoke("train", *treed(tmp_path), "--tree", tree)
    assert result.exit_code == 0, result.output
    assert "stand-in" not in result.stderr
    result = invoke("eval", tmp_path / "run", "--data", "digits", "--json")
    assert json.loads(result.stdout)["accuracy"] > 0.5
    settings = (tmp_path / "run" / "run.toml").read_text()
    (tmp_path / "run" / "run.toml").write_text(edited(settings, "epochs = 1\n", "epochs = 2\n"))
    with pytest.warns(UserWarning, match="steps was"):
        assert invoke("resume", tmp_path / "run").exit_code == 0
    written(tmp_path, "tree.json", json.dumps(STROKES | {"7": "bows"}))
    assert "holds another network" in refused(1, "resume", tmp_path / "run")


def test_a_class_tree_that_does_not_fit_is_refused_before_training(tmp_path: Path) -> None:
    words = ("train", *treed(tmp_path), "--tree")
    tree = written(tmp_path, "tree.json", json.dumps(STROKES | {"ten": "lines"}))
    assert "has the leaf ten, which is no class of the data set" in refused(1, *words, tree)
    assert "cannot be read: No such file" in refused(2, *words, tmp_path / "none.json")
    message = refused(2, "train", "lenet", "--tree", tree)
    assert "--tree is for layer files, --layers" in message
    assert not (tmp_path / "run").exists()


def test_without_a_class_tree_the_stand_in_is_said(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match="needs the tree of its 10 classes"):
        result = invoke("train", *treed(tmp_path))
    assert result.exit_code == 0, result.output
