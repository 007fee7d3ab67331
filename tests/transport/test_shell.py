"""Command lines for shells: every word arrives as it is, and what users are shown can be typed."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.core.hosts import Host
from tfcluster.transport.connector import CommandConnector
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.shell import REACHED, SHELL, quote, quote_path, say, typed, typed_in_environment
from tfcluster.transport.ssh import SshConnector

_FURTHER = ("zsh", "fish", "tcsh")
SHELLS = ["sh", "bash", "dash", *(pytest.param(name, marks=pytest.mark.needs(name)) for name in _FURTHER)]
# What a shell, or the quoting itself, could trip over comes often.
_SPECIAL = st.sampled_from([*" '\"\\$`!\n\t*?[]{}()<>|&;#~=%^", "$(id)", "${HOME}", "'\\''", "\\\\", "é", "日本", "🙂"])
WORDS = st.lists(
    st.lists(_SPECIAL).map("".join) | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
)


def arrived(shell: str, words: str) -> list[str]:
    result = subprocess.run([shell, "-c", f"printf '%s\\0' {words}".encode()], capture_output=True, check=True)
    return result.stdout.decode().split("\0")[:-1]


def test_the_home_folder_is_that_of_the_shell() -> None:
    assert quote_path("~/its own/py") == "\"$HOME\"/'its own/py'"
    assert quote_path("/a/~/b") == "'/a/~/b'"


@pytest.mark.parametrize("shell", SHELLS)
@settings(deadline=None, max_examples=40)  # each starts a shell
@given(words=WORDS)
def test_words_arrive_as_they_are(shell: str, words: list[str]) -> None:
    if shell == "tcsh":
        words = [word.replace("\n", "") for word in words]
    assert arrived(shell, quote(["first", *words])) == ["first", *words]


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_says_that_it_runs_before_it_becomes_the_command(shell: str) -> None:
    line = f"{say({REACHED: SHELL})}; exec {quote([sys.executable, '-c', 'print(input())'])}"
    shown = subprocess.run([shell, "-c", line], capture_output=True, check=True, text=True, input="it is read\n").stdout
    assert shown == f"\n{MESSAGE_PREFIX}{json.dumps({REACHED: SHELL})}\nit is read\n"


@pytest.mark.parametrize("shell", ["sh", "bash"])
@settings(deadline=None, max_examples=40)
@given(words=WORDS)
def test_what_is_shown_can_be_typed(shell: str, words: list[str]) -> None:
    assert arrived(shell, typed(["first", *words])) == ["first", *words]
    nested = typed(["sh", "-c", f"printf '%s\\0' {typed(words)}"])
    assert subprocess.run([shell, "-c", nested], capture_output=True, check=True).stdout.decode().split("\0")[:-1] == (
        words or [""]
    )


_ACTIVATE = "source '/opt/my conda/bin/activate' tf"


@pytest.mark.parametrize(
    ("connect", "shell", "shown"),
    [
        (None, None, "ssh beta '/opt/tf/bin/python -V'"),
        (None, "module load tf", "ssh beta \"bash -lc 'module load tf && /opt/tf/bin/python -V'\""),
        (None, _ACTIVATE, f'ssh beta "bash -lc \\"{_ACTIVATE} && /opt/tf/bin/python -V\\""'),
        ("docker exec -i {host}", None, "docker exec -i beta sh -c '/opt/tf/bin/python -V'"),
        ("ssh -- {host} {command}", None, "ssh -- beta \"sh -c '/opt/tf/bin/python -V'\""),
    ],
)
def test_a_command_is_shown_as_a_person_types_it(connect: str | None, shell: str | None, shown: str) -> None:
    host = Host("beta", "beta", shell=shell, connect=connect)
    connector = CommandConnector(host) if connect else SshConnector("demo", host)
    assert connector.typed(typed_in_environment(typed(["/opt/tf/bin/python", "-V"]), shell)) == shown
