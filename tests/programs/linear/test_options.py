"""The options as the run gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from tfcluster.programs import linear


def parameters(*options: str) -> dict[str, Any]:
    return linear.command().make_context("linear", list(options)).params


def test_the_parameters_without_options() -> None:
    assert parameters() == {
        **{"data": "", "steps": 1000, "epochs": None, "batch": 128, "optimizer": "adagrad", "lr": None, "sync": False},
        **{"logdir": None, "checkpoint_every": 30.0, "seed": None},
    }


def test_the_length_is_that_of_one_option() -> None:
    assert parameters("--steps", "1e5")["steps"] == 100_000
    assert parameters("--epochs", "3")["epochs"] == 3
    for options in (["--steps", "3", "--epochs", "3"], ["--epochs", "3", "--steps", "3"]):
        with pytest.raises(click.UsageError, match="both set the length of the training: give only one"):
            parameters(*options)


def test_the_file_is_opened_and_the_folder_is_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("points.csv").write_text("1,2\n3,4\n")
    with linear.command().make_context("linear", ["--data", "points.csv"]) as context:
        assert context.params["data"].name == "points.csv"
        assert context.params["data"].read() == b"1,2\n3,4\n"
    assert parameters("--logdir", "a/b")["logdir"] == str(tmp_path / "a" / "b")
    assert parameters("--logdir", "~/b")["logdir"] == str(tmp_path / "home" / "b")
