"""A stranger who connects in a loop while servers start gets nothing executed, on one machine and on several."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import attack
from tests.clusters import Hosts
from tests.conftest import ROOT, SCRIPTS, mostly_slow
from tests.end_to_end.test_network_of_hosts import PORT, topology_of
from tests.namespaces import Machine, Network
from tfcluster.core.hosts import THIS_MACHINE, Host
from tfcluster.protocol.serialization import to_json

_ATTACK_SECONDS = 600.0


HOSTS = Hosts(strangers=("alpha", "beta", "stranger"), has_sshd=False)


@contextmanager
def attacking(stranger: Machine, address: str, target: Path) -> Iterator[None]:
    """Have a machine send ready-made requests to a port as long as the block runs; they would write a file."""
    data = attack.requests(target, "executed", "/job:worker/replica:0/task:0/device:CPU:0")
    command = stranger.command(sys.executable, attack.__file__, address, str(PORT), str(_ATTACK_SECONDS))
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            assert process.stdin is not None
            process.stdin.write(data)
            process.stdin.close()
            yield
        finally:
            process.kill()


def starts_with_a_file_written(
    machines: Network, word: str, several: bool, folder: Path, starts: int, patience: float
) -> int:
    """Start a server so often on alpha while the stranger attacks it; return in how many starts its graph was run.

    Each start has `patience` seconds for that. What was queued before the server served is executed at once.
    """
    alpha, beta, stranger = (machines[name] for name in ("alpha", "beta", "stranger"))
    several_hosts = (Host("alpha", alpha.ipv4, ssh="alpha"), Host("beta", beta.ipv4, ssh="beta"))
    topology = json.dumps(to_json(topology_of(word, *(several_hosts if several else (THIS_MACHINE,)))))
    target = folder / "written"
    program = (SCRIPTS / "serve_again_and_again.py").read_text()
    command = alpha.command(sys.executable, "-c", program, topology, str(target), str(starts), str(patience))
    with attacking(stranger, alpha.ipv4, target):
        return int(subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=280, check=True).stdout)


@pytest.mark.parametrize("several", mostly_slow([False, True], fast=[True]))
def test_nothing_is_executed(machines: Network, tmp_path: Path, several: bool) -> None:
    assert starts_with_a_file_written(machines, "closed", several, tmp_path, 10, 0.1) == 0


@pytest.mark.slow
def test_the_attack_is_real(machines: Network, tmp_path: Path) -> None:
    assert starts_with_a_file_written(machines, "open", True, tmp_path, 3, 30.0) == 3
