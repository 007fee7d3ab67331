"""Each hang on purpose: a script that waits says where, for which task, what is wrong with it, and what to type."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.conftest import SCRIPTS, Sandbox, mostly_slow, wait_for

#: `spare` waits for ever after its second end.
SPEC = """
name: hangs
jobs:
  ps: {tasks: 1}
  worker: {tasks: 2}
  spare: {tasks: 1, restart: {policy: always, backoff: {initial: 1000, max: 1000}}}
restart: {policy: never}
"""
BEGIN = """
import os, sys, time
import tensorflow as tf
"""
SESSION = f"""{BEGIN}
with tf.Graph().as_default(), tf.compat.v1.Session(os.environ["TFCLUSTER_MASTER"]) as session:
    product = tf.constant(3.0) * 2
    session.run(product)  # WAITS HERE
"""
STRATEGY = f"""{BEGIN}
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
strategy = tf.distribute.ParameterServerStrategy(resolver)  # WAITS HERE
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
step = tf.function(lambda: tf.reduce_sum(tf.range(10)))
for _ in range(4):
    coordinator.schedule(step)
coordinator.join()
"""
#: Prints `ready`, reads a line, and computes until there is a file; one worker alone may do all steps of a round.
IN_THE_MIDDLE = f"""{STRATEGY.replace("  # WAITS HERE", "")}
print("ready", flush=True)
sys.stdin.readline()
while not os.path.exists("enough"):
    for _ in range(40):
        coordinator.schedule(step)
    coordinator.join()  # WAITS HERE
print("done", flush=True)
"""
CONNECT = f"""{BEGIN}
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)  # WAITS HERE
"""
PROXY = f"""
import os
os.environ["http_proxy"] = "http://127.0.0.1:9"
os.environ["no_grpc_proxy"] = os.environ["no_proxy"] = os.environ["NO_PROXY"] = ""
{SESSION}"""
QUICK = {
    "WAIT_CHECK_SECONDS": 0.3,
    "WAIT_UNEXPLAINED_SECONDS": 0.6,
    "WAIT_REPEAT_SECONDS": 0.5,
    "DRIVER_TERMINATE_SECONDS": 0.1,
}


#: It looks often at scripts.
CLUSTER = Cluster(SPEC, warm=True, settings=QUICK)


def write(sandbox: Sandbox, text: str) -> Path:
    path = sandbox.folder / "train.py"
    path.write_text(text)
    return path


def line_of(text: str) -> int:
    return next(number for number, line in enumerate(text.splitlines(), 1) if "WAITS HERE" in line)


def wait_and_end(sandbox: Sandbox, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Run a script that waits until it is ended, and return the last event of its wait and its error."""
    script = write(sandbox, text)
    events = sandbox.json_lines("run", "--start-timeout", "2", script, code=124)
    waiting = [event for event in events if event["event"] == "waiting"]
    assert (waiting[-1]["file"], waiting[-1]["line"]) == (str(script), line_of(text))
    error = events[-1]["error"]
    assert error["message"].startswith(f"{events[-1]['run']} has not started within 2 s: {waiting[-1]['message']}")
    return waiting[-1], error


