"""Processes are killed and stopped, and links lost, at random, while a program with a known answer runs all the time.

`--faults N` sets how many faults strike (the suite's few are a smoke test; `benchmarks/soak.py` makes it hundreds).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.accounts import Account, account
from tests.clusters import sandbox_of
from tests.conftest import PLAYED, Sandbox, wait_for
from tests.namespaces import Machine, network
from tfcluster.os.process_handle import ProcessHandle

SPEC = """
name: chaos
jobs:
  ps: {tasks: 1}
  worker: {tasks: 3}
restart: {policy: on-failure, backoff: {initial: 0.1, max: 0.5}, limit: 100 in 1}
"""
RUN = ("run", "pi", "--samples", "3e6", "--seed", "7", "--timeout", "60", "-o", "json")
#: Points inside for these samples and this seed, however many devices share the work.
INSIDE = 2_354_124
#: How a run may end but with the answer: it failed, the cluster was not healthy, timed out, or its agent died twice.
NAMED_ENDS = {1, 4, 5, 124}
#: What is stopped is found by its silence.
QUICK = {"HEALTH_INTERVAL_SECONDS": 0.5, "HEALTH_RETRY_SECONDS": 0.5, "PROBE_TIMEOUT_SECONDS": 2.0}
#: What strikes, shuffled, again and again, and each of it once to begin with.
FAULTS = [
    *5 * ["kill a server"],
    *2 * ["kill the agent"],
    *3 * ["kill a server and the agent"],
    "stop a server",
    "pause the agent",
]
#: One fault in this number strikes while the one before it is still being mended.
OVERLAPPING = 3


@dataclass
class Chaos:
    """What strikes, and what came of it."""

    sandbox: Sandbox
    random: random.Random
    faults: list[str]
    began: float = field(default_factory=time.time)
    struck: list[tuple[str, float]] = field(default_factory=list)  # the short name of each task, and when
    gone: list[ProcessHandle] = field(default_factory=list)  # the processes that must go because of that
    counts: Counter[str] = field(default_factory=Counter)
    right: int = 0  # runs that gave the answer
    failed: list[str] = field(default_factory=list)  # messages of runs that did not
    wrong: list[str] = field(default_factory=list)  # whatever else a run did

    def rage(self, faults: int) -> None:
        """Strike a number of times while the program runs; in the end all tasks are ready, and a run has the answer."""
        over = threading.Event()
        running = threading.Thread(target=self.run_again_and_again, args=(over,))
        running.start()
        try:
            for kind in self.kinds(faults):
                self.strike(kind)
            status, right = self.wait_until_whole(), self.right
            # Nothing keeps it from the answer any more.
            wait_for(lambda: self.right > right or self.wrong, seconds=240)
        finally:
            over.set()
            running.join()
        assert {task["state"] for task in status["tasks"]} == {"ready"}

    def run_again_and_again(self, until: threading.Event) -> None:
        """Run the program until told to stop; every end must be the answer or a named cause."""
        while not until.is_set():
            process = self.sandbox.start(*RUN)
            output, error = process.communicate(timeout=300)
            self._judge(process.returncode, output, error)

    def _judge(self, code: int, output: str, error: str) -> None:
        last = json.loads(output.splitlines()[-1]) if output else {}
        # A run that began tells in its result why it failed; one that could not begin tells on standard error.
        cause = last.get("error", {}).get("message") or error.removeprefix("error: ")
        if code == 0 and last["result"]["inside"] == INSIDE:
            self.right += 1
        elif code in NAMED_ENDS and cause and "Traceback" not in output + error:
            self.failed.append(cause.partition("\n")[0])
        else:
            self.wrong.append(f"exit {code}: {output}{error}")

    def kinds(self, faults: int) -> list[str]:
        """A number of kinds of fault in random order: each of them first, then as often as FAULTS has them."""
        every = list(dict.fromkeys(self.faults))
        decks = [every, *[self.faults] * -(-faults // len(self.faults))]
        return [kind for deck in decks for kind in self.random.sample(deck, len(deck))][:faults]

    def strike(self, kind: str) -> None:
        """One fault; returns when the cluster is whole again and a run has ended, or, now and then, before that."""
        runs = self.ended
        wait_for(lambda: self._hit(kind))
        self.counts[kind] += 1
        if self.random.randrange(OVERLAPPING) == 0:
            time.sleep(self.random.random())  # the moment of the next one
            return
        self.wait_until_whole()
        wait_for(lambda: self.ended > runs, seconds=120)

    def _hit(self, kind: str) -> bool:
        """Strike what a look at the cluster finds; False when it found nothing to strike, or that has gone since."""
        found = self.sandbox("status", "-o", "json", code=None)
        if found.returncode == 5:  # the machine is busy, and the agent took too long to answer
            return False
        status = json.loads(found.stdout)
        agent = status["hosts"][0]["agent_pid"]
        if "server" in kind:
            task = self.random.choice(status["tasks"])
            server, now = ProcessHandle.from_pid(task["pid"] or 0), time.time()
            if server is None or not server.is_alive():  # of an earlier fault, so that it may be ready again before now
                return False
            self.struck.append((f"{task['job']}:{task['index']}", now))
            self.gone.append(server)
            os.kill(server.pid, signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        if kind == "pause the agent":
            os.kill(agent, signal.SIGSTOP)
            time.sleep(2.0 * self.random.random())
            os.kill(agent, signal.SIGCONT)
        elif "agent" in kind:
            os.kill(agent, signal.SIGKILL)
        return True

    def wait_until_whole(self) -> Any:
        """Wait until what was struck is gone and every task is ready; the status then."""
        wait_for(lambda: not any(process.is_alive() for process in self.gone), seconds=120)
        return self.sandbox.wait_until("running", seconds=120)

    @property
    def ended(self) -> int:
        """How many runs have ended."""
        return self.right + len(self.failed) + len(self.wrong)

    def recoveries(self) -> tuple[list[float], int]:
        """By the recorded events: seconds until each struck task was ready again, and how many agents followed one."""
        events = self.sandbox.json_lines("events")
        ready = [(event["task"], event["time"]) for event in events if event["event"] == "ready"]
        seconds = [
            next(at for name, at in ready if name == struck and at > since - 0.001) - since
            for struck, since in self.struck
        ]
        return seconds, sum(event["event"] == "agent-started" and event["time"] > self.began for event in events)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have all agents notice soon that a server is silent."""
    monkeypatch.setenv("TEST_SETTINGS", json.dumps(QUICK))


