"""The report of a finished run: what the page shows of it, as one file that needs no server and loads nothing."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import time
from collections.abc import Iterable
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.client.cluster import Cluster
from tfcluster.client.live.run_history import RunHistory, read_run_events
from tfcluster.client.logs import read_events, read_logs
from tfcluster.client.rpc.parallel import StreamContext
from tfcluster.client.runs.locate import locate_run
from tfcluster.client.runs.runs import find_record, list_runs
from tfcluster.client.status import take_snapshot
from tfcluster.core.states import ACTIVE_RUN_STATES, RunState
from tfcluster.dashboard.feed import add_inputs
from tfcluster.errors import ClusterError, usage_error
from tfcluster.protocol.serialization import to_json
from tfcluster.version import __version__

# The page's modules that a report needs, each after those that it imports.
_MODULES = (
    *("format.js", "dom.js", "curves.js", "timeline.js", "events.js", "server.js", "logs.js"),
    *("rundetail.js", "report.js"),
)
_IMPORT = re.compile(r"^import .*\n", re.MULTILINE)
_EXPORT = re.compile(r"^export ", re.MULTILINE)


def write_report(cluster: Cluster, run: str | None, path: Path) -> str:
    """Write the report of a run, and return the run's id.

    The cluster may be down. `run` is the run's id, its name, or a unique prefix of the id; None for the latest run that
    has ended.

    Raises:
        ClusterError: There is no such run, it has not ended, or its host cannot be reached.
        OSError: The file cannot be written.
    """
    record = find_record(cluster, run) if run is not None else _latest(cluster)
    if RunState(record["state"]) in ACTIVE_RUN_STATES:
        raise usage_error(
            f"{record['run']} has not ended: a report is of a finished run",
            f"`tfcluster wait {record['run']}` waits for its end; `tfcluster dashboard` shows it live.",
        )
    leader, run_id = locate_run(cluster, record["run"], start=True)
    history = RunHistory(run_id)
    for event in read_run_events(leader, run_id, StreamContext(leader.head)):
        history.update(event)
    path.write_text(render(collect(cluster, record, history)), encoding="utf-8")
    return str(record["run"])


def _latest(cluster: Cluster) -> dict[str, Any]:
    runs, problem = list_runs(cluster, None)
    ended = [run for run in runs if RunState(run["state"]) not in ACTIVE_RUN_STATES]
    if ended:
        return ended[-1]
    raise problem or usage_error(f"no run of {cluster.name} has ended yet", "`tfcluster runs` lists the runs.")


def collect(cluster: Cluster, record: dict[str, Any], history: RunHistory) -> dict[str, Any]:
    """Collect what a report shows.

    What cannot be read any more, such as the log of a host that is away, is left out.
    """
    begin = record["started"]
    tasks: list[Any] = []
    with contextlib.suppress(ClusterError):  # the cluster may be down by now
        tasks = to_json(take_snapshot(cluster).status.tasks)
    return {
        "cluster": cluster.name,
        "version": __version__,
        "time": time.time(),
        "record": add_inputs(record),
        "history": history.to_json(),
        "tasks": tasks,
        "events": _read(read_events(cluster, since=begin, until=_latest_end(record))),
        "lines": _read(read_logs(cluster, [record["run"]], lines=settings.DASHBOARD_LINES)),
    }


def _read(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    read: list[dict[str, Any]] = []
    with contextlib.suppress(ClusterError):  # after the lines of the other hosts
        read.extend(lines)
    return read


def render(data: dict[str, Any]) -> str:
    """Return the report as HTML.

    The data are JSON in which no `<` occurs, so that a text of the run cannot end the element; the policy allows the
    script and the style of the report alone, by their digests.
    """
    page = files("tfcluster.dashboard") / "page"
    modules = (_EXPORT.sub("", _IMPORT.sub("", (page / name).read_text(encoding="utf-8"))) for name in _MODULES)
    script = "\n".join([(page / "uPlot.js").read_text(encoding="utf-8"), *modules])
    style = "".join((page / name).read_text(encoding="utf-8") for name in ("uPlot.css", "style.css"))
    policy = f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)}; base-uri 'none'"
    values = json.dumps(data).replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(data['record']['run'])} · {escape(data['cluster'])} · tfcluster</title>\n"
        f"<style>{style}</style>\n</head>\n<body>\n"
        '<main id="view"></main>\n'
        f'<script type="application/json" id="data">{values}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _latest_end(record: dict[str, Any]) -> float:
    """Return the Unix time by which a run had ended: its duration does not count the start of its process."""
    return float(record["started"] + (record["seconds"] or 0.0) + settings.DASHBOARD_START_SECONDS)
