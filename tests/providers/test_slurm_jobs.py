"""What Slurm may say of a job, as programs in its place say it; tests/end_to_end/test_slurm.py has the real Slurm."""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.accounts import Account
from tests.conftest import ROOT
from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.providers.slurm import host_side, jobs
from tfcluster.providers.slurm.job import SlurmJob
from tfcluster.providers.slurm.request import SlurmSpec
from tfcluster.transport.connector import CommandConnector

AT = "CANCELLED AT 2026-11-24T13:18:32"
_OUTPUTS = {
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO TIME LIMIT ***\n": "TIMEOUT",
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO PREEMPTION ***\n": "PREEMPTED",
    f"slurmstepd: error: *** JOB 7 ON n1 {AT} DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n": "NODE_FAIL",
    f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n": "CANCELLED",
    f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n*** JOB 7 ON n1 {AT} DUE TO TIME LIMIT ***\n": "TIMEOUT",
    "srun: error: n2: Out Of Memory\ntfcluster: the step that holds the nodes ended with exit code 137\n": (
        "the step that holds the nodes ended with exit code 137"
    ),
    "srun: Job step created\n": None,
}


@pytest.mark.needs("root")
@pytest.mark.parametrize("variables", [(), ("HOME=/home/me", "USER=me")])
def test_a_user_id_without_an_account_gets_the_variables_that_are_known(variables: tuple[str, ...]) -> None:
    """As in a container: the nodes of the job may know the account."""
    code = "from tfcluster.providers.slurm import jobs; print(jobs._export())"
    environment = ("env", "-i", f"PYTHONPATH={ROOT}", f"PATH={os.environ['PATH']}", *variables)
    printed = subprocess.run(
        Account("", 54321).command(*environment, sys.executable, "-c", code),
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert printed.startswith(f"--export={','.join([*variables, 'SHELL=/bin/sh'])},PATH=/")


@pytest.mark.parametrize("output", _OUTPUTS)
def test_the_cause_of_the_end_is_that_of_the_output(output: str, tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text("an earlier line\n" + output)
    job = SlurmJob(7, 1795524747, is_own=True, output=str(path), nodes=("n1", "n2"))
    assert jobs.find_end(job) == _OUTPUTS[output]
    if _OUTPUTS[output] is None:
        jobs.check(job)
        return
    with pytest.raises(ClusterError) as caught:
        jobs.check(job)
    assert caught.value.message == f"stopped: Slurm job 7 ended ({_OUTPUTS[output]})"
    assert caught.value.exit_code is ExitCode.NOT_RUNNING


_STEP = f"slurmstepd: error: *** STEP 7.0 ON n1 {AT} ***\n"
_OUTPUTS_OF_ALLOCATIONS = {
    _STEP: "COMPLETED or CANCELLED",
    _STEP + "tfcluster: the state of the job is COMPLETED\n": "COMPLETED",
    _STEP + "tfcluster: the state of the job is RUNNING\n": None,  # the step alone was ended
    _STEP + "tfcluster: the state of the job is \n": "COMPLETED or CANCELLED",  # the controller did not answer
}


@pytest.mark.parametrize("output", _OUTPUTS_OF_ALLOCATIONS)
def test_the_state_that_was_asked_for_counts_more_than_the_end_of_the_step(output: str, tmp_path: Path) -> None:
    path = tmp_path / "slurm-7.out"
    path.write_text(output)
    job = SlurmJob(7, 1795524747, is_own=False, output=str(path), nodes=("n1", "n2"))
    assert jobs.find_end(job) == _OUTPUTS_OF_ALLOCATIONS[output]


def test_without_an_output_nothing_is_known(tmp_path: Path) -> None:
    job = SlurmJob(7, 1795524747, is_own=True, output=str(tmp_path / "none"))
    assert jobs.find_end(job) is None
    with pytest.raises(ClusterError, match="Slurm job 7 was pending"):
        jobs.check(job)


@pytest.mark.parametrize(("state", "has_ended"), [("SIGNALING", False), ("REQUEUE_HOLD", False), ("DEADLINE", True)])
def test_only_a_state_that_is_an_end_is_one(
    state: str, has_ended: bool, say: Callable[[str, str], None], tmp_path: Path
) -> None:
    say("squeue", f"printf '{state} 5 6 7 n1 un\\351\\n'")  # not UTF-8
    job = SlurmJob(7, 5, is_own=True, output=str(tmp_path / "out"))
    assert (jobs.look_up(job) is None) is has_ended
    assert jobs.find_end(job) == (state if has_ended else None)


def test_a_job_of_which_nothing_is_known_is_cancelled(say: Callable[[str, str], None], tmp_path: Path) -> None:
    say("sbatch", "cat > /dev/null; echo 'Welcome to site 5'; echo '12;main'")
    for name in ("srun", "scontrol"):
        say(name, "exit 1")
    say("squeue", "echo 'slurm_load_jobs error: timed out' >&2; exit 1")
    say("scancel", f'echo "$*" > {shlex.quote(str(tmp_path / "cancelled"))}')
    with pytest.raises(ClusterError, match="slurm_load_jobs error: timed out"):
        jobs.submit("demo", SlurmSpec(), Host("node0", "node0"))
    assert (tmp_path / "cancelled").read_text() == "--clusters=main 12\n"


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Batch job submission failed: Requested node configuration is not available", "Correct `slurm:`"),
        ("invalid partition specified: gpus", "Correct `slurm:`"),
        ("Batch job submission failed: Unable to contact slurm controller (connect failure)", "sinfo"),
        ("Batch job submission failed: Socket timed out on send/recv operation", "sinfo"),
        ("Could not establish a configuration source", "sinfo"),
    ],
)
def test_the_spec_is_only_blamed_for_what_sbatch_says_of_it(
    said: str, hint: str, say: Callable[[str, str], None]
) -> None:
    say("sbatch", f"cat > /dev/null; echo 'sbatch: error: {said}' >&2; exit 1")
    with pytest.raises(ClusterError, match=re.escape(said)) as error:
        jobs.submit("demo", SlurmSpec(), Host("node0", "node0"))
    assert hint in error.value.hint


