"""Keys of a spec that reach programs: what each of `run`, `launch` and `exec` gets of them, over each way to a host."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.conftest import Sandbox, make_sandbox
from tests.end_to_end.sites import in_pods, in_slurm
from tests.hosts import over

# Says which variables a program has, and which Python runs it.
SHOW = """
import json, os, sys
names = ("PLAIN", "SECRET", "OMP_NUM_THREADS", "FROM_HOST", "FROM_SHELL", "TYPED")
print(json.dumps({**{name: os.environ[name] for name in names if name in os.environ}, "prefix": sys.prefix}))
"""
JOBS = "jobs: {worker: {tasks: 1, threads: 2, env: {PLAIN: '${COLOR}', SECRET: {secret: '${TOKEN}'}}}}\n"
TYPED = {"COLOR": "red", "TOKEN": "s3cret", "TYPED": "here"}
OF_JOB = {"PLAIN": "red", "SECRET": "s3cret", "OMP_NUM_THREADS": "2"}
OF_HOST = {"FROM_HOST": "host", "FROM_SHELL": "shell"}
#: What a program has on another host, by the command that starts it.
ELSEWHERE = {"run": OF_HOST, "launch": {**OF_JOB, **OF_HOST}, "exec": OF_HOST}
#: The same on this machine, where a host has no `shell`, and programs have the variables of the command's shell.
HERE = {
    "run": {"TYPED": "here"},
    "launch": {**OF_JOB, "FROM_HOST": "host", "TYPED": "here"},
    "exec": {"FROM_HOST": "host", "TYPED": "here"},
}


class Place(NamedTuple):
    """Where a cluster has its only task."""

    sandbox: Sandbox
    hosts: str  # the spec but for its jobs
    host: str
    expected: dict[str, dict[str, str]] = ELSEWHERE
    set_up: Path | None = None  # a file that `setup` makes there
    run: tuple[str, ...] = ("run", "script", "--cold")  # without waiting until TensorFlow is imported


def keys(set_up: Path) -> str:
    return f"shell: export FROM_SHELL=shell, setup: ['touch {set_up}'], env: {{FROM_HOST: host}}"


@contextlib.contextmanager
def here(folder: Path) -> Iterator[Place]:
    with make_sandbox(folder) as sandbox:
        yield Place(sandbox, "name: wide\nhosts: {localhost: {env: {FROM_HOST: host}}}\n", "localhost", HERE)


@contextlib.contextmanager
def by_connect(folder: Path) -> Iterator[Place]:
    with over(folder, "alpha", has_sshd=False) as sandbox:
        written = sandbox.text(("alpha",), "").rstrip().removesuffix("}")
        set_up = folder / "set-up"
        yield Place(sandbox, f"{written}, state: ~/keys, {keys(set_up)}}}\n", "alpha", set_up=set_up, run=("run",))


@contextlib.contextmanager
def in_a_job_of_slurm(folder: Path) -> Iterator[Place]:
    with in_slurm() as site:
        set_up = site.site.folder / "set-up"
        host = f"{{python: {sys.executable}, state: {site.site.folder}/state, {keys(set_up)}}}"
        yield Place(site, f"name: train\nslurm: {{nodes: 1}}\nhost: {host}\n", "node0", set_up=set_up)


@contextlib.contextmanager
def in_a_pod(folder: Path) -> Iterator[Place]:
    set_up = Path("/tmp/set-up")  # of the pod
    request = "{pods: 1, image: 'tensorflow/tensorflow:2.21.0', namespace: ml}"
    hosts = f"name: train\nkubernetes: {request}\nhost: {{python: {sys.executable}, {keys(set_up)}}}\n"
    with in_pods(folder) as pods:
        yield Place(pods.sandbox, hosts, "pod0", set_up=set_up)


@pytest.mark.parametrize(
    "made",
    [
        here,
        pytest.param(by_connect, marks=[pytest.mark.slow, pytest.mark.needs("network")]),
        pytest.param(in_a_job_of_slurm, marks=[pytest.mark.slow, pytest.mark.needs("slurm")]),
        pytest.param(in_a_pod, marks=[pytest.mark.slow, pytest.mark.needs("network")]),
    ],
)
def test_what_a_program_gets_of_the_spec(
    made: Callable[[Path], contextlib.AbstractContextManager[Place]], tmp_path: Path
) -> None:
    with made(tmp_path) as place:
        check_keys(place)


def check_keys(place: Place) -> None:
    sandbox, hosts, host, expected, set_up, run = place
    sandbox("up", sandbox.spec(hosts + JOBS), env=TYPED)
    folder = sandbox.folder / "sent"
    folder.mkdir()
    (folder / "show.py").write_text(SHOW)
    commands = {
        "run": (*run, "show.py"),
        "launch": ("launch", "--cold", "show.py"),
        "exec": ("exec", "--on", host, "--", sys.executable, "-c", SHOW),
    }
    seen = {}
    for name, words in commands.items():
        shown = sandbox(*words, env={"TYPED": "here"}, cwd=folder).stdout
        seen[name] = json.loads(shown[shown.index("{") :])
    assert seen == {name: {**values, "prefix": sys.prefix} for name, values in expected.items()}
    if set_up is not None:
        sandbox("exec", "--on", host, "--", "test", "-e", set_up)
    assert "s3cret" not in sandbox("validate", sandbox.folder / "cluster.yaml", "-o", "json", env=TYPED).stdout
    sandbox("down", "-c", "train" if "name: train" in hosts else "wide", "--yes")
