"""What the README claims is run: its commands in order, its spec, its program, its list of exit codes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import yaml

from tests.conftest import ROOT, Sandbox
from tfcluster.errors import ExitCode

README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_commands_work_as_written(sandbox: Sandbox) -> None:
    commands = [line.removeprefix("$ ") for block in blocks("console") for line in block.splitlines()]
    assert len(commands) >= 10
    (sandbox.folder / "examples").symlink_to(ROOT / "examples")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    for command in commands:
        result = subprocess.run(
            shlex.split(command),
            cwd=sandbox.folder,
            env={**sandbox.environment, "PATH": path},
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert result.returncode == 0, f"{command}\n{result.stderr}"
    assert sandbox.leftovers() == []


def test_the_program_connects_as_written(sandbox: Sandbox) -> None:
    sandbox("up", ROOT / "examples" / "cluster.yaml")
    (program,) = blocks("python")
    assert "localhost:2223" in program
    program = program.replace("localhost:2223", sandbox.task("worker:0")["address"])
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=True)
    assert "/job:worker/replica:0/task:1/device:CPU:0" in result.stdout


def test_the_spec_shown_is_the_example() -> None:
    (shown,) = blocks("yaml")
    assert yaml.safe_load(shown) == yaml.safe_load((ROOT / "examples" / "cluster.yaml").read_text())


def test_the_exit_codes_are_all_there() -> None:
    listed = {int(code) for row in re.findall(r"^\| ([\d, ]+) \|", README, re.MULTILINE) for code in row.split(", ")}
    assert listed == {int(code) for code in ExitCode}


def test_the_picture_and_the_make_targets_exist() -> None:
    assert (ROOT / "docs" / "terminal.svg").read_text().startswith("<svg")
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for block in blocks("sh"):
        for line in block.splitlines():
            if line.startswith("make "):
                assert line.removeprefix("make ") in targets