def test_the_cluster_that_sbatch_names_is_given_to_all_commands_and_no_other_variable_of_the_shell(
    say: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SLURM_GPUS", "SLURM_JOB_NAME", "SBATCH_GPUS", "SQUEUE_USERS", "SCANCEL_USER", "SRUN_DEBUG"):
        monkeypatch.setenv(name, "9")
    monkeypatch.setenv("SBATCH_CLUSTERS", "b")
    monkeypatch.setenv("SLURM_CONF", "/site/slurm.conf")
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    log = shlex.quote(str(tmp_path / "log"))
    details = "   Nodes=n1 CPU_IDs=0-1,4 Mem=0 GRES=gpu:a100:2(IDX:0,2),gpu:v100:1(IDX:3),gpu:k80:0,nic:1"
    for command, prints in {
        **{"sbatch": "cat > /dev/null; echo '7;b'", "squeue": "echo 'RUNNING 5 6 7 n1 None'", "scancel": ":"},
        **{"scontrol": f"case $* in *hostnames*) echo n1;; *) echo '{details}';; esac", "srun": ":"},
    }.items():
        say(
            command,
            f"echo {command} $(env | grep -oE '^S(LURM|BATCH|RUN|QUEUE|CANCEL)_[A-Z_]*' | sort) $* >> {log}; {prints}",
        )
    job = jobs.submit("demo", SlurmSpec(), Host("node0", "node0"))
    running = jobs.wait_until_running(job, print)
    assert (running.cluster, running.cpus, running.gpus) == ("b", 3, {"n1": "v100:1,a100:2"})
    (host,) = jobs.place(
        ClusterTopology("demo", "", "open", (), hosts=(Host("node0", ""),)), running, SlurmSpec()
    ).hosts
    subprocess.run(CommandConnector(host).argv("true"), check=True)
    jobs.release(running)
    assert str(tmp_path) not in (host.connect or ""), "another srun in front on PATH is no other place"
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0].startswith("sbatch SBATCH_CLUSTERS SLURM_CONF --parsable")
    assert {line.split(" --")[0] for line in lines[1:]} == {
        *("squeue SLURM_CONF SLURM_TIME_FORMAT", "scontrol SLURM_CONF show hostnames n1", "scontrol SLURM_CONF"),
        *("srun SLURM_CONF", "scancel SLURM_CONF"),
    }
    assert all("--clusters=b" in line for line in lines[1:] if "hostnames" not in line)
    assert "--gpus=v100:1,a100:2" in next(line for line in lines if line.startswith("srun"))
    assert f"`{running.squeue}`" == "`squeue -M b -j 7`"


