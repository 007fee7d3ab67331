"""The commands `tfcluster up` and `scale`, and their phases: plan, confirm data losses, apply, and wait."""

from __future__ import annotations

import contextlib
import importlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tfcluster import settings
from tfcluster.cli.completion import complete_counts
from tfcluster.cli.hints import complete_hint, remember_cluster
from tfcluster.cli.options import Command, cluster_option, output_option, resolve_target, seconds, spec_argument
from tfcluster.cli.output import can_ask, echo, echo_json, require_consent, status_record
from tfcluster.errors import usage_error

if TYPE_CHECKING:
    from tfcluster.client.up import UpPlan
    from tfcluster.core.plan import HostStep, PlannedAction
    from tfcluster.core.topology import ClusterTopology
    from tfcluster.providers.request import HostRequest
    from tfcluster.ui.progress_views import StatusLine


_COUNT = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([0-9]{1,9})")  # of `scale`


def changing_options(function: Command) -> Command:
    """Add the options of a command that changes a cluster."""
    options: list[Callable[[Command], Command]] = [
        click.option(
            "--dry-run",
            is_flag=True,
            help="Only print the planned actions, with their causes and data losses.",
        ),
        click.option("--yes", is_flag=True, help="Do not ask for confirmation, even if variables or runs are lost."),
        click.option(
            "--timeout",
            type=seconds(0.1),
            default=settings.READY_TIMEOUT_SECONDS,
            show_default=True,
            metavar="S",
            help="Seconds to wait until every task is ready.",
        ),
        output_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@contextlib.contextmanager
def status_line(output: str) -> Iterator[Callable[..., None]]:
    """Yield a function that shows a text on a status line, see `StatusLine.show`; with `json`, it shows nothing."""
    view: StatusLine | None = None

    def show(text: str, *progress: Any) -> None:
        nonlocal view
        if view is None:
            from tfcluster.ui.progress_views import StatusLine

            view = StatusLine(silent=output == "json")
        view.show(text, *progress)

    try:
        yield show
    finally:
        if view is not None:
            view.end()


@contextlib.contextmanager
def preflight_progress(cluster: str, output: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows how many of all hosts are checked on a status line."""
    with status_line(output) as show:
        yield lambda done, count: show(f"{cluster}: checked {done} of {count} hosts", "check", count - done, count)


@dataclass(frozen=True)
class ChangeOptions:
    """The values of the `changing_options`."""

    dry_run: bool
    yes: bool
    timeout: float  # seconds to wait until every task is ready
    output: str  # `text` or `json`
    accepted_loss: set[str] = field(default_factory=set)  # what the user has agreed to lose so far


def change_cluster(cluster: str, make_plan: Callable[..., UpPlan], options: ChangeOptions, began: float) -> None:
    """Make a plan, show it, ask for confirmation if data is lost, apply it, and wait until every task is ready.

    If another command changes the cluster before the plan is applied, this plans again. `make_plan` is `plan_up` or
    `plan_scale`; it is called with `dry` and `progress`. `began` is the start of the command in monotonic seconds.
    """
    from tfcluster.client.preflight.preflight import close_inspectors
    from tfcluster.client.up import PlanConflictError

    for remaining_attempts in reversed(range(settings.PLANS_MAX)):
        try:
            with preflight_progress(cluster, options.output) as progress:
                plan = make_plan(dry=options.dry_run, progress=progress)
            _show_plan(plan, options)
            if options.dry_run:
                return
            try:
                _confirm_losses(cluster, plan.actions, options)
            except BaseException:
                close_inspectors(plan.hosts)
                raise
            _carry_out(plan, options, began)
            return
        except PlanConflictError:
            if not remaining_attempts:
                raise


def _show_plan(plan: UpPlan, options: ChangeOptions) -> None:
    from tfcluster.ui.progress_views import UpView

    if options.dry_run and options.output == "json":
        echo_json(plan.to_json())
    elif options.dry_run or (plan.observed is not None and plan.actions and options.output == "text"):
        UpView(plan.topology.cluster, silent=False).show_plan(plan.actions)


def _carry_out(plan: UpPlan, options: ChangeOptions, began: float) -> None:
    from tfcluster.client.hosts import store_topology
    from tfcluster.client.readiness import watch_until_ready
    from tfcluster.client.up import apply
    from tfcluster.ui.progress_views import UpView

    cluster, status = plan.topology.cluster, None
    view = UpView(cluster, silent=options.output == "json")
    try:
        with view:
            apply(
                plan,
                accept_any_loss=options.yes,
                show_status=lambda status: view.stopping(status, plan.actions),
            )
            store_topology(plan.result, view.show)
            watched = [task.short for task in plan.topology.tasks if task.host in plan.reachable.hosts]
            for status in watch_until_ready(
                plan.reachable, plan.topology, options.timeout, watched, show_line=view.show_line
            ):
                view.update(status)
    except KeyboardInterrupt:
        hint = (
            f"{cluster} might be partly changed, and the change might continue: `tfcluster status` shows it, the same "
            "command again completes it, `tfcluster down` stops the cluster"
        )
        echo(complete_hint(hint), err=True)
        raise
    assert status is not None, "there is at least one status"
    if options.output == "json":
        echo_json(status_record(status))
    else:
        view.finish(status, plan.actions, time.monotonic() - began)


def _confirm_losses(cluster: str, changes: Sequence[HostStep | PlannedAction], options: ChangeOptions) -> None:
    """Ask for confirmation of the data losses that the user has not accepted yet, and add them to the accepted ones."""
    from tfcluster.core.plan import PlannedAction, data_losses

    losses = data_losses(changes)
    if options.accepted_loss.issuperset(losses):
        return
    if not options.yes:
        hints = [each.hint for each in changes if not isinstance(each, PlannedAction) and each.hint]
        hint = " ".join([*hints, "Add --yes to do it anyway; `--dry-run` shows the whole plan."])
        if any(isinstance(each, PlannedAction) and each.has_unknown_peers for each in changes):
            hint += " A job that was started with `max: N` in the spec can grow to N tasks without any restart."
        details = [str(each) for each in changes if each.data_loss]
        message = f"cluster {cluster!r} would lose {', '.join(losses)}: nothing was changed"
        refusal = usage_error("\n".join([message, *details]), hint)
        require_consent("Continue and lose that?", options.output, refusal, "nothing was changed")
    options.accepted_loss.update(losses)


def _confirm_hosts(cluster: str, changes: Sequence[HostStep | PlannedAction], options: ChangeOptions) -> None:
    """Show what is lost before hosts change, and ask for confirmation; for tasks, `_show_plan` shows it."""
    from tfcluster.core.plan import data_losses

    if (options.yes or can_ask(options.output)) and not options.accepted_loss.issuperset(data_losses(changes)):
        for each in changes:
            echo(str(each), err=True)
    _confirm_losses(cluster, changes, options)


@click.command("up", epilog="Example: tfcluster up examples/cluster.yaml --timeout 30")
@spec_argument
@click.option(
    "--cluster-spec",
    metavar="NOTATION",
    help="A cluster in one line instead of a file, as 'ps|a:2222,worker|b:2222;c:2222'.",
)
@click.option(
    "--allow-version-mismatch", is_flag=True, help="Continue even if the hosts have different versions of TensorFlow."
)
@click.option(
    "--replace-spec",
    is_flag=True,
    help="If the cluster is running and was started from another spec, change it to this one.",
)
@changing_options
def command(
    spec: Path | None,
    cluster_spec: str | None,
    allow_version_mismatch: bool,
    replace_spec: bool,
    dry_run: bool,
    yes: bool,
    timeout: float,
    output: str,
) -> None:
    """Start the cluster of SPEC (default: ./cluster.yaml) and wait until every task is ready.

    A second `up` of the same spec changes nothing; after an edit it starts, restarts and stops only the tasks that the
    edit affects. It asks for confirmation, or requires --yes, before a ps loses its variables or a run its tasks.
    It does not change a cluster of the same name that was started from another file, except with --replace-spec.

    All hosts are checked before anything starts, and all problems of all hosts are reported at once. A spec is code:
    `up` runs its `setup:` commands and its `python:` on the hosts. --dry-run does not run `setup:`, and leaves nothing
    but tfcluster's code on any host.

    Exits with 4 if a task does not become ready, 5 if a host cannot be reached.
    """
    began = time.monotonic()
    from tfcluster.client.cluster import prestart_agent

    prestart_agent()  # before the other imports, so that these and the agent's run in parallel
    from tfcluster.client import up
    from tfcluster.client.resolve import check_source, load_spec_topology, spec_source, warn_of_renamed

    options = ChangeOptions(dry_run, yes, timeout, output)
    (topology, request), source = load_spec_topology(spec, cluster_spec), spec_source(spec, cluster_spec)
    if spec is not None or cluster_spec is not None:
        remember_cluster(topology.cluster)
    warn_of_renamed(topology.cluster, source)
    if request is not None:
        if not replace_spec:
            check_source(topology.cluster, source)
        if (placed := _get_hosts(topology, request, options)) is None:
            return
        topology = placed
    # Importing rich takes as long as starting a server, so import it while the agent loads TensorFlow's library.
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.progress_views"], daemon=True).start()

    make_plan = partial(
        up.plan_up, topology, source, allow_version_mismatch=allow_version_mismatch, replace_spec=replace_spec
    )
    change_cluster(topology.cluster, make_plan, options, began)
    if request is not None and not dry_run:
        _remove_surplus(topology, request)


def _get_hosts(topology: ClusterTopology, request: HostRequest, options: ChangeOptions) -> ClusterTopology | None:
    """Return a topology on the hosts of a provider; None after a dry run has printed how they are got."""
    from tfcluster.client import hosts

    if options.dry_run:
        with status_line(options.output) as show:
            plan = hosts.plan_hosts(topology, request, show)
        is_complete = plan.hosts.placed is not None and plan.hosts.is_complete
        for change in plan.hosts.steps if is_complete else plan.changes:  # the tasks' own follow
            echo(str(change), err=True)
        if not is_complete:
            echo(hosts.describe_hosts(topology, request))
        return plan.hosts.placed if is_complete else None
    with status_line(options.output) as show:
        return hosts.acquire_hosts(topology, request, show, partial(_confirm_hosts, topology.cluster, options=options))


def _remove_surplus(topology: ClusterTopology, request: HostRequest) -> None:
    from tfcluster.client.hosts import remove_surplus

    remove_surplus(topology, request)


@click.command("scale", epilog="Example: tfcluster scale worker=4 --dry-run")
@click.argument("counts", metavar="JOB=N...", nargs=-1, required=True, shell_complete=complete_counts)
@cluster_option
@changing_options
def scale_command(
    counts: tuple[str, ...], cluster: str | None, dry_run: bool, yes: bool, timeout: float, output: str
) -> None:
    """Change the number of tasks of jobs while the cluster runs; N is the new number, and 0 removes the job.

    Added tasks are like the last task of their job; the last tasks are removed. Up to `max:` of the spec nothing is
    restarted; beyond it, running servers must learn the addresses of new ones, and a ps that is restarted loses its
    variables: in that case this asks for confirmation, or requires --yes. The file of the spec does not change, so
    `up` returns to the numbers in it.
    """
    began = time.monotonic()
    from tfcluster.client import up

    desired = _parse(counts)
    threading.Thread(target=importlib.import_module, args=["tfcluster.ui.progress_views"], daemon=True).start()
    target = resolve_target(cluster)

    make_plan = partial(up.plan_scale, target, desired)
    change_cluster(target.name, make_plan, ChangeOptions(dry_run, yes, timeout, output), began)


def _parse(counts: tuple[str, ...]) -> dict[str, int]:
    desired: dict[str, int] = {}
    for text in counts:
        match = _COUNT.fullmatch(text)
        if match is None:
            raise usage_error(f"expected JOB=N, got {text!r}", "For example, `tfcluster scale worker=4`.")
        if desired.setdefault(match[1], int(match[2])) != int(match[2]):
            raise usage_error(
                f"job {match[1]!r} has two numbers of tasks, {desired[match[1]]} and {match[2]}", "Name each job once."
            )
    return desired
