"""The details of a task or a run, line by line, as the full-screen view shows them above its log."""

from __future__ import annotations

import time
from collections.abc import Mapping

from tfcluster.client.live.view import LiveView
from tfcluster.protocol.serialization import to_json
from tfcluster.ui.console import Text
from tfcluster.ui.format import format_bytes, format_duration, format_optional, style_of
from tfcluster.ui.listings import format_inputs, format_outcome
from tfcluster.ui.top.rows import describe_progress


def describe_task(view: LiveView, name: str) -> Text:
    """Describe a task."""
    task = next((task for task in view.status.tasks if task.short == name), None)
    if task is None:
        return Text(f" {name} is no longer a task of the cluster")
    rates = view.rates.get(task.task)
    used = f"CPU {format_optional(task.cpu_percent)}%, memory {format_bytes(task.rss_bytes)}" if task.pid else "-"
    if task.gpu_memory_bytes is not None:
        used += f", GPU memory {format_bytes(task.gpu_memory_bytes)}"
    if task.traffic is not None:
        used += f", received {format_bytes(task.traffic.received_bytes)}, sent {format_bytes(task.traffic.sent_bytes)}"
    if rates is not None and rates.received_per_s is not None and rates.sent_per_s is not None:
        used += f" ({format_bytes(round(rates.received_per_s))}/s, {format_bytes(round(rates.sent_per_s))}/s)"
    last = ""
    if task.last_exit is not None:
        last = f"{task.last_exit}{f': {task.last_exit.detail}' if task.last_exit.detail else ''}"
    restarts = f", {task.restarts} restarts" if task.restarts else ""
    return _lines(
        (f"{task.short}", task.state.value, f"on {task.host}, up {format_duration(task.uptime_s)}{restarts}"),
        {
            "address": f"{task.address}, pid {format_optional(task.pid)}",
            "devices": " ".join(task.devices),
            "uses": used,
            "last exit": last,
        },
    )


def describe_run(view: LiveView, name: str) -> Text:
    """Describe a run."""
    run = next((run for run in view.runs if run.record.run == name), None)
    if run is None:
        return Text(f" {name} is no longer among the latest runs")
    record, fields = run.record, to_json(run.record)
    seconds = time.time() - record.started if run.is_active else record.seconds
    started = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.started))
    error = record.error or {}
    gpu_memory = next((each.gpu_memory_bytes for each in view.status.runs if each.run == name), None)
    return _lines(
        (record.run, record.state.value, f"on {run.host}, {format_duration(seconds)}, started {started}"),
        {
            "program": record.script or record.program,
            "inputs": format_inputs(record.program, record.parameters),
            "progress": describe_progress(run) if run.is_active else "",
            "uses": "" if gpu_memory is None else f"GPU memory {format_bytes(gpu_memory)}",
            "result": "" if run.is_active else format_outcome(fields),
            "hint": str(error.get("hint") or ""),
        },
    )


def _lines(heading: tuple[str, str, str], details: Mapping[str, str]) -> Text:
    name, state, where = heading
    text = Text.assemble((f" {name}", "bold"), "  ", (state, style_of(state)), f"  {where}")
    for label, value in details.items():
        if value:
            text.append("\n").append(Text.assemble((f" {label:<10}", "dim"), value.partition("\n")[0]))
    return text
