"""Supervises the forwarder, which connects the tasks of a private cluster on this host with those on others."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import signal
import socket
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.cluster_network import ClusterNetwork
from tfcluster.agent.logs.cluster_logs import EventLog
from tfcluster.agent.ports import PortAllocator
from tfcluster.agent.state.secret_store import SecretStore
from tfcluster.agent.state.state_dir import StateDir
from tfcluster.agent.subprocesses import HelperProcess
from tfcluster.core.forwarding import Certificate, CertificateFacts, Forwarding, forwarders_of
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.os.files import read_own_file, write_atomically
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.processes.forwarder import forward, loaded_path
from tfcluster.protocol.serialization import from_stored, to_stored
from tfcluster.runtime_dir import certificate_path, make_again

_logger = logging.getLogger(__name__)


class ForwarderSupervisor(HelperProcess):
    """Keeps a forwarder running as long as the cluster is private and on several hosts.

    It outlives the agent, as tasks do. Its certificate is kept as secret values are: in a file next to theirs, which
    only this user can read.
    """

    outlives_agent = True
    restarts = True

    def __init__(
        self,
        cluster: str,
        host: str,
        folder: StateDir,
        network: ClusterNetwork,
        secrets: SecretStore,
        history: EventLog,
    ) -> None:
        super().__init__(f"tfcluster: {cluster} forwarder", folder.forwarder_stderr)
        self._host = host
        self._folder = folder
        self._network = network
        self._secrets = secrets
        self._history = history
        self.ports = PortAllocator()  # reserves the port of the forwarder, which is in this machine's network
        self._certificate: Certificate | None = None
        self._config: Forwarding | None = None

    @property
    def certificate(self) -> CertificateFacts | None:
        """Return what is known of this host's certificate; None if it has none."""
        own = self._certificate
        return None if own is None else CertificateFacts(own.authority, own.until)

    @property
    def port(self) -> int | None:
        """Return the port on which the forwarder listens for other hosts; None if there is no forwarder."""
        return None if self._config is None else self._config.own.port

    def listen_temporarily(self) -> AbstractContextManager[list[socket.socket]]:
        """Listen on the reserved port for a connectivity check, unless the forwarder does; see `PortAllocator`."""
        return self.ports.listen_temporarily(self.ports.reserved if self._config is None else ())

    def _certificate_path(self) -> Path:
        return certificate_path(self._secrets.path)

    async def start(self, topology: ClusterTopology, certificate: Certificate | None) -> None:
        """Forward what the topology of a cluster needs that is about to start; return when the forwarder listens.

        Raises what `configure` and `wait_until_listening` raise; there is no forwarder then.
        """
        try:
            self.configure(topology, certificate)
            await self.wait_until_listening()
        except BaseException:
            self.stop()
            raise

    def configure(self, topology: ClusterTopology, certificate: Certificate | None) -> None:
        """Forward what a topology needs, from now on; without a certificate this host keeps the one that it has.

        Raises ClusterError if the host has no certificate, or the files cannot be written.
        """
        self._certificate = certificate or self._certificate
        self.ports.stop_listening()
        forwarders = forwarders_of(topology)
        if self._host not in forwarders:
            self.stop()
            return
        if self._certificate is None:
            raise ClusterError(
                "this host has no certificate for the cluster's private network", hint="Type `tfcluster up` again."
            )
        self._config = Forwarding(self._host, forwarders, self._certificate_path(), self._certificate.until)
        try:
            self._write_files(self._config, self._certificate)
        except OSError as error:
            raise ClusterError(f"{error.filename}: cannot be written: {error.strerror}") from error
        if self.process is None:
            self.start_or_retry()
        else:
            self.signal(signal.SIGHUP)

    async def wait_until_listening(self) -> None:
        """Wait until the forwarder does what `configure` has asked for, if there is to be one.

        Raises ClusterError if it does not listen, for example because another process has its port.
        """
        deadline = time.monotonic() + settings.FORWARDER_START_SECONDS
        while self._config is not None and not self._is_listening():
            if time.monotonic() >= deadline:
                raise ClusterError(
                    "the forwarder, which connects this host's tasks with those of other hosts, does not start",
                    hint=f"{self._folder.forwarder_log} there shows why.",
                )
            await asyncio.sleep(settings.PROCESS_EXIT_POLL_SECONDS)

    def _is_listening(self) -> bool:
        try:
            loaded = loaded_path(self._folder.forwarding).read_text()
            desired_hash = hashlib.sha256(self._folder.forwarding.read_bytes()).hexdigest()
        except OSError:  # it has loaded nothing yet, or the folder was deleted
            return False
        return self.process is not None and loaded == desired_hash

    def adopt(self) -> None:
        """Adopt the forwarder of an earlier agent; start another one if it has died."""
        try:
            config = from_stored(Forwarding, json.loads(self._folder.forwarding.read_bytes()))
            certificate = Certificate.from_pem(
                read_own_file(config.certificate, settings.STATE_FILE_MAX_BYTES).decode(), config.until
            )
        except (OSError, ValueError):  # there is no forwarder; or the machine was started again, without secrets
            return
        self._certificate, self._config = certificate, config
        with contextlib.suppress(OSError):  # no descriptor is left
            self.ports.lock(config.own.port)
        with contextlib.suppress(OSError, ValueError):
            self.watch(from_stored(ProcessHandle, json.loads(self._folder.forwarder_process.read_bytes())))
        if config.certificate != self._certificate_path():  # the earlier agent had another XDG_RUNTIME_DIR
            self._config = replace(config, certificate=self._certificate_path())
            with contextlib.suppress(OSError):  # it has loaded the file that there is
                self._write_files(self._config, certificate)
                self.signal(signal.SIGHUP)
                config.certificate.unlink(missing_ok=True)
        if self.process is None:
            self.handle_exit()
            self.start_or_retry()

    def stop(self) -> None:
        """Kill the forwarder, and remove its files and the certificate."""
        super().stop()
        self._config = None
        forwarding = self._folder.forwarding
        for path in (forwarding, loaded_path(forwarding), self._folder.forwarder_process, self._certificate_path()):
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
        self._certificate = None
        self.ports.release_except(())

    def _write_files(self, config: Forwarding, certificate: Certificate) -> None:
        make_again(config.certificate.parent)  # a logout may have removed it
        write_atomically(config.certificate, certificate.to_pem().encode())
        write_atomically(self._folder.forwarding, json.dumps(to_stored(config)).encode())

    def ensure_started(self) -> None:
        """Fork the forwarder unless there is one.

        Raises OSError: it cannot be forked, or there is no private network.
        """
        if self.process is None:
            if self._network.private is None:
                raise ProcessLookupError("the cluster's private network no longer exists")
            loaded_path(self._folder.forwarding).unlink(missing_ok=True)  # an earlier forwarder has loaded it
            if self._config is not None and self._certificate is not None:
                self._write_files(self._config, self._certificate)
        super().ensure_started()

    def handle_start(self) -> None:
        """Record the forwarder for the next agent, and let it begin."""
        assert self.process is not None, "it has just been forked"
        try:
            record = json.dumps(to_stored(self.process))
            write_atomically(self._folder.forwarder_process, record.encode())
        except OSError as error:
            _logger.warning("%s: the forwarder cannot be recorded: %s", error.filename, error.strerror)
            self.kill()
            return
        self.release()

    def run(self, agent: socket.socket) -> None:
        """Forward, in the process."""
        network = self._network.private
        assert network is not None, "`ensure_started` sees to it"
        forward(self._folder.forwarding, self._folder.forwarder_log, network, network.open(network.holder))

    def handle_exit(self) -> None:
        """Tell that the forwarder is started again."""
        detail = f"the forwarder died and is being restarted: see {self._folder.forwarder_log}"
        self._history.record("forwarder-restarted", detail=detail)
