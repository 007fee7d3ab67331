"""The commands on a spec: `tfcluster init`, `validate` and `doctor`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcluster.cli.options import output_option
from tfcluster.cli.output import echo, echo_json
from tfcluster.cli.up import preflight_progress
from tfcluster.errors import ClusterError, ExitCode

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology

#: What `init` writes.
TEMPLATE = """\
# A TensorFlow cluster. Start it with `tfcluster up`; check this file with `tfcluster validate`.
# To use a key that is commented out, delete the # before it.
# It is code, like a Makefile: `tfcluster up` runs `setup` and `python` on the hosts that it names.

# The name by which commands find the cluster. Default: the folder's for a cluster.yaml, else the file's.
#name: demo

# The machines on which tasks are placed in turn, by names of your choice; `localhost` is this one. Default: localhost.
#   address  what the other hosts connect to, a name or an IP address. Default: the name here.
#   ssh      where ssh finds it, as user@host or a name of ~/.ssh/config. Default: the name here.
#   python   the Python there that has TensorFlow. Default: python3.
#   env      added to the environment of each task there. Default: nothing.
#   state    the folder there for logs and runs. Default: ~/.local/state/tfcluster, or what XDG_STATE_HOME is there.
#   setup    shell commands that `up` runs there once, before anything else. Default: none.
#   slots    how many tasks of a job it gets before the next host gets some. Default: 1.
# For localhost only address, env and slots apply. If hosts need no settings, write [alpha, beta]. `hostfile: FILE`
# reads them from a hostfile of Open MPI or DeepSpeed (a line is `alpha slots=2`).
#hosts: {localhost: {address: 10.0.0.10}, alpha: {address: 10.0.0.11, ssh: tf@alpha, python: /opt/tf/bin/python}}

# The jobs of the cluster; a job's name is free, for example ps, worker, chief, master or local.
jobs:
  ps:
    # How many tasks (TensorFlow servers) the job has; their ports are chosen and kept.
    # A list such as ["localhost:2222", "localhost:2223"] fixes them.
    tasks: 1
  worker:
    tasks: 2
    # The hosts on which its tasks are placed in turn; one may be named repeatedly. Default: all of them.
    #hosts: [localhost]
    # Servers learn each other's addresses when they start. With `max` the addresses of that many tasks are known from
    # the start, and the job can grow up to it (`tfcluster scale worker=4`) without restarting any. Default: tasks.
    #max: 8
    # The logical CPU devices of each task, to try programs for several devices without GPUs. Default: 1.
    #cpus: 2
    # The GPUs that each task has to itself. Default: 0.
    #gpus: 1
    # Added to the environment of each task; write numbers in quotes. The value in {secret: VALUE} is shown nowhere.
    # Default: nothing.
    #env: {OMP_NUM_THREADS: "1", TOKEN: {secret: "abc"}}
    # Keys of `restart` (below) that are different for this job. Default: nothing.
    #restart: {policy: never}
  # A job may also be written as the list of its addresses, as in TensorFlow's ClusterSpec; with the name or the address
  # of one of the hosts in each.
  #local: ["localhost:2222", "localhost:2223"]

# Who can connect to the tasks: closed (every account on the hosts of this cluster, and runs code as you), private
# (only you: the cluster has its own network, in which programs reach nothing else and your own ones are started
# by `tfcluster exec`), or open (everyone who reaches the ports: TensorFlow asks for no password). Default: closed.
#network: closed

# Which tasks that exit are restarted: never, on-failure (killed, or an exit code other than 0) or always
# (policy, default: on-failure). The first restart is immediate; the seconds before the next ones start with
# `initial` and double up to `max` (backoff, default: 0.1 and 30), and each wait is shortened by a random part of up to
# one half, so that tasks that died together do not all restart at the same moment. More restarts than the
# limit in that number of seconds make a task fail (default: 5 in 60).
#restart: {policy: on-failure, backoff: {initial: 0.1, max: 30}, limit: 5 in 60}

# How much of the output of tasks and runs is kept. For each task, `count` files of this size (default: 5 and 10 MB);
# rotation deletes the oldest. For each run, its beginning and its end, together of the size `run` (default: 100 MB); a
# command that follows it shows all of it. For all runs on a host together, the size `runs` (default: 2 GB); the output
# of the oldest ones is removed first. A size is written 10 MB, 1 GiB, 500 kB or in bytes.
#logs: {size: 10 MB, count: 5, run: 100 MB, runs: 2 GB}

# Where notices of failed tasks, unreachable hosts and finished runs are sent (events, default: all three): a
# webhook gets JSON by HTTP POST, a shell command gets it as input. A notice that fails is sent again. Default: none.
#notify: {webhook: "https://hooks.example.org/T0", command: "logger", events: [task-failed, host-away, run-finished]}

