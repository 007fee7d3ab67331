"""How a run ended: its state, its result or error, from the last event that its driver wrote."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster.agent.logs.reading import tail
from tfcluster.agent.runs.records import RunRecord
from tfcluster.agent.runs.run import Run
from tfcluster.errors import ClusterError
from tfcluster.model.states import RunState
from tfcluster.process import reason
from tfcluster.runtime.events import EventLog

_SHOWN = 10


def conclude(run: Run, status: int | None, why: str, log: Path) -> RunRecord:
    """The final record of a run that has ended; a result event of its own is written where its driver wrote none.

    Args:
        run: The run.
        status: What waitpid said of its driver; None where that is not known.
        why: How its driver ended where the status is not known.
        log: The log that may say why the driver died.
    """
    last = _last_event(run.events)
    seconds = run.now().seconds or 0.0
    if last.get("event") == "result":  # a driver writes it only of a run that succeeded
        return replace(run.record, state=RunState.SUCCEEDED, seconds=last["seconds"], result=last["result"])
    error: dict[str, Any] | None
    if run.record.stopping is not None:
        state, error = run.record.stopping
    elif last.get("event") == "error":
        state, error = RunState.FAILED, last["error"]
    else:
        how = why if status is None else reason(status)
        state, error = RunState.FAILED, _died(run, how, log).to_json()
    with contextlib.suppress(OSError):  # a full disk must not keep the run from ending
        EventLog(run.events).emit(
            "result",
            run=run.identity,
            program=run.record.program,
            state=state.value,
            seconds=round(seconds, 6),
            result=None,
            devices={},
            notes=run.record.notes,
            **({"error": error} if error else {}),
        )
    return replace(run.record, state=state, seconds=seconds, error=error)


def _died(run: Run, how: str, log: Path) -> ClusterError:
    last, _ = tail(log, _SHOWN)
    said = "; it said last:" + "".join(f"\n  {line}" for line in last) if last else ""
    return ClusterError(f"the driver of {run.identity} died ({how}){said}", hint=f"The whole log is {log}.")


def _last_event(path: Path) -> dict[str, Any]:
    lines, _ = tail(path, 1)
    try:
        found = json.loads(lines[0])
    except (IndexError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
