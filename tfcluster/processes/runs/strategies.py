"""Refuse, in the one process that `tfcluster run` starts, what needs a process for each task: `tfcluster launch`.

TensorFlow would wait for up to an hour for workers that never come, or fail because a port is in use.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_Prepare = Callable[[ModuleType], None]


def refuse_multi_process(addresses: Mapping[str, Sequence[str]], script: Sequence[str], args: Sequence[str]) -> None:
    """Have a MultiWorkerMirroredStrategy or tf.distribute.Server fail that would take the place of cluster servers.

    Those that have other addresses, or a strategy that has no other workers, are not affected. The error names the
    command that starts a process for each task, of `script`, the words that name the script, and its arguments.
    """
    servers = {address for tasks in addresses.values() for address in tasks}

    def prepare_strategy(module: ModuleType) -> None:
        extended: Any = getattr(module, "CollectiveAllReduceExtended", None)
        initialize = getattr(extended, "_initialize_multi_worker", None)
        if initialize is not None:  # else this TensorFlow is another one than those that are known
            command = shlex.join(["tfcluster", "launch", *script, *args])
            extended._initialize_multi_worker = _refuse_strategy(initialize, servers, command)

    def prepare_server(module: Any) -> None:
        make = getattr(module, "_make_server_def", None)
        if make is not None:
            module._make_server_def = _refuse_server(make, addresses, script, args)

    prepares: dict[str, _Prepare] = {
        "tensorflow.python.distribute.collective_all_reduce_strategy": prepare_strategy,
        "tensorflow.python.training.server_lib": prepare_server,
    }
    for name, prepare in prepares.items():
        if (module := sys.modules.get(name)) is not None:
            prepare(module)
        else:
            sys.meta_path.insert(0, _AfterImport(name, prepare))


def _refuse_strategy(initialize: Callable[[Any, Any], None], servers: set[str], command: str) -> Any:
    def initialize_unless_alone(self: Any, cluster_resolver: Any) -> None:
        cluster = cluster_resolver.cluster_spec().as_dict()
        workers = {address for job in ("chief", "worker") for address in cluster.get(job, ())}
        if workers & servers:
            raise RuntimeError(
                "MultiWorkerMirroredStrategy requires a process for each worker, and `tfcluster run` starts only one: "
                f"type `{command}`"
            )
        initialize(self, cluster_resolver)

    return initialize_unless_alone


def _refuse_server(
    make: Callable[..., Any], addresses: Mapping[str, Sequence[str]], script: Sequence[str], args: Sequence[str]
) -> Any:
    def make_unless_taken(*arguments: Any) -> Any:
        server = make(*arguments)
        jobs = {job.name: dict(job.tasks) for job in server.cluster.job}
        address = jobs.get(server.job_name, {}).get(server.task_index)
        if any(address in tasks for tasks in addresses.values()):
            each = ",".join(job for job in jobs if job in addresses)
            words = _as_member(args, server.job_name, server.task_index, jobs)
            command = shlex.join(["tfcluster", "launch", "--each", each, *script, *words])
            raise RuntimeError(
                f"{address} is the address of a server of the cluster, and cannot be that of a tf.distribute.Server. "
                f"To start a process for each task, each with its own address, type `{command}`"
            )
        return server

    return make_unless_taken


def _as_member(args: Sequence[str], job: str, index: int, jobs: Mapping[str, Mapping[int, str]]) -> list[str]:
    """Return the arguments of a script with the placeholders of `launch` for what names its task and the addresses."""
    placeholders = {job: "{job}", **{",".join(tasks.values()): f"{{{each}_hosts}}" for each, tasks in jobs.items()}}
    words = []
    for before, word in zip(("", *args), args, strict=False):
        flag, equals, value = word.rpartition("=")
        is_index = value == str(index) and "index" in (flag or before)
        words.append(flag + equals + ("{index}" if is_index else placeholders.get(value, value)))
    return words


class _AfterImport(MetaPathFinder):
    """Calls a function with a module, once, as soon as TensorFlow has imported it."""

    def __init__(self, name: str, prepare: _Prepare) -> None:
        self._name = name
        self._prepare = prepare

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            self._wrap(spec.loader)
        return spec

    def _wrap(self, loader: Any) -> None:
        execute = loader.exec_module

        def execute_and_prepare(module: ModuleType) -> None:
            execute(module)
            self._prepare(module)

        loader.exec_module = execute_and_prepare
