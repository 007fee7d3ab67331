"""The commands on a spec: `tfcluster init`, `schema`, `validate` and `doctor`."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcluster.cli.options import output_option, spec_argument
from tfcluster.cli.output import echo, echo_json
from tfcluster.cli.up import preflight_progress
from tfcluster.errors import ClusterError, ExitCode, usage_error

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology


#: What `init` writes after the line that names the schema for editors.
TEMPLATE = (Path(__file__).parent / "template.yaml").read_text(encoding="utf-8")
SCHEMA = Path(__file__).parent.parent / "spec" / "schema.json"


@click.command("init", epilog="Example: tfcluster init && tfcluster up")
@click.argument("spec", required=False, default="cluster.yaml", type=click.Path(path_type=Path))
def init_command(spec: Path) -> None:
    """Write a commented spec to SPEC, ./cluster.yaml by default; SPEC `-` is standard output.

    A file that exists is never overwritten.
    """
    text = f"# yaml-language-server: $schema={SCHEMA.as_uri()}\n{TEMPLATE}"
    if spec == Path("-"):
        echo(text.removesuffix("\n"))
        return
    try:
        with spec.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise usage_error(f"{spec} exists already", "Name another file: `tfcluster init other.yaml`.") from error
    except OSError as error:
        raise ClusterError(f"{spec}: cannot be written: {error.strerror}") from error
    argument = "" if spec == Path("cluster.yaml") else f" {shlex.quote(str(spec))}"
    echo(f"wrote {spec}; start the cluster with `tfcluster up{argument}`")


@click.command("schema", epilog="Example: tfcluster schema > cluster.schema.json")
def schema_command() -> None:
    """Print the JSON schema of a spec, with which editors complete and check its keys.

    The first line of the file that `tfcluster init` writes names the schema of this installation. For a spec that you
    share, keep the schema beside it, and change that line to
    `# yaml-language-server: $schema=FILE`.
    """
    echo(SCHEMA.read_text(encoding="utf-8").removesuffix("\n"))


@click.command("validate", epilog="Example: tfcluster validate cluster.yaml")
@spec_argument
@click.option("--cluster-spec", metavar="NOTATION", help="A cluster in one line instead of a file.")
@output_option
def validate_command(spec: Path | None, cluster_spec: str | None, output: str) -> None:
    """Check SPEC, ./cluster.yaml by default, and report every problem at once with its line and column.

    SPEC `-` is standard input, here and for other commands that read a spec.

    Exits with 2 if there are problems.
    """
    from tfcluster.client.resolve import load_spec_topology
    from tfcluster.core.text import summarize_list
    from tfcluster.paths import LOCAL_HOST
    from tfcluster.spec.variables import SpecEnvironment

    # The same answer in an allocation and elsewhere.
    topology, _ = load_spec_topology(spec, cluster_spec, SpecEnvironment(allocation={}))
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


@click.command("doctor", epilog="Example: tfcluster doctor cluster.yaml -o json | jq '.checks[] | select(.ok | not)'")
@spec_argument
@click.option(
    "--print-systemd",
    is_flag=True,
    help="Do not check; print for each host a systemd user unit, or a line for cron, that starts the cluster there "
    "after a reboot.",
)
@output_option
def doctor_command(spec: Path | None, print_systemd: bool, output: str) -> int:
    """Check all hosts of SPEC (default: ./cluster.yaml) as `up` does, without starting a cluster.

    It does not run `setup:` of the spec, and leaves nothing but tfcluster's code on the hosts.

    It checks whether each host can be reached and has a Python with TensorFlow, whether its clock is right, whether
    its ports and GPUs are free, and whether the hosts can connect to each other; and prints a fix for each problem.

    With `slurm:` in the spec, it checks whether Slurm would accept the job, and the nodes of a job that is running.
    With `kubernetes:`, it checks the rights in the namespace, and the pods of a cluster that is up.

    Exits with 0 if there is no problem, 5 if a host cannot be reached, 1 otherwise.
    """
    from tfcluster.client.hosts import check_hosts
    from tfcluster.client.resolve import load_spec_topology, load_topology

    if print_systemd:
        _print_boot_units(load_topology(spec, None), output)
        return int(ExitCode.DONE)
    topology, request = load_spec_topology(spec, None)
    with preflight_progress(topology.cluster, output) as progress:
        checks, code = check_hosts(topology, request, progress)
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
