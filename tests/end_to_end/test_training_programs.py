"""The examples, by the command at the top of each: undisturbed, and with a worker killed; and their tour.

A program whose worker was killed in mid-training goes on from its checkpoint, and ends with the same line.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import shutil
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, Sandbox
from tests.hosts import over
from tests.test_readme import check_links, commands, run_commands

# Runs a script in which every member that prints a line with a pattern waits there, at the first attempt.
GATE = """
import builtins, os, re, runpy, sys, time
pattern, sys.argv = sys.argv[1], sys.argv[2:]
write = print
def print_and_wait(*values, **options):
    write(*values, **options)
    if os.environ["TFCLUSTER_ATTEMPT"] == "0" and re.match(pattern, " ".join(map(str, values))):
        write("at the gate", flush=True)
        time.sleep(1000)
builtins.print = print_and_wait
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Example:
    """An example."""

    name: str
    pattern: str  # of what it prints in mid-training
    #: By how much the line may differ when it was disturbed: workers that do not wait for each other take their steps
    #: in no fixed order.
    tolerance: float
    jobs: str  # of a cluster that it is launched on

    def command(self, folder: Path) -> list[str]:
        """The command at its top, as arguments of tfcluster, with a folder for its checkpoints."""
        text = (ROOT / "examples" / self.name).read_text().partition('"""\n')[0]
        command = text.partition("\n\n")[2].replace("\\\n", "").replace(" --fail-in 5", "")  # the tests fail it here
        words = shlex.split(command)
        assert words[:2] == ["tfcluster", "launch"]
        return [word.replace("trained", str(folder)) for word in words[1:]]


WORKERS = "jobs:\n  worker: {{tasks: 2{hosts}}}\n"
WITH_PS = WORKERS + "  ps: {{tasks: 1{hosts}}}\n"
ROLES = WITH_PS + "  chief: {{tasks: 1{hosts}}}\n  evaluator: {{tasks: 1{hosts}}}\n"
MULTI_WORKER = Example("tour/restart.py", "epoch 5:", 1e-4, WORKERS)
EXAMPLES = [
    MULTI_WORKER,
    Example("multi_worker_fit.py", "epoch 5:", 1e-4, WORKERS),
    Example("between_graph.py", "step [3-9]", 0.05, WITH_PS),
    Example("parameter_server.py", "epoch 5$", 0.05, ROLES),
]


def copy_examples(sandbox: Sandbox) -> None:
    folder = sandbox.folder / "examples"
    shutil.copytree(ROOT / "examples", folder)
    (folder / "gate.py").write_text(GATE)


def on_the_cluster(example: Example, folder: Path) -> list[str]:
    """Return the command at the top of an example, without the option that brings a cluster up."""
    words = example.command(folder)
    place = next(number for number, word in enumerate(words) if word in ("--workers", "--spec"))
    return [*words[:place], *words[place + 2 :]]


def line_of(output: str) -> tuple[float, float]:
    (found,) = re.findall(r"y = (\S+) x \+ (\S+)$", output, re.MULTILINE)
    return float(found[0]), float(found[1])


def kill_a_worker(sandbox: Sandbox, example: Example, words: list[str]) -> list[dict[str, Any]]:
    """Launch an example, kill worker:1 when others have come to the gate; return what the second attempt printed."""
    place = words.index(f"examples/{example.name}")
    words = [*words[1:place], "examples/gate.py", example.pattern, *words[place:]]
    command = sandbox.start("launch", "-o", "json", *words)
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


def check_disturbed(sandbox: Sandbox, example: Example, words: list[str], line: tuple[float, float]) -> None:
    """Check that a program finds the same line when a worker is killed, and does not train from the beginning."""
    lines = [each["line"] for each in kill_a_worker(sandbox, example, words)]
    assert line_of("\n".join(lines)) == pytest.approx(line, abs=example.tolerance)
    numbers = [int(each[1]) for each in (re.match(r"(?:epoch|step) (\d+)", line) for line in lines) if each]
    assert numbers
    assert min(numbers) >= 5


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_the_command_at_the_top_of_an_example(sandbox: Sandbox, example: Example) -> None:
    copy_examples(sandbox)
    line = line_of(sandbox(*example.command(sandbox.folder / "undisturbed"), timeout=250).stdout)
    assert line[0] > 1.5
    check_disturbed(sandbox, example, example.command(sandbox.folder / "disturbed"), line)


@pytest.mark.slow
@pytest.mark.needs("sshd")
def test_an_example_over_two_hosts(tmp_path: Path) -> None:
    example = MULTI_WORKER
    with over(tmp_path, "alpha", "beta") as lab:
        copy_examples(lab)
        jobs = example.jobs.format(hosts=", hosts: [alpha, beta]")
        lab("up", lab.spec(lab.text(("alpha", "beta"), jobs)))
        line = line_of(lab(*on_the_cluster(example, tmp_path / "undisturbed")).stdout)
        check_disturbed(lab, example, on_the_cluster(example, tmp_path / "disturbed"), line)


TOUR = ROOT / "examples" / "tour"
README = TOUR / "README.md"


def test_the_readme_has_the_commands_at_the_top_of_each_script_in_order() -> None:
    scripts = re.findall(r"^\[(\w+\.py)\]", README.read_text(), re.MULTILINE)
    assert sorted(scripts) == sorted(path.name for path in TOUR.glob("*.py"))
    at_top: list[str] = []
    for script in scripts:
        text = (TOUR / script).read_text()
        assert len(text.splitlines()) <= 60, script
        at_top += (ast.get_docstring(ast.parse(text)) or "").split("\n\n")[1].splitlines()
    assert [command.words for command in commands(README)] == at_top
    check_links(README)


@pytest.mark.slow
def test_the_tour(sandbox: Sandbox) -> None:
    run_commands(README, sandbox)
    events = sandbox.json_lines("events", "-c", "demo")
    assert [each["event"] for each in events if each["task"] == "worker:1"].count("died") == 1
    assert "loss" in sandbox.json("runs", "page", "-c", "demo")["result"]["metrics"]
