"""The full-screen view of a cluster: hosts, tasks, runs and events, and keys that restart, cancel, sort and filter."""

from __future__ import annotations

import asyncio
import os
import signal
import termios
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, TypeVar

from textual import work
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Container, Vertical
from textual.events import Resize
from textual.widgets import DataTable, Footer, Input, Static

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.live_cluster import LiveCluster
from tfcluster.client.live.view import LiveView
from tfcluster.client.restart import plan_restart, restart_tasks
from tfcluster.client.runs.requests import cancel_run
from tfcluster.client.status import ClusterSnapshot
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.ui.console import Text
from tfcluster.ui.top import rows
from tfcluster.ui.top.rows import ORDERS, Content, describe_run, describe_task, join_lines
from tfcluster.ui.top.screens import DetailScreen, Help, Question

Value = TypeVar("Value")


@dataclass(frozen=True)
class UserAction:
    """Something that changes the cluster."""

    command: str  # the command that does the same
    losses: tuple[str, ...]  # empty if nothing has to be asked
    carry_out: Callable[[], None]  # returns when it is done


def restart_action(cluster: Cluster, task: str) -> UserAction:
    """Return the action that restarts a task; raise ClusterError if the task's host cannot be reached."""
    plan, topology = plan_restart(cluster, [task])

    def restart() -> None:
        statuses = restart_tasks(
            cluster,
            topology,
            plan,
            rolling=False,
            grace=settings.STOP_GRACE_SECONDS,
            timeout=settings.READY_TIMEOUT_SECONDS,
            show_line=lambda line: None,
        )
        for _ in statuses:
            pass  # until it is ready; the view shows it by itself

    yes = " --yes" if plan.losses else ""
    return UserAction(f"tfcluster restart {task}{yes} -c {cluster.name}", plan.losses, restart)


def cancel_action(cluster: Cluster, run: str) -> UserAction:
    """Return the action that cancels a run."""

    def cancel() -> None:
        cancel_run(cluster, run)

    return UserAction(
        f"tfcluster cancel {run} -c {cluster.name}", (f"everything that run {run} has not saved yet",), cancel
    )


async def call_in_thread(function: Callable[[], Value]) -> Value:
    """Call a function in a thread of its own, which does not delay the end of the view as one of asyncio would."""
    outcome: Future[Value] = Future()
    outcome.set_running_or_notify_cancel()  # the end of the view does not cancel it

    def call() -> None:
        try:
            outcome.set_result(function())
        except Exception as error:  # raised again where the result is awaited
            outcome.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(outcome)


_CODES = {
    signal.SIGINT: ExitCode.INTERRUPTED,
    signal.SIGTERM: ExitCode.TERMINATED,
    signal.SIGHUP: ExitCode.TERMINATED,
}


def _end_without_terminal() -> None:
    """End this process if its terminal was closed: Textual would wait forever until it can write to it."""
    try:
        termios.tcgetattr(0)
    except termios.error:
        os._exit(int(ExitCode.TERMINATED))


class TerminalSignals:
    """Ends the view at a signal, and lets a shell stop and continue it, as it does with other programs.

    Textual would stop its own process alone, even if a script has started it, which then waits for it, and if no shell
    could continue it; and a process that is continued after SIGSTOP would mistake its own modes for the terminal's.
    """

    def __init__(self, app: App[Any]) -> None:
        self._app = app
        self._ending: int | None = None
        self._stopping: int | None = None

    def start(self) -> None:
        """Handle the signals; Textual's driver, which has handlers too, has been started."""
        for number in (*_CODES, signal.SIGTSTP, signal.SIGCONT):
            signal.signal(number, self._take)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if number in _CODES:
            _end_without_terminal()
            self._ending = number
        else:
            self._stopping = number

    def handle(self) -> int | None:
        """Handle the last signal; return the code with which the view has to exit, or None if it continues."""
        _end_without_terminal()
        if self._ending is not None:
            return int(_CODES[signal.Signals(self._ending)])
        number, self._stopping = self._stopping, None
        if number == signal.SIGTSTP:
            self.suspend()
        elif number == signal.SIGCONT:
            with self._app.suspend():  # draws everything again
                pass
        return None

    def suspend(self) -> None:
        """Stop all processes of the shell's job, until the shell continues them; without a shell, nothing happens."""
        with self._app.suspend():
            # SIGCONT too: if other threads delay its handler, all would be drawn twice, and keys in between are lost.
            for number in (signal.SIGTSTP, signal.SIGCONT):
                signal.signal(number, signal.SIG_DFL)
            os.killpg(0, signal.SIGTSTP)
            self._stopping = None
            self.start()


