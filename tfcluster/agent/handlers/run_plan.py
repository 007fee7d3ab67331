"""Decide the plan of a run: its devices, the task that leads it, its folder and its addresses."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.upload import validate_filename
from tfcluster.core.devices import Device, Selection, not_ready, select
from tfcluster.core.groups import Group, check_arguments, select_members
from tfcluster.core.programs import missing_notes, required_tasks
from tfcluster.core.runs import RunOptions
from tfcluster.core.tf_config import refusal_notes
from tfcluster.core.topology import PRIVATE, PS_JOB, ClusterTopology, Task
from tfcluster.errors import ClusterError
from tfcluster.paths import LOCAL_HOST
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.api.runs import JoinRequest, RunRequest


async def plan_run(context: AgentContext, request: RunRequest) -> RunPlan:
    """Choose the devices of a new run, create its folder, and return its plan.

    Raises:
        ClusterError: The run needs a task that is not ready, or has other options that cannot be met.
    """
    options = request.options
    if options.jobs is not None:
        group = _make_group(context, options, request.secret)
        run_id = context.runs.store.new_run(options.run_name, is_on_several_hosts=len(group.hosts) > 1)
        return replace(_plan_group(context, run_id, options, group), code=request.code, caller=request.caller)
    every, missing = await _probe_devices(context)
    devices = [device for device in every if device.task not in missing]
    context.reject_if_going_down()
    topology = context.supervisor.require_cluster()
    head = _head(topology, context.host, missing)
    selection = _select(topology, head, devices, missing, options)
    context.network.find(topology.network)  # before the folder: it may be gone
    run_id = context.runs.store.new_run(options.run_name)
    refused = refusal_notes(topology.addresses()) if options.traits.is_script else []
    return replace(
        _make_plan(context, run_id, options, [*selection.notes, *missing_notes(missing), *refused]),
        head=head.address,
        devices=[device.name for device in selection.devices],
        late_devices=_late_devices(every, missing, selection, options),
        missing=missing,
        code=request.code,
        caller=request.caller,
        streams=request.streams,
    )


def plan_part(context: AgentContext, request: JoinRequest) -> RunPlan:
    """Create the folder of the run that starts the members on this host of a group that another host leads.

    If this host was lost to the group, it is there from an earlier attempt.
    """
    group = replace(_make_group(context, request.options, request.secret), coordinator=request.coordinator)
    run = validate_filename(request.run)
    if not (context.runs.store.make_folder(run) or context.runs.forget_part(run)):
        raise ClusterError(f"host {context.host} has another run {request.run} already", hint="Launch it again.")
    return replace(_plan_group(context, request.run, request.options, group), code=request.code)


def _make_group(context: AgentContext, options: RunOptions, secret: str) -> Group:
    topology = context.supervisor.require_cluster()
    context.network.find(topology.network)  # before the run has a folder: it may be gone
    members = select_members(topology, options.jobs or ())
    check_arguments(options.parameters["args"], list(topology.addresses()))
    jobs = {member.job for member in members}
    servers = {job: addresses for job, addresses in topology.addresses().items() if job not in jobs}
    address = next(host.address for host in topology.hosts if host.name == context.host)
    if topology.network == PRIVATE:
        address = LOCAL_HOST
    return Group(members, servers, secret, address)


def _plan_group(context: AgentContext, run_id: str, options: RunOptions, group: Group) -> RunPlan:
    notes = refusal_notes({member.job for member in group.members})
    return replace(_make_plan(context, run_id, options, notes), group=group)


def _make_plan(context: AgentContext, run_id: str, options: RunOptions, notes: list[str]) -> RunPlan:
    """Return what is the same for all plans of runs on this host; the devices are none."""
    topology = context.supervisor.require_cluster()
    return RunPlan(
        run=run_id,
        cluster=topology.cluster,
        options=options,
        folder=context.runs.store.folder(run_id),
        addresses=topology.addresses(),
        head=topology.head().address,
        devices=[],
        notes=notes,
        peers={host.name: host.address for host in topology.hosts} if topology.closes_ports else None,
        host=context.host,
        network=context.network.find(topology.network),
        ports=topology.program_ports_on(context.host),
        output_limit=topology.logs.run,
    )


async def _probe_devices(context: AgentContext) -> tuple[list[Device], dict[str, str]]:
    """Probe all tasks, on this host and on others, and list their devices.

    Returns the devices in the order of the tasks in the topology, and why each task that is not ready is not, by its
    name. Of such a task, the devices are those of its last answer; without one, the CPU that every server has.
    """
    supervisor = context.supervisor
    names = {task.name: number for number, task in enumerate(supervisor.require_cluster().tasks)}
    silent, (devices, missing) = await asyncio.gather(
        supervisor.probe_all(settings.RUN_PROBE_SECONDS), context.remote_tasks.probe_all()
    )
    missing.update({task.spec.name: task.describe_problem() for task in silent})
    devices += [device for task in supervisor.tasks.values() for device in task.devices]
    known = {device.task for device in devices}
    unknown = [task for task in missing if task not in known]
    devices += [Device(task.replace("/task:", "/replica:0/task:") + "/device:CPU:0", "CPU") for task in unknown]
    existing = [device for device in devices if device.task in names]
    return sorted(existing, key=lambda device: names[device.task]), missing


def _head(topology: ClusterTopology, host: str, missing: Collection[str]) -> Task:
    """Return the head task or, if its host is away, so that this one leads the run, a task that is ready here."""
    head = topology.head()
    if head.name not in missing or head.host == host:
        return head
    ready = [task for task in topology.on(host) if task.name not in missing]
    return next((task for task in ready if task.job != PS_JOB), ready[0] if ready else head)


def _select(
    topology: ClusterTopology, head: Task, devices: list[Device], missing: Mapping[str, str], options: RunOptions
) -> Selection:
    """Select the devices of a run, which does without the tasks that are not ready unless it needs them.

    `missing` says why tasks are not ready, by their names; `devices` are those of all other tasks.
    """
    selection = select(devices, patterns=options.devices, gpus=options.gpus, strict=options.strict, missing=missing)
    if options.traits.is_script:  # it need not compute on any task
        return selection
    if missing and not selection.devices:
        raise not_ready(missing.values())
    names = [device.name for device in selection.devices]
    required = required_tasks(options.traits, names, topology.addresses(), head.address)
    if problems := [missing[task] for task in required if task in missing]:
        raise not_ready(problems)
    return selection


def _late_devices(
    every: list[Device], missing: Mapping[str, str], selection: Selection, options: RunOptions
) -> list[str]:
    """Return the devices that a run would use too if their tasks were ready.

    They are of the same types as those that it uses. A run on a number of GPUs has no others.
    """
    types = {device.type for device in selection.devices}
    if not missing or (options.gpus is not None and "GPU" in types):
        return []
    wanted = select(every, patterns=options.devices).devices
    return [device.name for device in wanted if device.task in missing and device.type in types]
