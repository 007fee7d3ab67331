"""Expand the ranges in names of hosts, in Slurm's notation: `lab[01-04,07]` is lab01, lab02, lab03, lab04 and lab07."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from tfcluster import settings
from tfcluster.spec.diagnostics import KeyPath
from tfcluster.spec.yaml_source import YamlDocument

# A comma that is not in brackets.
_SEPARATOR = re.compile(r",(?![^\[\]]*\])")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")


def expand_names(text: str) -> list[str]:
    """Expand comma-separated names of hosts, each with any number of ranges in brackets.

    The numbers of a range have as many digits as the first one is written with. A ValueError says what was expected.
    """
    return [name for part in _SEPARATOR.split(text) for name in _expand(part.strip())]


def _expand(pattern: str) -> list[str]:
    # Every second part is what brackets contain.
    parts = _BRACKETS.split(pattern)
    choices = [_numbers(part) if index % 2 else [part] for index, part in enumerate(parts)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > settings.MAX_TASKS:
        raise ValueError(f"expected at most {settings.MAX_TASKS} hosts")
    return ["".join(parts) for parts in itertools.product(*choices)]


def _numbers(ranges: str) -> list[str]:
    numbers: list[str] = []
    for each in ranges.split(","):
        match = _RANGE.fullmatch(each.strip())
        if match is None or int(match[2] or match[1]) < int(match[1]):
            raise ValueError("expected a range of numbers such as [1-4] or [01-04,07]")
        first, last = int(match[1]), int(match[2] or match[1])
        if last - first >= settings.MAX_TASKS:
            raise ValueError(f"expected at most {settings.MAX_TASKS} hosts")
        numbers += [f"{number:0{len(match[1])}}" for number in range(first, last + 1)]
    return numbers


def expand_ranges(source: YamlDocument) -> None:
    """Expand the ranges in `hosts`, a list or a mapping, and in those of jobs; add problems to the document."""
    _expand_hosts(source.value, (), source)
    jobs = source.value.get("jobs")
    for name, job in jobs.items() if isinstance(jobs, dict) else ():
        if isinstance(job, dict):
            _expand_hosts(job, ("jobs", name), source)


def _expand_hosts(parent: dict[str, Any], path: KeyPath, source: YamlDocument) -> None:
    hosts, path = parent.get("hosts"), (*path, "hosts")
    if not isinstance(hosts, (list, dict)):
        return
    written: dict[Any, Any] = dict(enumerate(hosts)) if isinstance(hosts, list) else {key: key for key in hosts}
    pairs = [(old, name) for old, text in written.items() for name in _names(text, (*path, old), source)]
    names = [name for _, name in pairs]
    if names == list(written.values()):
        return
    if isinstance(hosts, list):
        parent["hosts"] = names
        _move_positions(source, path, [(old, new) for new, (old, _) in enumerate(pairs)])
        return
    parent["hosts"] = {}
    for old, name in pairs:
        if name in parent["hosts"]:
            again: KeyPath = (*path, old)
            message = "this host is named twice"
            source.problems.append(source.problem((*path, name), message, "keep one of the two", source.keys[again]))
        parent["hosts"][name] = hosts[old]
    _move_positions(source, path, pairs)


def _names(text: Any, path: KeyPath, source: YamlDocument) -> list[Any]:
    """Return the names of an entry; the entry itself if it has no range, or a malformed one."""
    if isinstance(text, str) and ("[" in text or "," in text):
        try:
            return expand_names(text)
        except ValueError as error:
            at = source.keys.get(path) or source.values[path]
            source.problems.append(source.problem(path, f"{error}, found {text!r}", at=at))
            source.broken.add(path)
    return [text]


def _move_positions(source: YamlDocument, path: KeyPath, moves: Sequence[tuple[Any, Any]]) -> None:
    """Give entries of a collection the positions of their originals; `moves` are the old and the new key of each."""
    depth = len(path)
    stores: tuple[dict[KeyPath, Any], ...] = (source.keys, source.values, source.texts)
    for store in stores:
        below: dict[Any, dict[KeyPath, Any]] = {}
        for each in [each for each in store if len(each) > depth and each[:depth] == path]:
            below.setdefault(each[depth], {})[each[depth + 1 :]] = store.pop(each)
        for old, new in moves:
            store.update({(*path, new, *rest): value for rest, value in below.get(old, {}).items()})
    broken = {each for each in source.broken if len(each) > depth and each[:depth] == path}
    source.broken -= broken
    source.broken |= {(*path, new, *each[depth + 1 :]) for old, new in moves for each in broken if each[depth] == old}
