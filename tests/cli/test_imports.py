"""What commands do not import: each of these libraries would take longer than the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tfcluster

ROOT = Path(tfcluster.__file__).parent.parent
HEAVY = (
    "tensorflow",
    "numpy",
    "yaml",
    "rich",
    "pydantic",
    "grpc",
    "google.protobuf",
    "asyncio",
    "matplotlib",
    "textual",
)


def imported(program: str, folder: Path) -> set[str]:
    """Which of the heavy libraries a program has imported when it ends, in a folder without a cluster."""
    script = f"""
import contextlib, io, json, sys
with contextlib.redirect_stdout(io.StringIO()) as output:
{chr(10).join("    " + line for line in program.strip().splitlines())}
print(json.dumps([name for name in {HEAVY!r} if name in sys.modules]))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_STATE_HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)}
    environment = {name: value for name, value in environment.items() if not name.startswith("TFCLUSTER")}
    answer = subprocess.run(
        [sys.executable, "-c", script], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return set(json.loads(answer.stdout))


_COMMAND = """
from tfcluster.cli.main import main
sys.argv[1:] = {arguments!r}
try:
    main()
except SystemExit as end:
    assert end.code == {code}, (end.code, output.getvalue())
assert {words!r} in output.getvalue()
"""


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--help"], "One YAML file in"),
        (["--version"], "tfcluster"),
        (["status", "--help"], "Show every task"),
        (["up", "--help"], "Usage: tfcluster up"),
        (["run", "pi", "--help"], "Estimate pi"),
        (["run", "graph", "--help"], "Evaluate EXPRESSION"),
        (["run", "expfit", "--help"], "Teach a network"),
        (["down", "--help"], "Usage: tfcluster down"),
        (["init", "-"], ""),
        (["completion", "bash"], "_TFCLUSTER_COMPLETE"),
    ],
)
def test_help_and_completion_import_nothing_heavy(arguments: list[str], words: str, tmp_path: Path) -> None:
    assert imported(_COMMAND.format(arguments=arguments, code=0, words=words), tmp_path) == set()


def test_status_of_no_cluster_imports_nothing_heavy(tmp_path: Path) -> None:
    assert imported(_COMMAND.format(arguments=["status", "-c", "demo"], code=3, words=""), tmp_path) == set()


def test_status_as_json_imports_nothing_heavy(tmp_path: Path) -> None:
    program = """
import tfcluster.cli.status
from tfcluster.client.resolve import resolve_cluster
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.protocol.api.cluster import StatusRequest
"""
    assert imported(program, tmp_path) == set()


def test_status_as_text_imports_only_rich(tmp_path: Path) -> None:
    program = """
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.core.status import ClusterStatus
from tfcluster.ui.listings import show_status
"""
    assert imported(program, tmp_path) <= {"rich"}


def test_an_agent_imports_neither_tensorflow_nor_what_only_the_command_line_needs(tmp_path: Path) -> None:
    modules = imported("import tfcluster.agent.main", tmp_path)
    assert modules <= {"asyncio", "google.protobuf"}
