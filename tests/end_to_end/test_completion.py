"""Completion in bash: the names of scripts, tasks, runs and clusters, at once and never with an error."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Mapping

import pytest

from tests.conftest import EXAMPLE, ROOT, Sandbox

# The default completion of files is what `compopt` asks for; bash knows it only while a user types.
_SCRIPT = """
compopt() { echo "(${*: -1})"; }
source %s
tfcluster() { %s "$@"; }
env() { local -x COMP_LINE="${1#*=}" BREAKS="${2#*=}" _TFCLUSTER_COMPLETE=bash_complete; "$4"; }
COMP_LINE=%s COMP_POINT=${#COMP_LINE}
_tfcluster_completion tfcluster
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def completions(sandbox: Sandbox, line: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return what bash offers at the end of a line."""
    script = _SCRIPT % (ROOT / "completions" / "tfcluster.bash", shlex.join(sandbox.command), shlex.quote(line))
    result = subprocess.run(
        ["bash", "-c", script],
        cwd=sandbox.folder,
        env={**sandbox.environment, **(env or {})},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stderr == ""
    return [line for line in result.stdout.splitlines() if line]


def test_names_of_tasks_runs_and_clusters(demo: Sandbox) -> None:
    for name in ("train.py", "other.py", "notes.txt", "my file.py"):
        (demo.folder / name).write_text("")
    for name in ("__init__.py", "__main__.py", "fit.py"):
        (demo.folder / "pack").mkdir(exist_ok=True)
        (demo.folder / "pack" / name).write_text("")
    run = demo.json("run", "pi", "--samples", "1e4")["run"]
    names = ["ps", "worker", "ps:0", "worker:0", "worker:1"]
    offers = {
        "tfcluster run ": ["graph", "pi", "mean", "linear", "expfit", "script", "other.py", "train.py"],
        "tfcluster run tr": ["train.py"],
        "tfcluster run notes": ["(default)"],
        "tfcluster run train.py ": ["(default)"],
        "tfcluster run -m ": ["other", "pack", "pack.fit", "train"],
        "tfcluster run -m pack.f": ["pack.fit"],
        "tfcluster run -m pack.fit ": ["(default)"],
        "tfcluster run pi -c d": ["demo"],
        "tfcluster restart ": names,
        "tfcluster restart worker:": ["0", "1"],  # bash takes only what follows the colon
        "tfcluster logs --cluster demo wo": ["worker", "worker:0", "worker:1"],
        "tfcluster scale w": ["worker=2"],
        "tfcluster scale worker=": ["2"],
        "tfcluster attach pi-": [run],
        "tfcluster cancel ": [run],
        "tfcluster logs ": [*names, run],
        "tfcluster exec --on ": ["all", "localhost", "ps:0", "worker:0", "worker:1"],
        "tfcluster env ps": ["ps", "ps:0"],
        "tfcluster profile w": ["worker", "worker:0", "worker:1"],
        "tfcluster tensorboard pi": [run],
        "tfcluster up ": ["(default)"],
    }
    assert {line: completions(demo, line) for line in offers} == offers


@pytest.mark.usefixtures("cold")
def test_what_cannot_be_known_is_left_out_without_an_error(sandbox: Sandbox) -> None:
    for line in ("tfcluster logs ", "tfcluster attach x", "tfcluster run none --x ", "tfcluster logs -c ../x '"):
        assert completions(sandbox, line) == []
    sandbox("up", EXAMPLE)
    agent = sandbox.agent()
    os.kill(agent, signal.SIGSTOP)
    try:
        assert completions(sandbox, "tfcluster logs ", sandbox.with_settings({"COMPLETION_SECONDS": 0.5})) == []
    finally:
        os.kill(agent, signal.SIGCONT)
    sandbox.spec("name: [")
    assert completions(sandbox, "tfcluster logs ") == []
    assert completions(sandbox, "tfcluster logs -c demo p") == ["ps", "ps:0"]
