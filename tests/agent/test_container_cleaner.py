"""Which servers are asked to clear the container of a run, and how often."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tfcluster import settings
from tfcluster.agent.runs.manager import ContainerCleaner
from tfcluster.agent.tasks.health import ProbeOutcome, ProbeResult
from tfcluster.os.process_handle import ProcessHandle


class Servers:
    """Tasks a … d, and e on another host. `silent` do not answer; `replaced` is a new process after its question."""

    def __init__(self, silent: str, replaced: str = "") -> None:
        self.silent = silent
        self.replaced = replaced
        self.requests: list[str] = []
        self.recorded: list[tuple[str, str | None]] = []
        task = SimpleNamespace
        self.host = "here"
        hosts = zip("abcde", ["here"] * 4 + ["there"], strict=True)
        self.topology = task(tasks=[task(short=name, address=name, host=host) for name, host in hosts])
        self.tasks: dict[str, Any] = {
            name: task(spec=task(short=name, address=name), process=ProcessHandle(number, 1) if name != "d" else None)
            for number, name in enumerate("abcd")
        }
        self.history = SimpleNamespace(record=lambda event, task, detail: self.recorded.append((task, detail)))

    async def probe(self, address: str, timeout: float, *, clear: str) -> ProbeResult:
        self.requests.append(address)
        if address in self.replaced:
            self.tasks[address].process = ProcessHandle(100, 2)
        return ProbeResult(ProbeOutcome.SILENT if address in self.silent else ProbeOutcome.PROBE_OK)


@pytest.mark.parametrize(
    ("servers", "requests", "kept"),
    [
        (Servers(""), "abce", []),
        (Servers("b"), "abce" + "bb", [("b", "the server still holds the variables of pi-1")]),
        (Servers("e"), "abce" + "ee", [("e", "the server still holds the variables of pi-1")]),
        (Servers("bc", replaced="c"), "abce" + "bb", [("b", "the server still holds the variables of pi-1")]),
    ],
)
async def test_servers_are_retried_as_long_as_they_are_the_same_process(
    monkeypatch: pytest.MonkeyPatch, servers: Any, requests: str, kept: list[tuple[str, str]]
) -> None:
    monkeypatch.setattr(settings, "RUN_CLEANUP_BACKOFF_SECONDS", (0.0, 0.0))
    await ContainerCleaner(servers, servers).clear("pi-1")
    assert "".join(servers.requests) == requests
    assert servers.recorded == kept
