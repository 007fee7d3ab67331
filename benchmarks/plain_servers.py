"""16 servers as forks of a process that has loaded TensorFlow's library, against 16 plain child processes.

This measures a way that tfcluster does not use, to decide whether it should, so it is not part of `make bench`. A plain
child is `python -I -S`, which loads the library by ctypes itself. Both ways close the server's port before it listens
(`network: closed`), and start again a server that was killed.
"""

from __future__ import annotations

import ast
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from cluster_start import free_ports, wait_for_answer
from restart import wait_for_listener
from weight import PACKAGE, count

from tfcluster.core.hosts import THIS_MACHINE
from tfcluster.core.topology import CLOSED, ClusterTopology, RestartPolicy, Task
from tfcluster.processes import protos
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.tf_server import serve
from tfcluster.tf_install import find_tensorflow_library

SERVERS = 16
ROUNDS = 7
KILLED = 3  # servers in each round

_PLAIN_SERVER = """
import sys
sys.path.append(sys.argv[1])
from ipaddress import IPv4Address
from pathlib import Path
from tfcluster.processes.servers.c_api import TensorFlow
from tfcluster.processes.servers.port_isolation import isolate_this_process
tensorflow = TensorFlow(Path(sys.argv[2]))
isolate_this_process([IPv4Address("127.0.0.1")], print)
server = tensorflow.new_server(sys.stdin.buffer.read())
tensorflow.start(server)
tensorflow.join(server)
"""
#: What plain servers would make unnecessary, by module, if the agent then has threads. New code would have to start a
#: server's program, give it the definition, move it to the private network, and probe servers in threads.
SAVED = {
    "agent/subprocesses.py": ("fork_child", "run_in_child", "_run_child", "_fork", "HelperProcess.prepare"),
    "agent/tasks/supervisor.py": ("TaskSupervisor._serve_when_released",),
    "agent/tasks/health.py": (
        *("ProbeClient.__init__", "ProbeClient.prepare", "ProbeClient.run", "ProbeClient._ask", "ProbeClient.stop"),
        *("ProbeClient.handle_message", "ProbeClient.handle_exit"),
    ),
    "agent/main.py": ("_on_signal",),
    "processes/probes.py": ("probe",),
    "processes/servers/port_isolation.py": ("_check_in_fork",),
}


@dataclass(frozen=True)
class Figures:
    """The figures of one way."""

    start: float  # seconds from the start of the servers' parent until all answer
    cpu: float  # seconds of CPU time until then, of all processes
    private: float  # MiB of private memory of a server
    proportional: float  # MiB of a server, with its share of what several processes map (Pss)
    all_private: float  # MiB of the servers and their parent
    all_proportional: float  # the same
    restart: float  # seconds until a server that was killed answers again


def start_servers(way: str, folder: Path, ports: list[int]) -> None:
    """Start the servers in one way, and each one again that ends, until this process is killed."""
    tasks = tuple(
        Task("worker", index, "localhost", "localhost", port, 1, 0, {}, RestartPolicy("always", 1.0, 1.0, 1, 1.0))
        for index, port in enumerate(ports)
    )
    topology = ClusterTopology("plain", "", CLOSED, tasks, hosts=(THIS_MACHINE,))
    start = _forking(topology, folder) if way == "forks" else _spawning(topology, folder)
    servers = {start(task): task for task in tasks}
    while True:
        ended = os.wait()[0]
        task = servers.pop(ended)
        servers[start(task)] = task


def _forking(topology: ClusterTopology, folder: Path) -> Callable[[Task], int]:
    tensorflow = TensorFlow(find_tensorflow_library())
    _, link = socket.socketpair()

    def start(task: Task) -> int:
        pid = os.fork()
        if pid == 0:
            serve(tensorflow, topology, task, folder / f"{task.index}.log", link, [folder / "files"])
            os._exit(1)
        return pid

    return start


def _spawning(topology: ClusterTopology, folder: Path) -> Callable[[Task], int]:
    command = [sys.executable, "-I", "-S", "-c", _PLAIN_SERVER, str(PACKAGE.parent), str(find_tensorflow_library())]

    def start(task: Task) -> int:
        definition = folder / f"{task.index}.def"
        definition.write_bytes(protos.server_def(topology.known_addresses(), task.job, task.index, task.cpus))
        with open(definition, "rb") as stdin, open(folder / f"{task.index}.log", "ab") as log:
            process = subprocess.Popen(command, stdin=stdin, stdout=log, stderr=log, start_new_session=True)
        process.returncode = 0  # `start_servers` reaps it
        return process.pid

    return start


