"""The command `tfcluster manifests`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tfcluster.cli.options import spec_argument
from tfcluster.cli.output import echo
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology
    from tfcluster.providers.kubernetes.request import KubernetesSpec

_NO_NAMESPACE = "the spec has no `namespace:`, which the addresses of the tasks need"


@click.command(
    "manifests",
    context_settings={"ignore_unknown_options": True},  # those of COMMAND
    epilog="Example: tfcluster manifests cluster.yaml | kubectl diff --server-side -f -",
)
@spec_argument
@click.option(
    "--export",
    type=click.Choice(["job"]),
    help="Print a plain Indexed Job instead, whose pods run COMMAND with their TF_CONFIG, without tfcluster.",
)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def manifests_command(spec: Path | None, export: str | None, command: tuple[str, ...]) -> None:
    """Print what `up` applies for a SPEC (default: ./cluster.yaml) with `kubernetes:`, as YAML. This contacts nothing.

    With --export job, COMMAND follows the SPEC, such as `python3 /app/train.py`.
    """
    from tfcluster.client.resolve import load_spec_topology
    from tfcluster.providers.kubernetes.manifests import job_manifests
    from tfcluster.providers.kubernetes.request import KubernetesSpec

    topology, request = load_spec_topology(spec, None)
    if not isinstance(request, KubernetesSpec):
        raise usage_error(f"{topology.spec} has no `kubernetes:`", "Only pods have manifests.")
    if (export is None) == bool(command):
        message = "--export job requires a COMMAND" if export else "a COMMAND is only for --export job"
        raise usage_error(message, "For example: tfcluster manifests --export job cluster.yaml python3 /app/train.py")
    objects = job_manifests(topology, request, command) if export else _all_manifests(topology, request)
    echo(objects.rstrip("\n"))


def _all_manifests(topology: ClusterTopology, request: KubernetesSpec) -> str:
    """Return the manifests with which the pods start their tasks by themselves."""
    from tfcluster.core.secrets import has_secrets
    from tfcluster.providers.kubernetes import manifests
    from tfcluster.providers.kubernetes.kubectl import place_for_manifests

    objects = [manifests.pod_manifests(topology, request)]
    reason = _NO_NAMESPACE if request.namespace is None else manifests.why_up_is_needed(topology)
    if reason is not None:
        objects[0] = f"# These pods wait for `tfcluster up`, which starts the tasks: {reason}.\n{objects[0]}"
    else:
        placed = place_for_manifests(topology, request)
        objects.append(manifests.topology_manifests(placed, request.namespace))
        if has_secrets(placed) and sys.stdout.isatty():
            echo("note: the Secret below has the values of your secrets", err=True)
    return "---\n".join([*objects, manifests.code_manifest(topology.cluster, request.namespace)])
