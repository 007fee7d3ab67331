"""The options of a run, its name and its exit code."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from tfcluster import settings
from tfcluster.core.devices import Device
from tfcluster.core.programs import BUNDLED, ON_DEVICES, SCRIPT
from tfcluster.errors import ExitCode, usage_error
from tfcluster.records import record_class

# A name is the first part of the run's id, which names a folder and a resource container of TensorFlow.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,47}")
# Of a name that is made from that of a script: with a hyphen and eight digits, an id has at most 32 characters.
_NAME_CHARACTERS = 23


@record_class(frozen=True)
class Best:
    """What the best trial of a sweep has: the lowest value of a metric, or the highest."""

    metric: str
    is_highest: bool = False

    @classmethod
    def parse(cls, text: str) -> Best:
        """Parse `loss`, `min:loss` or `max:accuracy`, or raise a ClusterError."""
        kind, _, rest = text.partition(":")
        metric = rest if kind in ("min", "max") else text
        if not metric or metric.startswith("-"):
            raise usage_error(f"--best {text} names no metric", "Write --best loss or --best max:accuracy.")
        return cls(metric, kind == "max")

    def sort_key(self, metrics: Mapping[str, Any]) -> float:
        """Return the number by which trials are sorted; those without the metric come last."""
        value = metrics.get(self.metric)
        if not isinstance(value, int | float):
            return math.inf
        return -value if self.is_highest else value


@record_class(frozen=True)
class Sweep:
    """The trials of a sweep, and how they are run."""

    trials: tuple[dict[str, str], ...]  # the parameters of each, as texts
    at_a_time: int = 1  # how many run at the same time on each task
    max_failures: int | None = None  # how many may fail before no other trial starts; None for no limit
    best: Best | None = None  # by what they are sorted; None for their numbers


@record_class(frozen=True)
class RunOptions:
    """The options of a run, and what it is started from, so that it can be started again.

    The command, the request for the run, its plan, its record and `rerun` all have this object.
    """

    program: str  # the name of the program
    parameters: dict[str, Any]  # the program's own, which are JSON values
    devices: tuple[str, ...] = ()  # TensorFlow device strings that choose the devices; if empty, the cluster chooses
    gpus: int | None = None  # how many GPU devices to use; None for what is available
    strict: bool = False  # whether fewer GPUs than requested are an error
    timeout: float | None = None  # seconds from the submission until the run is stopped; None for no limit
    start_timeout: float | None = None  # seconds for which its script may wait for its tasks; None for no limit
    log_placement: bool = False  # whether the run has events that say where its operations are placed
    name: str | None = None  # what the run's id begins with; None for the program's or the script's name
    notify: str | None = None  # the command that the agent runs when the run has ended; None for none
    upload: str | None = None  # the path of the uploaded file; empty if it is a pipe, None if there is none
    upload_name: str = "upload"  # the name of that file in the run's folder
    jobs: tuple[str, ...] | None = None  # those of a group; empty for `worker` and `chief`; None for a single process
    max_restarts: int = 0  # how often the whole group may be started again after a failure
    sweep: Sweep | None = None  # of a group whose members are trials; `jobs` are then those on whose tasks they run
    version: str | None = None  # that of tfcluster; None if it is not known what the run was started from
    commit: str | None = None  # the git commit of the script's work tree; None if it is in none
    is_clean: bool | None = None  # whether the files that git tracks there were as in the commit
    digest: str | None = None  # the SHA-256 digest of the script; None for a module and for other programs

    @property
    def is_script(self) -> bool:
        """Whether the program is the user's own script or module."""
        return self.program == SCRIPT

    def used_tasks(self, devices: Iterable[str], every: Collection[str]) -> list[str]:
        """Return the names of the tasks that the run may use, given the devices that it computes on and all tasks.

        Some programs use those of their devices alone; any other may use all of them. The members of a group use none:
        they are servers themselves.
        """
        if self.jobs is not None:
            return []
        if self.program not in ON_DEVICES:
            return list(every)
        return list(dict.fromkeys(Device(device, "").task for device in devices))

    @property
    def arguments(self) -> list[str]:
        """The arguments of the user's script, as they were typed."""
        return list(self.parameters["args"])

    @property
    def script(self) -> str | None:
        """The script or the module that is run, as `script_of` has it."""
        return script_of(self.program, self.parameters)

    @property
    def run_name(self) -> str:
        """What the run's id begins with."""
        if self.name is not None:
            return self.name
        script = self.script
        return self.program if script is None else name_script(script, self.parameters.get("module") is not None)

    def describe_origin(self) -> dict[str, Any] | None:
        """Return what the run was started from, as `runs -o json` has it; None if unknown."""
        return None if self.version is None else {name: getattr(self, name) for name in _ORIGIN}

    def describe_commit(self) -> str:
        """Describe the commit in short."""
        if self.commit is None:
            return "no git commit"
        return f"commit {self.commit[: settings.COMMIT_CHARACTERS]}{'' if self.is_clean else ' with changes'}"


