"""Completion: the names of scripts, tasks, runs and clusters, at once and never with an error.

The shells are the real ones. bash's completion is called as bash does, fish answers itself, and zsh is typed into.
"""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping

import pytest

from tests.conftest import EXAMPLE, ROOT, Sandbox

# The default completion of files is what `compopt` asks for; bash knows it only while a user types.
_SCRIPT = """
compopt() { echo "(${*: -1})"; }
source %s
tfcluster() { %s "$@"; }
env() { local -x COMP_LINE="${1#*=}" BREAKS="${2#*=}" _TFCLUSTER_COMPLETE=bash_complete; "$4"; }
COMP_LINE=%s COMP_POINT=${#COMP_LINE}
_tfcluster_completion tfcluster
printf '%%s\\n' "${COMPREPLY[@]}"
"""


def patient(sandbox: Sandbox) -> dict[str, str]:
    """Return an environment in which a completion may take long on a busy machine."""
    return sandbox.with_settings({"COMPLETION_SECONDS": 60})


def completions(sandbox: Sandbox, line: str, env: Mapping[str, str] | None = None) -> list[str]:
    """Return what bash offers at the end of a line."""
    script = _SCRIPT % (ROOT / "completions" / "tfcluster.bash", shlex.join(sandbox.command), shlex.quote(line))
    result = sandbox.execute("bash", "-c", script, env=env or patient(sandbox), check=True)
    assert result.stderr == ""
    return [line for line in result.stdout.splitlines() if line]


@pytest.mark.slow
def test_names_of_tasks_runs_and_clusters(sandbox: Sandbox) -> None:
    sandbox("up", EXAMPLE)
    for name in ("train.py", "other.py", "notes.txt", "my file.py"):
        (sandbox.folder / name).write_text("")
    for name in ("__init__.py", "__main__.py", "fit.py"):
        (sandbox.folder / "pack").mkdir(exist_ok=True)
        (sandbox.folder / "pack" / name).write_text("")
    run = sandbox.json("run", "pi", "--samples", "1e4")["run"]
    (sandbox.folder / "below").mkdir()
    active = sandbox("run", "--detach", sandbox.spec("import time; time.sleep(600)", "below/sleeps.py")).stdout.strip()
    sandbox.spec("name: other\njobs: {chief: {tasks: 1}, worker: {tasks: 1}}\n", "below/other.yaml")
    assert active.startswith("sleeps-"), "the name of the script"
    names = ["ps", "worker", "ps:0", "worker:0", "worker:1"]
    offers = {
        "tfcluster run ": ["graph", "pi", "mean", "linear", "expfit", "script", "other.py", "train.py"],
        "tfcluster run tr": ["train.py"],
        "tfcluster run notes": ["(default)"],
        "tfcluster run train.py ": ["(default)"],
        "tfcluster run -m ": ["other", "pack", "pack.fit", "train"],
        "tfcluster run -m pack.f": ["pack.fit"],
        "tfcluster run -m pack.fit ": ["(default)"],
        "tfcluster run pi -c d": ["demo"],
        "tfcluster restart ": names,
        "tfcluster restart worker:": ["0", "1"],  # bash takes only what follows the colon
        "tfcluster logs --cluster demo wo": ["worker", "worker:0", "worker:1"],
        "tfcluster scale w": ["worker=2"],
        "tfcluster scale worker=": ["2"],
        "tfcluster attach pi-": [run],
        "tfcluster attach sle": [active],
        "tfcluster fetch sle": [active],
        "tfcluster cancel ": [active],
        "tfcluster logs ": [*names, active, run],
        "tfcluster logs --agent ": ["localhost"],
        "tfcluster launch --each ": ["ps", "worker"],
        "tfcluster launch --each ps,w": ["ps,worker"],
        "tfcluster launch --spec below/other.yaml --each c": ["chief"],
        "tfcluster exec --on ": ["all", "localhost", "ps:0", "worker:0", "worker:1"],
        "tfcluster env ps": ["ps", "ps:0"],
        "tfcluster profile w": ["worker", "worker:0", "worker:1"],
        "tfcluster tensorboard pi": [run],
        "tfcluster up ": ["(default)"],
    }
    assert {line: completions(sandbox, line) for line in offers} == offers


