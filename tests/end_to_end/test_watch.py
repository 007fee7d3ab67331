"""`status --watch`: in place on a terminal, at each change into a pipe, and its end."""

from __future__ import annotations

import json
import os
import re
import signal

from tests.clusters import Cluster
from tests.conftest import Command, Sandbox
from tests.screens import Terminal

_UPTIME = r"^worker:0 .* ready +\d+ +(\S+s) "
_SPEC = "name: small\njobs: {worker: {tasks: 1}}\n"


CLUSTER = Cluster(_SPEC)


def read_until(watch: Command, pattern: str) -> str:
    """Read what a command prints up to the line that matches."""
    text = ""
    for line in watch.stdout:
        text += line
        if re.search(pattern, line):
            return text
    raise AssertionError(f"{pattern} was never printed: {text}")


def test_a_pipe_gets_each_change_and_the_end_of_the_cluster_ends_it(cluster: Sandbox) -> None:
    text, records = cluster.start("status", "--watch"), cluster.start("status", "-w", "-o", "json")
    read_until(text, r"^worker:0 .* ready ")
    assert json.loads(records.stdout.readline())["tasks"][0]["restarts"] == 0
    os.kill(cluster.task("worker:0")["pid"], signal.SIGKILL)
    shown = read_until(text, r"^worker:0 last ended with SIGKILL")
    assert "\nsmall  " in shown
    assert shown.count("\nTASK ") >= 1
    for line in records.stdout:
        status = json.loads(line)
        if status["state"] == "running" and status["tasks"][0]["restarts"] == 1:
            break
    cluster("down")
    for watch in (text, records):
        rest = watch.stdout.read()
        assert watch.wait(60) == 3
        assert "Traceback" not in rest
        assert watch.stderr.read() == "error: cluster 'small' went down\nhint: `tfcluster up` starts it again.\n"
    cluster("up")


def test_it_ends_with_the_reader_of_the_pipe_although_nothing_changes(cluster: Sandbox) -> None:
    for options in ((), ("-o", "json")):
        watch = cluster.start("status", "--watch", *options)
        assert watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(60) == 0
        assert watch.stderr.read() == ""


def test_a_terminal_shows_the_status_in_one_place(cluster: Sandbox) -> None:
    with Terminal([*cluster.command, "status", "--watch"], cluster.environment, cluster.folder, columns=120) as watch:
        (uptime,) = re.findall(_UPTIME, watch.wait_for(_UPTIME), re.MULTILINE)
        watch.wait_until(lambda text: re.findall(_UPTIME, text, re.MULTILINE) not in ([], [uptime]))
        text = watch.wait_for(_UPTIME)
        assert text.count("worker:0 ") == 1, "the tables before it are replaced"
        watch.resize(120, 4)
        watch.wait_until(lambda text: "TASK" in text and "TensorFlow" in text and len(text.splitlines()) <= 4)
        watch.send("\x03")
        assert watch.wait_for_end() == -signal.SIGINT  # a shell shows 130