@contextlib.contextmanager
def frozen(sandbox: Sandbox, task: str) -> Iterator[int]:
    pid = sandbox.task(task)["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGCONT)
        sandbox.wait_until("running")


@contextlib.contextmanager
def failed(sandbox: Sandbox, task: str, state: str) -> Iterator[None]:

    def ended() -> bool:
        found = sandbox.task(task, code=None)
        if found["state"] == "ready":
            os.kill(found["pid"], signal.SIGKILL)
        return bool(found["state"] == state)

    wait_for(ended)
    try:
        yield
    finally:
        sandbox("restart", task, "--yes")
        sandbox.wait_until("running")


@pytest.mark.parametrize(
    ("text", "call"),
    [(SESSION, "Session.run"), pytest.param(STRATEGY, "ParameterServerStrategy", marks=pytest.mark.slow)],
    ids=["session", "strategy"],
)
def test_a_frozen_task(cluster: Sandbox, text: str, call: str) -> None:
    with frozen(cluster, "worker:1") as pid:
        waiting, error = wait_and_end(cluster, text)
    problem = f"worker:1 is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    hint = f"`kill -CONT {pid}` resumes it; `tfcluster restart -c hangs worker:1` restarts it."
    assert waiting["call"] == call
    assert waiting["problems"] == [
        {"problem": problem, "hint": hint, "task": "/job:worker/task:1", "host": "localhost"}
    ]
    assert waiting["message"] == f"train.py:{line_of(text)} waits in {call}: {problem}"
    assert error["hint"] == hint


@pytest.mark.slow
def test_a_task_that_has_failed_or_backs_off(cluster: Sandbox) -> None:
    restart = "`tfcluster logs -c hangs ps:0` shows why; `tfcluster restart -c hangs ps:0` restarts it."
    wait = "It restarts automatically; `tfcluster logs -c hangs spare:0` shows why it exited."
    for task, text, problem, hint in (
        ("ps:0", STRATEGY, " and lost its variables and has failed", restart),
        ("spare:0", SESSION, "", wait),
    ):
        with failed(cluster, task, "failed" if task == "ps:0" else "backing-off"):
            waiting, error = wait_and_end(cluster, text)
        assert waiting["problems"][0]["problem"] == f"{task} died (SIGKILL){problem}"
        assert error["hint"] == hint


@pytest.mark.slow
def test_a_task_that_freezes_in_the_middle_and_goes_on(cluster: Sandbox) -> None:
    command = cluster.start("run", write(cluster, IN_THE_MIDDLE), stdin=-1)
    assert command.stdout.readline() == "ready\n"
    with frozen(cluster, "worker:1") as pid:
        command.stdin.write("go\n")
        command.stdin.flush()
        start = f"note: train.py:{line_of(IN_THE_MIDDLE)} waits in ClusterCoordinator.join: worker:1 is frozen"
        lines = list(itertools.takewhile(lambda line: not line.startswith(start), command.stderr))
        assert command.poll() is None, lines
        assert f"`kill -CONT {pid}`" in command.stderr.readline()
        assert command.stderr.readline().startswith("  worker:1 | "), "the end of its log"
        cluster.spec("", "enough")
    output, _ = command.communicate(timeout=60)
    assert output == "done\n"
    assert command.returncode == 0


@pytest.mark.slow
def test_a_task_that_scale_has_removed_meanwhile(cluster: Sandbox) -> None:
    """The script has the addresses of before, and so have the servers."""
    text = SESSION.replace(BEGIN, f"{BEGIN}print('ready', flush=True)\nsys.stdin.readline()\n")
    command = cluster.start("run", "--start-timeout", "4", write(cluster, text), stdin=-1)
    assert command.stdout.readline() == "ready\n"
    cluster("scale", "spare=0", "--yes")
    try:
        error = command.communicate("go\n", timeout=60)[1]
    finally:
        cluster("scale", "spare=1")
        cluster.wait_until("running")
    problem = f"train.py:{line_of(text)} waits in Session.run: spare:0 is no longer part of the cluster"
    hint = "`tfcluster scale -c hangs spare=1` adds it again; then run the program again."
    assert f"note: {problem}\n  {hint}\n" in error
    assert f"has not started within 4 s: {problem}\nhint: {hint}\n" in error


@pytest.mark.slow
def test_a_proxy_that_the_script_sets(cluster: Sandbox) -> None:
    if version("tensorflow").startswith("2.14."):  # its gRPC connects in spite of it
        cluster("run", "script", write(cluster, PROXY))
        return
    waiting, error = wait_and_end(cluster, PROXY)
    assert "the program has no connection to any: a proxy might be set in its environment" in waiting["message"]
    assert "no_grpc_proxy=localhost" in error["hint"]


@pytest.mark.slow
def test_a_chief_that_the_script_should_be_itself(cluster: Sandbox) -> None:
    waiting, error = wait_and_end(cluster, CONNECT)
    assert "the chief of TF_CONFIG is missing, which is the script itself" in waiting["message"]
    assert 'job_name="chief"' in error["hint"]


@pytest.mark.slow
def test_a_member_of_a_group_that_does_not_come(cluster: Sandbox) -> None:
    """The others wait for it: it does something else, then it is frozen."""
    text = f"""{BEGIN}
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    time.sleep(1000)
tf.distribute.MultiWorkerMirroredStrategy()  # WAITS HERE
"""
    command = cluster.start("launch", "-o", "json", "--start-timeout", "15", write(cluster, text))
    events = map(json.loads, command.stdout)
    waiting = next(event for event in events if event["event"] == "waiting")
    line = line_of(text)
    place = f"train.py:{line} waits in MultiWorkerMirroredStrategy"
    assert waiting["message"] == f"{place}: worker:1 has not begun to connect; it is in train.py:{line - 1}, <module>"
    run = cluster.json("runs")[-1]["run"]
    programs = cluster.json("stack", run)["processes"]
    lines = {process["threads"][0]["frames"][-1]["line"]: process["pid"] for process in programs}
    assert sorted(lines) == [line - 1, line]
    os.kill(lines[line - 1], signal.SIGSTOP)
    waiting = next(event for event in events if event["event"] == "waiting")
    assert waiting["message"].startswith(f"{place}: worker:1 is frozen: a signal (SIGSTOP) has stopped its process")
    assert waiting["problems"][0]["hint"] == f"`kill -CONT {lines[line - 1]}` resumes it."
    *_, result = events
    assert command.wait() == 124
    assert result["error"]["message"].startswith(f"{run} has not started within 15 s: {waiting['message']}")


def test_a_member_that_ends_while_the_others_wait_for_it_ends_the_group(cluster: Sandbox) -> None:
    text = f"""{BEGIN}
if os.environ["TFCLUSTER_TASK"] == "worker:1":
    sys.exit()
tf.distribute.MultiWorkerMirroredStrategy()  # WAITS HERE
"""
    error = cluster("launch", write(cluster, text), code=1).stderr
    place = f"train.py:{line_of(text)} waits in MultiWorkerMirroredStrategy"
    assert f"note: {place}: worker:1 has ended (exit code 0)\n" in error
    assert f"\nerror: worker:1 has ended (exit code 0), and worker:0 cannot continue: {place}\n" in error


@pytest.mark.slow
def test_the_last_worker_that_ends_while_a_coordinator_waits_for_one_ends_the_group(sandbox: Sandbox) -> None:
    jobs = "jobs: {chief: {tasks: 1}, worker: {tasks: 2}, ps: {tasks: 1}}\n"
    spec = sandbox.spec(f"name: roles\n{jobs}", warm=True)  # the members are forks that have imported TensorFlow
    text, env = (SCRIPTS / "serves_a_strategy.py").read_text(), sandbox.with_settings(QUICK)
    command = sandbox.start("launch", "--spec", spec, "--each", "chief,worker,ps", write(sandbox, text), env=env)
    for worker in ("worker:0", "worker:1"):
        for _ in range(5):
            assert command.stdout.readline() == "chief:0  | step\n", "the other worker is enough"
        (sandbox.folder / worker).touch()
    _, error = command.communicate(timeout=90)
    place = f"train.py:{line_of(text)} waits in ClusterCoordinator.join"
    ended = "worker:0 has ended (exit code 0); worker:1 has ended (exit code 0)"
    assert f"\nerror: {ended}, and chief:0 cannot continue: {place}\n" in error
    assert command.returncode == 1


@pytest.mark.slow
def test_a_member_that_has_nothing_left_to_do_may_end_early(cluster: Sandbox) -> None:
    """The other one needs the ps alone, and waits there for longer than any diagnosis takes."""
    result = cluster("launch", "--each", "worker,ps", SCRIPTS / "ends_early.py")
    assert result.stdout == "worker:0 | 6.0\n"


@pytest.mark.slow
@pytest.mark.parametrize("waits", [False, True])
def test_a_member_that_is_frozen_is_named_when_the_time_is_over(cluster: Sandbox, waits: bool) -> None:
    text = f"""{BEGIN}
print("here", flush=True)
if os.environ["TFCLUSTER_TASK"] == "worker:1" or {not waits}:
    time.sleep(1000)
tf.distribute.MultiWorkerMirroredStrategy()  # WAITS HERE
"""
    command = cluster.start("launch", "-o", "json", "--timeout", "10", write(cluster, text))
    events = map(json.loads, command.stdout)
    seen: dict[str, Any] = {}  # what the member prints may arrive before its event
    while not {"pid", "line"} <= seen.keys():
        seen |= next(each for each in events if each.get("task") == "worker:1")
    assert seen["line"] == "here"
    pid = seen["pid"]
    os.kill(pid, signal.SIGSTOP)
    *_, result = events
    assert command.wait() == 124
    place = f"train.py:{line_of(text)} waits in MultiWorkerMirroredStrategy: " if waits else ""
    frozen = f"worker:1 is frozen: a signal (SIGSTOP) has stopped its process, {pid}"
    assert result["error"]["message"] == f"{result['run']} timed out after 10 s: {place}{frozen}"
    assert result["error"]["hint"] == f"`kill -CONT {pid}` resumes it."


@pytest.mark.parametrize("env", mostly_slow([{}, {"OMP_NUM_THREADS": "3"}], fast=[{}]), ids=["warm", "fresh"])
def test_a_strategy_that_needs_other_processes(cluster: Sandbox, env: dict[str, str]) -> None:
    script = write(cluster, "import tensorflow as tf\ntf.distribute.MultiWorkerMirroredStrategy()\n")
    error = cluster.start("run", script, "--epochs", "3", env=env).communicate(timeout=90)[1]
    assert "line 2, in <module>" in error
    assert "RuntimeError: MultiWorkerMirroredStrategy requires a process for each worker" in error
    assert f"`tfcluster launch {script} --epochs 3`" in error


@pytest.mark.parametrize("cold", mostly_slow([(), ("script", "--cold")], fast=[()]), ids=["warm", "fresh"])
def test_a_server_that_needs_other_processes(cluster: Sandbox, cold: tuple[str, ...]) -> None:
    addresses = [task["address"] for task in cluster.status()["tasks"] if task["job"] == "worker"]
    text = """
import sys
import tensorflow.compat.v1 as tf
job, index, workers = sys.argv[1].partition("=")[2], int(sys.argv[3]), sys.argv[4].partition("=")[2].split(",")
tf.train.Server({"worker": ["localhost:0", "localhost:0"]}, job, index)
print("one with an address of its own has started")
tf.train.Server({"worker": workers}, job_name=job, task_index=index)
"""
    script = write(cluster, text)
    args = ["--job_name=worker", "--task_index", "0", f"--workers={','.join(addresses)}", "--steps=0"]
    out, error = cluster.start("run", *cold, script, *args).communicate(timeout=90)
    assert out == "one with an address of its own has started\n"
    assert f"RuntimeError: {addresses[0]} is the address of a server of the cluster" in error
    words = "'--job_name={job}' --task_index '{index}' '--workers={worker_hosts}' --steps=0"
    assert f"type `tfcluster launch --each worker {script} {words}`" in error


def test_a_strategy_without_other_workers_is_made(cluster: Sandbox) -> None:
    text = "import os\nimport tensorflow as tf\ndel os.environ['TF_CONFIG']\n"
    script = write(cluster, f"{text}print(tf.distribute.MultiWorkerMirroredStrategy().num_replicas_in_sync)\n")
    assert cluster("run", script).stdout == "1\n"


@pytest.mark.slow
def test_of_a_script_that_computes_nothing_is_said(cluster: Sandbox) -> None:
    kinds = {event["event"] for event in cluster.json_lines("run", SCRIPTS / "computes_then_sleeps.py")}
    assert kinds <= {"run", "importing", "imported", "output", "result"}


@pytest.mark.slow
def test_tasks_that_are_kept_for_later(sandbox: Sandbox) -> None:
    spec = sandbox.spec("name: later\njobs:\n  worker: {tasks: 1, max: 3}\n")
    sandbox("up", spec, env=sandbox.with_settings(QUICK))
    waiting, error = wait_and_end(sandbox, SESSION)
    assert "worker:1, worker:2 not started: a session waits for every address" in waiting["message"]
    assert "`tfcluster scale -c later worker=3` starts them" in error["hint"]
