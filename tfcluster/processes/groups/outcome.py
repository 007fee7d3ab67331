"""How a group of processes has ended: which member failed first and why, and the final event of its run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfcluster import settings
from tfcluster.core.groups import Member
from tfcluster.core.run_events import ErrorEvent, ResultEvent
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import format_exit_status
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.group import Exited


@dataclass(frozen=True)
class Failure:
    """The first failure of a group."""

    error: ClusterError
    exit_code: int  # as a shell would report it
    result: dict[str, Any]  # the task and host that failed, with the signal if one ended it; empty if no member failed


class LastLines:
    """Keeps the last lines of a member's output."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=settings.GROUP_FAILURE_LINES)
        self._rest = b""

    def add(self, data: bytes) -> None:
        """Add what the member has printed."""
        *lines, rest = (self._rest + data).split(b"\n")
        self._rest = rest[-settings.RUN_OUTPUT_LINE_MAX_BYTES :]
        self.lines.extend(line.decode(errors="replace").rstrip() for line in lines if line.strip())


def describe_failure(member: Member, report: Exited, lines: Sequence[str], interrupted: bool) -> Failure:
    """Describe the failure of a member."""
    code = report.exit_code if report.exit_code > 0 else 128 - report.exit_code
    result: dict[str, Any] = {"exit_code": code, "task": member.short, "host": member.host}
    if interrupted and code == ExitCode.INTERRUPTED:
        return Failure(ClusterError("interrupted", exit_code=ExitCode.INTERRUPTED), code, result)
    if report.exit_code < 0:
        result["signal"] = format_exit_status(-report.exit_code)
        problem = f"was ended by {result['signal']}"
    elif report.failure:
        problem = f"failed: {report.failure}"
    else:
        problem = f"ended with exit code {code}"
    shown = "\nits last lines:" + "".join(f"\n  {line}" for line in lines) if lines else ""
    return Failure(ClusterError(f"{member.short} on {member.host} {problem}{shown}"), code, result)


def final_event(
    plan: RunPlan,
    failure: Failure | None,
    restarts: int,
    metrics: Mapping[str, Any],
    seconds: float,
    lost_bytes: int,
) -> ResultEvent | ErrorEvent:
    """Return the final event of a group's run.

    `metrics` is the field of the result that has the members' metrics, if they have reported any. `lost_bytes` is how
    much of the output could not be written.
    """
    if failure is not None:
        hint = failure.error.hint or f"All that it has printed: `tfcluster logs {plan.run} -c {plan.cluster}`."
        error = ClusterError(failure.error.message, hint=hint, exit_code=failure.error.exit_code)
        result = {**failure.result, "restarts": restarts} if failure.result else {}
        return ErrorEvent(error.to_json(), {**result, **metrics} or None)
    notes = [f"{lost_bytes} bytes of output could not be written"] if lost_bytes else []
    return plan.result_event({"exit_code": 0, "restarts": restarts, **metrics}, seconds, devices={}, notes=notes)
