"""What the id of a script's run begins with, and what PROGRAM shows."""

from __future__ import annotations

from typing import Any

import pytest

from tfcluster.core.programs import BUNDLED, ProgramTraits
from tfcluster.core.runs import RunOptions, check_name, matching_runs


def options(**parameters: Any) -> RunOptions:
    return RunOptions(
        "script", ProgramTraits(is_script=True), {"path": None, "argument": "", "module": None, **parameters}
    )


@pytest.mark.parametrize(
    ("path", "script", "name"),
    [
        ("/a/train.py", "train.py", "train"),
        ("/a/Train_Model.v2.py", "Train_Model.v2.py", "train-model-v2"),
        ("/a/train", "train", "train"),
        ("/a/pi.py", "pi.py", "pi-py"),
        ("/a/Pi.py", "Pi.py", "pi-py"),
        ("/a/script.py", "script.py", "script-py"),
        ("/a/launch.py", "launch.py", "launch-py"),
        ("/a/日本.py", "日本.py", "script"),
        ("/a/__.py", "__.py", "script"),
        ("/a/.py", ".py", "script"),
        ("/a/-x -y.py", "-x -y.py", "x-y"),
        ("/a/2024.py", "2024.py", "2024"),
        ("/a/package", "package", "package"),
        ("/a/" + "very-" * 10 + ".py", "very-" * 10 + ".py", "very-very-very-very-ver"),
        ("/a/<stdin>", "stdin", "stdin"),
        ("/dev/stdin", "stdin", "stdin"),
        ("/dev/fd/63", "stdin", "stdin"),
    ],
)
def test_scripts(path: str, script: str, name: str) -> None:
    run = options(path=path, argument="<stdin>" if "<" in path else path)
    assert (run.script, run.run_name) == (script, name)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("train", "train"),
        ("package.train", "train"),
        ("package.__main__", "package"),
        ("package.pi", "pi-module"),
        ("package.py", "py"),
        ("__main__", "script"),
    ],
)
def test_modules(module: str, name: str) -> None:
    run = options(module=module, argument=module)
    assert (run.script, run.run_name) == (module, name)


def test_ids_have_few_characters_and_are_no_names_of_programs() -> None:
    for stem in (*BUNDLED, "launch", "x" * 300, "a" * 22 + "--b", "\n", "ü" * 50, "../../x"):
        for run in (options(path=f"/a/{stem}.py"), options(module=f"a.{stem}")):
            check_name(run.run_name)
            assert len(f"{run.run_name}-0123abcd") <= 32
            assert run.run_name not in (*BUNDLED[:-1], "launch")
            assert not set(run.run_name) - set("abcdefghijklmnopqrstuvwxyz0123456789-")


def test_other_runs_and_a_name_that_was_given() -> None:
    assert RunOptions("pi", ProgramTraits(), {"path": "x.py"}).script is None
    assert RunOptions("pi", ProgramTraits(), {}).run_name == "pi"
    assert RunOptions("script", ProgramTraits(), {"path": "/a/x.py"}, name="Best_1").run_name == "Best_1"
    assert matching_runs("pi-py", ["pi-py-83e8", "pi-1234"]) == ["pi-py-83e8"]
