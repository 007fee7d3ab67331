"""The commands of the programs: help without TensorFlow, options in front of a program, and what is sent of options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

import pytest
from click.testing import CliRunner, Result

from tfcluster.cli.main import cli
from tfcluster.cli.run import parse_request
from tfcluster.core.programs import BUNDLED, SCRIPT
from tfcluster.programs import load


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def test_help_lists_the_programs_without_importing_tensorflow_and_numpy() -> None:
    names = (*BUNDLED, SCRIPT)
    code = (
        "import sys; from tfcluster.cli.main import cli; cli(['run', *sys.argv[1:]], standalone_mode=False);"
        "print('imported:', sorted({'tensorflow', 'numpy', 'rich'} & sys.modules.keys()))"
    )
    for arguments in (["--help"], *([name, "--help"] for name in names)):
        shown = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
        assert shown.stdout.endswith("imported: []\n"), arguments
        if arguments == ["--help"]:
            listed = shown.stdout.partition("Programs:")[2].split("\n")
            assert [line.split()[0] for line in listed if line.startswith("  ") and line[2] != " "][: len(names)] == [
                *names
            ]


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
    ("words", "problem"),
    [
        ("pi --samples many", "many"),
        ("graph 1+", "expression:1:3:"),
        ("graph --x 5 y=1", "x is given a value, but the expression has no x"),
        ("graph --device x", "'x' is not NAME=DEVICE"),
        ("expfit --compare --mode single", "--compare trains in every mode; leave out --mode."),
        ("expfit --mode single --compare", "--compare trains in every mode; leave out --mode."),
        (
            "expfit --plot a.png --detach",
            "--plot cannot be combined with --detach: this command draws the run's losses",
        ),
        ("nothing", "nothing"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_submitted(words: str, problem: str) -> None:
    result = call("run", *words.split())
    assert problem in result.output + str(result.exception)
    assert result.exit_code != 0


def test_options_in_front_of_a_program_are_explained() -> None:
    assert "A program's options come after its name: cli run pi" in call("run", "--samples", "3", "pi").output
    assert "A program's options come after its name: cli run mean" in call("run", "--more", "3", "mean").output


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-c mean pi --seed 3 --help", "cli run pi [OPTIONS]"),
        ("--seed=3 graph --help", "cli run graph [OPTIONS]"),
        ("--name pi none.py", "'none.py': no such file"),
        ("--seed", "Option '--seed' requires an argument"),
    ],
)
def test_options_that_all_programs_have_may_stand_in_front(words: str, shown: str) -> None:
    assert shown in call("run", *words.split()).output
