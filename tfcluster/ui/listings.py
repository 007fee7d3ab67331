"""The tables of `status`, `ls`, `devices`, `runs` and `doctor`, and the stacks and threads of `stack`."""

from __future__ import annotations

import textwrap
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from tfcluster import settings
from tfcluster.client.listing import ClusterSummary
from tfcluster.client.preflight.checks import CheckResult
from tfcluster.core.devices import Device
from tfcluster.core.programs import SCRIPT
from tfcluster.core.runs import exit_code
from tfcluster.core.stacks import ProcessStacks
from tfcluster.core.states import HostState
from tfcluster.core.status import NOT_STARTED, ClusterStatus, TaskStatus
from tfcluster.core.text import pluralize, summarize_list
from tfcluster.core.topology import short_task_name
from tfcluster.paths import LOCAL_HOST
from tfcluster.protocol.api.processes import RunStacksReply, TaskThreadsReply
from tfcluster.ui.console import GAP, TASK_CELLS, Text, console, error_console, fit_columns, make_table
from tfcluster.ui.format import format_bytes, format_duration, style_of
from tfcluster.ui.trials import make_trials_table, summarize_trials

_NUMBERS = ("PID", "UPTIME", "RESTARTS", "CPU", "MEMORY")
# The columns to leave out, in this order, if the terminal is too narrow for all; `-o json` has all of them.
_LEFT_OUT = ("HOST", "DEVICES", "PID", "RESTARTS", "CPU", "MEMORY", "UPTIME", "ADDRESS")


# What the kernel calls the states of a thread.
_STATES = {
    "R": "runs",
    "S": "sleeps",
    "D": "waits for a device",
    "T": "is stopped by a signal",
    "t": "is stopped by a debugger",
    "Z": "has exited",
}


def show_status(status: ClusterStatus, *, has_servers: bool = True) -> None:
    """Print the cluster, its tasks, the last exit of tasks that exited unexpectedly, and its latest runs.

    The tasks of a cluster without servers, which `launch` has started, are only the places of its members.
    """
    screen = console()
    hosts = {task.host for task in status.tasks}
    rows = [{column: cell(task) for column, cell in TASK_CELLS.items()} for task in status.tasks]
    left_out = _LEFT_OUT[1:] if len(hosts) > 1 else _LEFT_OUT  # only a single host can be named in the title instead
    columns = fit_columns(list(TASK_CELLS), rows, left_out, screen.width + GAP)
    versions = sorted({host.tensorflow for host in status.hosts if host.tensorflow})
    screen.print(
        Text.assemble(
            (status.cluster, "bold"),
            "  ",
            (status.state.value, style_of(status.state.value)),
            f"  TensorFlow {', '.join(versions)}" if versions else "",
            f"  on {', '.join(hosts)}" if "HOST" not in columns else "",
            f"  {status.network} network",
            f"  {status.spec}",
        ),
        soft_wrap=True,
    )
    if status.job is not None:
        names = [host.host for host in status.hosts]
        nodes = ", ".join(f"{name} is {node}" for name, node in zip(names, status.job.nodes, strict=False))
        end = "" if status.job.ends_in_s is None else f"  ends in {format_duration(status.job.ends_in_s)}"
        screen.print(f"job {status.job.id}{end}  {nodes}", soft_wrap=True)
    if has_servers:
        screen.print()
        screen.print(
            make_table(columns, [[row[column] for column in columns] for row in rows], right=_NUMBERS), soft_wrap=True
        )
    if unavailable := [f"{host.host} is {host.state}" for host in status.hosts if host.state is not HostState.UP]:
        screen.print("\n" + "\n".join(unavailable), soft_wrap=True)
    if silent := [f"{task.short} does not answer ({task.probe_error})" for task in status.tasks if task.probe_error]:
        screen.print("\n" + "\n".join(silent), soft_wrap=True)
    for tasks_of_exit, exit_text in _unexpected_exits(status.tasks):
        ended = ":" if exit_text.startswith(NOT_STARTED) else " last ended with"
        screen.print(f"\n{summarize_list(tasks_of_exit)}{ended} {exit_text}", soft_wrap=True)
    if status.runs:
        _show_latest_runs(status)