_ORIGIN = (
    *("version", "commit", "is_clean", "digest", "devices", "gpus", "strict"),
    *("upload", "upload_name", "start_timeout", "jobs", "max_restarts", "sweep"),
)
_BESIDE = ("program", "parameters", "timeout", "start_timeout", "log_placement", "notify")


def nest_options(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document with the options of its run in `options`, as JSON values.

    `runs -o json` has them beside the other fields, and some of them in `origin`.
    """
    options = {name: document[name] for name in _BESIDE if name in document} | (document.get("origin") or {})
    return {**{name: document[name] for name in document if name not in (*_BESIDE, "origin")}, "options": options}


def check_name(name: str) -> None:
    """Raise ClusterError if a name is not valid for a run."""
    if not _NAME.fullmatch(name):
        raise usage_error(
            f"{name!r} cannot be the name of a run",
            "A name has at most 48 letters, digits, '_', '.' and '-', and begins with a letter or digit.",
        )


def script_of(program: str, parameters: Mapping[str, Any]) -> str | None:
    """Return the script or the module of a run as its users call it: `train.py`; None for another program."""
    if program != SCRIPT:
        return None
    path, argument = parameters.get("path") or "", parameters.get("argument") or ""
    if parameters.get("module"):
        return str(parameters["module"])
    file = PurePath(path or argument)
    if argument in ("-", "<stdin>") or str(file.parent) in ("/dev", "/dev/fd"):  # a descriptor, such as of a pipe
        return "stdin"
    return file.name or None


def name_script(script: str, is_module: bool) -> str:
    """Return what the id of a script's run begins with: `train` for train.py, `pkg` for the module pkg.__main__.

    An id names files, and is typed: it has few characters. It is not that of a bundled program's run: pi.py is `pi-py`.
    """
    parts = [part for part in script.split(".") if part != "__main__"] if is_module else [script.removesuffix(".py")]
    name = _to_id(parts[-1] if parts else "")
    if name in (*BUNDLED, SCRIPT, "launch", "sweep"):
        name = _to_id(f"{name}-module" if is_module else f"{name}-py")
    return name or "script"


def _to_id(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:_NAME_CHARACTERS].rstrip("-")


def matching_runs(text: str, runs: Collection[str]) -> list[str]:
    """Return the runs that a user may mean: the one with this id, or else those of this name or with this prefix."""
    named = [run for run in runs if run.rpartition("-")[0] == text]
    return [text] if text in runs else named or [run for run in runs if text and run.startswith(text)]


def find_run(text: str, runs: Collection[str]) -> str:
    """Return the run that a user means by an id, the name of a single run, or a unique prefix; else raise an error."""
    matches = matching_runs(text, runs)
    if len(matches) == 1:
        return matches[0]
    if matches:
        more = ", …" if len(matches) > settings.LISTED_RUNS else ""
        raise usage_error(
            f"several runs begin with {text!r}: {', '.join(sorted(matches)[: settings.LISTED_RUNS])}{more}",
            "Give more of the run's id.",
        )
    raise usage_error(f"no run {text!r}", "`tfcluster runs` lists the runs.")


def exit_code(result: Mapping[str, Any]) -> int:
    """Return the exit code of `tfcluster run` for a run's result event: that of its script, if that has ended."""
    if (code := script_exit_code(result)) is not None:
        return code
    if result["state"] == "succeeded":
        return ExitCode.DONE
    return int(result["error"]["exit_code"]) if "error" in result else ExitCode.FAILED


def script_exit_code(event: Mapping[str, Any]) -> int | None:
    """Return the exit code of a result event whose script has ended by itself."""
    if event.get("event") != "result" or event["program"] != SCRIPT or event["result"] is None:
        return None
    code: int | None = event["result"].get("exit_code")  # of one that was stopped there are only the metrics
    return code
