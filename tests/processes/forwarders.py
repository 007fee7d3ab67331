"""Forwarders on this machine, each with a network namespace for its tasks, as on hosts of their own; takes root."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from tests import requirements
from tests.conftest import ROOT, SCRIPTS, wait_for
from tfcluster.client.preflight.certificates import Authority
from tfcluster.core.forwarding import Certificate, Forwarder, Forwarding
from tfcluster.os.netns import make_namespaces
from tfcluster.os.network import bind_all_addresses
from tfcluster.private_network import enter_network
from tfcluster.protocol.serialization import to_stored

T = TypeVar("T")


def write_certificate(path: Path, certificate: Certificate) -> Path:
    path.write_text(certificate.to_pem())
    return path


@dataclass
class ForwardingHost:
    """A host with a forwarder, whose files are in a folder."""

    name: str
    folder: Path
    namespace: int  # the descriptor of the network namespace of its tasks
    port: int  # the TLS port
    task_port: int  # that of its only task
    process: subprocess.Popen[bytes] | None = None
    environment: dict[str, str] = field(default_factory=dict)

    def place(self) -> Forwarder:
        return Forwarder("127.0.0.1", self.port, (self.task_port,))

    def inside(self, function: Callable[[], T]) -> T:
        """Return what a function returns in a thread that is in the namespace of the tasks."""

        def run() -> T:
            enter_network(self.namespace)
            return function()

        return _in_thread(run)

    def connect(self, port: int) -> socket.socket:
        """Connect to a port as a task of this host does."""
        return self.inside(lambda: socket.create_connection(("127.0.0.1", port), 60))

    def reach(self) -> socket.socket:
        """Connect to the TLS port as a stranger does."""
        return socket.create_connection(("127.0.0.1", self.port), 60)

    def listen(self) -> socket.socket:
        def bind() -> socket.socket:
            listener = bind_all_addresses(self.task_port, reuse=True)
            listener.listen()
            listener.settimeout(60)
            return listener

        return self.inside(bind)

    @property
    def config(self) -> Path:
        return self.folder / f"{self.name}.json"

    def write_config(self, forwarders: dict[str, Forwarder]) -> None:
        certificate = self.folder / f"{self.name}.pem"
        self.config.write_text(json.dumps(to_stored(Forwarding(self.name, forwarders, certificate, 0.0))))

    @property
    def log(self) -> str:
        files = [self.folder / f"{self.name}.{suffix}" for suffix in ("log", "stderr")]
        return "".join(file.read_text() for file in files if file.exists())

    def start(self) -> None:
        with open(self.folder / f"{self.name}.stderr", "ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(SCRIPTS / "forwards.py"), str(self.config), str(self.namespace)],
                pass_fds=[self.namespace],
                stderr=log,
                env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests' / 'changed'}:{ROOT}", **self.environment},
            )
        wait_for(self.is_listening)

    def is_listening(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log
        rows = [line.split() for line in Path("/proc/net/tcp6").read_text().splitlines()[1:]]
        return any(row[1].endswith(f":{self.port:04X}") and row[3] == "0A" for row in rows)

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def threads(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/task"))

    def descriptors(self) -> int:
        assert self.process is not None
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


def _in_thread(function: Callable[[], T]) -> T:
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]


def _new_namespace() -> int:
    """Return the descriptor of a new network namespace, which lives as long as it is open."""

    def make() -> int:
        make_namespaces()
        return os.open("/proc/thread-self/ns/net", os.O_RDONLY)

    return _in_thread(make)


@contextmanager
def forwarding_hosts(folder: Path, *names: str, start: bool = False) -> Iterator[dict[str, ForwardingHost]]:
    """Hosts with a certificate of the same authority each, whose forwarders know each other."""
    requirements.check_declared("root")
    authority = Authority.create("tested")
    authority.save(folder / "authority.pem")
    with ExitStack() as stack:
        hosts: dict[str, ForwardingHost] = {}
        sockets = [stack.enter_context(bind_all_addresses(0)) for _ in names]
        for number, name in enumerate(names):
            namespace = _new_namespace()
            stack.callback(os.close, namespace)
            port = sockets[number].getsockname()[1]
            hosts[name] = ForwardingHost(name, folder, namespace, port, 3000 + number)
            write_certificate(folder / f"{name}.pem", authority.issue(name))
            stack.callback(hosts[name].stop)
        for bound in sockets:
            bound.close()
        for host in hosts.values():
            host.write_config({name: each.place() for name, each in hosts.items()})
        for host in hosts.values() if start else ():
            host.start()
        yield hosts
