"""What tfcluster 0.1.0 has stored, in tests/data/format1, is read by the code of today; all of it is its real files.

They are of a cluster on this machine and of a private one on two hosts, while both were up; only paths were changed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.agent.runs.store import RunRecord, RunStore
from tfcluster.agent.state.journal import Journal, Record
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.client.cluster import read_registry
from tfcluster.core.forwarding import Forwarding
from tfcluster.core.hosts import RegistryEntry
from tfcluster.core.runs import nest_options
from tfcluster.core.states import RunState
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.groups.member_states import read_observations, read_states
from tfcluster.protocol.serialization import decode, from_stored, to_json

FORMAT_1 = Path(__file__).parent / "data" / "format1"
ONE, ALPHA, BETA = FORMAT_1 / "one" / "localhost", FORMAT_1 / "two" / "alpha", FORMAT_1 / "two" / "beta"
#: A file of each kind.
DOCUMENTS: tuple[tuple[Any, Path], ...] = (
    (Record, ONE / "journal.json"),
    (Record, BETA / "journal.json"),
    (RunRecord, ONE / "runs" / "linear-774e" / "record.json"),
    (RunRecord, BETA / "runs" / "launch-0064e14f" / "record.json"),
    (RegistryEntry, FORMAT_1 / "two" / "hosts.json"),
    (Forwarding, ALPHA / "forwarding.json"),
    (ProcessHandle, ALPHA / "forwarder.json"),
)


def document(path: Path) -> Any:
    """A document as today's code decodes it."""
    read = json.loads(path.read_text().partition("\n")[0])  # what a journal has besides are changes
    return nest_options(read) if path.name == "record.json" else read


@pytest.mark.parametrize(("folder", "host"), [(ONE, "localhost"), (ALPHA, "alpha"), (BETA, "beta")])
def test_a_journal_is_read(folder: Path, host: str) -> None:
    record = Journal(folder / "journal.json").read(host)
    assert record is not None
    assert record.protocol == 0
    assert (record.network is None) == (host == "localhost")
    assert {task.short for task in record.topology.on(host)} == {
        "localhost": {"ps:0", "worker:0", "worker:1"},
        "alpha": {"worker:0"},
        "beta": {"ps:0", "worker:1"},
    }[host]
    if host == "localhost":  # which has the change of a task that was killed
        assert record.tasks["/job:worker/task:1"].restarts == 1
        topology = SecretStore(ONE / "unused").restore(record.topology, ONE / "secrets")
        assert [task.env.get("TOKEN") for task in topology.tasks] == [None, "abc", "abc"]


def test_records_of_runs_are_read() -> None:
    records = {record.run: record for folder in (ONE, ALPHA, BETA) for record in RunStore(folder / "runs").read_all()}
    assert {run: record.state for run, record in records.items()} == {
        "pi-1e91": RunState.SUCCEEDED,
        "script-be40": RunState.SUCCEEDED,
        "launch-f8f0": RunState.SUCCEEDED,
        "linear-774e": RunState.QUEUED,
        "launch-0064e14f": RunState.SUCCEEDED,
    }
    assert {record.protocol for record in records.values()} == {0}
    for run, folder in (("script-be40", ONE), ("launch-f8f0", ONE), ("linear-774e", ONE), ("launch-0064e14f", ALPHA)):
        stored = json.loads((folder / "runs" / run / "record.json").read_text())
        record = records[run] if folder is ONE else RunStore(folder / "runs").read(run)
        assert record is not None
        summary = to_json(record.summarize(0))
        newer = {"missing_output", "script"}
        assert {name: stored[name] for name in summary if name not in newer} == {
            name: value for name, value in summary.items() if name not in newer
        }, "`runs -o json` shows what it has shown"


def test_the_hosts_of_a_cluster_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    shutil.copytree(FORMAT_1, tmp_path / "tfcluster")
    cluster = read_registry("two")
    assert cluster is not None
    assert (list(cluster.hosts), cluster.head) == (["alpha", "beta"], "alpha")


def test_what_is_known_of_members_is_read() -> None:
    assert {name: each.exit_code for name, each in read_states(ALPHA / "runs" / "launch-0064e14f").items()} == {
        "worker:0": 0,
        "worker:1": 0,
    }
    assert list(read_observations(BETA / "runs" / "launch-0064e14f")) == [5285]


@pytest.mark.parametrize("folder", [ALPHA, BETA])
def test_a_forwarder_of_0_1_0_can_read_what_an_agent_of_today_writes(folder: Path) -> None:
    """It decodes the file strictly, and may run until the host is rebooted."""
    text = (folder / "forwarding.json").read_text()
    assert json.dumps(to_json(from_stored(Forwarding, json.loads(text), 1))) == text


def contains(new: Any, old: Any) -> bool:
    """Return whether a JSON value has all that another one has, at every level."""
    if isinstance(old, dict):
        return all(name in new and contains(new[name], value) for name, value in old.items())
    if isinstance(old, list):
        return len(new) == len(old) and all(map(contains, new, old))
    return bool(new == old)


@pytest.mark.parametrize(("kind", "path"), DOCUMENTS)
def test_nothing_is_lost(kind: Any, path: Path) -> None:
    """Today's form has all that was stored, and what was added since."""
    old, new = document(path), to_json(from_stored(kind, document(path), 1))
    assert contains({"boot": old.get("boot"), **new}, old)


def objects(kind: Any, value: Any) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield each JSON object that is a dataclass, in a JSON value of a type, before those in it."""
    arguments = get_args(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        yield kind, value
        hints = get_type_hints(kind)
        for name in hints.keys() & value.keys():
            yield from objects(hints[name], value[name])
    elif get_origin(kind) in (Union, UnionType):
        for member in arguments:
            yield from objects(member, value)
    elif isinstance(value, (list, dict)) and arguments:
        members = arguments[:-1] if arguments[-1] is Ellipsis else arguments[-1:]
        for inner in value.values() if isinstance(value, dict) else value:
            yield from objects(members[0], inner)


def defaults(kind: Any) -> dict[str, Any]:
    """Return the default value of each field of a dataclass that has one, as JSON."""
    values = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    made = {each.name: each.default_factory() for each in fields(kind) if each.default_factory is not MISSING}
    return {name: to_json(value) for name, value in {**values, **made}.items()}


@pytest.mark.parametrize(("kind", "path"), DOCUMENTS)
@settings(max_examples=20)
@given(data=st.data())
def test_missing_fields_have_their_defaults_and_unknown_ones_are_ignored(
    kind: Any, path: Path, data: st.DataObject
) -> None:
    stored = to_json(from_stored(kind, document(path), 1))
    seen, removed = [], []
    for each, value in objects(kind, stored):
        seen.append(value)
        values = defaults(each)
        for name in sorted(data.draw(st.sets(st.sampled_from(sorted(values))))) if values else ():
            del value[name]
            removed.append((value, name, values[name]))
    for value, name, default in removed:
        value[name] = default
    expected = decode(kind, stored)
    for value, name, _ in removed:
        del value[name]
    for value in seen:
        value["added"] = data.draw(st.sampled_from([None, 1, {"a": []}]))
    assert from_stored(kind, stored, 1) == expected
