"""Slurm's commands: submit a job or use the one that the user is in, wait for it, and say how it has ended.

The nodes of a job are held by one step, `node_holder`, which starts the agents. The batch script of a
job that was submitted here starts it; in an allocation of the user, a process that `up` leaves on this machine does. A
host is then one that `connect:` reaches, by a step of a command beside that one.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tfcluster import settings
from tfcluster.core.hosts import Host, Provided
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.paths import cluster_registry_path, make_private_folder
from tfcluster.protocol.serialization import to_json
from tfcluster.providers.programs import find_program, run_program
from tfcluster.providers.slurm import node_holder
from tfcluster.providers.slurm.job import HostJob, SlurmJob
from tfcluster.transport.provision import in_environment
from tfcluster.transport.shell import quote_path

if TYPE_CHECKING:
    from tfcluster.providers.slurm.request import SlurmSpec

_COMMAND_SECONDS = 60.0  # for a command of Slurm, whose controller may be busy
_POLL_SECONDS = 0.5  # while a job is in the queue, at first; then twice as long each time, up to
_POLL_MAX_SECONDS = 30.0  # which a controller with many users bears
_COMPLETING_SECONDS = 60.0  # for a job that has ended to end its processes; Slurm kills them after 30
_RUNNING = "RUNNING"
_COMPLETING = "COMPLETING"
# The states of a job that has ended. A job in any other one, such as SIGNALING or RESIZING, still has its nodes.
_ENDED = (
    *("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY"),
    *("PREEMPTED", "RECONFIG_FAIL", "REVOKED", "SPECIAL_EXIT", "STAGE_OUT", "TIMEOUT"),
)
# What squeue prints of a job; a node list has no blanks, a reason may.
_FORMAT = "%T %V %S %e %N %r"
_FIELDS = len(_FORMAT.split())
# What Slurm writes to the output of a job, or of a step, that it ends.
_END = re.compile(r"\*\*\* (?:JOB|STEP) \S+ ON \S+ CANCELLED AT \S+(?: DUE TO ([A-Z ]+))?")
_CAUSES = {"TIME LIMIT": "TIMEOUT", "PREEMPTION": "PREEMPTED", "NODE FAILURE": "NODE_FAIL"}
_HOLDER_ENDED = "tfcluster: the step that holds the nodes ended"
# What is written to the output of a job when Slurm has said its last state: an end that has no other words there.
_JOB_ENDED = "tfcluster: the state of the job is "
_OUTPUT_TAIL_BYTES = 1 << 14
# What tells sbatch which of several clusters gets the job.
_CHOICES = ("SBATCH_CLUSTERS", "SLURM_CLUSTERS")
# What Slurm's commands say if they cannot reach its controller, or find its configuration.
_NOT_REACHED = re.compile("contact slurm controller|configuration source|fetch_config|[Tt]imed out")
# Variables that commands of Slurm read as options: those of the user's shell, or of a job or a step that it is in.
_VARIABLES = "(SLURM|SBATCH|SRUN|SQUEUE|SCANCEL|SCONTROL)_[A-Za-z0-9_]*"
_UNSET = f"""\
for name in $(env | sed -nE 's/^({_VARIABLES})=.*/\\1/p'); do [ "$name" = SLURM_CONF ] || unset "$name"; done"""
# Prints a line NODES/CORES/GPUS for the nodes of $job that have the same GPUs, with the cores that each has at least.
_PRINT_NODES = r"""
"$scontrol" ${cluster:+--clusters="$cluster"} show job --details "$job" | awk '
  sub(/^ +Nodes=/, "") {
    match($0, /CPU_IDs=[^ ]*/)
    count = split(substr($0, RSTART + 8, RLENGTH - 8), parts, ",")
    for (cores = 0; count > 0; count--) { last = split(parts[count], ends, "-"); cores += ends[last] - ends[1] + 1 }
    gsub(/\([^)]*\)/, "")
    match($0, /GRES=[^ ]*/)
    count = split(substr($0, RSTART + 5, RLENGTH - 5), parts, ",")
    for (gpus = ""; count > 0; count--) if (parts[count] ~ /^gpu:(.*:)?[1-9]/) gpus = gpus "," substr(parts[count], 5)
    nodes[gpus] = nodes[gpus] "," $1
    if (!(gpus in least) || cores < least[gpus]) least[gpus] = cores
  }
  END { for (gpus in nodes) print substr(nodes[gpus], 2) "/" (least[gpus] ? least[gpus] : "") "/" substr(gpus, 2) }'