@pytest.mark.slow
def test_what_cannot_be_known_is_left_out_without_an_error(sandbox: Sandbox) -> None:
    for line in ("tfcluster logs ", "tfcluster attach x", "tfcluster run none --x ", "tfcluster logs -c ../x '"):
        assert completions(sandbox, line) == []
    sandbox("up", EXAMPLE)
    agent = sandbox.agent()
    os.kill(agent, signal.SIGSTOP)
    try:
        assert completions(sandbox, "tfcluster logs ", sandbox.with_settings({"COMPLETION_SECONDS": 0.5})) == []
    finally:
        os.kill(agent, signal.SIGCONT)
    sandbox.spec("name: [")
    assert completions(sandbox, "tfcluster logs ") == []
    assert completions(sandbox, "tfcluster logs -c demo p") == ["ps", "ps:0"]


def with_command(sandbox: Sandbox) -> dict[str, str]:
    """Return an environment in which shells find the command as `tfcluster`."""
    folder = sandbox.folder / "bin"
    folder.mkdir(exist_ok=True)
    (folder / "tfcluster").write_text(f'#!/bin/sh\nexec {shlex.join(sandbox.command)} "$@"\n')
    (folder / "tfcluster").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "HOME": str(sandbox.folder), **patient(sandbox)}


OFFERS = {
    "tfcluster sta": ["status", "stack"],
    "tfcluster run gr": ["graph"],
    "tfcluster run typed_": ["typed_1.py", "typed_2.py"],
    "tfcluster run -m typed_": ["typed_1", "typed_2"],
    "tfcluster restart worker:": ["worker:0", "worker:1"],
    "tfcluster scale w": ["worker=2"],
    "tfcluster logs -c d": ["demo"],
    "tfcluster up typed.y": ["typed.yaml"],
}


@pytest.fixture
def typed(demo: Sandbox) -> Sandbox:
    for name in ("typed_1.py", "typed_2.py", "typed.yaml"):
        (demo.folder / name).write_text("")
    return demo


@pytest.mark.slow
@pytest.mark.needs("fish")
def test_what_fish_offers(typed: Sandbox) -> None:
    # One fish completes one line after the other, and prints a line between them.
    lines = [f"complete -C {shlex.quote(line)}; echo next" for line in OFFERS]
    script = "; ".join([f"source {ROOT / 'completions' / 'tfcluster.fish'}", *lines])
    result = typed.execute("fish", "--no-config", "-c", script, env=with_command(typed), check=True)
    assert result.stderr == ""
    completed = [answer.split("\n") for answer in result.stdout.removesuffix("next\n").split("next\n")]
    names = ([offer.partition("\t")[0] for offer in answer if offer] for answer in completed)
    offers = dict(zip(OFFERS, map(sorted, names), strict=True))
    assert offers == {line: sorted(words) for line, words in OFFERS.items()}, "fish sorts them"


@pytest.mark.slow
@pytest.mark.needs("zsh")
def test_what_zsh_offers(typed: Sandbox) -> None:
    environment = {**with_command(typed), "TERM": "dumb", "PS1": "shell> "}
    zsh = typed.at_terminal("zsh", "-f", "-i", env=environment, dimensions=(40, 200))
    setup = "autoload -U compinit; compinit -u -D; bindkey -e; LISTMAX=1000; zstyle ':completion:*' menu no"
    zsh.sendline(f"{setup}; source {ROOT / 'completions' / '_tfcluster'}")
    for number, (line, offers) in enumerate(OFFERS.items()):
        zsh.sendline(f"echo step $(({number} + 1)) begins")
        zsh.expect_exact(f"step {number + 1} begins\r\n")
        zsh.send(line)
        zsh.send("\t" if len(offers) == 1 else "\x04")  # complete the word, or list what is offered
        for offer in offers:
            zsh.expect_exact(offer.removeprefix(line.split()[-1]) if len(offers) == 1 else offer)
        zsh.sendcontrol("u")
    zsh.close(force=True)