def _show_latest_runs(status: ClusterStatus) -> None:
    screen = console()
    latest = status.runs[-settings.STATUS_RUNS :]
    rows = [(run.run, run.script or run.program, run.state.value, format_duration(run.seconds)) for run in latest]
    screen.print()
    screen.print(make_table(("RUN", "PROGRAM", "STATE", "TIME"), rows, right=("TIME",)), soft_wrap=True)
    if earlier := len(status.runs) - len(latest):
        more = pluralize(earlier, "earlier run")
        screen.print(f"and {more}: `tfcluster runs -c {status.cluster}`", soft_wrap=True)
    for run in status.runs:
        if run.members:
            members = [(each.task, each.host, _format_state(each.exit_code), str(each.pid)) for each in run.members]
            screen.print()
            screen.print(make_table(("MEMBER", "HOST", "STATE", "PID"), members, right=("PID",)), soft_wrap=True)


def _format_state(exit_code: int | None) -> str:
    """Format the state of a member of a launch."""
    if exit_code is None:
        return "running"
    return f"ended by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"


def _unexpected_exits(tasks: Sequence[TaskStatus]) -> Iterator[tuple[list[str], str]]:
    """Yield the text about unexpected exits, each with the short names of its tasks."""
    names: dict[str, list[str]] = {}
    for task in tasks:
        if task.last_exit is not None and not task.last_exit.expected:
            detail = f": {task.last_exit.detail}" if task.last_exit.detail else ""
            text = "\n  ".join([f"{task.last_exit}{detail}", *task.last_exit.log])
            names.setdefault(text, []).append(task.short)
    for text, short_names in names.items():
        yield short_names, text


def show_clusters(clusters: Sequence[ClusterSummary]) -> None:
    """Print a table with a row for each cluster, and why those that are not up are not."""
    rows = [
        (
            each.cluster,
            each.state,
            f"{each.ready} of {each.tasks} ready" if each.tasks else "-",
            summarize_list(each.hosts) or "-",
            _format_time(each.started),
            each.spec or "-",
        )
        for each in clusters
    ]
    console().print(make_table(("CLUSTER", "STATE", "TASKS", "HOSTS", "SINCE", "SPEC"), rows), soft_wrap=True)
    for each in clusters:
        if each.error is not None:
            hint = f"\n  {each.hint}" if each.hint else ""
            console().print(f"\n{each.cluster}: {each.error}{hint}", soft_wrap=True)


def _format_time(seconds: float | None) -> str:
    """Format a Unix time, as local time."""
    return "-" if seconds is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def show_devices(devices: Sequence[Device], hosts: Sequence[str] = ()) -> None:
    """Print a table with a row for each device; without hosts, all devices are on this machine."""
    columns = ["DEVICE", "TYPE", "MEMORY", "DESCRIPTION"]
    rows = [[device.short, device.type, format_bytes(device.memory_bytes), _kind(device)] for device in devices]
    if hosts:
        columns.insert(1, "HOST")
        for row, host in zip(rows, hosts, strict=True):
            row.insert(1, host)
    console().print(make_table(columns, rows, right=("MEMORY",)), soft_wrap=True)


def _kind(device: Device) -> str:
    if device.gpu is not None:
        return f"{device.gpu.name}, compute capability {device.gpu.compute_capability}"
    return device.description or "-"


def show_runs(runs: Sequence[Mapping[str, Any]]) -> None:
    """Print a table of runs or, on a terminal that is too narrow for it, a paragraph for each run."""
    rows = [
        (
            run["run"],
            run["script"] or run["program"],
            run["state"],
            _format_time(run["started"]),
            format_times(run),
            format_inputs(run),
            format_outcome(run),
        )
        for run in runs
    ]
    columns = ("RUN", "PROGRAM", "STATE", "STARTED", "TIME", "INPUTS", "RESULT")
    content, screen = make_table(columns, rows, right=("TIME",)), console()
    if screen.measure(content, options=screen.options.update(max_width=10_000)).maximum <= screen.width:
        screen.print(content)
    else:
        for row in rows:
            for indent, cells in (("", row[:5]), ("  ", row[5:6]), ("  ", row[6:])):
                text = indent + " ".join(cells)
                # Between words; a word that is wider than a line stays whole.
                for line in textwrap.wrap(
                    text, screen.width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
                ):
                    screen.print(line, soft_wrap=True)
    if incomplete := [run["run"] for run in runs if run["missing_output"]]:
        text = f"note: the output of {summarize_list(incomplete)} is incomplete: `logs:` in the spec sets the limits"
        error_console().print(text, style="yellow", soft_wrap=True)


