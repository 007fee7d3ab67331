"""Servers and the agent are killed and stopped at random while a program with a known answer runs again and again.

`--faults N` sets how many faults strike (the suite's few are a smoke test; `benchmarks/soak.py` makes it hundreds).
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.conftest import Sandbox, wait_for
from tfcluster.os.process_handle import ProcessHandle

SPEC = """
name: chaos
network: NETWORK
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
#: What strikes, shuffled, again and again, and each of it once to begin with; what is stopped is found by its silence,
#: which takes some ten seconds.
FAULTS = [
    *5 * ["kill a server"],
    *2 * ["kill the agent"],
    *3 * ["kill a server and the agent"],
    "stop a server",
    "pause the agent",
]
#: The same for a cluster in a network of its own.
PRIVATE_FAULTS = [*FAULTS, *2 * ["kill the holder of the network"]]
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
        if "holder" in kind:
            holders = self.sandbox.pids("private network")
            for pid in holders:
                os.kill(pid, signal.SIGKILL)
            return bool(holders)
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "kinds"), [("closed", FAULTS), ("private", PRIVATE_FAULTS)], ids=["closed", "private"]
)
def test_chaos(sandbox: Sandbox, request: pytest.FixtureRequest, network: str, kinds: list[str]) -> None:
    faults = request.config.getoption("--faults")
    seed = request.config.getoption("--chaos-seed") or random.randrange(10**6)
    print(f"--chaos-seed {seed}")
    sandbox("up", sandbox.spec(SPEC.replace("NETWORK", network)))
    assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
    descriptors = settled_descriptors(fresh_agent(sandbox))
    chaos, over = Chaos(sandbox, random.Random(seed), kinds), threading.Event()
    running = threading.Thread(target=chaos.run_again_and_again, args=(over,))
    running.start()
    try:
        for kind in chaos.kinds(faults):
            chaos.strike(kind)
        status, right = chaos.wait_until_whole(), chaos.right
        wait_for(lambda: chaos.right > right or chaos.wrong, seconds=240)  # nothing keeps it from the answer any more
    finally:
        over.set()
        running.join()
    report(chaos)
    assert chaos.wrong == []
    assert {task["state"] for task in status["tasks"]} == {"ready"}
    agent = fresh_agent(sandbox)
    wait_for(lambda: descriptors_of(agent) <= descriptors)  # those of ended connections and runs go in a moment
    sandbox("down")
    assert sandbox.leftovers() == []


def fresh_agent(sandbox: Sandbox) -> int:
    """The pid of an agent that has just adopted the cluster, with its helpers warm and nothing to do."""
    os.kill(sandbox.status()["hosts"][0]["agent_pid"], signal.SIGKILL)
    sandbox.wait_until("running")
    sandbox("run", "pi", "--samples", "1")
    return int(sandbox.status()["hosts"][0]["agent_pid"])


def descriptors_of(agent: int) -> int:
    return len(os.listdir(f"/proc/{agent}/fd"))


def settled_descriptors(agent: int) -> int:
    """How many descriptors an agent has once health checks and ended connections have gone, or more."""
    previous = -1
    while previous != (count := descriptors_of(agent)):
        previous = count
        time.sleep(0.5)
    return count


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
