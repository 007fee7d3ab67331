"""The values of secret environment variables, which the journal must not hold: a file of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from tfcluster.agent.files import Files
from tfcluster.model.layout import Layout, Task

Values = Mapping[str, Mapping[str, str]]


class SecretValues:
    """Takes the values out of a layout and puts them in again.

    The file is beside the agent's socket, in a folder that only this user can enter. Where XDG_RUNTIME_DIR names the
    place that folder is in memory, and the file goes with the machine's.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files = Files()
        self._written = b""
        # The values of the layouts that the journal has, by their generations.
        self._journaled: dict[str, dict[str, dict[str, str]]] = {}

    def hidden(self, layout: Layout, following: Layout | None = None) -> Layout:
        """A layout without the values, which are in the file when this returns.

        Args:
            layout: The layout.
            following: The one that is to replace it, whose values are in the file too.

        Raises:
            OSError: The file cannot be written; it is as it was.
        """
        layouts = [layout] if following is None else [layout, following]
        values = {str(each.generation): _values_of(each) for each in layouts if _has_secrets(each)}
        if not values and not self._journaled:
            self.forget()
            return layout
        # The journal still has the layout of before, and keeps it if this agent dies before it writes the new one.
        data = json.dumps({**self._journaled, **values}).encode()
        if data != self._written or not self.path.exists():
            new = self.path.with_name(f"{self.path.name}.new")
            try:
                self._files.write(new, data, durable=False)
                self._files.replace(new, self.path)
            except OSError:
                with suppress(OSError):
                    self._files.unlink(new)
                raise
            self._written = data
        self._journaled = values
        return without_values(layout)

    def is_missing_for(self, layout: Layout) -> bool:
        """Whether a layout has secret values, and there is no file with them."""
        return _has_secrets(layout) and not self.path.exists()

    def shown(self, layout: Layout, path: Path) -> Layout:
        """A layout with the values that an earlier agent has put into a file; those that are lost are left out."""
        try:
            by_generation = json.loads(path.read_bytes())
            # An earlier version had only one layout in the file.
            values = by_generation.get(str(layout.generation), by_generation)
            shown = _with(layout, values)
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return layout
        self._journaled[str(layout.generation)] = _values_of(shown)
        return shown

    def forget(self) -> None:
        """Remove the file, if there is one.

        Raises:
            OSError: It cannot be removed.
        """
        self._files.unlink(self.path)
        self._written = b""
        self._journaled = {}


def without_values(layout: Layout) -> Layout:
    """A layout without the values of secret variables."""
    return _with(layout, {}) if _has_secrets(layout) else layout


def _values_of(layout: Layout) -> dict[str, dict[str, str]]:
    """The values of secret variables, by the names of the tasks and of the variables."""
    places = (*layout.tasks, *layout.reserved)
    return {task.name: {name: task.env[name] for name in task.secrets if name in task.env} for task in places}


def _has_secrets(layout: Layout) -> bool:
    return any(task.secrets for task in (*layout.tasks, *layout.reserved))


def lost(task: Task) -> list[str]:
    """The names of the secret variables whose values are not known."""
    return [name for name in task.secrets if name not in task.env]


def _with(layout: Layout, values: Values) -> Layout:
    """The layout with these values of secret variables and no others."""

    def fill_in(task: Task) -> Task:
        env = {name: value for name, value in task.env.items() if name not in task.secrets}
        return replace(task, env={**env, **values.get(task.name, {})})

    return replace(layout, tasks=tuple(map(fill_in, layout.tasks)), reserved=tuple(map(fill_in, layout.reserved)))
