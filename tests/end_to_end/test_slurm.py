"""Clusters in jobs of a real Slurm: from the queue to the end of the job, with either way of tracking processes."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import signal
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.accounts import account
from tests.conftest import read_until, skip, wait_for
from tests.end_to_end.sites import JOBS, InSlurm, in_slurm
from tests.end_to_end.ways import check_way

NO_SLURM = {"SLURM_CONF": "/nonexistent"}  # with which each of Slurm's commands fails
ONE = "jobs: {ps: {tasks: 1}, worker: {tasks: 1}}\n"


def test_a_job_gives_the_nodes_and_down_ends_it(site: InSlurm) -> None:
    site("up", site.spec(site.text('{nodes: 2, time: "1:00:00"}')))
    status = site.status()
    assert status["state"] == "running"
    assert {task["host"] for task in status["tasks"]} == {"node0", "node1"}
    (job,) = site.jobs()
    assert status["job"]["id"] == int(job)
    assert status["job"]["nodes"] == [*site.site.nodes[:2]]
    assert 3000 < status["job"]["ends_in_s"] <= 3600
    steps = site.site("squeue", "-h", "-s", "-o", "%i")
    assert f"node1 is {site.site.nodes[1]}" in site("status", env=NO_SLURM).stdout
    checks = site.json("doctor")["checks"]
    assert {check["host"] for check in checks} == {"all", "node0", "node1"}
    assert all(check["ok"] for check in checks), checks
    # Each has its number; Slurm knows of the end of those of `doctor` a moment later.
    wait_for(lambda: set() < {*site.site("squeue", "-h", "-s", "-o", "%i").split()} <= {*steps.split()})
    site("down")
    wait_for(lambda: not site.jobs())
    wait_for(lambda: not site.remains())
    site("status", code=3)


@contextlib.contextmanager
def up(site: InSlurm, request: str = "{nodes: 2}", jobs: str = JOBS) -> Iterator[dict[str, Any]]:
    """A cluster that is up in a job of its own, and is taken down in the end; yields its status."""
    site("up", site.spec(site.text(request, jobs)))
    try:
        yield site.status()
    finally:
        site("down", "-c", "train", "--grace", "1", code=None)
        wait_for(lambda: not site.jobs())


@pytest.mark.slow
def test_all_that_a_command_does_on_a_node(site: InSlurm) -> None:
    with up(site):
        check_way(site, "train", "node0")


@pytest.mark.slow
def test_an_agent_that_died_comes_back_in_the_job_and_finds_its_tasks(site: InSlurm) -> None:
    with up(site) as before:
        agent = before["hosts"][1]["agent_pid"]
        os.kill(agent, signal.SIGKILL)
        wait_for(lambda: not Path(f"/proc/{agent}").exists())
        after = site.wait_until("running")
        assert after["hosts"][1]["agent_pid"] not in (None, agent)
        assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in before["tasks"]]
        for pid in (after["hosts"][1]["agent_pid"], after["tasks"][2]["pid"]):
            assert "class NodeHolder" in holder_of(pid)


def holder_of(pid: int) -> str:
    """Return the command line of the ancestor of a process that is a task of a step."""
    return Path(f"/proc/{ancestors(pid)[-1]}/cmdline").read_text()


def ancestors(pid: int) -> list[int]:
    """Return a process and its ancestors, up to that which is the task of a step."""
    chain = [pid]
    while True:
        parent = int(Path(f"/proc/{chain[-1]}/stat").read_text().rpartition(")")[2].split()[1])
        if Path(f"/proc/{parent}/comm").read_text().startswith("slurmstepd"):
            return chain
        chain.append(parent)


@pytest.mark.slow
def test_tasks_and_scripts_have_the_jobs_variables_those_of_a_login_and_all_cores(site: InSlurm) -> None:
    names = "('SLURM', 'XDG', 'HOME')"
    script = site.script(
        f"import json, os\nprint(json.dumps({{k: v for k, v in os.environ.items() if k.startswith({names})}}))\n"
    )
    with up(site, '{nodes: 2, options: ["--comment=a b", "--cpus-per-task=2"]}') as status:
        assert len(site.json("run", "pi", "--samples", "1e6", "--seed", "7")["devices"]) == 2
        shown = json.loads(site("run", script).stdout)
        assert shown["SLURM_JOB_ID"] == str(status["job"]["id"])
        worker = next(task for task in status["tasks"] if task["host"] == "node1")
        variables = Path(f"/proc/{worker['pid']}/environ").read_text().split("\0")
        assert {"SLURM_NODEID=1", "SLURM_NNODES=2", f"SLURM_JOB_ID={status['job']['id']}"} <= {*variables}
        assert "XDG_RUNTIME_DIR" not in shown
        assert shown["HOME"] == pwd.getpwuid(os.getuid()).pw_dir
        assert "a b" in site.site("scontrol", "show", "job", shown["SLURM_JOB_ID"])
        assert {len(os.sched_getaffinity(task["pid"])) for task in status["tasks"]} == {2}
        counts = (sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))")
        assert site("exec", "--on", "worker:1", "--", *counts).stdout == "2\n"


@pytest.mark.slow
def test_tasks_have_the_gpus_that_the_job_has_and_a_ps_has_none(site: InSlurm) -> None:
    options = ("--parsable", "--output=/dev/null", "--nodes=3", "--gres=gpu:1", "--wrap=sleep 1000")
    other = site.site("sbatch", *options).strip()  # it has the first GPU of each node
    wait_for(lambda: site.site("squeue", "-h", "-j", other, "-o", "%T").strip() == "RUNNING")
    jobs = "jobs:\n  ps: {tasks: 1, hosts: [node0]}\n  worker: {tasks: 2, gpus: 1}\n"
    try:
        site("up", site.spec(site.text("{nodes: 2, gpus: 1}", jobs)))
        seen = [
            site("exec", "--on", task, "--", "printenv", "CUDA_VISIBLE_DEVICES").stdout.strip()
            for task in ("ps:0", "worker:0", "worker:1")
        ]
        assert seen == ["-1", "1", "1"]
    finally:
        site.site("scancel", other)
        site("down", code=None)
    wait_for(lambda: not site.jobs(), 60)


# What a shell may have, as in another job or by the user's profile; it is about no job of a cluster.
FOREIGN = {
    **{
        "SLURM_GPUS": "9",
        "SLURM_NTASKS_PER_GPU": "2",
        "SLURM_EXCLUSIVE": "1",
        "SLURM_EXACT": "1",
        "SLURM_LABELIO": "1",
    },
    **{"SLURM_STDOUTMODE": "none", "SRUN_DEBUG": "3", "SBATCH_ARRAY_INX": "1-2"},
    **{"SQUEUE_PARTITION": "other", "SCANCEL_PARTITION": "other", "SBATCH_GPUS": "9"},
}
FIVE = "jobs:\n  worker: {tasks: 5, gpus: 1}\n"


@pytest.mark.slow
def test_the_gpus_of_a_job_are_divided_unevenly_and_the_shell_has_variables_of_slurm(site: InSlurm) -> None:
    site("up", site.spec(site.text('{nodes: 3, options: ["--gpus=5"]}', FIVE)), env=FOREIGN)
    seen = [
        site("exec", "--on", f"worker:{index}", "--", "printenv", "CUDA_VISIBLE_DEVICES", env=FOREIGN).stdout.strip()
        for index in range(5)
    ]
    assert seen == ["0", "0", "0", "1", "1"]
    site("down", env=FOREIGN)
    wait_for(lambda: not site.jobs(), 60)


@pytest.mark.slow
def test_the_clusters_of_two_jobs_on_one_node_do_not_meet(site: InSlurm) -> None:
    request = f'{{nodes: 1, options: ["--nodelist={site.site.nodes[0]}"]}}'
    try:
        for name in ("train", "other"):
            site("up", site.spec(site.text(request, ONE, name), f"{name}.yaml"))
        both = [site.json("status", "-c", name) for name in ("train", "other")]
        assert [status["job"]["nodes"] for status in both] == [[site.site.nodes[0]]] * 2
        assert both[0]["job"]["id"] != both[1]["job"]["id"]
        assert not {task["pid"] for task in both[0]["tasks"]} & {task["pid"] for task in both[1]["tasks"]}
        site("down", "-c", "train")
        site.json("run", "-c", "other", "pi", "--samples", "1e5")
        after = site.json("status", "-c", "other")
        assert [task["pid"] for task in after["tasks"]] == [task["pid"] for task in both[1]["tasks"]]
    finally:
        for name in ("train", "other"):
            site("down", "-c", name, code=None)
    wait_for(lambda: not site.jobs(), 60)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["holder", "guard"])
def test_what_a_killed_holder_has_started_ends(site: InSlurm, victim: str) -> None:
    with up(site) as status:
        pid = status["hosts"][1]["agent_pid"]
        started = [pid, *(task["pid"] for task in status["tasks"] if task["host"] == "node1")]
        chain = ancestors(pid)
        os.kill(chain[-1] if victim == "guard" else chain[-2], signal.SIGKILL)
        wait_for(lambda: not any(Path(f"/proc/{each}").exists() for each in started), 60)
        others = [task["pid"] for task in status["tasks"] if task["host"] != "node1"]
        assert all(Path(f"/proc/{each}").exists() for each in others)
        site.site("scancel", str(status["job"]["id"]))  # `down` would wait for the node that does not answer
        wait_for(lambda: not site.jobs(), 60)


@pytest.mark.slow
def test_a_job_that_loses_a_node_is_named(site: InSlurm) -> None:
    """The first node has the batch script, so that nobody there can write how the job has ended."""
    with up(site) as status:
        node = site.site.nodes[0]
        site.site("scontrol", "update", f"NodeName={node}", "State=DOWN", "Reason=test")
        for pid in site.processes():
            with contextlib.suppress(ProcessLookupError, FileNotFoundError):
                if f"SLURMD_NODENAME={node}\0" in Path(f"/proc/{pid}/environ").read_text():
                    os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not site.processes() and not site.jobs(), 60)
        error = site("status", code=3).stderr
        assert f"stopped: Slurm job {status['job']['id']} ended (NODE_FAIL)" in error
    wait_for(lambda: site.site("sinfo", "-h", "-o", "%T").split() == ["idle"], 60)


@pytest.mark.slow
@pytest.mark.needs("slurm")
@pytest.mark.parametrize("tracking", ["linuxproc", "cgroup"])
def test_a_cancelled_job_leaves_nothing_and_is_never_continued_outside(tracking: str) -> None:
    if tracking == "cgroup" and not Path("/sys/fs/cgroup/freezer").is_dir():
        skip("Slurm 22.05 needs the control groups of version 1 here")
    with in_slurm(tracking) as site, up(site) as status:
        (job,) = site.jobs()
        site("status")  # after the step of `up`, and of another command, have ended
        assert all(Path(f"/proc/{task['pid']}").exists() for task in status["tasks"])
        site.site("scancel", job)
        wait_for(lambda: not site.remains(), 60)
        for command in (["status"], ["run", "pi"], ["logs"]):
            assert f"stopped: Slurm job {job} ended (CANCELLED)" in site(*command, code=3, env=NO_SLURM).stderr
        assert not site.processes()
        shown = site("up").stderr
        assert f"stopped: Slurm job {job} ended (CANCELLED)" in shown
        again = site.status()
        assert (again["state"], [again["job"]["id"]]) == ("running", [*map(int, site.jobs())])
        assert again["job"]["id"] != int(job)


@pytest.mark.slow
def test_a_job_whose_nodes_were_lost_is_not_continued_by_the_next_one(site: InSlurm) -> None:
    with up(site) as status:
        (job,) = site.jobs()
        for pid in site.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)  # as a node that loses its power: nothing is cleaned up
        wait_for(lambda: not site.jobs(), 60)
        journal = site.site.folder / "state" / "train" / "node1" / "journal.json"
        assert journal.exists()
        assert f"stopped: Slurm job {job} ended (" in site("status", code=3).stderr
        site.spec(site.text("{nodes: 2}", "jobs: {worker: {tasks: 3}}\n"))
        site("up", "--dry-run")
        assert not site.jobs()
        site("up")
        after = site.status()
        assert [task["task"] for task in after["tasks"]] == [f"/job:worker/task:{index}" for index in range(3)]
        assert not {task["pid"] for task in after["tasks"]} & {task["pid"] for task in status["tasks"]}


@pytest.mark.slow
def test_a_run_that_is_repeated_in_the_next_job_continues_its_training(site: InSlurm) -> None:
    log = site.site.folder / "log"
    options = ("run", "linear", "--sync", "--batch", "10", "--steps", "20", "--logdir", str(log))
    with up(site, "{nodes: 1}", jobs=ONE):
        first = site.json(*options, "--seed", "5")
        site.site("scancel", *site.jobs())
        wait_for(lambda: not site.jobs(), 60)
    with up(site, "{nodes: 1}", jobs=ONE):
        again = site.json("rerun", first["run"])["result"]
    assert (first["result"]["resumed_from"], again["resumed_from"], again["steps"]) == (None, 20, 40)


@contextlib.contextmanager
def blocked(site: InSlurm) -> Iterator[str]:
    """A job takes all nodes; yields its id."""
    options = ("--parsable", "--output=/dev/null", "--nodes=3", "--exclusive", "--wrap=sleep 1000")
    job = site.site("sbatch", *options).strip()
    try:
        yield job
    finally:
        site.site("scancel", job)
        site("down", "-c", "train", code=None)
        wait_for(lambda: not site.jobs(), 60)


def interrupt_in_queue(site: InSlurm, *words: str | Path) -> tuple[str, str]:
    """Press Ctrl-C while the job of a command is pending; return the line that says so, and what follows."""
    waiting = site.start(*words)
    line = read_until(waiting.stderr, " is pending (")[-1]
    wait_for(lambda: len([each for each in site.processes().values() if "python" in each]) == 1)  # no agent is idle
    waiting.send_signal(signal.SIGINT)
    _, error = waiting.communicate(timeout=60)
    assert waiting.returncode == 130
    return line, error


@pytest.mark.slow
def test_a_job_that_waits_in_the_queue(site: InSlurm) -> None:
    spec = site.spec(site.text("{nodes: 3}"))
    with blocked(site) as blocking:
        line, error = interrupt_in_queue(site, "up", spec)
        job = next(each for each in site.jobs() if each != blocking)
        assert line.startswith(f"job {job} is pending (")
        assert f"job {job} stays in the queue" in error
        status = site.json("status", code=4)
        assert (status["state"], status["job"]["id"], status["job"]["state"]) == ("pending", int(job), "pending")
        assert f"train  pending  Slurm job {job}" in site("status", code=4, env=NO_SLURM).stdout
        assert f"Slurm job {job} was pending" in site("run", "pi", code=3).stderr
        site("down")
        assert site.jobs() == [blocking]
        site("status", code=3)
        interrupt_in_queue(site, "launch", "--spec", spec, site.script(""))
        assert site.jobs() == [blocking], "the job of a launch is cancelled"
        interrupt_in_queue(site, "up")
        job = next(each for each in site.jobs() if each != blocking)
        again = site.start("up")
        site.site("scancel", blocking)
        assert again.wait(90) == 0
        assert site.status()["job"]["id"] == int(job)


@pytest.mark.slow
def test_in_an_allocation_its_nodes_are_used_and_left_and_the_death_of_the_step_that_holds_it_is_named(
    site: InSlurm,
) -> None:
    site.spec(site.text("{}", "jobs: {worker: {tasks: 2}}\n"))
    command = f"{sys.executable} -m tfcluster"
    registry = site.folder / "state" / "tfcluster" / "train" / "hosts.json"
    holder = f"import json; print(json.load(open({str(registry)!r}))['provided']['facts']['holder_pid'])"
    shown = site.allocated(
        2,
        f"{command} up && kill -9 $({sys.executable} -c {shlex.quote(holder)}); {command} status 2>&1; echo code $?; "
        f"{command} up && {command} status -o json && {command} down && squeue -h -j $SLURM_JOB_ID -o %T",
    )
    assert "stopped: the step that holds the nodes of Slurm job" in shown
    assert "code 3\n" in shown
    status = json.loads(next(line for line in shown.splitlines() if line.startswith("{")))
    assert (status["state"], len(status["job"]["nodes"])) == ("running", 2)
    assert shown.splitlines()[-1] == "RUNNING"
    wait_for(lambda: not site.remains(), 30)


@pytest.mark.slow
def test_the_end_of_an_allocation_ends_what_it_has(site: InSlurm) -> None:
    site.spec(site.text("{}", "jobs: {worker: {tasks: 2}}\n"))
    site.allocated(2, f"{sys.executable} -m tfcluster up")
    wait_for(lambda: not site.remains(), 60)
    wait_for(lambda: "ended (COMPLETED)" in site("status", code=3).stderr)
    site("down")


@pytest.mark.slow
def test_a_launch_gets_an_allocation_for_one_script_and_ends_it(site: InSlurm) -> None:
    spec = site.spec(site.text("{nodes: 2}", "jobs: {worker: {tasks: 2}}\n"))
    script = site.script("import os, sys; print(os.environ['SLURM_NODEID']); sys.exit(7)")
    shown = site("launch", "--spec", spec, script, code=7)
    assert "submitted Slurm job" in shown.stderr
    assert {"worker:0 | 0", "worker:1 | 1"} <= {*shown.stdout.splitlines()}
    wait_for(lambda: not site.jobs(), 60)
    wait_for(lambda: not site.remains(), 30)
    site("status", "-c", "train", code=3)


@pytest.mark.slow
def test_before_the_end_of_the_time_a_run_can_save_its_state(site: InSlurm) -> None:
    saved = site.site.folder / "checkpoint"
    script = site.script(
        "import pathlib, signal, sys, time\n"
        "def save(*_):\n"
        "    time.sleep(4)  # longer than a run has that is cancelled\n"
        f"    pathlib.Path({str(saved)!r}).touch()\n"
        "    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, save)\n"
        "print('trains', flush=True)\n"
        "time.sleep(1000)\n"
    )
    with up(site, '{nodes: 2, time: "0:20:00", grace: 600}') as status:
        assert status["job"]["ends_in_s"] <= 1200
        run = site.start("run", script)
        assert run.stdout.readline() == "trains\n"
        job = f"JobId={status['job']['id']}"
        site.site("scontrol", "update", job, "TimeLimit=60")
        assert site.status()["job"]["ends_in_s"] > 1200
        assert not saved.exists()
        site.site("scontrol", "update", job, "TimeLimit=9")
        assert site.status()["job"]["ends_in_s"] < 600
        _, error = run.communicate(timeout=60)
        assert saved.exists(), error
        assert "the time limit of the Slurm job was reached" in error
        assert run.returncode == 1
        assert [*site.tasks("pid").values()] == [task["pid"] for task in status["tasks"]]


@pytest.mark.slow
def test_an_ordinary_account_trains_in_a_private_network_beside_another_users_cluster(
    needs_slurm: None, needs_root: None
) -> None:
    with account("tfc") as user, in_slurm(user=user) as site, up(site) as status:
        assert status["network"] == "private"
        assert "private network" in site("status").stdout
        assert {os.stat(f"/proc/{task['pid']}").st_uid for task in status["tasks"]} == {user.uid}
        result = site.json("run", "linear", "--sync", "--steps", "20", "--seed", "3")
        assert result["state"] == "succeeded"
        root = replace(site, folder=site.site.folder / "root", command=tuple(site.site.command(*site.command[-3:])))
        for folder in (root.folder, root.folder / "run", root.folder / "state"):
            folder.mkdir()
        spec = root.spec(site.text(f'{{nodes: 1, options: ["--nodelist={site.site.nodes[0]}"]}}', name="other"))
        root("up", spec)
        try:
            theirs = root.status()
            assert theirs["job"]["nodes"] == status["job"]["nodes"][:1]
            assert {os.stat(f"/proc/{task['pid']}").st_uid for task in theirs["tasks"]} == {0}
            assert "is not running" in site("status", "-c", "other", code=3).stderr
        finally:
            root("down", "-c", "other")
        assert site.status()["tasks"][0]["pid"] == status["tasks"][0]["pid"]
        assert {device.split("/device")[0] for device in result["devices"]} >= {
            f"/job:worker/task:{index}" for index in range(2)
        }


def test_what_slurm_refuses_is_said_and_the_doctor_asks_whether_it_would_accept_the_job(site: InSlurm) -> None:
    error = site("up", site.spec(site.text("{nodes: 1, partition: nowhere}")), code=1).stderr
    refusal = "invalid partition specified: nowhere"
    assert "sbatch failed: " in error
    assert refusal in error
    (check,) = site.json("doctor", code=1)["checks"]
    assert (check["ok"], refusal in check["result"]) == (False, True)
    assert "`slurm:` has hosts only when" in site("doctor", "--print-systemd", code=2).stderr
    (check,) = site.json("doctor", site.spec(site.text("{nodes: 1}")))["checks"]
    assert check["result"] == "it would accept the job"
    assert not site.jobs()
