"""A forked process keeps nothing of its parent, and has a title and an environment of its own.

Each test of a fork is a script, as this process may have threads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import SCRIPTS, running
from tfcluster.process_mark import MARK, NO_MARK, marked_processes, processes_with_marks


def detached(*words: str) -> Any:
    """Return what a forked process saw that has detached."""
    command = [sys.executable, str(SCRIPTS / "daemonized.py"), *words]
    answer = subprocess.run(command, input="from the terminal", capture_output=True, text=True, check=True)
    assert answer.stderr == ""
    return json.loads(answer.stdout)


def test_it_keeps_nothing_but_its_output_and_what_it_is_told_to() -> None:
    expected = {"descriptors": True, "input": ["/dev/null", ""], "output": True}
    assert detached("descriptors") == {**expected, "leads a session": True, "interrupt": True}


def test_output_is_appended_to_a_private_log_at_the_end_of_each_line_also_what_c_prints(tmp_path: Path) -> None:
    whole = "one\ntwo\nthree\nfour\n"
    assert detached("log", str(tmp_path / "log")) == ["0o600", "one\ntwo\nthree\n", whole]
    assert detached("log", str(tmp_path / "log"))[2] == 2 * whole


@pytest.mark.parametrize("title", ["tfcluster: demo worker:1", "tfcluster: demo é"])
def test_the_title_replaces_the_command_line(title: str) -> None:
    shown, name = detached("title", title)
    assert shown.rstrip("\0") == title
    assert name.encode() == title.encode()[:15] + b"\n"


def test_a_title_that_is_too_long_is_cut_to_the_room_there_is() -> None:
    assert detached("long_title") == [True, True]


def test_a_mark_is_seen_by_others_and_a_forked_process_may_give_it_up() -> None:
    command = (sys.executable, str(SCRIPTS / "marked.py"), "a" * 32)
    environment = {**os.environ, MARK: NO_MARK}
    with running(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout.readline() == f"{'a' * 32} []\n", "neither itself nor its descendants"
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text().split()
        assert marked_processes("a" * 32) == [], "for this process, they are descendants too"
        marks = {process.pid: mark for process, mark in processes_with_marks()}
        assert [marks[pid] for pid in (parent.pid, *map(int, children))] == ["a" * 32, "a" * 32, NO_MARK]
        parent.communicate("")


# With a pid that is not its parent's, as when that has ended already, it ends at once.
@pytest.mark.parametrize("parent", ["0", "1"])
def test_a_process_that_must_not_outlive_its_parent_ends_with_it(parent: str) -> None:
    command = [sys.executable, str(SCRIPTS / "outlived.py"), parent]
    answer = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60)
    assert answer.stdout == "b''\n"
