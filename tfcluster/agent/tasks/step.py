"""One state transition of a task: the event, the action that followed and the process that was forked for it."""

from __future__ import annotations

from dataclasses import dataclass

from tfcluster.agent.subprocesses import ChildProcess
from tfcluster.agent.tasks.state_machine import Action, TaskEvent, TaskStateMachine
from tfcluster.agent.tasks.task_runtime import TaskRuntime


@dataclass(frozen=True)
class Step:
    """A state transition that has been made, and can be undone until it is in the journal.

    Attributes:
        task: The task in its state after the transition.
        event: The event that caused the transition.
        before: The task's state machine before the transition.
        action: The action that the state machine requested; None for no action.
        child: The process that was forked and waits to be released; None if none was forked.
        describe_transition: The event and detail for the event log, as the function `describe_transition` returns
            them; None if nothing is to be recorded.
    """

    task: TaskRuntime
    event: TaskEvent
    before: TaskStateMachine
    action: Action | None
    child: ChildProcess | None
    describe_transition: tuple[str, str] | None

    @property
    def is_news(self) -> bool:
        """Whether the transition must be written to the journal and notified to the watchers of the task."""
        now = self.task.machine
        changed = (now.state, now.wanted) != (self.before.state, self.before.wanted)
        return changed or self.action is Action.SPAWN

    def undo(self) -> None:
        """Undo the transition: restore the state machine, kill the process that was forked and wait for its exit.

        The process has not been released, so it has not begun its work.
        """
        self.task.machine = self.before
        if self.child is not None:
            self.child.hang_up()
            self.child.kill()
            self.child.reap()
