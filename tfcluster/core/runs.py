"""What is known of a run besides its program: its name, and what it was started from."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode

# A name is the first part of the run's id, which names a folder and a resource container of TensorFlow.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")


@dataclass(frozen=True)
class RunOrigin:
    """What a run was started from, by which it can be started again."""

    version: str  # the version of tfcluster that submitted it
    commit: str | None  # the git commit of the script's work tree; None if it is in none
    is_clean: bool | None  # whether the files that git tracks there were as in the commit
    digest: str | None  # the SHA-256 digest of the script; None for a module and for other programs
    devices: tuple[str, ...]  # the TensorFlow device strings; empty if the cluster chose
    gpus: int | None  # the number of GPU devices that was asked for; None for what was available
    strict: bool  # whether fewer GPUs than requested were an error
    upload: str | None  # the path of the uploaded file; empty if it was a pipe, None if there was none
    upload_name: str  # the name of that file in the run's folder
    start_timeout: float | None  # seconds that the script could wait for its tasks; None for no limit
    jobs: tuple[str, ...] | None  # the jobs of a group, as in `GroupRequest`; None for a run that is none
    max_restarts: int  # how often a group could be started again

    def describe_commit(self) -> str:
        """Describe the commit in short."""
        if self.commit is None:
            return "no git commit"
        return f"commit {self.commit[: settings.COMMIT_CHARACTERS]}{'' if self.is_clean else ' with changes'}"


def check_name(name: str) -> None:
    """Raise ClusterError if a name cannot be given to a run."""
    if not _NAME.fullmatch(name):
        raise ClusterError(
            f"{name!r} cannot be the name of a run",
            hint="A name has at most 48 letters, digits, '_', '.' and '-', and begins with a letter or digit.",
            exit_code=ExitCode.USAGE,
        )


def matching_runs(text: str, runs: Collection[str]) -> list[str]:
    """Return the runs that a user may mean: the one with this id, or else those of this name or with this prefix."""
    named = [run for run in runs if run.rpartition("-")[0] == text]
    return [text] if text in runs else named or [run for run in runs if text and run.startswith(text)]


def find_run(text: str, runs: Collection[str]) -> str:
    """Return the run that a user means by an id, by the name of a single run, or by a unique prefix of an id.

    Raises:
        ClusterError: No run is meant, or several.
    """
    matches = matching_runs(text, runs)
    if len(matches) == 1:
        return matches[0]
    if matches:
        more = ", …" if len(matches) > settings.LISTED_RUNS else ""
        raise ClusterError(
            f"several runs begin with {text!r}: {', '.join(sorted(matches)[: settings.LISTED_RUNS])}{more}",
            hint="Give more of the run's id.",
            exit_code=ExitCode.USAGE,
        )
    raise ClusterError(f"no run {text!r}", hint="`tfcluster runs` lists the runs.", exit_code=ExitCode.USAGE)


def exit_code(result: Mapping[str, Any]) -> int:
    """Return the exit code of `tfcluster run` for a run's result event: that of its script, if that has ended."""
    if (code := script_exit_code(result)) is not None:
        return code
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return int(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED


def script_exit_code(event: Mapping[str, Any]) -> int | None:
    """Return the exit code with which a script has ended by itself; None if it was not that, or is not the result."""
    if event.get("event") != "result" or event["program"] != "script" or event["result"] is None:
        return None
    code: int | None = event["result"].get("exit_code")  # of one that was stopped there are only the metrics
    return code
