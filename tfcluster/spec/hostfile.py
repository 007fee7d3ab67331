"""Parse a hostfile in the notation of Open MPI and DeepSpeed, with lines such as `alpha slots=2`."""

from __future__ import annotations

import re
from pathlib import Path

from tfcluster import settings
from tfcluster.spec.diagnostics import Diagnostic, shorten
from tfcluster.spec.hosts import HOST_NAME

_LINE = re.compile(r"\s*(\S+)(?:\s+slots\s*=\s*(\S+))?\s*")
_NUMBER = re.compile("[0-9]{1,9}")


def read_hostfile(path: Path) -> tuple[dict[str, int], list[Diagnostic]]:
    """Parse a hostfile.

    As in Open MPI, a host has one slot by default, and the slots of a host that is listed several times are added up.

    Args:
        path: The path of the hostfile.

    Returns:
        The slots by the host's name, and the problems of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The path is not valid for a file.
    """
    with path.open("rb") as file:
        text = file.read(settings.SPEC_MAX_BYTES + 1)
    if len(text) > settings.SPEC_MAX_BYTES:
        return {}, [Diagnostic(str(path), 1, 1, f"the file is larger than {settings.SPEC_MAX_BYTES >> 20} MiB")]
    slots: dict[str, int] = {}
    problems: list[Diagnostic] = []
    for number, line in enumerate(text.decode(errors="replace").removeprefix("\ufeff").split("\n"), 1):
        content = line.partition("#")[0].rstrip()
        if not content:
            continue
        match = _LINE.fullmatch(content)
        if match is None:
            message = f"expected a host such as alpha or alpha slots=2, found {shorten(content.strip())!r}"
            problems.append(_problem(path, number, content, content.strip(), message))
        elif not HOST_NAME.fullmatch(match[1]):
            message = f"expected the name of a host, found {shorten(match[1])!r}"
            hint = "name the hosts under hosts: to say how ssh reaches them" if "@" in match[1] else ""
            problems.append(_problem(path, number, content, match[1], message, hint))
        elif match[2] and not (_NUMBER.fullmatch(match[2]) and 1 <= int(match[2]) <= settings.MAX_TASKS_PER_JOB):
            message = f"expected slots from 1 to {settings.MAX_TASKS_PER_JOB}, found {shorten(match[2])!r}"
            problems.append(_problem(path, number, content, "slots", message))
        else:
            slots[match[1]] = min(settings.MAX_TASKS_PER_JOB, slots.get(match[1], 0) + int(match[2] or 1))
    if not slots and not problems:
        problems.append(Diagnostic(str(path), 1, 1, "the file names no host"))
    return slots, problems


def _problem(path: Path, line: int, content: str, part: str, message: str, hint: str = "") -> Diagnostic:
    return Diagnostic(str(path), line, content.rindex(part) + 1, message, hint)
