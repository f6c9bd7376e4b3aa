"""convloom train and resume, end to end on the digits that come with the package."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path

import numpy as np
import pytest

import convloom as cl
from convloom.data import idx
from convloom.training import TrainingInterrupted
from convloom.training.config import load_config
from convloom.training.loop import Loop
from tests.cli.running import PATIENCE, command, environment, invoke, refused, spawn, words

SMALL = """
from convloom import nn

def make_model(num_classes, in_channels):
    return nn.Sequential(
        nn.Conv2d(in_channels, 4, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(36, num_classes)
    )

class Broken(nn.Module):
    def forward(self, x):
        return self.nothing(x)

def make_broken():
    return Broken()
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SMALL)
    return path


def test_train_says_what_it_did(tmp_path: Path) -> None:
    done = spawn("train", "lenet", "--data", "digits", "--epochs", "2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "lenet: 6,090 parameters"
    assert "1,437 training and 360 test images of 1×8×8, 10 classes" in lines[1]
    assert lines[2].startswith("device cpu (")
    assert lines[3].split()[:2] == ["epoch", "loss"]
    assert [line.split()[0] for line in lines[4:6]] == ["1/2", "2/2"]
    assert lines[6].startswith("test accuracy ")
    assert "saved in runs/lenet-digits-1/last.safetensors" in lines
    assert "  convloom eval runs/lenet-digits-1 --data digits" in lines
    assert "\x1b" not in done.stdout + done.stderr
    assert "\r" not in done.stdout + done.stderr
    assert (tmp_path / "runs/lenet-digits-1/history.csv").read_text().count("\n") == 3


def test_train_json_is_all_of_stdout(tmp_path: Path) -> None:
    out = tmp_path / "a"
    result = invoke("train", "lenet", "--data", "digits", "--epochs", "2", "--out", out, "--json")
    document = json.loads(result.stdout)
    assert result.exit_code == 0
    assert document["status"] == "finished"
    assert 0 < document["seconds_to_first_step"] < document["seconds"]
    assert document["run"] == str(out)
    assert document["model"] == str(out / "last.safetensors")
    assert Path(document["model"]).is_file()
    assert [row["epoch"] for row in document["epochs"]] == [1, 2]
    assert document["test"]["accuracy"] == document["epochs"][1]["val_accuracy"] > 0.5
    assert document["test"]["n"] == 360
    assert document["settings"]["epochs"] == 2
    assert document["resume"] is None
    assert "1/2" in result.stderr


def test_what_a_network_prints_is_kept_out_of_the_json(tmp_path: Path) -> None:
    net, out = tmp_path / "net.py", tmp_path / "a b"
    net.write_text(
        "from convloom import nn\n"
        "print('imported')\n"
        "class Chatty(nn.Module):\n"
        "    def __init__(self):\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        print('forward')\n"
        "        return self.layer(x.flatten(1))\n"
    )
    given = (f"{net}:Chatty", "--data", "digits", "--epochs", "1", "--out", out, "--json")
    result = invoke("train", *given)
    assert json.loads(result.stdout)["status"] == "finished"
    assert "imported" in result.stderr
    assert "forward" in result.stderr
    assert json.loads(invoke("plan", f"{net}:Chatty", "--data", "digits", "--json").stdout)
    assert json.loads(invoke("resume", out, "--json").stdout)["status"] == "finished"
    assert f"convloom resume '{out}'" in refused(1, "train", *given)


def test_train_quiet_prints_the_result_only(tmp_path: Path) -> None:
    result = invoke(
        "train", "lenet", "--data", "digits", "--epochs", "1", "--out", tmp_path / "a", "-q"
    )
    first, second = result.stdout.splitlines()
    assert first.startswith("test accuracy ")
    assert second == f"saved in {tmp_path / 'a' / 'last.safetensors'}"


def test_flags_reach_the_settings(
    tmp_path: Path, net: Path, caplog: pytest.LogCaptureFixture
) -> None:
    out = tmp_path / "a"
    flags = words(
        "--epochs 1 --batch-size 32 --optimizer adamw --lr 0.002 --weight-decay 0.1 "
        "--schedule cosine:final=0,warmup=0.5 --clip-norm 2 --label-smoothing 0.1 --augment "
        "--crop 1 --seed 3 --device cpu --kernels dense --precision tf32 --checkpoint-every 10"
    )
    result = invoke("train", f"{net}:make_model", "--data", "digits", *flags, "--out", out)
    assert result.exit_code == 0, result.output
    config = load_config(out)
    assert (config.batch_size, config.optimizer, config.lr) == (32, "adamw", 0.002)
    assert (config.weight_decay, config.schedule) == (0.1, "cosine:final=0,warmup=0.5")
    assert (config.clip_norm, config.label_smoothing) == (2.0, 0.1)
    assert (config.crop, config.flip, config.seed) == (1, True, 3)
    assert (config.device, config.kernels, config.checkpoint_every) == ("cpu", "dense", 10)
    assert config.precision == "tf32"
    assert "precision tf32: only on-chip segments compute in tf32" in caplog.text


def test_both_ways_of_input_on_the_simulator(tmp_path: Path, net: Path) -> None:
    losses = []
    for way in ("resident", "stream"):
        out = tmp_path / way
        flags = words(f"--epochs 1 --augment --crop 1 --device cuda-sim --input {way}")
        result = invoke("train", f"{net}:make_model", "--data", "digits", *flags, "--out", out)
        assert result.exit_code == 0, result.output
        assert load_config(out).input == way
        row = json.loads((out / "history.json").read_text())["epochs"][0]
        losses.append((row["loss"], row["val_loss"]))
    assert losses[0] == losses[1]


def test_settings_from_a_file_and_flags_win(tmp_path: Path) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "a"
    file.write_text('network = "lenet"\ndata = "digits"\nepochs = 1\nbatch-size = 50\nlr = 0.02\n')
    result = invoke("train", file, "--lr", "0.01", "--no-nesterov", "--out", out, "-q")
    assert result.exit_code == 0, result.output
    config = load_config(out)
    assert (config.epochs, config.batch_size, config.lr) == (1, 50, 0.01)
    assert config.nesterov is False


def test_the_default_folder_is_a_new_one(tmp_path: Path, net: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        result = invoke("train", "net.py:make_model", "--data", "digits", "--epochs", "1", "-q")
        assert result.exit_code == 0, result.output
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "net-digits-1",
        "net-digits-2",
    ]


def test_a_folder_of_ones_own_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "my own"
    folder.mkdir()
    train, test = cl.data.load("digits")
    for part, split in (("train", train), ("t10k", test)):
        idx.write(folder / f"{part}-images-idx3-ubyte", split.images[:100, 0])
        idx.write(folder / f"{part}-labels-idx1-ubyte", split.labels[:100].astype(np.uint8))
    monkeypatch.chdir(tmp_path)
    result = invoke("train", "lenet", "--data", "my own", "--epochs", "1")
    assert result.exit_code == 0, result.output
    run = tmp_path / "runs" / "lenet-my own-1"
    assert load_config(run).data == str(folder)
    assert f"eval 'runs/lenet-my own-1' --data '{folder}'" in result.stdout
    monkeypatch.chdir("/")
    assert invoke("resume", run).exit_code == 0
    assert json.loads(invoke("eval", run, "--json").stdout)["n"] == 100
    plan = json.loads(invoke("plan", "lenet", "--data", folder, "--json").stdout)
    assert plan["steps"][0]["inputs"][0].startswith("64×1×8×8")


def test_a_run_is_not_replaced_unless_asked(trained: Path, tmp_path: Path) -> None:
    training = words("train lenet --data digits --epochs 1 -q")
    before = (trained / "last.safetensors").read_bytes()
    message = refused(1, *training, "--out", trained)
    assert f"convloom resume {trained}" in message
    assert "--overwrite" in message
    assert (trained / "last.safetensors").read_bytes() == before
    out = tmp_path / "b"
    assert invoke(*training, "--out", out).exit_code == 0
    (out / "notes.txt").write_text("mine")
    assert invoke(*training, "--out", out, "--overwrite", "--seed", "1").exit_code == 0
    assert load_config(out).seed == 1
    assert (out / "notes.txt").read_text() == "mine"


def test_a_folder_that_is_no_run_is_never_touched(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    training = words("train lenet --data digits --out")
    assert "holds no run" in refused(1, *training, tmp_path, "--overwrite")
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert "is a file" in refused(1, *training, tmp_path / "letter.txt")


def test_a_run_that_fails_at_once_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "a"
    result = invoke("train", "lenet", "--data", "digits", "--lr", "1e30", "--out", out)
    assert result.exit_code == 1
    assert result.stderr.count("convloom: error: ") == 1
    assert "learning rate" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ("lenett --data digits", "did you mean lenet?"),
        ("lenet --data digitz", "did you mean digits?"),
        ("lenet --data digits --schedule sine", "unknown schedule 'sine'"),
        ("lenet --data digits --epochs 0", "--epochs must be"),
        ("lenet --data digits --epochs two", "--epochs"),
        ("lenet --data digits --batch-size 0", "--batch-size must be"),
        ("lenet --data digits --lr -1", "--lr must be"),
        ("lenet --data digits --optimizer adam", "'sgd' or 'adamw'"),
        ("lenet --data digits --device gpu", "unknown device 'gpu'"),
        ("lenet --data digits --kernels best", "kernels='best'"),
        ("lenet --data digits --input pinned", "--input must be 'auto' or 'resident' or 'stream'"),
        ("lenet --data digits --device cpu --input stream", "is for GPUs"),
        ("lenet --data digits --crop 200", "0 to 127"),
        ("lenet --data digits --momentum 0 --nesterov", "momentum"),
        ("lenet --data digits --quite", "did you mean --quiet?"),
        ("lenet net.py", "unexpected extra argument"),
        ("", "give a MODEL, or --layers and --params"),
    ],
)
def test_wrong_usage(given: str, part: str) -> None:
    assert part in refused(2, "train", *words(given))


