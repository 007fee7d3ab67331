"""What `up` asks before it changes hosts and tasks."""

from __future__ import annotations

import pytest

from tests.core.clusters import topology_of
from tfcluster.cli import up
from tfcluster.core.plan import ActionKind, HostStep, PlannedAction
from tfcluster.errors import ClusterError, ExitCode

TASK = topology_of("jobs: {ps: {tasks: 1}}").tasks[0]
STEP = HostStep("host1 must be replaced", ("the runs on host1",), "Or give it another `name:`.")
RESTART = PlannedAction(ActionKind.RESTART, TASK, "env changed", ("the variables of ps:0",))


def options(*, yes: bool = False) -> up.ChangeOptions:
    return up.ChangeOptions(dry_run=False, yes=yes, timeout=1.0, output="text")


def test_what_hosts_and_tasks_lose_is_shown_and_asked_for_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(up, "can_ask", lambda output: True)
    monkeypatch.setattr(up, "require_consent", lambda question, *others: asked.append(question))
    given = options()
    up._confirm_hosts("c", (STEP, RESTART), given)
    assert capsys.readouterr().err.splitlines() == [str(STEP), str(RESTART)]
    up._confirm_hosts("c", (STEP,), given)
    up._confirm_losses("c", (RESTART,), given)
    assert asked == ["Continue and lose that?"]
    more = PlannedAction(ActionKind.STOP, TASK, "removed", ("run pi-1",))
    up._confirm_losses("c", (RESTART, more), given)
    assert len(asked) == 2, "another loss is another question"
    assert capsys.readouterr().err == ""


def test_without_anybody_to_ask_all_losses_are_refused_at_once() -> None:
    with pytest.raises(ClusterError) as caught:
        up._confirm_hosts("c", (STEP, RESTART), options())
    error = caught.value
    assert error.message.splitlines() == [
        "cluster 'c' would lose the runs on host1, the variables of ps:0: nothing was changed",
        str(STEP),
        str(RESTART),
    ]
    assert error.hint.startswith("Or give it another `name:`. Add --yes to do it anyway")
    assert error.exit_code is ExitCode.USAGE


def test_yes_shows_what_is_lost_and_asks_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    up._confirm_hosts("c", (STEP, RESTART), options(yes=True))
    assert capsys.readouterr().err.splitlines() == [str(STEP), str(RESTART)]
