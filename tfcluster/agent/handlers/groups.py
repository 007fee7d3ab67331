"""RPC handlers of `launch`: lead the run of a group of processes, or start the group's members on this host."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import Any, NoReturn

from tfcluster.agent.context import AgentContext
from tfcluster.agent.upload import validate_filename
from tfcluster.core.groups import Group, check_arguments, select_members
from tfcluster.core.tf_config import refusal_notes
from tfcluster.core.topology import CLOSED, PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.runs.run_spec import RunSpec
from tfcluster.protocol.api import Done, Reply, Response
from tfcluster.protocol.api.runs import GroupRequest, JoinRequest, RunRequest

#: What the ids of groups' runs begin with.
_PREFIX = "launch"


async def join(context: AgentContext, request: JoinRequest) -> Response[NoReturn, Done]:
    """Start the process that starts the group's members on this host when its coordinator says so."""
    context.reject_if_going_down()
    group = replace(_group(context, request.group, request.parameters), coordinator=request.coordinator)
    if not context.runs.store.make_folder(validate_filename(request.run)):
        raise ClusterError(f"host {context.host} has another run {request.run} already", hint="Launch it again.")
    job = replace(_spec(context, request.run, request, group), code=request.code)
    try:
        run = context.runs.submit(job, request.timeout, detached=True)
    except OSError as error:
        raise not_recorded(job, error) from error
    context.runs.start(run)
    yield Reply(Done())


def group_spec(context: AgentContext, request: RunRequest, group_request: GroupRequest) -> RunSpec:
    """Create the directory of a new run that is a group, and return the specification for its driver."""
    group = _group(context, group_request, request.parameters)
    run_id = context.runs.store.new_run(request.name or _PREFIX, is_on_several_hosts=len(group.hosts) > 1)
    return replace(
        _spec(context, run_id, request, group),
        start_timeout=request.start_timeout,
        notify=request.notify,
        upload=request.upload,
        origin=request.origin,
        code=request.code,
        caller=request.caller,
    )


def _group(context: AgentContext, request: GroupRequest, parameters: dict[str, Any]) -> Group:
    topology = context.supervisor.require_cluster()
    context.network.find(topology.network)  # before the run has a folder: it may be gone
    members = select_members(topology, request.jobs)
    check_arguments(parameters["args"], list(topology.addresses()))
    jobs = {member.job for member in members}
    servers = {job: addresses for job, addresses in topology.addresses().items() if job not in jobs}
    address = next(host.address for host in topology.hosts if host.name == context.host)
    if topology.network == PRIVATE:
        address = LOCAL_HOST
    return Group(members, servers, request.max_restarts, request.secret, address)


def _spec(context: AgentContext, run_id: str, request: RunRequest | JoinRequest, group: Group) -> RunSpec:
    topology = context.supervisor.require_cluster()
    return RunSpec(
        run=run_id,
        cluster=topology.cluster,
        program=request.program,
        traits=request.traits,
        folder=context.state_dir.runs / run_id,
        addresses=topology.addresses(),
        head=topology.head().address,
        devices=[],
        parameters=request.parameters,
        notes=refusal_notes({member.job for member in group.members}),
        peers=peers_of(topology),
        host=context.host,
        group=group,
        network=context.network.private,
        ports=topology.program_ports_on(context.host),
        output_limit=topology.logs.run,
    )


def peers_of(topology: ClusterTopology) -> dict[str, str] | None:
    """Return the names and addresses of the hosts that may connect to the ports of a run, or None if all may."""
    return {host.name: host.address for host in topology.hosts} if topology.network == CLOSED else None


def not_recorded(spec: RunSpec, error: OSError) -> ClusterError:
    """Remove the folder of a run that cannot be recorded, and return the error to raise."""
    shutil.rmtree(spec.folder, ignore_errors=True)
    return ClusterError(f"{spec.folder}: cannot record the run: {error.strerror}")
