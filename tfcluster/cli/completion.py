"""The command `tfcluster completion`, and the answers to a shell that completes a command line.

A shell waits for these answers while the user types. They come at once or not at all: no error is shown, and an answer
that takes longer than `COMPLETION_SECONDS` is left out.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from tfcluster import settings
from tfcluster.cli.output import echo

if TYPE_CHECKING:
    from tfcluster.client.cluster import Cluster
    from tfcluster.core.topology import ClusterTopology

#: The environment variable by which the scripts ask for completions.
VARIABLE = "_TFCLUSTER_COMPLETE"

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

# Names that a shell would have to quote are left to its own completion of files.
_PLAIN_NAME = re.compile(r"[\w./+-]+")


@add_completion_class
class _BashCompletion(BashComplete):
    """Completion for bash, which splits words at `:` and `=`, as in worker:1 and worker=4.

    The script therefore passes the line, and an answer is only the part after the last of these characters.
    """

    source_template = """\
%(complete_func)s() {
    local IFS=$'\\n'
    local type value

    COMPREPLY=()
    while IFS=',' read -r type value; do
        if [[ $type == 'dir' ]]; then
            compopt -o dirnames
        elif [[ $type == 'file' ]]; then
            compopt -o default
        elif [[ $type == 'plain' ]]; then
            COMPREPLY+=("$value")
        fi
    done < <(env COMP_LINE="${COMP_LINE:0:COMP_POINT}" BREAKS="$COMP_WORDBREAKS" %(complete_var)s=bash_complete "$1")
}

complete -o nosort -F %(complete_func)s %(prog_name)s
"""
    _skipped = 0

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ["COMP_LINE"]
        words = split_arg_string(line)[1:]
        incomplete = words.pop() if words and not line[-1].isspace() else ""
        breaks = {":", "="} & set(os.environ["BREAKS"])
        self._skipped = max((incomplete.rfind(each) + 1 for each in breaks), default=0)
        return words, incomplete

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value[self._skipped :] if item.type == 'plain' else item.value}"


def complete_and_exit(group: click.Group) -> NoReturn:
    """Print the completions that a shell asks for, and exit."""
    signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
    signal.setitimer(signal.ITIMER_REAL, settings.COMPLETION_SECONDS)
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    try:
        group.main(prog_name="tfcluster", complete_var=VARIABLE)
    except SystemExit:
        pass
    except BaseException:  # an error message would break the line that the user is typing
        os._exit(0)
    sys.stdout.flush()
    os._exit(0)


def _complete(list_names: Callable[[click.Context], Iterable[str]]) -> _Complete:
    """Return the function by which a parameter completes names, in this order."""
    return lambda ctx, param, incomplete: _matching(list_names(ctx), incomplete)


def _clusters(ctx: click.Context) -> list[str]:
    from tfcluster.paths import running_clusters

    return running_clusters()


def _jobs_and_tasks(ctx: click.Context) -> list[str]:
    topology = _topology(ctx)
    return [*topology.addresses(), *(task.short for task in topology.tasks)]


def _exec_targets(ctx: click.Context) -> list[str]:
    topology = _topology(ctx)
    return [*(host.name for host in topology.hosts), *(task.short for task in topology.tasks)]


def _runs(ctx: click.Context, *, only_active: bool = False) -> list[str]:
    """Return the ids of the runs, the latest first."""
    from tfcluster.core.states import ACTIVE_RUN_STATES
    from tfcluster.protocol.api.runs import RunsRequest

    runs = reversed(_cluster(ctx).connect_head().call(RunsRequest(None)).runs)
    return [run.run for run in runs if not only_active or run.state in ACTIVE_RUN_STATES]


complete_clusters = _complete(_clusters)
complete_tasks = _complete(_jobs_and_tasks)
complete_exec_targets = _complete(_exec_targets)
#: A job with its present number of tasks, for `scale`.
complete_counts = _complete(lambda ctx: [f"{job}={len(each)}" for job, each in _topology(ctx).addresses().items()])
complete_runs = _complete(_runs)
complete_active_runs = _complete(partial(_runs, only_active=True))
complete_hosts = _complete(lambda ctx: _cluster(ctx).hosts)
complete_logs = _complete(lambda ctx: [*_jobs_and_tasks(ctx), *_runs(ctx)])  # all of them have logs
complete_stacks = _complete(lambda ctx: [*_runs(ctx), *(task.short for task in _topology(ctx).tasks)])


def complete_jobs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Complete the last name in a list of jobs, which commas separate."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return _matching([f"{before}{job}" for job in _topology(ctx).addresses()], incomplete)


def complete_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Let the shell complete a path."""
    return [CompletionItem(incomplete, type="file")]


def complete_scripts(incomplete: str) -> list[CompletionItem]:
    """Complete the path of a Python script; if there is none, let the shell complete the path of a folder."""
    folder, _, name = incomplete.rpartition("/")
    prefix = incomplete.removesuffix(name)
    paths = sorted(f"{prefix}{path.name}" for path in Path(folder or prefix or ".").glob("*.py") if path.is_file())
    scripts = _matching([path for path in paths if _PLAIN_NAME.fullmatch(path)], incomplete)
    return scripts or [CompletionItem(incomplete, type="file")]


def complete_modules(incomplete: str) -> list[CompletionItem]:
    """Complete the name of a module that can be executed, in this folder or in one of its packages."""
    package = incomplete.rpartition(".")[0]
    names = _modules(Path(*package.split(".")), f"{package}.".removeprefix("."))
    return _matching(sorted(names), incomplete)


def _modules(folder: Path, prefix: str) -> Iterator[str]:
    for path in folder.iterdir():
        name = f"{prefix}{path.stem}"
        if path.suffix == ".py" and path.stem.isidentifier() and not path.stem.startswith("__"):
            yield name
        elif path.name.isidentifier() and (path / "__init__.py").is_file():
            if (path / "__main__.py").is_file():
                yield name
            yield from _modules(path, f"{name}.")


def _matching(names: Iterable[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


def _topology(ctx: click.Context) -> ClusterTopology:
    """Return the topology of the spec of `launch --spec`, or else that of the cluster."""
    from tfcluster.protocol.api.cluster import TopologyRequest

    if (spec := ctx.params.get("spec")) is not None:
        from tfcluster.client.resolve import load_spec_topology

        return load_spec_topology(spec, None)[0]
    return _cluster(ctx).connect_head().call(TopologyRequest())


def _cluster(ctx: click.Context) -> Cluster:
    from tfcluster.client.resolve import resolve_cluster

    named: Any = ctx.params.get("cluster")
    return resolve_cluster(named)


@click.command("completion", epilog='Example: eval "$(tfcluster completion bash)"')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print the script that teaches a shell to complete tfcluster's commands and options, and the names of scripts,
    tasks, runs and clusters.
    """
    shell_class = get_completion_class(shell)
    assert shell_class is not None, "click knows the shells that the argument allows"
    completion = shell_class(ctx.find_root().command, {}, "tfcluster", VARIABLE)
    # Do not use source(), which runs the shell to query its version; the script is the same on every machine.
    echo((completion.source_template % completion.source_vars()).removesuffix("\n"))
