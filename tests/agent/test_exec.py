"""The end of a command of `exec` on a host: it ends with the request that `exec` keeps open."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.agent.handlers.access import AccessHandlers
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.protocol.api.cluster import ExecRequest


@pytest.mark.parametrize(("on_sigterm", "seconds", "output"), [("echo ends; exit", 60.0, "ends\n"), ("", 0.5, "")])
async def test_a_command_gets_sigterm_and_then_sigkill(
    on_sigterm: str, seconds: float, output: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "EXEC_TERMINATE_SECONDS", seconds)
    context: Any = SimpleNamespace(quitting=asyncio.Event())
    handlers = AccessHandlers(context)
    script = f"trap '{on_sigterm}' TERM; echo ready; while :; do sleep 0.1; done"
    with subprocess.Popen(["sh", "-c", script], stdout=subprocess.PIPE, start_new_session=True, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        command = ProcessHandle.from_pid(process.pid)
        assert command is not None
        waiting = asyncio.ensure_future(anext(aiter(handlers.exec(ExecRequest("the id")))))
        await asyncio.sleep(0)
        handlers._commands["the id"].watch(process.pid)
        waiting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await waiting
        try:
            wait_for(lambda: not command.is_alive(), seconds=30)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        assert process.stdout.read() == output
