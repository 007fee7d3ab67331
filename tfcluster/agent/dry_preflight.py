"""Preflight checks of a host without an agent (dry run): starts nothing and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tfcluster.agent.host_facts import gpu_ids, other_accounts
from tfcluster.agent.ports import NO_SOCKET_TABLES, PortAllocator
from tfcluster.agent.preflight import Candidate, run_checks
from tfcluster.core.topology import PRIVATE, ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.processes.probes import connection_failures
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.protocol.api.cluster import FailedCheck, PrepareReply
from tfcluster.protocol.serialization import decode, to_json
from tfcluster.tf_install import find_tensorflow_library


class DryPreflight:
    """Runs the preflight checks on this host.

    Args:
        folder: The directory for the cluster's state, or its closest ancestor that exists.
        environment: The environment that an agent would have; it is only read.
    """

    def __init__(self, host: str, folder: Path, environment: Mapping[str, str]) -> None:
        self._host = host
        self._folder = folder
        self._environment = environment
        self._ports = PortAllocator()
        self._tls_ports = PortAllocator()
        self._listening = ExitStack()

    def prepare(self, topology: dict[str, Any], listen: bool) -> dict[str, Any]:
        """Check the host for a topology, as an agent does for `PrepareRequest`.

        With `listen`, the process accepts connections on the allocated ports until it exits. Otherwise the ports are
        free again as soon as this method returns.

        Returns:
            The fields of a PrepareReply, and `installation`: the failures of the TensorFlow installation.
        """
        version, installation = None, []
        try:
            version = TensorFlow(find_tensorflow_library()).version
        except ClusterError as error:
            installation.append(to_json(FailedCheck("tensorflow", error)))
        desired, gpus = decode(ClusterTopology, topology), gpu_ids(self._environment)
        if desired.network == PRIVATE:
            self._ports.move_to(NO_SOCKET_TABLES)
        candidate = Candidate(desired, self._host, self._folder, self._ports, gpus, tls_ports=self._tls_ports)
        allocation, failures = run_checks(candidate)
        for ports in (self._ports, self._tls_ports):
            if listen:
                self._listening.enter_context(ports.listen_temporarily(ports.reserved))
            else:
                ports.release_except(())
        reply = PrepareReply(version, allocation, tuple(failures), other_accounts())
        return {**to_json(reply), "installation": installation}

    def failures(self, addresses: list[str], timeout: float) -> dict[str, str]:
        """Connect to addresses of other hosts, and return the error of each that failed; `timeout` holds for each."""
        return connection_failures(addresses, timeout)
