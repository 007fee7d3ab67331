"""How a group of processes has ended: which member failed first and why, and the final event of its run."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfcluster import settings
from tfcluster.core.groups import Member
from tfcluster.core.run_events import ErrorEvent, ResultEvent
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.os.process_handle import format_exit_status
from tfcluster.processes.runs.run_plan import RunPlan
from tfcluster.protocol.group import Exited

# Keras 3 passes to TensorFlow what a strategy has distributed, which ends with a ValueError that names neither.
_KERAS_HINT = "Keras 3 has no `fit` for several workers: `pip install tf_keras`, and set TF_USE_LEGACY_KERAS=1."


@dataclass(frozen=True)
class Failure:
    """The first failure of a group."""

    error: ClusterError
    exit_code: int  # as a shell would report it
    result: dict[str, Any]  # the task and host that failed, with the signal if one ended it; empty if no member failed
    is_cause: bool = False  # of what members fail of: a host that is lost, or a member that is frozen
    text: str = ""  # what the member that failed printed last

    def names(self, member: Member) -> bool:
        """Return whether the error names a member, which may be its cause: TensorFlow says whom it has lost."""
        return not self.is_cause and _is_named(member, self.text)

    def caused_by(self, cause: Failure) -> Failure:
        """Return the failure that was the cause of this one, which comes after it in one line."""
        after = self.error.message.partition("\n")[0]
        error = ClusterError(f"{cause.error.message}\nafter that, {after}", exit_code=cause.error.exit_code)
        return replace(cause, error=error)


def describe_frozen(member: Member, pid: int) -> Failure:
    """Describe the failure of a group one of whose members is frozen: the others have lost it."""
    result = {"exit_code": int(ExitCode.FAILED), "task": member.short, "host": member.host}
    return Failure(ClusterError(member.describe_frozen(pid)), ExitCode.FAILED, result, is_cause=True)


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


def describe_failure(
    member: Member, report: Exited, lines: Sequence[str], done: Iterable[Member], interrupted: bool
) -> Failure:
    """Describe the failure of a member.

    `done` are the members that had exited with 0 before. One of them is the cause if TensorFlow names it.
    """
    code = report.exit_code if report.exit_code > 0 else 128 - report.exit_code
    result: dict[str, Any] = {"exit_code": code, "task": member.short, "host": member.host}
    if interrupted and code == ExitCode.INTERRUPTED:
        return Failure(ClusterError("interrupted", exit_code=ExitCode.INTERRUPTED), code, result)
    if report.exit_code < 0:
        result["signal"] = format_exit_status(-report.exit_code)
        problem = f"was terminated by {result['signal']}"
    elif report.failure:
        problem = f"failed: {report.failure}"
    else:
        problem = f"ended with exit code {code}"
    shown = "\nits last lines:" + "".join(f"\n  {line}" for line in lines) if lines else ""
    text = "\n".join([report.failure, *lines])
    missed = [f"{each.name} had exited with code 0 before: " for each in done if _is_named(each, text)]
    hint = _KERAS_HINT if "PerReplica" in report.failure else ""
    error = ClusterError(f"{''.join(missed)}{member.short} on {member.host} {problem}{shown}", hint=hint)
    return Failure(error, code, result, text=text)


def _is_named(member: Member, text: str) -> bool:
    return re.search(rf"/job:{re.escape(member.job)}/(?:replica:0/)?task:{member.index}(?!\d)", text) is not None


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
        hint = failure.error.hint or f"The whole output: `tfcluster logs {plan.run} -c {plan.cluster}`."
        error = ClusterError(failure.error.message, hint=hint, exit_code=failure.error.exit_code)
        result = {**failure.result, "restarts": restarts} if failure.result else {}
        return ErrorEvent(error.to_json(), {**result, **metrics} or None)
    notes = [f"{lost_bytes} bytes of output could not be written"] if lost_bytes else []
    return plan.result_event({"exit_code": 0, "restarts": restarts, **metrics}, seconds, devices={}, notes=notes)