def test_wrong_files_of_settings(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    assert "no such file" in refused(1, "train", file)
    file.write_text('network = "lenet"\nepohcs = 3\n')
    message = refused(2, "train", file)
    assert "epohcs" in message
    assert "did you mean epochs?" in message
    file.write_text("epochs = \n")
    assert "not valid TOML" in refused(2, "train", file)


def test_wrong_networks_of_ones_own(net: Path) -> None:
    absent = net.with_name("no.py")
    assert f"no file {absent}" in refused(1, "train", f"{absent}:f", "--data", "digits", "-q")
    assert "'make_modle'" in refused(1, "train", f"{net}:make_modle", "--data", "digits", "-q")
    message = refused(1, "train", f"{net}:make_broken", "--data", "digits", "-q")
    assert "net.py:11: AttributeError" in message
    assert "bug" not in message


def test_resume_of_a_finished_run_shows_it(trained: Path) -> None:
    before = (trained / "last.safetensors").read_bytes()
    result = invoke("resume", trained)
    assert result.exit_code == 0, result.output
    assert "1/1" in result.stdout
    assert "test accuracy" in result.stdout
    assert "nothing was left to do" in result.stdout
    assert (trained / "last.safetensors").read_bytes() == before


def test_resume_takes_back_rows_behind_the_checkpoint(
    tmp_path: Path, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was killed had told of an epoch that it will make again."""
    run = tmp_path / "a"
    shutil.copytree(trained, run)
    settings, history = run / "run.toml", run / "history.csv"
    settings.write_text(settings.read_text().replace("epochs = 1", "epochs = 3"))
    told = history.read_text()
    history.write_text(told + told.splitlines()[1].replace("1,", "2,", 1) + "\n")
    (run / "history.json").unlink()

    def stop_here(loop: Loop) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Loop, "_prepare", stop_here)
    assert invoke("resume", run, "-q").exit_code == 130
    assert history.read_text() == told
    assert json.loads((run / "history.json").read_text())["epochs"][0]["epoch"] == 1


def test_resume_of_what_is_no_run(tmp_path: Path) -> None:
    assert "no such file" in refused(1, "resume", tmp_path / "none")
    assert "not a run folder" in refused(1, "resume", tmp_path)


@pytest.mark.parametrize(
    ("raised", "code", "part"),
    [
        (KeyboardInterrupt(), 130, "stopped at once, before the first checkpoint"),
        (TrainingInterrupted("stopped after step 1", signal.SIGTERM, None), 143, "after step 1"),
    ],
)
def test_a_stop_before_anything_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, raised: BaseException, code: int, part: str
) -> None:
    def fit(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.setattr(cl.Trainer, "fit", fit)
    out = tmp_path / "a"
    result = invoke("train", "lenet", "--data", "digits", "--out", out, "--json")
    assert result.exit_code == code
    document = json.loads(result.stdout)
    assert document["status"] == "interrupted"
    assert document["model"] is document["test"] is document["resume"] is None
    assert part in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr
    assert not out.exists()


def test_ctrl_c_saves_and_resume_gives_the_same_bits(tmp_path: Path) -> None:
    training = words(
        "train lenet --data digits --epochs 20 --batch-size 4 --lr 0.01 --augment --crop 1"
    )
    running = subprocess.Popen(
        command(*training, "--out", "a", "--threads", "1"),
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert running.stdout is not None
    for line in running.stdout:
        if line.split()[0] == "1/20":
            running.send_signal(signal.SIGINT)
            break
    _, errors = running.communicate(timeout=PATIENCE)
    assert running.returncode == 130, errors
    assert errors.splitlines()[-1].startswith("convloom: stopped after step ")
    assert errors.rstrip().endswith("convloom resume a")
    resumed = spawn("resume", "a", "--json", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert len(json.loads(resumed.stdout)["epochs"]) == 20

    straight = spawn(*training, "--out", "b", "-q", cwd=tmp_path)
    assert straight.returncode == 0, straight.stderr
    a, b = (cl.load(tmp_path / run / "last.safetensors").state_dict() for run in "ab")
    for name, value in a.items():
        np.testing.assert_array_equal(value, b[name], err_msg=name)
