"""The commands of the programs: options in front of a program, and what is sent of options."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from tfcluster.cli.main import cli
from tfcluster.cli.run import parse_request
from tfcluster.core.programs import BUNDLED
from tfcluster.programs import load


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


@pytest.mark.parametrize("program", BUNDLED)
def test_a_bundled_program_is_never_that_of_the_current_folder(
    program: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("own")
    (folder / "tfcluster" / "programs").mkdir(parents=True)
    for name in ("tfcluster", "tfcluster/programs"):
        (folder / name / "__init__.py").write_text("raise SystemExit(9)")
    (folder / "tfcluster" / "programs" / f"{program}.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(folder)
    assert call("run", program, "--help").exit_code == 0
    assert not str(load(program).__file__).startswith(str(folder))


@pytest.mark.parametrize(
    ("program", "words", "parameters"),
    [
        ("pi", ["--samples", "1e6", "--seed", "7"], {"samples": 10**6, "seed": 7}),
        ("graph", [], {"expression": "x = 2; y1 = x + 300; y2 = x - 66; y = y1 + y2", "overrides": {}, "placed": {}}),
        ("graph", ["x", "--x", "5", "--strict"], {"expression": "x", "overrides": {"x": 5.0}, "strict": True}),
        ("graph", ["x=1", "--device", "x=/job:ps"], {"placed": {"x": "/job:ps"}, "strict": False}),
        ("expfit", ["--seed", "3"], {"modes": ("single",), "steps": 1000, "rate": 0.05, "batch": 64, "seed": 3}),
        ("expfit", ["--compare", "--lr", "1"], {"modes": ("single", "data-parallel", "model-parallel"), "rate": 1.0}),
        ("expfit", ["--mode", "model-parallel"], {"modes": ("model-parallel",)}),
    ],
)
def test_the_parameters_are_the_values_of_the_options(
    program: str, words: Sequence[str], parameters: dict[str, object]
) -> None:
    with parse_request(program, words, {}) as (request, _):
        found = request.options.parameters
    assert {name: found[name] for name in parameters} == parameters
    names = {"pi": {"samples", "seed"}, "graph": {"expression", "overrides", "placed", "strict"}}
    assert found.keys() == names.get(program, {"modes", "steps", "rate", "batch", "seed"})
    assert request.upload is None


def test_a_variable_of_an_option_and_a_random_seed_are_part_of_the_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFCLUSTER_RUN_SAMPLES", "12")
    seeds = set()
    for _ in range(3):
        with parse_request("pi", [], {}) as (request, _):
            assert request.options.parameters["samples"] == 12
            seeds.add(request.options.parameters["seed"])
    assert len(seeds) == 3


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-c mean pi --seed 3 --help", "cli run pi [OPTIONS]"),
        ("--seed=3 graph --help", "cli run graph [OPTIONS]"),
    ],
)
def test_options_that_all_programs_have_may_stand_in_front(words: str, shown: str) -> None:
    assert shown in call("run", *words.split()).output
