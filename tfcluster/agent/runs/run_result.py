"""Builds the final record of a run from its driver's last result or error event and the driver's exit status."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.agent.logs.textfile import tail
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.run_store import RunRecord
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError
from tfcluster.process_handle import reason
from tfcluster.processes.run_events import RunEventLog
from tfcluster.protocol.codec import Message


def finalize(run: Run, status: int | None, why: str, log: Path) -> RunRecord:
    """Build the final record of a run that has ended, and write a result event if its driver wrote none.

    Args:
        run: The run.
        status: The wait status of the run's driver, as waitpid returns it; None if it is not known.
        why: How the driver ended; used if the status is not known.
        log: The log whose last lines may show why the driver died.

    Returns:
        The final record.
    """
    last = _last_word(run.events)
    seconds = run.now().seconds or 0.0
    if last.get("event") == "result":  # a driver writes it only if the run succeeded
        return replace(run.record, state=RunState.SUCCEEDED, seconds=last["seconds"], result=last["result"])
    error: dict[str, Any] | None
    if run.record.stopping is not None:
        state, error = run.record.stopping
    elif last.get("event") == "error":
        state, error = RunState.FAILED, last["error"]
    else:
        how = why if status is None else reason(status)
        state, error = RunState.FAILED, _died(run, how, log).to_json()
    record = replace(run.record, state=state, seconds=seconds, error=error)
    try:
        RunEventLog(run.events).emit(**result_event(record))
    except OSError as problem:  # a full disk must not prevent the run from ending
        record = replace(record, notes=[*record.notes, f"{run.events} cannot be written: {problem.strerror}"])
    return record


def result_event(record: RunRecord) -> Message:
    """Return the result event of a run that has ended and whose driver wrote no result event."""
    return {
        "event": "result",
        "run": record.run,
        "program": record.program,
        "state": record.state.value,
        "seconds": round(record.seconds or 0.0, 6),
        "result": record.result,
        "devices": {},
        "notes": record.notes,
        **({"error": record.error} if record.error else {}),
    }


def _died(run: Run, how: str, log: Path) -> ClusterError:
    last, _ = tail(log, settings.RUN_ERROR_LINES)
    said = "; it said last:" + "".join(f"\n  {line}" for line in last) if last else ""
    return ClusterError(f"the driver of {run.identity} died ({how}){said}", hint=f"The whole log is {log}.")


def _last_word(path: Path) -> Message:
    """Return the result or error event that a driver wrote, or an empty message if it wrote neither."""
    lines, _ = tail(path, settings.RUN_RESULT_EVENTS)
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict) and found.get("event") in ("result", "error"):
            return found
    return {}
