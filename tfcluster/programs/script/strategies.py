"""Refuse, in the one process of `tfcluster run`, a strategy that requires a process for each worker.

TensorFlow would wait for up to an hour for workers that never come.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

_MODULE = "tensorflow.python.distribute.collective_all_reduce_strategy"


def refuse_multi_worker(addresses: Mapping[str, Sequence[str]], command: str) -> None:
    """Have a MultiWorkerMirroredStrategy fail if it would wait for the cluster's servers to become its workers.

    The error names `command`, which starts a process for each worker. A strategy without other workers, or with its
    own, is not affected.
    """
    servers = {address for tasks in addresses.values() for address in tasks}

    def prepare(module: ModuleType) -> None:
        extended: Any = getattr(module, "CollectiveAllReduceExtended", None)
        initialize = getattr(extended, "_initialize_multi_worker", None)
        if initialize is not None:  # else this TensorFlow is another one than those that are known
            extended._initialize_multi_worker = _refuse(initialize, servers, command)

    if (module := sys.modules.get(_MODULE)) is not None:
        prepare(module)
    else:
        sys.meta_path.insert(0, _AfterImport(prepare))


def _refuse(initialize: Callable[[Any, Any], None], servers: set[str], command: str) -> Callable[[Any, Any], None]:
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


class _AfterImport(MetaPathFinder):
    """Calls a function once with the strategy's module, as soon as TensorFlow has imported it."""

    def __init__(self, prepare: Callable[[ModuleType], None]) -> None:
        self._prepare = prepare

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != _MODULE:
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
