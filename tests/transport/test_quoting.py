"""Every word arrives as it is, whatever the host's shell."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfcluster.transport.connector import quote

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


@pytest.mark.parametrize("shell", SHELLS)
@settings(deadline=None, max_examples=40)  # each starts a shell
@given(words=WORDS)
def test_words_arrive_as_they_are(shell: str, words: list[str]) -> None:
    if shell == "tcsh":
        words = [word.replace("\n", "") for word in words]
    assert arrived(shell, quote(["first", *words])) == ["first", *words]
