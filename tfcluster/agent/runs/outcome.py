"""How a run has ended: its final record, and the result event of a run whose driver has written none."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.agent.logs.log_reader import tail
from tfcluster.agent.runs.run import Run
from tfcluster.agent.runs.store import RunRecord
from tfcluster.core.run_events import ErrorEvent, ResultEvent, StoppedEvent, parse_event
from tfcluster.core.states import RunState
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import format_exit_status
from tfcluster.processes.runs.run_plan import append_event


def final_record(run: Run, log: Path) -> RunRecord:
    """Build the final record of a run that has ended, and write a result event if its driver wrote none.

    `log` is the log whose last lines may show why the driver died.
    """
    last = _final_event(run.events)
    if isinstance(last, ResultEvent):  # a driver writes it only if the run succeeded
        return replace(run.record, state=RunState.SUCCEEDED, seconds=last.seconds, result=last.result)
    error: dict[str, Any] | None
    if run.record.stopping is not None:
        state, error = run.record.stopping
    elif isinstance(last, ErrorEvent):
        state, error = RunState.FAILED, last.error
        if error["exit_code"] == ExitCode.INTERRUPTED:
            state, error = RunState.CANCELLED, None
    else:
        state, error = RunState.FAILED, _driver_error(run, log).to_json()
    if error is not None:
        error = _with_losses(error, run)
    result = None if last is None else last.result
    if run.record.stopping is not None and result is not None:  # the script may have ended by itself just before
        result = {name: value for name, value in result.items() if name == "metrics"} or None
    record = replace(run.record, state=state, seconds=run.snapshot().seconds, error=error, result=result)
    try:
        append_event(run.events, result_event(record))
    except OSError as problem:  # a full disk must not prevent the run from ending
        record = replace(record, notes=[*record.notes, f"{run.events} cannot be written: {problem.strerror}"])
    return record


def _with_losses(error: dict[str, Any], run: Run) -> dict[str, Any]:
    """Add to the error of a run the tasks that were down during it: TensorFlow's own errors seldom name them.

    Of the error itself the first line remains: the output of the run has all of it.
    """
    losses = [problem for problem in run.losses.values() if problem not in error["message"]]
    if not losses:
        return error
    text = f"{error['message'].partition(chr(10))[0]}\nduring {run.id}: {'; '.join(losses)}"
    hint = error["hint"] or "`tfcluster status` shows the tasks, `tfcluster events` what happened to them."
    return {**error, "message": text, "hint": hint}


def result_event(record: RunRecord) -> ResultEvent:
    """Return the result event of a run that has ended and whose driver wrote no result event."""
    seconds = round(record.seconds or 0.0, 6)
    return ResultEvent(
        record.run, record.options.program, record.state.value, seconds, record.result, {}, record.notes, record.error
    )


def _driver_error(run: Run, log: Path) -> ClusterError:
    """Return the error of a run whose driver died without an explanation."""
    cause = run.exit_cause if run.exit_status is None else format_exit_status(run.exit_status)
    lines = _last_lines(log)
    shown = "; its last output:" + "".join(f"\n  {line}" for line in lines) if lines else ""
    return ClusterError(f"the driver of {run.id} died ({cause}){shown}", hint=f"The whole log is {log}.")


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a run's output, and read no more of it than these may take."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - settings.IO_BLOCK_BYTES))
            return file.read().decode(errors="replace").splitlines()[-settings.RUN_ERROR_LINES :]
    except FileNotFoundError:
        return []


def _final_event(path: Path) -> ResultEvent | ErrorEvent | StoppedEvent | None:
    """Return the last event that a driver wrote, which says how its program has ended; None if it wrote none."""
    lines, _ = tail(path, settings.RUN_RESULT_EVENTS)
    for line in reversed(lines):
        try:
            event = parse_event(json.loads(line))
        except (ValueError, KeyError, TypeError):  # a full disk has truncated it
            continue
        if isinstance(event, (ResultEvent, ErrorEvent, StoppedEvent)):
            return event
    return None
