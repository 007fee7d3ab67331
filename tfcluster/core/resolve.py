"""Resolve a validated spec into the topology of the cluster: place each task on its host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.core.topology import PRIVATE, THREAD_VARIABLES, ClusterTopology, LogLimits, Notify, RestartPolicy, Task
from tfcluster.paths import LOCAL_HOST

if TYPE_CHECKING:  # The agent resolves no spec and must run where pydantic is not installed.
    from tfcluster.spec.policies import RestartSpec
    from tfcluster.spec.schema import Address, Spec

_DEFAULT_PYTHON = "python3"


def resolve_spec(spec: Spec, spec_file: str) -> ClusterTopology:
    """Resolve a validated spec: place its tasks and apply the defaults; ports and GPUs may remain to be allocated."""
    host_order = {name: spec.placement_hosts(job) for name, job in spec.jobs.items()}
    used = {host for hosts in host_order.values() for host in hosts}
    hosts = {host.name: host for host in _hosts(spec) if host.name in used}
    tasks = [
        _task(name, index, address, hosts[host_order[name][index % len(host_order[name])]], spec)
        for name, job in spec.jobs.items()
        for index, address in enumerate((*job.tasks, *[None] * ((job.max or 0) - len(job.tasks))))
    ]
    return ClusterTopology(
        cluster=spec.name,
        spec=spec_file,
        network=spec.network,
        tasks=tuple(task for task in tasks if task.index < len(spec.jobs[task.job].tasks)),
        logs=LogLimits(**spec.logs.model_dump()),
        reserved=tuple(task for task in tasks if task.index >= len(spec.jobs[task.job].tasks)),
        max={name: job.max for name, job in spec.jobs.items() if job.max is not None},
        hosts=tuple(hosts.values()),
        host_order=host_order,
        warm=spec.warm,
        lease=spec.lease,
        notify=_notify(spec),
    )


def _notify(spec: Spec) -> Notify | None:
    if spec.notify is None:
        return None
    return Notify(spec.notify.url(), spec.notify.command, spec.notify.events)


def _hosts(spec: Spec) -> list[Host]:
    if spec.hosts is None:
        return [THIS_MACHINE]
    return [
        Host(
            name=name,
            address=host.address or name,
            ssh=None if name == LOCAL_HOST or host.connect else host.ssh or name,
            connect=host.connect,
            python=None if name == LOCAL_HOST else host.python or _DEFAULT_PYTHON,
            state=host.state,
            env=dict(host.env),
            setup=host.setup,
            shell=host.shell,
            tls_port=host.tls_port,
        )
        for name, host in spec.hosts.items()
    ]


def _task(job_name: str, index: int, address: Address | None, host: Host, spec: Spec) -> Task:
    job = spec.jobs[job_name]
    address_host = address.advertised_host(host.address) if address else host.address
    own = {**({} if job.threads is None else dict.fromkeys(THREAD_VARIABLES, str(job.threads))), **job.variables()}
    return Task(
        job=job_name,
        index=index,
        host=host.name,
        # In a private network there is nothing but its loopback device.
        address_host=LOCAL_HOST if spec.network == PRIVATE else address_host,
        port=address.port if address else None,
        cpus=job.cpus,
        gpus=job.gpus,
        env={**host.env, **own},
        restart=_restart_policy(spec.effective_restart(job)),
        secrets=job.secrets(),
        from_host=tuple(name for name in host.env if name not in own),
    )


def _restart_policy(restart: RestartSpec) -> RestartPolicy:
    return RestartPolicy(
        policy=restart.policy,
        initial=restart.backoff.initial,
        max=restart.backoff.max,
        limit=restart.limit.count,
        window=restart.limit.seconds,
    )
