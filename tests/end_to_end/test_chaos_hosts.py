"""Random faults strike a private cluster of an ordinary account on two hosts, and their link, while it runs pi.

This machine plays both hosts, see tests/played.py, in a network namespace whose packets to one of them can be lost.
`--faults N` and `--chaos-seed N` are as in test_chaos.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.accounts import Account, account
from tests.clusters import sandbox_of
from tests.conftest import PLAYED, wait_for
from tests.end_to_end.test_chaos import INSIDE, RUN, Chaos
from tests.namespaces import Machine, network
from tfcluster.os.process_handle import ProcessHandle

SPEC = """
name: chaos
network: private
hosts: {alpha: {address: 127.0.0.2}, beta: {address: 127.0.0.3}}
jobs:
  ps: {tasks: 1, hosts: [beta]}
  worker: {tasks: 2, hosts: [alpha, beta]}
restart: {policy: on-failure, backoff: {initial: 0.1, max: 0.5}, limit: 100 in 1}
"""
FAULTS = [
    *3 * ["kill a task"],
    *2 * ["kill an agent"],
    *3 * ["kill a forwarder"],
    "kill a holder of a network",
    *3 * ["lose the link"],
]
#: The parts of the titles of the processes that are struck.
TITLES = {
    "kill an agent": " agent on ",
    "kill a forwarder": " forwarder",
    "kill a holder of a network": " private network",
}
LOST_SECONDS = 3.0


@dataclass(frozen=True)
class NetworkedAccount(Account):
    """An account whose commands run on a machine of a network."""

    machine: Machine

    def command(self, *arguments: str) -> tuple[str, ...]:
        """A command line that runs another one there."""
        return tuple(self.machine.command(*super().command(*arguments)))


@dataclass
class HostsChaos(Chaos):
    """Chaos on two hosts."""

    machine: Machine = field(kw_only=True)

    def _hit(self, kind: str) -> bool:
        if kind == "lose the link":
            with self._lost():
                time.sleep(self.random.uniform(0.2, LOST_SECONDS))
            return True
        if kind == "kill a task":
            found = self.sandbox("status", "-o", "json", code=None)
            if not found.stdout:  # the agent has just died
                return False
            pids = [task["pid"] for task in json.loads(found.stdout)["tasks"] if task["pid"]]
        else:
            pids = self.sandbox.pids(TITLES[kind])
        struck = ProcessHandle.from_pid(self.random.choice(sorted(pids))) if pids else None
        if struck is None or not struck.is_alive():
            return False
        self.gone.append(struck)
        os.kill(struck.pid, signal.SIGKILL)
        return True

    @contextlib.contextmanager
    def _lost(self) -> Iterator[None]:
        """Lose the link to beta, for the tasks and for the commands."""
        away = self.sandbox.folder / "away" / "beta"
        away.parent.mkdir(exist_ok=True)
        away.parent.chmod(0o755)
        away.touch()
        try:
            with self.machine.losing("127.0.0.3"):
                yield
        finally:
            away.unlink()

    def wait_until_whole(self) -> Any:
        """Wait until what was struck is gone, every task is ready, and a run reaches the tasks of both hosts."""
        status = super().wait_until_whole()
        wait_for(self._reaches_both, seconds=120)
        return status

    def _reaches_both(self) -> bool:
        found = self.sandbox("run", "pi", "--samples", "1e3", "-o", "json", code=None)
        return found.returncode == 0 and len(json.loads(found.stdout.splitlines()[0])["devices"]) == 2


@pytest.mark.slow
@pytest.mark.needs("network")
def test_random_faults_on_two_private_hosts(request: pytest.FixtureRequest) -> None:
    seed = request.config.getoption("--chaos-seed") or random.randrange(10**6)
    print(f"--chaos-seed {seed}")
    with network("machine") as made, account("tfc-o") as plain:
        owner = NetworkedAccount(plain.name, plain.uid, made["machine"])
        with sandbox_of(owner, PLAYED) as sandbox:
            sandbox("up", sandbox.spec(SPEC))
            assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
            chaos, over = HostsChaos(sandbox, random.Random(seed), FAULTS, machine=made["machine"]), threading.Event()
            running = threading.Thread(target=chaos.run_again_and_again, args=(over,))
            running.start()
            try:
                for kind in chaos.kinds(request.config.getoption("--faults")):
                    chaos.strike(kind)
                status = chaos.wait_until_whole()
            finally:
                over.set()
                running.join()
            print(f"{dict(chaos.counts)}; {chaos.right} runs gave the right answer; the others: {chaos.failed}")
            assert chaos.wrong == []
            assert {task["state"] for task in status["tasks"]} == {"ready"}
            assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
            sandbox("down")
            wait_for(lambda: not sandbox.leftovers())
            assert not list(sandbox.folder.rglob("*.pem"))
            assert not list(sandbox.folder.rglob("*.certificate"))
