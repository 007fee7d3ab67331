"""The RPC handler that captures traces from the profilers of this host's servers."""

from __future__ import annotations

import asyncio
import base64
import shutil
import tempfile
from functools import partial
from pathlib import Path

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.subprocesses import run_in_child
from tfcluster.core.states import TaskState
from tfcluster.core.topology import matching_tasks
from tfcluster.errors import ClusterError
from tfcluster.processes.profiler import capture_traces, trace_file
from tfcluster.protocol.api import Reply, Response
from tfcluster.protocol.api.profile import ProfileReply, ProfileRequest, TracePart


async def profile(context: AgentContext, request: ProfileRequest) -> Response[TracePart, ProfileReply]:
    """Capture traces of tasks, and send them; see `ProfileRequest`."""
    supervisor = context.supervisor
    topology = supervisor.require_cluster()
    own = {task.short: task for task in topology.on(context.host)}
    tasks = [own[name] for name in matching_tasks(request.tasks, list(own))]
    states = {task.short: supervisor.tasks[task.name].machine.state for task in tasks}
    failures = {name: f"it is {state.value}" for name, state in states.items() if state is not TaskState.READY}
    addresses = {task.short: task.address for task in tasks if task.short not in failures}
    folder = _make_folder(context.state_dir.profiles)
    try:
        capture = partial(capture_traces, addresses, folder, request.seconds)
        limit = request.seconds + settings.PROFILE_COLLECT_SECONDS + settings.CONNECTIVITY_MARGIN_SECONDS
        outcome = await run_in_child("tfcluster: profiler", capture, limit, context.network.enter)
        if outcome is None:
            raise ClusterError("the process that was to capture the traces died or hangs", hint="Try again.")
        reply = ProfileReply(tuple(outcome["idle"]), {**failures, **outcome["failures"]})
        for name in addresses:
            if name in reply.idle or name in reply.failures:
                continue
            with trace_file(folder, name).open("rb") as file:
                while data := file.read(settings.PROFILE_PART_BYTES):
                    yield TracePart(name, base64.b64encode(data).decode())
                    await asyncio.sleep(0)
        yield Reply(reply)
    except OSError as error:
        raise ClusterError(f"{error.filename or folder}: {error.strerror}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_folder(parent: Path) -> Path:
    """Make the folder for the traces of one request."""
    try:
        parent.mkdir(mode=0o700, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=parent))
    except OSError as error:
        raise ClusterError(f"{error.filename or parent}: cannot be written: {error.strerror}") from error