# A host that no command has reached for this many seconds stops its part of the cluster, so that nothing keeps running
# where you can no longer connect. Default: never.
#lease: 86400
"""


@click.command(
    "init",
    short_help="Write a commented cluster.yaml to start from.",
    epilog="Example: tfcluster init && tfcluster up",
)
@click.argument("spec", required=False, default="cluster.yaml", type=click.Path(path_type=Path))
def init_command(spec: Path) -> None:
    """Write a commented spec to SPEC, ./cluster.yaml by default; SPEC `-` is standard output.

    A file that exists is never overwritten.
    """
    if spec == Path("-"):
        echo(TEMPLATE.removesuffix("\n"))
        return
    try:
        with spec.open("x") as file:
            file.write(TEMPLATE)
    except FileExistsError as error:
        raise ClusterError(
            f"{spec} exists already",
            hint="Name another file: `tfcluster init other.yaml`.",
            exit_code=ExitCode.USAGE,
        ) from error
    except OSError as error:
        raise ClusterError(f"{spec}: cannot be written: {error.strerror}") from error
    argument = "" if spec == Path("cluster.yaml") else f" {shlex.quote(str(spec))}"
    echo(f"wrote {spec}; start the cluster with `tfcluster up{argument}`")


@click.command(
    "validate",
    short_help="Check a spec without starting anything.",
    epilog="Example: tfcluster validate cluster.yaml",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option("--cluster-spec", metavar="NOTATION", help="A cluster in one line instead of a file.")
@output_option
def validate_command(spec: Path | None, cluster_spec: str | None, output: str) -> None:
    """Check SPEC, ./cluster.yaml by default, and report every problem at once with its line and column.

    Exits with 2 if there are problems.
    """
    from tfcluster.client.resolve import load_spec_topology
    from tfcluster.core.text import summarize_list
    from tfcluster.paths import LOCAL_HOST

    topology, _ = load_spec_topology(spec, cluster_spec)
    if output == "json":
        echo_json(topology.masked())
        return
    jobs = ", ".join(
        f"{len(tasks)} {job}" + (f" (max {topology.max[job]})" if job in topology.max else "")
        for job, tasks in topology.addresses().items()
    )
    names = [host.name for host in topology.hosts]
    where = "" if names == [LOCAL_HOST] else f" on {summarize_list(names)}"
    echo(f"{topology.spec} is valid: cluster {topology.cluster!r}, {jobs}{where}")


@click.command(
    "doctor",
    short_help="Check the hosts of a spec.",
    epilog="Example: tfcluster doctor cluster.yaml -o json | jq '.checks[] | select(.ok | not)'",
)
@click.argument("spec", required=False, type=click.Path(path_type=Path))
@click.option(
    "--print-systemd",
    is_flag=True,
    help="Check nothing; print for each host a systemd user unit, or a line for cron, that starts it after a reboot.",
)
@output_option
def doctor_command(spec: Path | None, print_systemd: bool, output: str) -> int:
    """Check all hosts of SPEC (default: ./cluster.yaml) as `up` does, without changing anything on them.

    Of the spec, only `python:`, in isolated mode, and `shell:` are executed there: no `setup:`, and without `env:`.

    It checks whether each host can be reached and has a Python with TensorFlow, whether its clock is right, whether
    its ports and GPUs are free, and whether the hosts can connect to each other; and prints a fix for each problem.

    Exits with 0 if there is no problem, 5 if a host cannot be reached, 1 otherwise.
    """
    from tfcluster.client.preflight.preflight import check_hosts
    from tfcluster.client.resolve import load_topology

    topology = load_topology(spec, None)
    if print_systemd:
        _print_boot_units(topology, output)
        return int(ExitCode.DONE)
    with preflight_progress(topology.cluster, output) as progress:
        checks, code = check_hosts(topology, progress)
    if output == "json":
        echo_json({"cluster": topology.cluster, "checks": [check.to_json() for check in checks]})
    else:
        from tfcluster.ui.listings import show_checks

        show_checks(checks)
    return int(code)


def _print_boot_units(topology: ClusterTopology, output: str) -> None:
    """Print the units, or lines for cron, that start the agents of a cluster after a reboot."""
    from tfcluster.client.boot_unit import boot_units

    units = boot_units(topology)
    if output == "json":
        echo_json([asdict(unit) for unit in units])
        return
    for unit in units:
        name = Path(unit.file).name
        echo(
            f"# On {unit.host}, as {unit.file}; then type:\n"
            f"#   systemctl --user enable {name} && loginctl enable-linger\n"
            f"# Without systemd, a line for `crontab -e`:\n#   {unit.cron}\n{unit.unit}"
        )
