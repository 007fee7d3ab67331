"""Hints: the commands in them, completed so that they can be typed wherever the user is."""

from __future__ import annotations

import re
import shlex

# `launch --workers` brings up a cluster of its own.
_COMMAND = re.compile(r"`tfcluster (?!launch --workers)([a-z]+)((?: [^`]*)?)`")
_WITH_SPEC = ("doctor", "up", "validate")
_WITHOUT_CLUSTER = ("completion", "init")


def complete_commands(hint: str, cluster: str = "", spec: str = "") -> str:
    """Return a hint whose commands name the cluster, or for `up`, `doctor` and `validate` the spec.

    Commands that name one already are unchanged, and so are all others if the cluster or spec is empty.
    """

    def complete(command: re.Match[str]) -> str:
        name, rest = command.groups()
        if name in _WITH_SPEC:
            is_complete = not spec or re.search(r" (?!SPEC\b)[^ -]", rest)
            rest = rest if is_complete else f" {shlex.quote(spec)}{rest.replace(' SPEC', '')}"
        elif name == "down" and re.match(" [^-]", rest):
            pass  # a spec
        elif cluster and name not in _WITHOUT_CLUSTER and not re.search(r" (-c|--cluster|--all)\b", rest):
            rest = f" -c {cluster}{rest}"
        return f"`tfcluster {name}{rest}`"

    return _COMMAND.sub(complete, hint)
