"""The cluster in Python, for notebooks and your own programs: `tfcluster.connect()`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any

from tfcluster import settings
from tfcluster.client.exec import environment_here
from tfcluster.client.resolve import resolve_cluster
from tfcluster.client.runs.locate import read_topology
from tfcluster.client.runs.requests import attach, cancel_run
from tfcluster.client.status import list_devices
from tfcluster.core.environment import no_proxy_env
from tfcluster.core.topology import PRIVATE
from tfcluster.errors import ClusterError
from tfcluster.os import procfs
from tfcluster.paths import LOCAL_HOST

if TYPE_CHECKING:
    import tensorflow as tf

Event = dict[str, Any]


class ClusterConnection:
    """A cluster that is up. Only `cluster_spec` and `resolver` import TensorFlow.

    gRPC of this process connects to the cluster's servers without a proxy from now on (`no_grpc_proxy`).

    Args:
        cluster: The cluster's name; None to choose it as the commands do.

    Attributes:
        name: The cluster's name.

    Raises:
        ClusterError: There is no such cluster, or it is not running.
    """

    def __init__(self, cluster: str | None = None) -> None:
        self._cluster = resolve_cluster(cluster or os.environ.get("TFCLUSTER_CLUSTER"))
        variables, self._network = environment_here(self._cluster)
        os.environ.update(no_proxy_env(os.environ, variables["no_grpc_proxy"].split(",")))
        self._config: dict[str, Any] = json.loads(variables["TF_CONFIG"])
        self.name = self._cluster.name
        self._target = variables["TFCLUSTER_MASTER"]

    def __repr__(self) -> str:
        return f"<tfcluster {self.name} at {self._target}>"

    @property
    def target(self) -> str:
        """Return the target for a session, such as `grpc://localhost:2223`.

        Raises:
            ClusterError: The servers are in a private network, which this process cannot enter: it has threads, or this
                machine is not one of the cluster's hosts.
        """
        self._enter_network()
        return self._target

    def cluster_spec(self) -> tf.train.ClusterSpec:
        """Return the addresses of the tasks by job, in which this process is the chief.

        Raises:
            ClusterError: As for `target`.
        """
        self._enter_network()
        return _import_tensorflow().train.ClusterSpec(self._config["cluster"])

    def resolver(self) -> tf.distribute.cluster_resolver.ClusterResolver:
        """Return the resolver from which a strategy, such as ParameterServerStrategy, learns of the cluster.

        Raises:
            ClusterError: As for `target`.
        """
        self._enter_network()
        task = self._config["task"]
        resolvers = _import_tensorflow().distribute.cluster_resolver
        return resolvers.SimpleClusterResolver(
            self.cluster_spec(),
            master=self._target.removeprefix("grpc://"),  # the resolver puts it in front
            task_type=task["type"],
            task_id=task["index"],
            rpc_layer="grpc",
        )

    def _enter_network(self) -> None:
        """Move this process to the cluster's private network, if it has one, as its addresses mean nothing elsewhere.

        The process leaves this machine's network for good: call this only when the addresses are asked for.
        """
        if self._network is None:
            self._reject_outside()
            return
        if self._network.contains_this_process():
            return
        deadline = time.monotonic() + settings.PRIVATE_NETWORK_THREADS_SECONDS
        while _has_threads() and time.monotonic() < deadline:
            time.sleep(settings.PROCESS_EXIT_POLL_SECONDS)
        if _has_threads():
            raise ClusterError(
                f"the servers of {self.name} are in its private network, and a process with several threads, as after "
                "`import tensorflow`, cannot enter it",
                hint="Start it there: `tfcluster exec -- python PROGRAM`. Or ask for the addresses before the import.",
            )
        try:
            self._network.enter()
        except OSError as error:
            raise ClusterError(str(error.strerror), hint="Connect again.") from error

    def _reject_outside(self) -> None:
        """Raise an error if the servers are in a private network of other machines."""
        if LOCAL_HOST not in self._cluster.hosts and read_topology(self._cluster).network == PRIVATE:
            raise ClusterError(
                f"the servers of {self.name} are in its private network, and this machine is not one of its hosts",
                hint=f"Start it on one: `tfcluster exec --on {self._cluster.head} -- python PROGRAM`. The methods that "
                "run programs work here too.",
            )

    def devices(self) -> list[dict[str, Any]]:
        """Return every device of every task, as `tfcluster devices -o json` does.

        Raises:
            ClusterError: A task does not answer, or a host cannot be reached.
        """
        devices, problem = list_devices(self._cluster, None)
        if problem is not None:
            raise problem
        return [self._cluster.add_host(device.to_json(), host) for host, device in devices]

    def run(
        self, program: str, *arguments: object, on_event: Callable[[Event], None] | None = None, **options: Any
    ) -> dict[str, Any]:
        """Run a bundled program, or a script, to its end; an interrupt cancels it.

        Args:
            program: The name of a program, or the path of a script, as for `tfcluster run`.
            *arguments: The program's arguments, or those of the script.
            on_event: Called with each event, as `tfcluster run -o json` prints it. Without it, what a script prints is
                printed.
            **options: The options of `tfcluster run`, with `_` for `-`: `samples=1e7`, `strict=True`.

        Returns:
            The result.

        Raises:
            ClusterError: The run failed or could not be started, or an option is wrong.
        """
        result: Event = {}
        with contextlib.closing(self.events(program, *arguments, **options)) as events:
            for event in events:
                result = event
                (on_event or _print_output)(event)
        if result.get("state") != "succeeded":
            raise _failure(result)
        value: dict[str, Any] = result["result"]
        return value

    def events(self, program: str, *arguments: object, **options: Any) -> Generator[Event, None, None]:
        """Run a program as `run` does, and yield its events; the last one is the result, even of a run that failed.

        Closing the generator cancels the run.
        """
        from tfcluster.cli.run import parse_request

        with parse_request(program, arguments, options) as (request, on_success):
            result: Event = {}
            with contextlib.closing(request.events(self._cluster)) as events:
                for result in events:
                    yield result
            if on_success is not None and result.get("state") == "succeeded":
                try:
                    on_success(result)
                except OSError as error:
                    raise ClusterError(f"{error.filename}: cannot be written: {error.strerror}") from error

    def submit(self, program: str, *arguments: object, **options: Any) -> str:
        """Start a run as `run` does, without waiting for its end; return its id, for `attach` and `cancel`."""
        (first, *_) = self.events(program, *arguments, **{**options, "detach": True})
        return str(first["run"])

    def attach(self, run: str) -> Generator[Event, None, None]:
        """Yield the events of a run from its beginning to its result; closing the generator does not affect the run.

        Args:
            run: The run's id, or a unique prefix of it.
        """
        yield from attach(self._cluster, run)

    def cancel(self, run: str) -> None:
        """Stop a run; one that has ended is not changed.

        Args:
            run: The run's id, or a unique prefix of it.
        """
        cancel_run(self._cluster, run)


def _has_threads() -> bool:
    """Return whether this process has other threads, of Python or of a library."""
    return len(procfs.threads(os.getpid())) > 1


def _print_output(event: Event) -> None:
    if event["event"] == "output":
        stream = sys.stderr if event["stream"] == "stderr" else sys.stdout
        stream.write(event["data"].encode(errors="surrogateescape").decode(errors="replace"))
        stream.flush()


def _failure(result: Event) -> ClusterError:
    if "error" in result:
        return ClusterError.from_json(result["error"])
    return ClusterError(
        f"no result recorded for {result.get('run', 'the run')}", hint="`tfcluster runs` lists the runs."
    )


def _import_tensorflow() -> Any:
    """Import TensorFlow, or raise a ClusterError if it is not installed for this Python."""
    try:
        import tensorflow
    except ImportError as error:
        raise ClusterError(
            f"this requires TensorFlow, which cannot be imported: {error}",
            hint=f"Install it with `{sys.executable} -m pip install tensorflow`; `run` and `devices` work without it.",
        ) from error
    return tensorflow