"""
_BATCH = """\
#!/bin/sh
{options}

# The step that holds the nodes: it starts what `tfcluster` commands ask for, and ends it with the job.
source=$(cat <<'END'
{source}END
)
job=$SLURM_JOB_ID scontrol={scontrol} cluster=
{unset}
{step}{srun} "$@"
echo "{ended} with exit code $?"
"""
# Becomes the step that holds the nodes of the user's allocation, of which Slurm's own words say only that it was ended;
# another process waits for that, and asks for the state of the job.
_HOLD = """\
srun=$1 scontrol=$2 squeue=$3 job=$4 cluster=$5 source=$6
(
  tail --pid=$$ -f /dev/null
  while state=$("$squeue" ${{cluster:+--clusters="$cluster"}} --noheader --jobs="$job" --states=all --format=%T) &&
    [ "$state" = COMPLETING ]; do
    sleep 1
  done
  echo "{ended}$state"
) &
{step}exec "$srun" "$@"
"""


@dataclass(frozen=True)
class _JobState:
    """What squeue says of a job."""

    state: str
    submitted: int
    start: int | None  # the expected one while it is pending
    ends: int | None
    nodes: str  # in Slurm's notation
    reason: str


def allocation() -> int | None:
    """Return the job that this process runs in; None if it is in none."""
    job = os.environ.get("SLURM_JOB_ID", "")
    return int(job) if job.isdecimal() else None


def batch_script(cluster: str, request: SlurmSpec, host: Host, output: str) -> str:
    """Return the batch script of a job that holds nodes for a cluster."""
    options = [
        # sbatch would take the blank of a quoted `-M b` for part of the value.
        *(re.sub(r"^(-\w)\s+|^(--[\w-]+)\s+", lambda m: m[1] or f"{m[2]}=", option) for option in request.options),
        f"--job-name={cluster}",
        f"--nodes={request.nodes or 1}",
        "--ntasks-per-node=1",
        *([f"--time={request.time}"] if request.time else []),
        *([f"--partition={request.partition}"] if request.partition else []),
        *([f"--gres=gpu:{request.gpus}"] if request.gpus else []),
        "--no-requeue",  # a job that starts again would hold nodes of which no command knows
        f"--output={output}",
    ]
    lines = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    srun, scontrol = (shlex.quote(_program(name)) for name in ("srun", "scontrol"))
    programs = {"srun": srun, "scontrol": scontrol, "ended": _HOLDER_ENDED, "unset": _UNSET}
    return _BATCH.format(options=lines, step=_set_step(host), source=_holder_source(), **programs)


def _set_step(host: Host) -> str:
    """Return lines of a script that set the words of the step that holds the nodes of $job with all that it has there.

    Slurm 22.05 gives too few GPUs to a step that does not ask for those of each node, so nodes with the same number are
    a component of the step; --gres on a single node is refused if another one has fewer.
    """
    options = ["--overlap", "--ntasks-per-node=1", "--kill-on-bad-exit=0", "--mem=0", "--cpu-bind=none", _export()]
    python = in_environment(f'{quote_path(host.interpreter)} -I -c "$0"', host.shell)
    return f"""\
