"""What commands do not import: each of these libraries would take longer than the command itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import tfcluster

ROOT = Path(tfcluster.__file__).parent.parent
HEAVY = (
    *("tensorflow", "numpy", "yaml", "rich", "pydantic", "grpc", "google.protobuf", "asyncio", "matplotlib", "textual"),
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


_COMMANDS = """
from tfcluster.cli.main import main
for words, code, shown in {cases!r}:
    sys.argv[1:] = words.split()
    try:
        main()
    except SystemExit as end:
        assert end.code == code, (end.code, output.getvalue())
    assert shown in output.getvalue()
    assert not [name for name in {heavy!r} if name in sys.modules], words
    output.truncate(output.seek(0))
"""


def test_help_completion_and_the_status_of_no_cluster_import_nothing_heavy(tmp_path: Path) -> None:
    cases = [
        ("--help", 0, "One YAML file in"),
        ("--version", 0, "tfcluster"),
        ("status --help", 0, "Show every task"),
        ("up --help", 0, "Usage: tfcluster up"),
        ("run pi --help", 0, "Estimate pi"),
        ("run graph --help", 0, "Evaluate EXPRESSION"),
        ("run expfit --help", 0, "Teach a network"),
        ("run mean --help", 0, "Usage: tfcluster run mean"),
        ("run linear --help", 0, "Usage: tfcluster run linear"),
        ("run script --help", 0, "Usage: tfcluster run script"),
        ("run --help", 0, "Programs:\n  graph "),
        ("down --help", 0, "Usage: tfcluster down"),
        ("init -", 0, ""),
        ("completion bash", 0, "_TFCLUSTER_COMPLETE"),
        ("status -c demo", 3, ""),
    ]
    assert imported(_COMMANDS.format(cases=cases, heavy=HEAVY), tmp_path) == set()


def test_status_as_json_imports_nothing_heavy_and_as_text_only_rich(tmp_path: Path) -> None:
    program = """
import tfcluster.cli.status
from tfcluster.client.resolve import resolve_cluster
from tfcluster.client.rpc.agent_client import AgentClient
from tfcluster.protocol.api.cluster import StatusRequest
"""
    assert imported(program, tmp_path) == set()
    program += "from tfcluster.core.status import ClusterStatus\nfrom tfcluster.ui.listings import show_status\n"
    assert imported(program, tmp_path) <= {"rich"}


def test_an_agent_imports_neither_tensorflow_nor_what_only_the_command_line_needs(tmp_path: Path) -> None:
    modules = imported("import tfcluster.agent.main", tmp_path)
    assert modules <= {"asyncio", "google.protobuf"}
