"""Servers and the agent are killed and stopped at random while a program with a known answer runs again and again.

`--faults N` sets how many faults strike (the suite's few are a smoke test; `benchmarks/soak.py` makes it hundreds).
"""

from __future__ import annotations

import json
import os
import random
import signal
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

import pytest

from tests.conftest import Sandbox, wait_for
from tfcluster.process import ProcessId

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
#: What strikes, shuffled, again and again; what is stopped is found by its silence, which takes some ten seconds.
FAULTS = [
    *5 * ["kill a server"],
    *2 * ["kill the agent"],
    *3 * ["kill a server and the agent"],
    "stop a server",
    "stop the agent",
]
#: One fault in so many strikes while the one before it is still being mended.
OVERLAPPING = 3


@dataclass
class Chaos:
    """What strikes, and what came of it.

    Attributes:
        random: Decides what is next.
        struck: The short name of each task that was struck, and when (Unix time).
        gone: The processes that must go because of that.
        counts: Faults by kind.
        right: Runs that gave the answer.
        failed: Messages of runs that did not.
        wrong: Whatever else a run did.
    """

    sandbox: Sandbox
    random: random.Random
    struck: list[tuple[str, float]] = field(default_factory=list)
    gone: list[ProcessId | None] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    right: int = 0
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

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
        """So many kinds of fault, in random order."""
        decks = [self.random.sample(FAULTS, len(FAULTS)) for _ in range(-(-faults // len(FAULTS)))]
        return [kind for deck in decks for kind in deck][:faults]

    def strike(self, kind: str) -> None:
        """One fault; returns when the cluster is whole again and a run has ended, or, now and then, before that."""
        runs = self.ended
        status = self.sandbox.status(code=None)
        self.counts[kind] += 1
        agent = status["hosts"][0]["agent_pid"]
        task = self.random.choice([task for task in status["tasks"] if task["pid"]])
        if "server" in kind:
            self.struck.append((f"{task['job']}:{task['index']}", time.time()))
            self.gone.append(ProcessId.of(task["pid"]))
            self._signal(task["pid"], signal.SIGSTOP if kind.startswith("stop") else signal.SIGKILL)
        if kind == "stop the agent":
            self._signal(agent, signal.SIGSTOP)
            told = self.sandbox("status", code=5, timeout=60).stderr
            assert f"the agent (pid {agent}) has not answered" in told
        if "agent" in kind:
            self._signal(agent, signal.SIGKILL)
        if self.random.randrange(OVERLAPPING) == 0:
            time.sleep(self.random.random())  # the moment of the next one
            return
        self.wait_until_whole()
        wait_for(lambda: self.ended > runs, seconds=120)

    def wait_until_whole(self) -> None:
        """Wait until what was struck is gone and every task is ready."""
        wait_for(lambda: not any(process and process.alive() for process in self.gone), seconds=120)
        self.sandbox.wait_until("running", seconds=120)

    @property
    def ended(self) -> int:
        """How many runs have ended."""
        return self.right + len(self.failed) + len(self.wrong)

    @staticmethod
    def _signal(pid: int, number: signal.Signals) -> None:
        """Signal a process that may have ended since we heard of it."""
        process = ProcessId.of(pid)
        if process is not None:
            os.kill(pid, number)

    def seconds_to_ready(self) -> list[float]:
        """For each fault that struck a task: seconds until it was ready again, by the recorded events."""
        lines = self.sandbox("events", "-o", "json").stdout.splitlines()
        ready = [(event["task"], event["time"]) for event in map(json.loads, lines) if event["event"] == "ready"]
        return [
            next(at for name, at in ready if name == struck and at > since - 0.001) - since
            for struck, since in self.struck
        ]


def test_chaos(sandbox: Sandbox, request: pytest.FixtureRequest) -> None:
    faults = request.config.getoption("--faults")
    seed = request.config.getoption("--chaos-seed") or random.randrange(10**6)
    print(f"--chaos-seed {seed}")
    sandbox("up", sandbox.spec(SPEC))
    assert sandbox.json(*RUN)["result"]["inside"] == INSIDE
    descriptors = descriptors_of_fresh_agent(sandbox)
    chaos, over = Chaos(sandbox, random.Random(seed)), threading.Event()
    running = threading.Thread(target=chaos.run_again_and_again, args=(over,))
    running.start()
    try:
        for kind in chaos.kinds(faults):
            chaos.strike(kind)
    finally:
        over.set()
        running.join()
    chaos.wait_until_whole()
    status = sandbox.status()
    seconds = sorted(chaos.seconds_to_ready())
    report(chaos, seconds)
    assert chaos.wrong == []
    assert chaos.right, chaos.failed
    assert {task["state"] for task in status["tasks"]} == {"ready"}
    assert descriptors_of_fresh_agent(sandbox) == descriptors
    sandbox("down")
    assert sandbox.leftovers() == []


def descriptors_of_fresh_agent(sandbox: Sandbox) -> int:
    """How many descriptors an agent has that has just adopted the cluster, with its helpers warm and nothing to do."""
    os.kill(sandbox.status()["hosts"][0]["agent_pid"], signal.SIGKILL)
    sandbox.wait_until("running")
    sandbox("run", "pi", "--samples", "1")
    agent = sandbox.status()["hosts"][0]["agent_pid"]
    previous = -1
    while previous != (count := len(os.listdir(f"/proc/{agent}/fd"))):
        previous = count
        time.sleep(0.5)  # health checks and ended connections come and go
    return count


def report(chaos: Chaos, seconds: list[float]) -> None:
    """Print what struck, what the runs came to, and how long it took to be whole again."""
    print(f"{sum(chaos.counts.values())} faults: " + ", ".join(f"{n} x {kind}" for kind, n in chaos.counts.items()))
    print(f"{chaos.right} runs gave the right answer, {len(chaos.failed)} failed with a named cause:")
    for cause, count in Counter(chaos.failed).most_common(10):
        print(f"  {count} x {cause}")
    if seconds:
        last = seconds[min(len(seconds) - 1, int(0.99 * len(seconds)))]
        print(f"time to ready: median {statistics.median(seconds):.3f} s, 99th percentile {last:.3f} s")
