"""Programs of other packages that are broken: one clear error that names the package, and all else works."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tfcluster.cli.main import cli
from tfcluster.core.programs import BUNDLED
from tfcluster.errors import ClusterError
from tfcluster.programs import registry

DECLARATION = 'from tfcluster.programs.api import Program\nPROGRAM = Program(help="Fine.")\n'
OPTIONS = """
import click
from tfcluster.programs.api import Submission

@click.command(epilog="Example: tfcluster run fine")
@click.option("--size", type=int, default=1)
def command(shared, size):
    '''Do it.'''
    return Submission({"size": size})
"""
RUN = "def run(context, *, size):\n    return {}\n"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which this process imports packages."""
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def install(site: Path, program: str, module: str, package: str = "", **parts: str) -> None:
    """Install a package with a program; `init` is the source of its `__init__`."""
    package = package or f"{module}-package"
    parts = {"init": DECLARATION, "options": OPTIONS, "run": RUN, **parts}
    (site / module).mkdir(exist_ok=True)
    for name, text in parts.items():
        if text:
            (site / module / f"{'__init__' if name == 'init' else name}.py").write_text(text)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[tfcluster.programs]\n{program} = {module}\n")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(cli, arguments)


def error_of(*arguments: str) -> ClusterError:
    error = call(*arguments).exception
    assert isinstance(error, ClusterError), error
    return error


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"init": "import nothing_like_this"}, "cannot be imported: ModuleNotFoundError: No module named"),
        ({"init": "def ("}, "cannot be imported: SyntaxError"),
        ({"init": "raise SystemExit(3)"}, "cannot be imported: SystemExit: 3"),
        ({"init": "PROGRAM = 3"}, "has no declaration (PROGRAM = Program(...))"),
        ({"options": ""}, "has no module options"),
        ({"options": "", "run": ""}, "has no module options and no module run"),
        ({"options": "1 / 0"}, ".options cannot be imported: ZeroDivisionError: division by zero"),
        ({"options": "command = 3"}, ".options has no Command 'command'"),
        ({"options": OPTIONS.replace("--size", "--seed")}, ".options declares --seed, which every program has already"),
        ({"options": OPTIONS.replace("return", "1 / 0 #")}, ".options.command() failed: ZeroDivisionError"),
        ({"options": OPTIONS.replace("return", "return 3 #")}, ".options: command() returned no Submission"),
    ],
)
def test_a_broken_package_is_named(
    site: Path, request: pytest.FixtureRequest, parts: dict[str, str], problem: str
) -> None:
    module = f"broken_{abs(hash(request.node.name))}"
    install(site, "broken", module, **parts)
    error = error_of("run", "broken")
    assert error.message.startswith(f"the program 'broken' of the package {module}-package cannot be used: {module}")
    assert problem in error.message
    assert error.hint == f"Update the package or remove it: pip uninstall {module}-package"
    assert call("run", "pi", "--help").exit_code == 0
    assert call("status", "--help").exit_code == 0


def test_help_lists_what_works_and_says_what_does_not(site: Path) -> None:
    install(site, "fine", "fine_one")
    install(site, "broken", "broken_one", init="raise ValueError('two\\nlines')")
    install(site, "pi", "another_pi")
    install(site, "Bad name", "bad_name")
    result = call("run", "--help")
    assert result.exit_code == 0
    text = " ".join(result.output.split())
    assert "fine Fine." in text
    assert "Not available:" in text
    assert (
        "'broken' of the package broken_one-package cannot be used: broken_one cannot be imported: ValueError" in text
    )
    assert "'pi' of the package another_pi-package cannot be used: tfcluster itself has a program of this name" in text
    assert "'Bad name' of the package bad_name-package cannot be used: a program's name has lower-case letters" in text
    names = [each.name for each in registry.find_all()[0]]
    assert names == [*BUNDLED, "fine"]


def test_a_bundled_program_is_not_replaced_and_two_packages_with_the_same_name_are_both_named(site: Path) -> None:
    install(site, "pi", "yet_another_pi", init="raise ValueError")
    program = registry.find("pi")
    assert program is not None
    assert program.package == ""
    assert "--samples" in call("run", "pi", "--help").output
    install(site, "twin", "twin_a")
    install(site, "twin", "twin_b")
    message = error_of("run", "twin").message
    assert "another package has a program of this name" in message
    assert "twin_a-package" in message
    assert "twin_b-package" in message


def test_other_packages_are_searched_only_for_other_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise AssertionError("slow")

    monkeypatch.setattr(registry, "_entry_points", fail)
    assert call("run", "pi", "--help").exit_code == 0
    assert call("run", "script", "--help").exit_code == 0
    assert registry.find("mean") is not None
    with pytest.raises(AssertionError, match="slow"):
        registry.find("dice")


def test_options_in_front_of_a_program_are_explained(site: Path) -> None:
    install(site, "fine", "fine_two")
    assert "A program's options come after its name: cli run pi" in call("run", "--samples", "3", "pi").output
    assert "A program's options come after its name: cli run fine" in call("run", "--more", "3", "fine").output


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("-c mean pi --seed 3 --help", "cli run pi [OPTIONS]"),
        ("--seed=3 fine --help", "cli run fine [OPTIONS]"),
        ("--name pi none.py", "'none.py': no such file"),
        ("--seed", "Option '--seed' requires an argument"),
    ],
)
def test_options_that_all_programs_have_may_stand_in_front(site: Path, words: str, shown: str) -> None:
    install(site, "fine", "fine_two")
    assert shown in call("run", *words.split()).output
