"""The interface of a program, for the programs of tfcluster and for those of other packages.

A program is a package with these modules:

- `__init__` has the declaration, `PROGRAM = Program(...)`. It imports neither TensorFlow nor click.
- `options` has `command`, a click command with the program's own options. Its function takes SharedOptions and these
  options, and returns a Submission.
- `run` has the function `run(context, **parameters)`, which returns the result, a dict of JSON values. It is imported
  on the head task's host only, and is the only module that imports TensorFlow.
- `render` has the function `summary(result, seconds)`, which returns the lines to show on a terminal: strings, or what
  rich can print. A program without this module has its result shown as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from tfcluster.core.programs import ProgramTraits, TaskRequirement, TaskSelector

__all__ = ["Program", "ProgramTraits", "SharedOptions", "Submission", "TaskRequirement", "TaskSelector"]


def _no_tasks(parameters: Mapping[str, Any]) -> Sequence[TaskRequirement]:
    return ()


@dataclass(frozen=True)
class Program:
    """The declaration of a program.

    Attributes:
        help: What the program does, in one line.
        fault_tolerant: The program handles lost tasks itself, as long as one of the tasks that it computes on remains.
        is_script: The program is the user's own script; see ProgramTraits.
        required_tasks: Returns, for a run's parameters, tasks that the run requires besides those that it computes on.
        describe: Formats a run's parameters in short, for the list of runs; None to show their names and values.
    """

    help: str
    fault_tolerant: bool = False
    is_script: bool = False
    required_tasks: Callable[[Mapping[str, Any]], Sequence[TaskRequirement]] = _no_tasks
    describe: Callable[[Mapping[str, Any]], str] | None = None

    def traits(self, parameters: Mapping[str, Any], package: str = "") -> ProgramTraits:
        """Return what an agent has to know to supervise a run.

        Args:
            parameters: The parameters of the run.
            package: The installed package that the program belongs to; empty for a program that is part of tfcluster.
        """
        return ProgramTraits(package, self.fault_tolerant, self.is_script, tuple(self.required_tasks(parameters)))


@dataclass(frozen=True)
class SharedOptions:
    """The values of the options that every program has."""

    seed: int | None
    devices: tuple[str, ...]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool
    placement_graph: Path | None
    detach: bool
    cluster: str | None
    output: str

    def seed_or_random(self) -> int:
        """Return the seed that the user gave, or a random one."""
        if self.seed is not None:
            return self.seed
        import secrets  # slow to import, and needed by few commands

        return secrets.randbits(32)


@dataclass(frozen=True)
class Submission:
    """What the user's options ask for.

    Attributes:
        parameters: The keyword arguments of the program's `run`, as JSON values.
        upload: An open file to upload with the run, which may be standard input; None for none.
        upload_name: The name of the file in the run's folder.
        on_success: Called with the result event of a run that succeeded, after the result is shown.
    """

    parameters: dict[str, Any]
    upload: BinaryIO | None = None
    upload_name: str = "upload"
    on_success: Callable[[dict[str, Any]], None] | None = None