@pytest.mark.parametrize(("line", "message"), [("", "Slurm does not know"), ("COMPLETED 5 6 7 n1 None", "has ended")])
def test_a_job_that_the_shell_names_and_that_is_no_more_is_named_with_what_gets_another_one(
    line: str, message: str, say: Callable[[str, str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    say(
        "squeue",
        f"echo '{line}'; [ '{line}' ] || {{ echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1; }}",
    )
    say("scontrol", "echo 'ClusterName             = a'")
    for name in ("srun", "scancel", "sbatch"):
        say(name, "exit 1")
    with pytest.raises(ClusterError, match=f"SLURM_JOB_ID names job 7, which {message}") as caught:
        jobs.check_request("demo", SlurmSpec(), Host("node0", "node0"))
    assert caught.value.hint == "`env -u SLURM_JOB_ID tfcluster up` submits another job."
    assert "`env -u SLURM_JOB_ID tfcluster up` gets" in jobs.ended_error(SlurmJob(7, 5, is_own=False, output="")).hint
    assert "`tfcluster up` gets" in jobs.ended_error(SlurmJob(8, 5, is_own=False, output="")).hint


def test_a_later_job_that_slurm_has_given_the_id_is_another_one(say: Callable[[str, str], None]) -> None:
    say("squeue", "echo 'RUNNING 6 6 7 n1 None'")
    assert jobs.look_up(SlurmJob(7, 6, is_own=True, output="/nowhere")) is not None
    assert jobs.look_up(SlurmJob(7, 5, is_own=True, output="/nowhere")) is None


def test_a_job_says_why_it_waits_and_its_nodes_are_in_the_order_of_slurm(
    say: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "_POLL_SECONDS", 0.01)
    start, shown = 1795524747, list[str]()
    asked = shlex.quote(str(tmp_path / "asked"))
    say(
        "squeue",
        f"if [ -e {asked} ]; then echo 'RUNNING 5 6 7200 n[9-10] None'\n"
        f"else touch {asked}; echo 'PENDING 5 {start} N/A  (Resources)'; fi",
    )
    say(
        "scontrol",
        'case "$*" in *hostnames*) printf "n9\\nn10\\n" ;; *) echo "   Nodes=n[9-10] CPU_IDs=0-3 Mem=0 GRES=" ;; esac',
    )
    job = jobs.wait_until_running(SlurmJob(7, 5, is_own=True, output="/nowhere"), shown.append)
    expected = time.strftime("%Y-%m-%d %H:%M", time.localtime(start))
    assert shown == [f"job 7 is pending (Resources), expected start {expected}"]
    assert (job.nodes, job.ends, job.cpus) == (("n9", "n10"), 7200, 4)


@pytest.mark.parametrize("is_own", [True, False])
def test_down_cancels_only_a_job_that_up_has_submitted(
    is_own: bool, say: Callable[[str, str], None], tmp_path: Path
) -> None:
    say("squeue", "echo 'RUNNING 5 6 7 n1 None'")
    say("scancel", f"touch {shlex.quote(str(tmp_path / 'cancelled'))}")
    jobs.release(SlurmJob(7, 5, is_own=is_own, output=str(tmp_path / "out"), nodes=("n1",)))
    assert (tmp_path / "cancelled").exists() is is_own


def test_the_job_is_what_the_spec_requests_and_slurm_is_asked_first_whether_it_accepts_it(
    say: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    for name in ("srun", "squeue", "scancel", "scontrol"):
        say(name, "")
    asked = shlex.quote(str(tmp_path / "asked"))
    say("sbatch", f'echo "$*" > {asked}; cat >> {asked}')
    request = SlurmSpec(nodes=2, time="8:00:00", partition="gpu", gpus=2, options=("--account=physics",))
    jobs.check_request("train", request, Host("node0", "node0"))
    options, *script = (tmp_path / "asked").read_text().splitlines()
    assert options == "--parsable --test-only"
    assert [line.removeprefix("#SBATCH ") for line in script if line.startswith("#SBATCH")] == [
        *("--account=physics", "--job-name=train", "--nodes=2", "--ntasks-per-node=1", "--time=8:00:00"),
        *("--partition=gpu", "--gres=gpu:2", "--no-requeue", "--output=/dev/null"),
    ]


_ENDED = "that holds this node ended before it replied"


@pytest.fixture
def ended_holder(monkeypatch: pytest.MonkeyPatch) -> None:
    connection, holder = socket.socketpair()
    holder.close()
    monkeypatch.setattr(host_side, "_connect", lambda job: connection)
    monkeypatch.setenv("SLURM_JOB_ID", "7")


@pytest.mark.usefixtures("ended_holder")
def test_a_holder_that_has_ended_is_not_joined_and_starts_nothing() -> None:
    with pytest.raises(ClusterError, match=_ENDED):
        host_side.SlurmHostSide({"id": 7, "squeue": "squeue", "grace": 0}).join(Path("/none"))
    with pytest.raises(ClusterError, match=_ENDED):
        host_side.HeldProcess(7, ["true"], {})