def show_run(run: Mapping[str, Any], cluster: str) -> None:
    """Print the record of one run of a cluster, a line for each part."""
    origin, parameters = run["origin"], run["parameters"]
    lines = {
        "run": run["run"],
        "state": run["state"],
        "started": _format_time(run["started"]),
        "ended": run["ended"] and _format_time(run["ended"]),
        "time": format_times(run),
        "inputs": format_inputs(run),
        "script": parameters.get("path") if run["program"] == "script" else None,
        "folder": parameters.get("cwd") if run["program"] == "script" else None,
        "python": parameters.get("python") if run["program"] == "script" else None,
        "commit": origin
        and origin["commit"]
        and f"{origin['commit']} ({'clean' if origin['is_clean'] else 'with changes'})",
        "devices": origin and " ".join(origin["devices"]),
        "tfcluster": origin and origin["version"],
        "result": format_outcome(run),
        "exit code": run["state"] == "failed" and str(exit_code({**run, "event": "result"})),
        "log": run["state"] == "failed" and f"`tfcluster logs -c {cluster} {run['run']}`",
        "output": run["missing_output"]
        and f"{format_bytes(run['missing_output'])} of it are not stored (`logs:` in the spec)",
        "metrics": run["error"] and format_metrics((run["result"] or {}).get("metrics", {})),
    }
    width = max(map(len, lines))
    for name, text in lines.items():
        if text:
            console().print(f"{name:<{width}}  {text}", soft_wrap=True)
    if trials := (run["result"] or {}).get("trials"):
        console().print()
        console().print(make_trials_table(trials), soft_wrap=True)


def format_times(run: Mapping[str, Any]) -> str:
    """Format the duration of a run: if it has succeeded, that of its program, which begins and ends within the run."""
    duration = format_duration(run["seconds"])
    whole = (run["ended"] or 0.0) - run["started"]
    return f"{duration}, {format_duration(whole)} in all" if whole >= (run["seconds"] or 0.0) + 1 else duration


def format_metrics(metrics: Mapping[str, Any]) -> str:
    """Format the latest metrics of a script with their names, those of a group of processes by task."""
    parts = []
    for name, value in metrics.items():
        if isinstance(value, Mapping):
            parts.append(f"{name}: {format_metrics(value)}")
        else:
            parts.append(f"{name}={'not finite' if value is None else f'{value:.6g}'}")
    return ("; " if any(isinstance(value, Mapping) for value in metrics.values()) else " ").join(parts)


def format_inputs(run: Mapping[str, Any]) -> str:
    """Format a run's inputs in short: `samples=10000000 seed=7`, or a script with its arguments as typed.

    If the result of a bundled program says that it used another number, that follows: `batch=128 (used 101)`.
    """
    parameters, result = run["parameters"], run["result"] or {}
    if run["program"] == SCRIPT:
        start = ("-m", parameters["module"]) if parameters.get("module") else (PurePath(parameters["path"]).name,)
        return " ".join((*start, *parameters["args"]))
    used = {name: result[name] for name, value in parameters.items() if value is not None and name in result}
    return _values(
        {
            name: f"{value} (used {used[name]})" if used.get(name, value) != value else value
            for name, value in parameters.items()
        }
    )


def format_outcome(run: Mapping[str, Any]) -> str:
    """Format a run's outcome in short: its latest metrics, the first values of its result, or its error's first line.

    If that line announces others, such as the last output of the run, the last one of these follows it. A script that
    has succeeded without metrics has nothing to show but the restarts of its group, if there were any.
    """
    if run["error"] is not None:
        first, *more = str(run["error"]["message"]).splitlines() or [""]
        return f"{first} {more[-1].strip()}" if more and first.endswith(":") else first
    parameters, result = run["parameters"], run["result"] or {}
    if "trials" in result:
        return summarize_trials(result["trials"])
    if run["program"] == SCRIPT:
        restarts = pluralize(result["restarts"], "restart") if result.get("restarts") else ""
        return "; ".join(filter(None, (format_metrics(result.get("metrics", {})), restarts)))
    return _values({name: value for name, value in result.items() if parameters.get(name) is None})


