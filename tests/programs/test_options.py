"""Each command line of a program, with the parameters of its run or the error: tests/golden/program-options.txt."""

from __future__ import annotations

import importlib
import json
import shlex
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest

from tests.goldens import golden

LINES = """
mean a.npy --seed 7
mean --seed 7 --column x a.npy
mean --slices '2, 3' --random 5 --seed 7
mean --random 1e3 --slices devices --seed 7
mean
mean a.npy --random 5
mean - --random 5
mean --random 5 a.npy
mean missing
mean .
mean /dev/zero
mean --random 0
mean --random 5 --slices 1,,4
mean --random 5 --slices 0,5
mean a.npy --slices all
linear
linear --steps 1e5
linear --epochs 3
linear --steps 3 --epochs 3
linear --epochs 3 --steps 3
linear --data points.csv
linear --logdir a/b
linear --logdir ~/b
"""


def parameters_of(program: str, *words: str, opened: ExitStack) -> dict[str, Any]:
    """Return the parameters of a run; files that it would get are open."""
    command: click.Command = importlib.import_module(f"tfcluster.programs.{program}").command()
    return opened.enter_context(command.make_context(program, [*words])).params


def outcome(line: str) -> str:
    """Return the parameters of the run of a command line, or why there is none."""
    with ExitStack() as opened:
        try:
            parameters = parameters_of(*shlex.split(line), opened=opened)
        except click.UsageError as error:
            return f"error: {error.message}"
        return json.dumps(parameters, sort_keys=True, default=lambda file: f"{file.name} with {file.read()!r}")


def test_the_options_are_the_parameters_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    Path("a.npy").touch()
    Path("points.csv").write_text("1,2\n3,4\n")
    shown = [f"{line}\n    {outcome(line)}" for line in LINES.strip().splitlines()]
    golden("program-options.txt", "\n".join(shown).replace(str(tmp_path), "/here"))


def test_a_seed_is_drawn_if_none_is_given() -> None:
    with ExitStack() as opened:
        seeds = [parameters_of("mean", "--random", "5", opened=opened)["seed"] for _ in range(2)]
    assert seeds[0] != seeds[1]
    assert max(seeds) < 2**32