def chosen_seed(config: pytest.Config) -> int:
    """Return the seed of what strikes, after it was printed."""
    seed = int(config.getoption("--chaos-seed") or random.randrange(10**6))
    print(f"--chaos-seed {seed}")
    return seed


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_chaos(sandbox: Sandbox, pytestconfig: pytest.Config) -> None:
    seed = chosen_seed(pytestconfig)
    sandbox("up", sandbox.spec(SPEC, warm=bool(seed % 2)))
    assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
    chaos = Chaos(sandbox, random.Random(seed), FAULTS)
    chaos.rage(pytestconfig.getoption("--faults"))
    report(chaos)
    assert chaos.wrong == []
    sandbox("down")
    assert sandbox.leftovers() == []


def report(chaos: Chaos) -> None:
    """Print what struck, what the runs came to, and how long it took to be whole again."""
    print(f"{sum(chaos.counts.values())} faults: " + ", ".join(f"{n} x {kind}" for kind, n in chaos.counts.items()))
    print(f"{chaos.right} runs gave the right answer, {len(chaos.failed)} failed with a named cause:")
    for cause, count in Counter(chaos.failed).most_common(10):
        print(f"  {count} x {cause}")
    seconds, agents = chaos.recoveries()
    print(f"{len(seconds) + agents} recoveries: {len(seconds)} x a server, {agents} x an agent")
    if seconds:
        last = sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]
        print(f"time to ready: median {statistics.median(seconds):.3f} s, 99th percentile {last:.3f} s")


HOSTS_SPEC = """
name: chaos
network: private
hosts: {alpha: {address: 127.0.0.2}, beta: {address: 127.0.0.3}}
jobs:
  ps: {tasks: 1, hosts: [beta]}
  worker: {tasks: 2, hosts: [alpha, beta]}
restart: {policy: on-failure, backoff: {initial: 0.1, max: 0.5}, limit: 100 in 1}
"""
HOSTS_FAULTS = [
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
@pytest.mark.usefixtures("quick")
@pytest.mark.needs("network")
def test_random_faults_on_two_private_hosts(pytestconfig: pytest.Config) -> None:
    """This machine plays both, in a network whose packets to one of them can be lost, for an ordinary account."""
    seed = chosen_seed(pytestconfig)
    with network("machine") as made, account("tfc-o") as plain:
        owner = NetworkedAccount(plain.name, plain.uid, made["machine"])
        with sandbox_of(owner, PLAYED) as sandbox:
            sandbox("up", sandbox.spec(HOSTS_SPEC, warm=True))
            assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
            chaos = HostsChaos(sandbox, random.Random(seed), HOSTS_FAULTS, machine=made["machine"])
            chaos.rage(pytestconfig.getoption("--faults"))
            print(f"{dict(chaos.counts)}; {chaos.right} runs gave the right answer; the others: {chaos.failed}")
            assert chaos.wrong == []
            sandbox("down")
            wait_for(lambda: not sandbox.leftovers())
            assert not list(sandbox.folder.rglob("*.pem"))
            assert not list(sandbox.folder.rglob("*.certificate"))
