"""Completion in real shells: fish answers itself, and zsh is typed into; tests/cli/test_completion.py has bash."""

from __future__ import annotations

import os
import shlex

import pytest

from tests.conftest import ROOT, Sandbox


def patient(sandbox: Sandbox) -> dict[str, str]:
    """Return an environment in which a completion may take long on a busy machine."""
    return sandbox.with_settings({"COMPLETION_SECONDS": 60})


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
