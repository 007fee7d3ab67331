"""The final event of a script's run, from how its process ended."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import format_exit_status
from tfcluster.processes.runs.run_spec import ProgramEnd, RunSpec
from tfcluster.protocol.codec import Message


def final_event(
    spec: RunSpec, code: int, end: ProgramEnd, metrics: Mapping[str, Any], interrupted: bool, lost_bytes: int
) -> Message:
    """Return the result or the error of a script. Both have the exit code that a shell would report.

    `code` is negative if a signal ended the script. `metrics` is the field of the result that has its metrics, if it
    has reported any. `lost_bytes` is how much of the output could not be written.
    """
    if code:
        return _error(spec, code, end.failure, metrics, interrupted)
    lost = [f"{lost_bytes} bytes of output could not be written"] if lost_bytes else []
    return spec.result_event({"exit_code": 0, **metrics}, end.seconds, devices=end.work, notes=[*end.notes, *lost])


def _error(spec: RunSpec, code: int, failure: str, metrics: Mapping[str, Any], interrupted: bool) -> Message:
    name, exit_code = spec.parameters.get("module") or PurePath(spec.parameters["path"]).name, ExitCode.FAILED
    hint = f"What it printed: `tfcluster logs {spec.run}`."
    result: Message = {"exit_code": code if code > 0 else 128 - code}
    if interrupted and result["exit_code"] == ExitCode.INTERRUPTED:
        message, exit_code = f"{name} was interrupted", ExitCode.INTERRUPTED
    elif code < 0:
        result["signal"] = format_exit_status(-code)
        message = f"{name} was ended by {result['signal']}"
    elif failure:
        message, hint = f"{name} failed: {failure}", ""
    else:
        message = f"{name} ended with exit code {code}"
    error = ClusterError(message, hint=hint, exit_code=exit_code)
    return {"event": "error", "error": error.to_json(), "result": {**result, **metrics}}
