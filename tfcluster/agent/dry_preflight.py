"""The examination of a host by a process that is no agent: it starts nothing, and nothing is left of it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tfcluster.agent.accounts import other_accounts
from tfcluster.agent.gpus import gpu_ids
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.preflight import examine
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.processes.c_api import TensorFlow
from tfcluster.processes.connect_check import failures_of
from tfcluster.tf_install import find_tensorflow_library


class DryPreflight:
    """Examines this host.

    Args:
        host: What the cluster calls it.
        folder: Where the cluster's state would be kept, or the innermost folder around that.
        environment: What an agent would have in its environment; only read.
    """

    def __init__(self, host: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._host = host
        self._folder = folder
        self._environment = environment
        self._ports = PortAllocator()
        self._listening = ExitStack()

    def prepare(self, topology: dict[str, Any], listen: bool) -> dict[str, Any]:
        """Examine the host for a topology, as an agent does for Method.PREPARE.

        Args:
            topology: The topology.
            listen: Let connections come to the ports that are chosen, until this process ends; else they are free
                again at once.

        Returns:
            What that call has as its reply, but `installation` has what is wrong with what is installed.
        """
        version, installation = None, []
        try:
            version = TensorFlow(find_tensorflow_library()).version
        except ClusterError as problem:
            installation.append(problem.to_json())
        choices, problems = examine(
            ClusterTopology.from_json(topology), self._host, self._folder, self._ports, gpu_ids(self._environment)
        )
        accounts = other_accounts()
        if listen:
            self._listening.enter_context(self._ports.listening(self._ports.held))
        else:
            self._ports.keep_only(())
        return {
            "tensorflow": version,
            "choices": asdict(choices),
            "found": None,
            "problems": [problem.to_json() for problem in problems],
            "accounts": accounts.to_json() if accounts else None,
            "installation": installation,
        }

    def failures(self, addresses: list[str], timeout: float) -> dict[str, str]:
        """Dial others: why, by address, for those to which that failed."""
        return failures_of(addresses, timeout)