def _values(values: Mapping[str, Any]) -> str:
    """Format the first scalar values with their names."""
    plain = [(name, value) for name, value in values.items() if isinstance(value, int | float | str) and value != ""]
    return " ".join(
        f"{name}={value:.6g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in plain[: settings.RUN_VALUES]
    )


def show_checks(checks: Sequence[CheckResult]) -> None:
    """Print checks: the host, the check, its result, and what to type to fix a problem.

    On a terminal this is a table. In a pipe nothing is wrapped, and a table would be as wide as the longest advice:
    there each advice has its own lines.
    """
    rows = [
        (check.host, check.check, "problem" if not check.is_ok else check.severity.value, check.text, check.hint)
        for check in checks
    ]
    screen = console()
    if screen.file.isatty():
        columns = ("HOST", "CHECK", "STATE", "RESULT", "WHAT TO TYPE")
        cells = [(*row[:-1], row[-1] or "-") for row in rows]
        screen.print(make_table(columns, cells, wrapped=("RESULT", "WHAT TO TYPE")))
        return
    widths = [max(map(len, column)) for column in list(zip(*rows, strict=True))[:3]]
    for *names, text, hint in rows:
        first = "  ".join(f"{name:<{width}}" for name, width in zip(names, widths, strict=True))
        summary, *details = [*text.splitlines(), *hint.splitlines()] or [""]
        screen.print("\n    ".join([f"{first}  {summary}", *details]), soft_wrap=True)


def show_stacks(replies: Sequence[RunStacksReply]) -> None:
    """Print the stacks of a run's processes."""
    if not any(reply.processes for reply in replies):
        console().print(f"{replies[0].run} has no Python process now: its program is starting or ending")
    for reply in replies:
        for process in reply.processes:
            _show_process(process, reply.host)


def _show_process(process: ProcessStacks, host: str) -> None:
    screen = console()
    on_host = "" if host == LOCAL_HOST else f" on {host}"
    screen.print(Text(f"process {process.pid}{on_host}: {process.command}", style="bold"), soft_wrap=True)
    if process.problem:
        screen.print(Text(f"  no stacks: {process.problem}", style="yellow"), soft_wrap=True)
    for thread in process.threads:
        screen.print(Text(f"  thread {thread.name} (most recent call first):"), soft_wrap=True)
        for frame in thread.frames:
            line = "?" if frame.line is None else frame.line
            screen.print(Text(f'    File "{frame.file}", line {line}, in {frame.function}'), soft_wrap=True)
        if not thread.frames:
            screen.print(Text("    no Python code"))


def show_task(reply: TaskThreadsReply) -> None:
    """Print the state and the threads of a task's server."""
    screen = console()
    on_host = "" if reply.host == LOCAL_HOST else f" on {reply.host}"
    process = "" if reply.pid is None else f", process {reply.pid}"
    state = (reply.state.value, style_of(reply.state.value))
    screen.print(
        Text.assemble((f"{short_task_name(reply.task)}{on_host}", "bold"), "  ", state, process), soft_wrap=True
    )
    if reply.problem:
        screen.print(Text(f"  {reply.problem}", style="yellow"), soft_wrap=True)
        screen.print(Text(f"  {reply.hint}"), soft_wrap=True)
    elif reply.pid is not None:
        screen.print("  it answers")
    threads = Counter((thread.state, thread.waits_in, thread.name) for thread in reply.threads)
    for (letter, waits_in, name), count in threads.most_common():
        where = f" in {waits_in}" if waits_in else ""
        screen.print(Text(f"  {count} x {name}: {_STATES.get(letter, letter)}{where}"), soft_wrap=True)
    if reply.log:
        screen.print("  its last lines:")
    for line in reply.log:
        screen.print(Text(f"    {line}", style="dim"), soft_wrap=True)