class Table(DataTable[Text]):
    """A table with named rows, whose cursor stays on its row."""

    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("enter", "select_cursor", "Log", key_display="↵"),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
    ]

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, cursor_type="row", cell_padding=0, zebra_stripes=False, show_row_labels=False)
        self._content: Content | None = None

    @property
    def selected(self) -> str | None:
        """Return the name of the row that the cursor is on; None if there are no rows."""
        names = [] if self._content is None else list(self._content.rows)
        return names[self.cursor_row] if 0 <= self.cursor_row < len(names) else None

    def show(self, content: Content) -> None:
        """Show a new content; if rows and columns stay, only cells that differ are drawn again."""
        before, chosen = self._content, self.selected
        self._content = content
        if before is None or before.layout != content.layout:
            self._rebuild(content, chosen)
            return
        for at, (old, new) in enumerate(zip(before.rows.values(), content.rows.values(), strict=True)):
            for column, (was, now) in enumerate(zip(old, new, strict=True)):
                if was != now or was.style != now.style:
                    self.update_cell_at((at, column), now)  # type: ignore[arg-type]

    def _rebuild(self, content: Content, chosen: str | None) -> None:
        row, top, keys = self.cursor_row, self.scroll_y, list(content.rows)
        self.clear(columns=True)
        for label, width in zip(content.columns, content.widths, strict=True):
            self.add_column(Text(label), width=width)
        for key, cells in content.rows.items():
            self.add_row(*cells, key=key)
        if keys:
            row = keys.index(chosen) if chosen in keys else min(row, len(keys) - 1)
            self.move_cursor(row=row, animate=False, scroll=False)
            self.scroll_to(y=top, animate=False)