def measure(way: str) -> Figures:
    """Start the servers in one way, and measure them."""
    ports = free_ports(SERVERS)
    with tempfile.TemporaryDirectory(prefix="tfc") as name:
        command = [sys.executable, __file__, way, name, *map(str, ports)]
        began = time.perf_counter()
        parent = psutil.Popen(command)
        try:
            for port in ports:
                _wait(port)
            start = time.perf_counter() - began
            servers = parent.children()
            times = [each.cpu_times() for each in (parent, *servers)]
            private, proportional = zip(*(_memory(each.pid) for each in (parent, *servers)), strict=True)
            return Figures(
                start,
                sum(each.user + each.system for each in times),
                statistics.mean(private[1:]),
                statistics.mean(proportional[1:]),
                sum(private),
                sum(proportional),
                statistics.median(_restart(parent, port) for port in ports[:KILLED]),
            )
        finally:
            servers = parent.children()
            parent.kill()
            for each in servers:
                each.kill()
            parent.wait()
            psutil.wait_procs(servers)


def _wait(port: int) -> None:
    wait_for_listener(f"localhost:{port}")
    wait_for_answer(f"localhost:{port}")


def _restart(parent: psutil.Popen, port: int) -> float:
    [server] = [each for each in parent.children() if _listens(each, port)]
    began = time.perf_counter()
    server.send_signal(signal.SIGKILL)
    wait_for_listener(f"localhost:{port}", away=True)
    _wait(port)
    return time.perf_counter() - began


def _listens(process: psutil.Process, port: int) -> bool:
    return any(each.laddr.port == port and each.status == "LISTEN" for each in process.net_connections("tcp"))


def _memory(pid: int) -> tuple[float, float]:
    """Return the private and the proportional memory of a process, in MiB."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    kib = {line.split(":")[0]: int(line.split()[1]) for line in lines}
    return (kib["Private_Clean"] + kib["Private_Dirty"]) / 1024, kib["Pss"] / 1024


def show(title: str, pairs: list[tuple[float, float]]) -> None:
    """Print both ways' figures of each round, and the ratio plain/forks."""
    print(title)
    for way, figures in zip(("forks", "plain"), zip(*pairs, strict=True), strict=True):
        print(f"  {way}: median {statistics.median(figures):.3f}   ({'  '.join(f'{each:.3f}' for each in figures)})")
    print(f"  plain/forks: median {statistics.median(plain / forks for forks, plain in pairs):.3g}\n", flush=True)


def show_saved_lines() -> None:
    """Print the lines of what plain servers would make unnecessary."""
    total: Counter[str] = Counter()
    for module, names in SAVED.items():
        text = (PACKAGE / module).read_text()
        for name in names:
            lines = count(_source_of(text, name))
            total.update(lines)
            print(f"{lines['lines']:6} lines, {lines['code']:4} of code  {module}: {name}")
    print(f"{total['lines']:6} lines, {total['code']:4} of code  in all")


def _source_of(text: str, name: str) -> str:
    """Return the source of a function, or of a method as `Class.method`."""
    nodes = ast.parse(text).body
    for part in name.split("."):
        [node] = [each for each in nodes if getattr(each, "name", None) == part]
        assert isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef), name
        nodes = node.body
    lines = text.splitlines()[node.lineno - 1 : node.end_lineno]
    return "\n".join(line[node.col_offset :] for line in lines) + "\n"


def main() -> None:
    """Measure both ways in turn, and print."""
    measure("plain")  # reads TensorFlow's files from the disk once, and compiles the modules, for both
    rounds = [(measure("forks"), measure("plain")) for _ in range(ROUNDS)]
    for title, name in (
        (f"{SERVERS} servers from the start of their parent until all answer, s", "start"),
        ("CPU time of all processes until then, s", "cpu"),
        ("private memory of a server, MiB", "private"),
        ("proportional memory of a server (Pss), MiB", "proportional"),
        ("private memory of all servers and their parent, MiB", "all_private"),
        ("proportional memory of all servers and their parent (Pss), MiB", "all_proportional"),
        ("a killed server until it answers again, s", "restart"),
    ):
        show(title, [(getattr(forks, name), getattr(plain, name)) for forks, plain in rounds])
    show_saved_lines()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        start_servers(sys.argv[1], Path(sys.argv[2]), [int(port) for port in sys.argv[3:]])
    else:
        main()
