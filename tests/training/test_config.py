"""Settings: recipe, file and flags merged, and errors that name file, key and what is allowed."""

from __future__ import annotations

import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from convloom.training.config import (
    _RULES,
    ConfigError,
    RunConfig,
    load_config,
    read_toml,
    resolve,
)
from convloom.training.optim import SGD, AdamW
from convloom.training.recipes import RECIPES
from convloom.training.schedules import OneCycle, WarmUp


def written(folder: Path, text: str) -> Path:
    path = folder / "net.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_recipe_then_file_then_flags(tmp_path: Path) -> None:
    path = written(tmp_path, 'network = "lenet"\nlr = 0.2\nbatch-size = 32\nepochs = 7\n')
    config = resolve(read_toml(path), {"epochs": 2, "seed": None, "out": tmp_path / "run"})
    assert config.epochs == 2
    assert config.lr == 0.2
    assert config.batch_size == 32
    assert config.weight_decay == RECIPES["lenet"]["weight_decay"]
    assert config.seed == 0
    assert config.out == str(tmp_path / "run")


def test_a_network_without_a_recipe_has_the_defaults() -> None:
    assert resolve({}, {"network": "net.py:make"}) == RunConfig("net.py:make")


def test_what_a_config_makes() -> None:
    config = resolve({}, {"network": "lenet"})
    assert config.make_optimizer() == SGD(0.05, 0.9, weight_decay=1e-3, nesterov=True)
    assert config.make_schedule() == OneCycle()
    config = resolve({}, {"network": "x", "optimizer": "adamw", "schedule": "one-cycle:warmup=1"})
    assert config.make_optimizer() == AdamW()
    assert config.make_schedule() == WarmUp(OneCycle(), 1.0)


def test_another_optimiser_drops_the_recipes_rates() -> None:
    config = resolve({}, {"network": "lenet", "optimizer": "adamw"})
    assert config.make_optimizer() == AdamW()
    assert config.schedule == "one-cycle"
    config = resolve({}, {"network": "lenet", "optimizer": "adamw", "lr": 0.5})
    assert config.make_optimizer() == AdamW(lr=0.5)


def test_no_momentum_means_no_nesterov_unless_it_was_asked_for() -> None:
    assert resolve({}, {"network": "lenet", "momentum": 0.0}).make_optimizer() == SGD(
        0.05, 0.0, weight_decay=1e-3
    )
    with pytest.raises(ConfigError, match="nesterov needs a momentum"):
        resolve({}, {"network": "lenet", "momentum": 0.0, "nesterov": True})


def test_settings_of_the_other_optimiser_are_errors() -> None:
    with pytest.raises(ConfigError, match="momentum is not a setting of optimizer 'adamw'"):
        resolve({}, {"network": "lenet", "optimizer": "adamw", "momentum": 0.5})
    with pytest.raises(ConfigError, match=r"a\.toml: beta1 is not a setting of optimizer 'sgd'"):
        resolve({"network": "lenet", "beta1": 0.5}, {}, source="a.toml")


@pytest.mark.parametrize("network", [*RECIPES, "net.py:make"])
def test_a_run_folder_keeps_every_setting(tmp_path: Path, network: str) -> None:
    config = resolve(
        {},
        {
            "network": network,
            "out": "runs/a",
            "data_dir": "data",
            "clip_norm": 1 / 3,
            "exclude": ["*.bias", 'quo"te\\', "ü\u007f\t"],
        },
    )
    path = config.save(tmp_path)
    assert path == tmp_path / "run.toml"
    kept = load_config(tmp_path)
    assert kept.out == os.path.abspath("runs/a")
    assert kept.data_dir == os.path.abspath("data")
    if network == "net.py:make":
        assert kept.network == os.path.abspath("net.py") + ":make"
    same = [f.name for f in fields(RunConfig) if f.name not in ("out", "data_dir", "network")]
    assert {key: getattr(kept, key) for key in same} == {key: getattr(config, key) for key in same}


def test_a_saved_adamw_run_is_read_back(tmp_path: Path) -> None:
    config = resolve({}, {"network": "lenet", "optimizer": "adamw", "beta1": 0.8})
    config.save(tmp_path)
    assert load_config(tmp_path) == config


def test_not_a_run_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not a run folder: it has no run\.toml"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("epoch = 5", r"'epoch' is not a setting; did you mean epochs\?"),
        (
            "zzz = 5",
            r"'zzz' is not a setting; known are network, params, init-from, tree, data, data-dir",
        ),
        ("epochs = 0", r"epochs must be a whole number of at least 1, it is 0"),
        ('epochs = "5"', r'epochs must be a whole number of at least 1, it is "5"'),
        ("epochs = 1.5", r"epochs must be a whole number of at least 1, it is 1\.5"),
        ("epochs = true", r"epochs must be a whole number of at least 1, it is true"),
        ("batch-size = -3", r"batch-size must be a whole number of at least 1, it is -3"),
        ("lr = -0.1", r"lr must be a number of at least 0, it is -0\.1"),
        ("lr = inf", r"lr must be a number of at least 0, it is inf"),
        ("momentum = 1.0", r"momentum must be a number from 0 to below 1, it is 1\.0"),
        ('optimizer = "lion"', r"optimizer must be 'sgd' or 'adamw', it is \"lion\""),
        ("flip = 1", r"flip must be true or false, it is 1"),
        ("exclude = [1]", r"exclude must be a list of name patterns"),
        ('schedule = "cosin"', r"schedule: unknown schedule 'cosin'"),
        ('schedule = "one-cycle:pct=2"', r"schedule: schedule one-cycle: pct must be"),
        ("seed = -1", r"seed must be a whole number from 0"),
        ("lr = ", r"is not valid TOML: Invalid value \(at line 1"),
        ("batch-size = 1\nbatch_size = 2", r"batch_size is given twice"),
        ("[train]\nlr = 0.1", r"'train' is not a setting"),
    ],
)
def test_errors_name_file_key_and_what_is_allowed(tmp_path: Path, line: str, message: str) -> None:
    path = written(tmp_path, line + "\n")
    with pytest.raises(ConfigError, match=message) as error:
        read_toml(path)
    assert str(error.value).startswith(str(path))


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"network": "lenet", "epochs": 0}, r"^--epochs must be a whole number of at least 1"),
        ({"network": "lenet", "batch_size": 0}, r"^--batch-size must be"),
        ({"network": "lenet", "schedule": "x"}, r"^--schedule: unknown schedule 'x'"),
        ({"epochs": 3}, r"network is missing"),
    ],
)
def test_errors_of_flags_name_the_flag(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resolve({}, flags)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        read_toml(tmp_path / "none.toml")
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not a text file"):
        read_toml(path)


def test_every_setting_has_a_rule_and_every_recipe_holds() -> None:
    assert list(_RULES) == [field.name for field in fields(RunConfig)]
    for network in RECIPES:
        config = resolve({}, {"network": network})
        assert config.network == network
        config.make_optimizer()
        config.make_schedule()