class TopApp(App[ClusterError | int]):
    """Shows a cluster until the user quits, or the cluster is down."""

    ENABLE_COMMAND_PALETTE = False
    AUTO_FOCUS = "#tasks"
    CSS = """
    Screen { background: ansi_default; }
    #title { height: 1; text-style: bold; background: $boost; }
    #hosts, #events, #message, #title { text-wrap: nowrap; text-overflow: ellipsis; }
    #hosts { height: auto; }
    DataTable { background: ansi_default; scrollbar-size-vertical: 1; }
    #body { height: 1fr; }
    #tables { height: auto; }
    #runs { margin-top: 1; }
    #events { height: 1fr; margin-top: 1; }
    .wide #body { layout: horizontal; }
    .wide #events { height: 100%; width: 1fr; margin: 0 0 0 1; }
    #message { height: 1; }
    #filter { display: none; height: 1; border: none; padding: 0; }
    DataTable > .datatable--header { text-style: bold; background: ansi_default; }
    DataTable > .datatable--cursor { text-style: none; background: ansi_default; }
    DataTable:focus > .datatable--cursor { text-style: reverse; }
    """
    BINDINGS = [  # noqa: RUF012 - as Textual has it
        Binding("r", "restart", "Restart"),
        Binding("c", "cancel", "Cancel"),
        Binding("s", "sort", "Sort"),
        Binding("f", "filter", "Filter"),
        Binding("question_mark", "help", "Help", key_display="?"),
        Binding("q", "leave", "Quit"),
        Binding("escape", "clear_filter", show=False),
        Binding("ctrl+c", "interrupt", show=False, priority=True),
        Binding("ctrl+q", "leave", show=False, priority=True),
        Binding("ctrl+z", "suspend_process", show=False, priority=True),
    ]

    def __init__(self, cluster: Cluster, snapshot: ClusterSnapshot) -> None:
        super().__init__(ansi_color=True)
        self.live = LiveCluster(cluster, snapshot)
        self._signals = TerminalSignals(self)
        self._cluster = cluster
        self._shown_version: int | None = None  # of the view; None if it has to be shown again
        self._order = 0
        self._pattern = ""
        self._message: Text | None = None
        self._depth = 1
        self.failure: Exception | None = None  # the bug that has ended the view

    def compose(self) -> ComposeResult:
        """Show the cluster from its hosts down to its last events."""
        yield Static(id="title")
        yield Static(id="hosts")
        with Container(id="body"):
            with Vertical(id="tables"):
                yield Table(id="tasks")
                yield Table(id="runs")
            yield Static(id="events")
        yield Static(id="message")
        yield Input(id="filter", placeholder="filter tasks, runs and events", compact=True)
        yield Footer(compact=True, show_command_palette=False)

    def on_mount(self) -> None:
        """Start to follow the cluster."""
        self._signals.start()
        self.live.start()
        self.set_interval(settings.TOP_REFRESH_SECONDS, self._refresh_if_changed)
        self.set_interval(1.0, self._note_change)  # uptimes
        self._show()

    def _handle_exception(self, error: Exception) -> None:
        """End the view because of a bug; Textual would print pages about it."""
        self.failure = self.failure or error
        self.exit(int(ExitCode.FAILED))

    def _note_change(self) -> None:
        """Have the screen drawn again."""
        self._shown_version = None

    def _refresh_if_changed(self) -> None:
        code = self._signals.handle()
        if code is not None:
            self.exit(code)
        elif self._shown_version != (version := self.live.version):
            self._shown_version = version
            self._show()

    def _show(self) -> None:
        view = self.live.view()
        if view.down is not None:
            self.exit(view.down)
            return
        if self._depth != len(self.screen_stack):  # other keys
            self._depth = len(self.screen_stack)
            self.refresh_bindings()
            self.screen.refresh(layout=True)
        self._show_view(view)

    def _show_view(self, view: LiveView) -> None:
        """Show the cluster: from its hosts down to its last events, which are on the right if the screen is wide."""
        screen = self.screen_stack[0]
        width, height = self.size
        order = list(ORDERS)[self._order]
        hosts = rows.host_lines(view, max(2, height // 6))
        screen.query_one("#title", Static).update(rows.title_line(view, order, self._pattern))
        screen.query_one("#hosts", Static).update(join_lines(hosts))
        is_wide = width >= settings.TOP_WIDE_COLUMNS
        screen.set_class(is_wide, "wide")
        tables = screen.query_one("#tables")
        tables.styles.width = columns = width * 11 // 20 if is_wide else width
        scroll_bar = 1
        contents = {
            "tasks": rows.task_content(view, order, self._pattern, columns - scroll_bar),
            "runs": rows.run_content(view, self._pattern, columns - scroll_bar),
        }
        shown = [1 + len(content.rows) if content.rows else 0 for content in contents.values()]
        events = rows.find_events(view, self._pattern)
        is_filtering = screen.query_one("#filter", Input).display
        free = height - len(hosts) - 4 + is_wide - is_filtering  # the title, the message, the keys, an empty line
        gap = all(shown)
        heights = rows.share_lines(free - gap, [*shown, 0 if is_wide else len(events)])
        for (name, content), lines in zip(contents.items(), heights, strict=False):
            table = screen.query_one(f"#{name}", Table)
            table.display = bool(content.rows)
            table.styles.height = lines
            table.show(content)
        screen.query_one("#runs").styles.margin = (int(gap), 0, 0, 0)
        screen.query_one("#events", Static).update(
            join_lines(rows.event_lines(events, free if is_wide else heights[-1]))
        )
        nothing = (
            Text(f" nothing matches {self._pattern!r}: Esc shows everything") if not (any(shown) or events) else None
        )
        screen.query_one("#message", Static).update(self._message or nothing or self._hint())

    def _hint(self) -> Text:
        """Return the command that a key would execute on the selected task or run."""
        kind, name = self._selection()
        if name is None:
            return Text("")
        key, command = ("r", f"restart {name}") if kind == "tasks" else ("c", f"cancel {name}")
        return Text.assemble((f" {key}", "bold"), (f"  tfcluster {command} -c {self._cluster.name}", "dim"))

    def _selection(self) -> tuple[str, str | None]:
        """Return whether tasks or runs have the focus, and the name of the one that is selected."""
        if isinstance(self.screen, DetailScreen):
            return self.screen.kind, self.screen.subject
        screen = self.screen_stack[0]
        focused = screen.focused
        kind = "runs" if focused is not None and focused.id == "runs" else "tasks"
        return kind, screen.query_one(f"#{kind}", Table).selected

    def show_message(self, text: str, *, is_error: bool = False) -> None:
        """Show a message in the line above the keys until the next key."""
        self._message = Text(f" {text.partition(chr(10))[0]}", style="bold red" if is_error else "bold")
        self._show()

    def on_resize(self, event: Resize) -> None:
        """Arrange everything for the new size."""
        self._note_change()

    def on_key(self) -> None:
        """Remove the message of the key before."""
        self._message = None
        self._note_change()

    def on_data_table_row_highlighted(self) -> None:
        """Show what keys do with the row."""
        self._note_change()

    def on_data_table_row_selected(self) -> None:
        """Open the details: Enter, or a click on the row that is chosen."""
        self.action_open()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Return whether a key does something on the screen that is shown: tables are only on the first one."""
        return len(self.screen_stack) == 1 or action not in ("sort", "filter", "clear_filter")

    def action_open(self) -> None:
        """Show the details and the log of the task or run."""
        kind, name = self._selection()
        view = self.live.view()
        hosts = {task.short: task.host for task in view.status.tasks}
        hosts = hosts if kind == "tasks" else {run.record.run: run.host for run in view.runs}
        if name is None or name not in hosts or isinstance(self.screen, DetailScreen):
            return
        describe = partial(self._describe, kind, name)
        command = f"tfcluster logs {name} -f -c {self._cluster.name}"
        has_ended = partial(self._has_ended, name)
        self.push_screen(DetailScreen(self.live, kind, name, hosts[name], describe, command, has_ended))

    def _describe(self, kind: str, name: str) -> Text:
        return (describe_task if kind == "tasks" else describe_run)(self.live.view(), name)

    def _has_ended(self, run: str) -> bool:
        """Return whether a run has ended; False for a task."""
        return any(each.record.run == run and not each.is_active for each in self.live.view().runs)

    def action_sort(self) -> None:
        """Sort the tasks by the next column."""
        self._order = (self._order + 1) % len(ORDERS)
        self._show()

    def action_filter(self) -> None:
        """Ask for the text that rows must contain."""
        field = self.query_one("#filter", Input)
        field.display = True
        field.focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the user types."""
        self._pattern = event.value
        self._show()

    def on_input_submitted(self) -> None:
        """Keep the filter, and go back to the tasks."""
        self._close_filter()

    def action_clear_filter(self) -> None:
        """Show all rows again."""
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one("#tasks", Table).focus()

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(Help())

    def action_restart(self) -> None:
        """Restart the selected task."""
        kind, name = self._selection()
        if kind == "tasks" and name is not None:
            self._carry_out(partial(restart_action, self.live.cluster, name))
        else:
            self.show_message("r restarts a task: choose one with Tab and the arrows")

    def action_cancel(self) -> None:
        """Cancel the selected run."""
        kind, name = self._selection()
        if kind == "runs" and name is not None:
            run = next((run for run in self.live.view().runs if run.record.run == name), None)
            if run is None or not run.is_active:
                self.show_message(f"{name} has already ended")
            else:
                self._carry_out(partial(cancel_action, self.live.cluster, name))
        else:
            self.show_message("c cancels a run: choose one with Tab and the arrows")

    @work
    async def _carry_out(self, plan: Callable[[], UserAction]) -> None:
        """Find out what an action loses; ask if it loses anything, carry it out, and show its result."""
        prefix = ""
        try:
            action = await call_in_thread(plan)
            if action.losses and not await self.push_screen_wait(Question(action.command, action.losses)):
                self.show_message("nothing was done")
                return
            prefix = f"{action.command}: "
            self.show_message(f"$ {action.command}")
            await call_in_thread(action.carry_out)
            self.show_message(f"done: {action.command}")
        except ClusterError as error:
            self.show_message(f"{prefix}{error.message}", is_error=True)

    def action_leave(self) -> None:
        """End the view; the cluster keeps running."""
        self.exit(0)

    def action_suspend_process(self) -> None:
        """Give the terminal back to the shell, until `fg`."""
        self._signals.suspend()

    def action_interrupt(self) -> None:
        """End the view as Ctrl-C ends other commands."""
        self.exit(int(ExitCode.INTERRUPTED))


def run_top(cluster: Cluster, snapshot: ClusterSnapshot) -> int:
    """Show a cluster until the user quits, and return the exit code; raise ClusterError if the cluster goes down."""
    app = TopApp(cluster, snapshot)
    try:
        result = app.run(mouse=os.environ.get("TERM") != "linux")
    finally:
        app.live.close()
    if isinstance(result, ClusterError):
        raise result
    if app.failure is not None:
        raise app.failure
    return 0 if result is None else result