set -f --  # a list of nodes has brackets
for group in $({_PRINT_NODES.strip()}); do
  nodes=${{group%%/*}} gpus=${{group##*/}} cores=${{group#*/}}
  count=$("$scontrol" show hostnames "$nodes" | wc -l) cores=${{cores%/*}}
  gres=$(echo "$gpus" | sed 's/,/,gpu:/g')
  [ "$count" = 1 ] && gpus=${{gpus:+--gpus=$gpus}} || gpus=${{gpus:+--gres=gpu:$gres}}
  set -- "$@" ${{1:+:}} --jobid="$job" ${{cluster:+--clusters="$cluster"}} --nodelist="$nodes" --nodes="$count" \\
    ${{cores:+--cpus-per-task=$cores}} $gpus {shlex.join(options)} \\
    /bin/sh -c {shlex.quote(f"exec {python}")} "$source"
done
[ $# -gt 0 ] || {{ echo "tfcluster: scontrol shows no nodes of job $job"; exit 1; }}
"""


def _export() -> str:
    """Return srun's option for the environment of a login: srun would otherwise export that of the caller."""
    try:
        account = pwd.getpwuid(os.getuid())
        variables = {"HOME": account.pw_dir, "USER": account.pw_name, "LOGNAME": account.pw_name}
        variables["SHELL"] = account.pw_shell or "/bin/sh"
    except KeyError:  # the uid has no entry here, as in a container, but may have one on the nodes
        variables = {name: os.environ[name] for name in ("HOME", "USER", "LOGNAME") if name in os.environ}
        variables["SHELL"] = "/bin/sh"
    variables["PATH"] = settings.LOGIN_PATH
    return "--export=" + ",".join(f"{name}={value}" for name, value in variables.items())


def _holder_source() -> str:
    return Path(node_holder.__file__).read_text()


def output_path(cluster: str, job: int | str) -> str:
    """Return the file for the output of a job, which says how it has ended."""
    return str(cluster_registry_path(cluster).with_name(f"slurm-{job}.out"))


def submit(cluster: str, request: SlurmSpec, host: Host) -> SlurmJob:
    """Submit a job that holds nodes for a cluster."""
    output = output_path(cluster, "%j")
    make_private_folder(Path(output).parent)
    script = batch_script(cluster, request, host, output)
    printed = _submit([], script)
    found = re.search(r"^([0-9]+)(?:;(\S+))?$", printed, re.MULTILINE)  # a site's own sbatch may print more
    if found is None:
        raise ClusterError(f"sbatch printed no job id: {printed[-settings.ERROR_VALUE_MAX_CHARS :]!r}")
    job = SlurmJob(int(found[1]), 0, is_own=True, output=output_path(cluster, found[1]), cluster=found[2])
    try:
        return replace(job, submitted=_expect(job).submitted)
    except BaseException:  # no command would know of this job
        with contextlib.suppress(ClusterError):
            _run(["scancel", *_in_cluster(job), str(job.id)])
        raise


def check_request(cluster: str, request: SlurmSpec, host: Host) -> None:
    """Raise an error if this machine lacks a command of Slurm, its controller does not answer, or refuses the job."""
    for name in ("srun", "squeue", "scancel", "scontrol", "sbatch"):
        _program(name)
    if (inside := allocation()) is None:
        _submit(["--test-only"], batch_script(cluster, request, host, os.devnull))
    else:
        adopt(cluster, inside)


def _submit(options: Sequence[str], script: str) -> str:
    """Run sbatch, in the environment of its script and with the cluster that the user has chosen."""
    names = ("HOME", "USER", "LOGNAME", "SHELL", "PATH", "LANG", "SLURM_CONF", *_CHOICES)
    try:
        return _run(
            ["sbatch", "--parsable", *options],
            script,
            {name: value for name, value in os.environ.items() if name in names},
        )
    except ClusterError as error:
        if unread := [name for name in os.environ if name.startswith("SBATCH_") and name not in names]:
            error.hint += f" tfcluster does not read {', '.join(unread)}: write that under `options:`."
        raise


def adopt(cluster: str, number: int) -> SlurmJob:
    """Return the job that SLURM_JOB_ID names, as one that holds nodes for a cluster; an error says if it has ended."""
    name = os.environ.get("SLURM_CLUSTER_NAME")
    default = re.search(r"^ClusterName\s*=\s*(\S+)", _run(["scontrol", "show", "config"]), re.MULTILINE)
    other = None if default is None or default[1] == name else name
    job = SlurmJob(number, 0, is_own=False, output=output_path(cluster, number), cluster=other)
    state = _query(job)
    if state is None or state.state in (_COMPLETING, *_ENDED):
        ended = "Slurm does not know" if state is None else f"has ended ({state.state})"
        hint = "`env -u SLURM_JOB_ID tfcluster up` submits another job."
        raise ClusterError(f"SLURM_JOB_ID names job {number}, which {ended}", hint=hint)
    return replace(job, submitted=state.submitted)


def wait_until_running(job: SlurmJob, show: Callable[[str], None]) -> SlurmJob:
    """Wait until a job runs, and return it with its nodes; `show` is called with a line that says why it waits."""
    poll = _POLL_SECONDS
    while True:
        state = look_up(job)
        if state is None:
            raise ended_error(job)
        if state.state == _RUNNING and state.nodes:
            cpus, gpus = _count_resources(job)
            return replace(job, nodes=_expand(state.nodes), ends=state.ends, cpus=cpus, gpus=gpus)
        reason = "" if state.reason == "None" else f" ({state.reason})"  # the scheduler has not looked at it yet
        line = f"job {job.id} is {state.state.lower()}{reason}"
        if state.start is not None:
            line += f", expected start {time.strftime('%Y-%m-%d %H:%M', time.localtime(state.start))}"
        show(line)
        time.sleep(poll)
        poll = min(2 * poll, _POLL_MAX_SECONDS)


def _expand(nodes: str) -> tuple[str, ...]:
    """Return the names of the nodes of a list in Slurm's notation."""
    return tuple(_run(["scontrol", "show", "hostnames", nodes]).split())


def _count_resources(job: SlurmJob) -> tuple[int | None, dict[str, str]]:
    """Return the cores that a running job has on each node, at least, if Slurm says it, and the GPUs of each node."""
    script = f"scontrol=$0 job=$1 cluster=$2;{_PRINT_NODES}"
    printed = _run(["sh", "-c", script, _program("scontrol"), str(job.id), job.cluster or ""])
    groups = [line.split("/") for line in printed.splitlines()]
    gpus = {node: each for nodes, _, each in groups for node in _expand(nodes)}
    return min((int(cores) for _, cores, _ in groups if cores), default=None), gpus


def look_up(job: SlurmJob) -> _JobState | None:
    """Ask Slurm for the state of a job; return None if it has ended, or its id is that of a later job.

    Slurm forgets a job some minutes after its end, so its last state is written to its output, if nothing is there.
    """
    state = _query(job)
    if state is None or state.submitted != job.submitted:
        return None
    if state.state != _COMPLETING and state.state not in _ENDED:
        return state
    if state.state != _COMPLETING and find_end(job) is None:
        with contextlib.suppress(OSError), open(job.output, "a") as output:
            output.write(f"{_JOB_ENDED}{state.state}\n")
    return None


def wait_for_completion(job: SlurmJob) -> None:
    """Wait until the processes of a job that has ended have exited: its agents use the cluster's state folders."""
    deadline = time.monotonic() + _COMPLETING_SECONDS
    while (state := _query(job)) is not None and (state.state, state.submitted) == (_COMPLETING, job.submitted):
        if time.monotonic() > deadline:
            raise ClusterError(f"job {job.id} is still stopping its processes", hint=f"`{job.squeue}` shows its nodes.")
        time.sleep(_POLL_SECONDS)


def _in_cluster(job: SlurmJob) -> list[str]:
    """Return the option for Slurm's commands that says which of several clusters has the job."""
    return [] if job.cluster is None else [f"--clusters={job.cluster}"]


def _query(job: SlurmJob) -> _JobState | None:
    try:
        argv = ["squeue", *_in_cluster(job), "--noheader", f"--jobs={job.id}", "--states=all", f"--format={_FORMAT}"]
        line = _run(argv, environment={**_environment(), "SLURM_TIME_FORMAT": "%s"})
    except ClusterError as error:
        if "Invalid job id" in error.message:
            return None
        raise
    fields = line.split("\n")[0].split(" ", _FIELDS - 1)
    if len(fields) < _FIELDS:
        return None
    state, submitted, start, ends, nodes, reason = fields
    return _JobState(state, int(submitted), _seconds(start), _seconds(ends), nodes, reason.strip("()"))


def _expect(job: SlurmJob) -> _JobState:
    state = _query(job)
    if state is None:
        raise ClusterError(f"Slurm does not know job {job.id}", hint=f"`{job.squeue}` shows more.")
    return state


def _seconds(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def start_holder(job: SlurmJob, host: Host) -> SlurmJob:
    """Start the step that holds the nodes of the user's allocation, and return the job with its process."""
    if _holder(job) is not None:
        return job
    make_private_folder(Path(job.output).parent)
    script = _HOLD.format(ended=_JOB_ENDED, step=_set_step(host))
    programs = map(_program, ("srun", "scontrol", "squeue"))
    with open(job.output, "wb") as output:  # an earlier one may say there how it has ended
        process = subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *programs, str(job.id), job.cluster or "", _holder_source()],
            cwd="/",
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,  # a Ctrl-C is meant for the command
        )
    handle = ProcessHandle.from_pid(process.pid)
    assert handle is not None, "this process has not waited for it"
    process.returncode = 0  # it outlives this process
    return replace(job, holder_host=os.uname().nodename, holder_pid=handle.pid, holder_start_time=handle.start_time)


def _holder(job: SlurmJob) -> ProcessHandle | None:
    """Return the process on this machine whose step holds the nodes; None if there is none, or it has ended."""
    if job.holder_host != os.uname().nodename or job.holder_pid is None or job.holder_start_time is None:
        return None
    handle = ProcessHandle(job.holder_pid, job.holder_start_time)
    return handle if handle.is_alive() else None


def place(topology: ClusterTopology, job: SlurmJob, request: SlurmSpec) -> ClusterTopology:
    """Return a topology whose hosts are the nodes of a job."""
    if len(job.nodes) < _node_count(topology):
        raise ClusterError(
            f"job {job.id} has only {len(job.nodes)} nodes, and the spec has {_node_count(topology)}",
            hint=f"`tfcluster down -c {topology.cluster}`, then `up` again gets another allocation.",
            exit_code=ExitCode.USAGE,
        )
    provided = Provided("slurm", to_json(HostJob(job.id, _program("squeue"), request.grace)))

    def on_node(host: Host) -> Host:
        node = job.nodes[int(host.name.removeprefix("node"))]
        return replace(host, address=node, ssh=None, connect=_connect(job, node), provided=provided)

    return topology.on_hosts(map(on_node, topology.hosts))


def _node_count(topology: ClusterTopology) -> int:
    return 1 + max(int(host.name.removeprefix("node")) for host in topology.hosts)


def _connect(job: SlurmJob, node: str) -> str:
    """Return the `connect:` of a node: a step beside the one that holds it, which lasts as long as a command."""
    words = [
        *("/bin/sh", "-c", f'{_UNSET}; exec "$0" "$@"', "srun", "--quiet", f"--jobid={job.id}"),
        *(*_in_cluster(job), f"--nodelist={node}", "--nodes=1", "--ntasks=1"),
        *("--overlap", "--unbuffered", "--mem=0", "--cpu-bind=none", _export()),
        *([] if job.cpus is None else [f"--cpus-per-task={job.cpus}"]),
        # Otherwise Slurm asks for as many as the whole job has. --gres is refused if another node has fewer.
        *([f"--gpus={gpus}"] if (gpus := job.gpus.get(node)) else []),
    ]
    return f"{shlex.join(words)} {{terminal:--pty}}"


def check(job: SlurmJob) -> None:
    """Raise an error if a job is pending, or is known to have ended; Slurm is not asked."""
    if find_end(job) is not None:
        raise ended_error(job)
    if job.holder_host == os.uname().nodename and _holder(job) is None:
        raise ClusterError(
            f"stopped: the step that holds the nodes of Slurm job {job.id} has ended",
            hint="`tfcluster up` starts another one, and the cluster; logs and runs are kept.",
            exit_code=ExitCode.NOT_RUNNING,
        )
    if not job.nodes:
        raise ClusterError(
            f"Slurm job {job.id} was pending when `up` last waited for it",
            hint="`tfcluster up` continues to wait, `tfcluster down` cancels it.",
            exit_code=ExitCode.NOT_RUNNING,
        )


def find_end(job: SlurmJob) -> str | None:
    """Return why a job, or the step that holds its nodes, has ended, as its output says; None if it does not say so."""
    try:
        with open(job.output, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _OUTPUT_TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = text.splitlines()
    if state := next((line.removeprefix(_JOB_ENDED) for line in lines if line.startswith(_JOB_ENDED)), ""):
        return None if state == _RUNNING else state
    if ends := _END.findall(text):  # one of the job and one of its step, of which both need not have the reason
        # Of an allocation there are the words about the step, which are the same when the user exits from it.
        other = "CANCELLED" if job.is_own else "COMPLETED or CANCELLED"
        return next((cause for due in ends for words, cause in _CAUSES.items() if due.startswith(words)), other)
    line = next((line for line in lines if line.startswith(_HOLDER_ENDED)), None)
    return None if line is None else line.removeprefix("tfcluster: ")


def ended_error(job: SlurmJob) -> ClusterError:
    """Return the error that a job has ended."""
    again = "env -u SLURM_JOB_ID " if allocation() == job.id else ""
    return ClusterError(
        f"stopped: Slurm job {job.id} ended ({find_end(job) or 'cause unknown'})",
        hint=f"`{again}tfcluster up` gets another allocation; logs and runs are kept.",
        exit_code=ExitCode.NOT_RUNNING,
    )


def release(job: SlurmJob) -> None:
    """End a job that was submitted here, or the step that holds the nodes of the user's allocation."""
    if job.is_own:
        state = look_up(job)
        if state is not None:
            _run(["scancel", *_in_cluster(job), str(job.id)])
    elif (holder := _holder(job)) is not None:
        holder.terminate(settings.STOP_GRACE_SECONDS, settings.AGENT_EXIT_SECONDS)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(job.output)


def _program(name: str) -> str:
    return find_program(name, "Run this on a login node of the Slurm cluster, or in a job.")


def _environment() -> dict[str, str]:
    """Return the environment for Slurm's commands: this process's, without what they would read as options."""
    unset = re.compile(_VARIABLES)
    return {name: value for name, value in os.environ.items() if name == "SLURM_CONF" or not unset.fullmatch(name)}


def _run(argv: Sequence[str], stdin: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Run a command of Slurm, and return what it prints."""
    argv = [_program(argv[0]), *argv[1:]]
    hint = "`sinfo` shows whether Slurm's controller answers; SLURM_CONF names its configuration."
    result = run_program(argv, stdin, _COMMAND_SECONDS, hint, environment or _environment())
    if result.returncode:
        said = " ".join(line.removeprefix("error: ").strip() for line in result.stderr.splitlines())
        if Path(argv[0]).name == "sbatch" and not _NOT_REACHED.search(said):
            hint = "Correct `slurm:` in the spec."
        raise ClusterError(f"{Path(argv[0]).name} failed: {said}", hint=hint)
    return result.stdout.strip()
