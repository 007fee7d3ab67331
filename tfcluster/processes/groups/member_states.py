"""What is known of the members of a group, in files of their runs' folders: what they do, and in what call they wait.

The agent of a host sees in which call a member waits (`MemberObservation`), and writes it down. The host's own process
of the group sends it to the coordinator, which writes down what is known of all members (`MemberState`) for the agent
of its host.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tfcluster.core.groups import MemberObservation
from tfcluster.os.files import write_atomically
from tfcluster.protocol.serialization import DecodeError, decode, to_json

_OBSERVATIONS = "observations.json"
_STATES = "members.json"
_Value = TypeVar("_Value")


@dataclass(frozen=True)
class MemberState:
    """What is known of a member of a group.

    `observation` is what the agent of its host has seen of it, if that is another host than the coordinator's.
    """

    pid: int
    host: str  # the name of the host on which it runs
    exit_code: int | None = None  # None as long as it runs
    observation: MemberObservation = field(default_factory=MemberObservation)


def write_states(folder: Path, states: Mapping[str, MemberState]) -> None:
    """Write the states of the members that were started, by the short names of their tasks.

    `folder` is the folder of the coordinator's run.
    """
    _write(folder / _STATES, states)


def read_states(folder: Path) -> dict[str, MemberState]:
    """Return the states that `write_states` has written."""
    return _read(folder / _STATES, MemberState)


def states_version(folder: Path) -> tuple[int, int]:
    """Return what differs each time that `write_states` has written."""
    try:
        status = (folder / _STATES).stat()
    except OSError:
        return 0, 0
    return status.st_ino, status.st_mtime_ns


def write_observations(folder: Path, observations: Mapping[int, MemberObservation]) -> None:
    """Write what the agent has seen of the members on its host, unless the file has it already.

    `folder` is the folder of the host's part of the run. The observations are by the pids of the members.
    """
    by_pid = {str(pid): each for pid, each in observations.items()}
    if by_pid != _read(folder / _OBSERVATIONS, MemberObservation):
        _write(folder / _OBSERVATIONS, by_pid)


def read_observations(folder: Path) -> dict[int, MemberObservation]:
    """Return what the agent has seen of the members on its host, by their pids."""
    return {int(pid): each for pid, each in _read(folder / _OBSERVATIONS, MemberObservation).items()}


def _write(path: Path, values: Mapping[str, object]) -> None:
    """Replace a file; without the space for it, or its folder, it stays as it is."""
    with suppress(OSError):
        write_atomically(path, json.dumps({name: to_json(value) for name, value in values.items()}).encode())


def _read(path: Path, kind: type[_Value]) -> dict[str, _Value]:
    try:
        return {name: decode(kind, value, lenient=True) for name, value in json.loads(path.read_text()).items()}
    except (OSError, ValueError, DecodeError):  # it is not there yet
        return {}
