"""What a newer version of tfcluster has stored: every command says so, and neither changes nor removes any of it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.conftest import Sandbox, make_sandbox, wait_for

_NEWER = "was written by tfcluster 9.9.9, which is newer"


def files_below(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and "logs" not in path.parts}


def make_newer(path: Path, field: str = "format") -> None:
    """Change the first line of a file as if a newer version had written it."""
    first, _, rest = path.read_text().partition("\n")
    path.write_text(json.dumps({**json.loads(first), field: 99, "tfcluster": "9.9.9"}) + f"\n{rest}")


@pytest.mark.parametrize(
    ("field", "commands"),
    [
        ("format", ["status", "down", "up"]),
        pytest.param("protocol", ["status", "up", "runs", "down", "down --all", "up"], marks=pytest.mark.slow),
    ],
)
def test_a_newer_journal_stays_with_all_that_it_names(sandbox: Sandbox, field: str, commands: list[str]) -> None:
    spec = sandbox.spec("name: kept\njobs: {worker: {tasks: 1, env: {TOKEN: {secret: abc}}}}\n")
    sandbox("up", spec)
    servers = {pid for pid, title in sandbox.processes().items() if "worker:0" in title}
    sandbox.kill_agent()
    state, runtime = sandbox.folder / "state" / "tfcluster" / "kept", sandbox.folder / "run" / "tfcluster"
    journal = state / "localhost" / "journal.json"
    written = journal.read_bytes()
    (state / "localhost" / "lock").unlink()
    for name in ("forwarding.json", "forwarder.json", "notices.json"):
        (state / "localhost" / name).write_text("{}")
    make_newer(journal, field)
    before = {**files_below(state), **files_below(runtime)}
    assert any(path.suffix == ".secrets" for path in before)
    for command in commands:
        error = sandbox(*command.split(), code=1).stderr
        assert f"{journal} {_NEWER}" in error
        assert "damaged" not in error
    wait_for(lambda: not (state / "localhost" / "lock").exists())  # the last agent that refused ends a moment later
    assert {**files_below(state), **files_below(runtime)} == before
    assert servers <= sandbox.processes().keys()
    for name in ("forwarding.json", "forwarder.json", "notices.json"):
        (state / "localhost" / name).unlink()
    journal.write_bytes(written)
    assert {task["pid"] for task in sandbox.wait_until("running")["tasks"]} <= servers


@pytest.mark.slow
@pytest.mark.usefixtures("bare_fork_server")
def test_a_newer_record_of_a_run_is_seen_and_stays(sandbox: Sandbox) -> None:
    sandbox("up", sandbox.spec("name: kept\njobs: {worker: {tasks: 1}}\n"))
    sandbox("run", sandbox.spec("print('done')\n", "script.py"))
    (record,) = sandbox.folder.glob("state/tfcluster/kept/localhost/runs/script-py-*/record.json")
    sandbox.kill_agent()  # it knows the run without the record
    make_newer(record)
    text, run = record.read_text(), record.parent.name
    (shown,) = [each for each in sandbox.json("runs") if each["run"] == run]
    assert shown["state"] == "unreadable"
    assert f"{record}: written by tfcluster 9.9.9" in shown["error"]["message"]
    assert "unreadable" in sandbox("runs").stdout
    assert run in sandbox("runs", run).stdout
    sandbox("attach", run)  # its events can be read
    assert f"{record}: written by tfcluster 9.9.9" in sandbox("rerun", run, code=1).stderr
    sandbox("down")
    assert record.read_text() == text


@pytest.mark.slow
def test_a_newer_entry_of_the_registry_stays(tmp_path: Path) -> None:
    with make_sandbox(tmp_path, (sys.executable, "-m", "tests.played")) as sandbox:
        spec = sandbox.spec("name: far\nhosts: {alpha: {address: 127.0.0.2}}\njobs: {worker: {tasks: 1}}\n")
        sandbox("up", spec)
        entry = sandbox.folder / "state" / "tfcluster" / "far" / "hosts.json"
        readable = entry.read_text()
        make_newer(entry)
        text = entry.read_text()
        for command in (["status"], ["up", spec], ["down"], ["down", "--all"], ["runs"]):
            assert f"{entry} {_NEWER}" in sandbox(*command, code=1).stderr
            assert entry.read_text() == text
        entry.write_text(readable)
        sandbox("down")
