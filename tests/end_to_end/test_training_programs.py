"""The examples, by the command at the top of each: undisturbed, and with a worker killed.

A program whose worker was killed in mid-training goes on from its checkpoint, and ends with the same line.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clusters import Cluster
from tests.conftest import ROOT, SCRIPTS, Sandbox, make_sandbox
from tests.hosts import over
from tests.test_readme import TOUR, commands


@dataclass(frozen=True)
class Example:
    """An example."""

    name: str
    pattern: str  # of what it prints in mid-training
    #: By how much the line may differ when it was disturbed: workers that do not wait for each other take their steps
    #: in no fixed order.
    tolerance: float
    jobs: str  # on a cluster that has more

    def command(self, folder: Path) -> list[str]:
        """The command at its top, as arguments of tfcluster, with a folder for its checkpoints."""
        text = (ROOT / "examples" / self.name).read_text().partition('"""\n')[0]
        command = text.partition("\n\n")[2].replace("\\\n", "").replace(" --fail-in 5", "")  # the tests fail it here
        words = shlex.split(command)
        assert words[:2] == ["tfcluster", "launch"]
        return [word.replace("trained", str(folder)) for word in words[1:]]

    def options(self, folder: Path) -> list[str]:
        """Return what follows the script in that command."""
        words = self.command(folder)
        return words[words.index(f"examples/{self.name}") + 1 :]


#: Servers, which SIGTERM does not end, are killed soon, and a group is started again at once.
SOON = {"GROUP_STOP_SECONDS": 1, "GROUP_WORKERS_SECONDS": 1, "GROUP_CAUSE_SECONDS": 1, "GROUP_RESTART_SECONDS": 0.1}
ROLES = (ROOT / "examples" / "roles.yaml").read_text()
GATE = SCRIPTS / "gate.py"
CLUSTER = Cluster(ROLES, warm=True, settings=SOON, files={"gate.py": GATE.read_text()})
MULTI_WORKER = Example("tour/restart.py", "epoch 5:", 1e-4, "worker")
EXAMPLES = [
    MULTI_WORKER,
    Example("multi_worker_fit.py", "epoch 5:", 1e-4, "worker"),
    Example("between_graph.py", "step [3-9]", 0.05, "ps,worker"),
    Example("parameter_server.py", "epoch 5$", 0.05, "chief,worker,ps,evaluator"),
]


def line_of(output: str) -> tuple[float, float]:
    (found,) = re.findall(r"y = (\S+) x \+ (\S+)$", output, re.MULTILINE)
    return float(found[0]), float(found[1])


def kill_a_worker(sandbox: Sandbox, example: Example) -> list[dict[str, Any]]:
    """Launch an example, kill worker:1 when others have come to the gate; return what the second attempt printed."""
    script = (str(sandbox.folder / "gate.py"), example.pattern, str(ROOT / "examples" / example.name))
    options = ("--each", example.jobs, "--max-restarts", "1", "-o", "json")
    command = sandbox.start("launch", *options, *script, *example.options(sandbox.folder / example.name))
    events: list[dict[str, Any]] = []
    pids: list[int] = []
    for line in command.stdout:
        events.append(json.loads(line))
        if events[-1].get("task") == "worker:1" and events[-1].get("state") == "started":
            pids.append(events[-1]["pid"])
        if events[-1].get("line") == "at the gate" and len(pids) == 1:
            os.kill(pids[0], signal.SIGKILL)
            pids.append(0)
    assert command.wait(60) == 0, (command.stderr and command.stderr.read(), events)
    assert events[-1]["result"] == {"exit_code": 0, "restarts": 1}, events[-1]
    (again,) = [
        number for number, each in enumerate(events) if each.get("task") == "worker:1" and each.get("attempt") == 1
    ][:1]
    return [each for each in events[again:] if each["event"] == "output"]


def check_disturbed(sandbox: Sandbox, example: Example, line: tuple[float, float]) -> None:
    """Check that a program finds the same line when a worker is killed, and does not train from the beginning.

    Its processes begin as forks of one that has imported TensorFlow, on other hosts too.
    """
    lines = [each["line"] for each in kill_a_worker(sandbox, example)]
    assert {"warm", "cold"} & {*lines} == {"warm"}
    assert line_of("\n".join(lines)) == pytest.approx(line, abs=example.tolerance)
    numbers = [int(each[1]) for each in (re.match(r"(?:epoch|step) (\d+)", line) for line in lines) if each]
    assert numbers
    assert min(numbers) >= 5


@pytest.fixture(scope="module", params=EXAMPLES, ids=lambda example: example.name)
def trained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Example, tuple[float, float]]]:
    """Each example, and the line that the command at its top has found."""
    example: Example = request.param
    with make_sandbox(tmp_path_factory.mktemp("trained")) as sandbox:
        (sandbox.folder / "examples").symlink_to(ROOT / "examples")
        command, env = example.command(sandbox.folder / "trained"), sandbox.with_settings(SOON)
        yield example, line_of(sandbox(*command, env=env, timeout=250).stdout)


@pytest.mark.slow
def test_the_command_at_the_top_of_an_example_finds_a_line(trained: tuple[Example, tuple[float, float]]) -> None:
    assert trained[1][0] > 1.5


@pytest.mark.slow
def test_an_example_finds_the_same_line_when_a_worker_is_killed(
    trained: tuple[Example, tuple[float, float]], cluster: Sandbox
) -> None:
    check_disturbed(cluster, *trained)


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_an_example_over_two_hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEST_SETTINGS", json.dumps(SOON))
    (shown,) = [command.prints[-1] for command in commands(TOUR.read_text()) if " launch " in command.words]
    with over(tmp_path, "alpha", "beta") as lab:
        shutil.copy(GATE, lab.folder)
        jobs = "jobs:\n  worker: {tasks: 2, hosts: [alpha, beta]}\n"
        lab("up", lab.spec(lab.text(("alpha", "beta"), jobs), warm=True))
        check_disturbed(lab, MULTI_WORKER, line_of(shown))
