"""Submit a run and follow it up to its result."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, BinaryIO

from tfcluster.client.caller import StdinServer, describe_caller, describe_output
from tfcluster.client.cluster import Cluster
from tfcluster.client.interrupts import GracefulInterrupt, RunCanceller
from tfcluster.client.leader import find_leader
from tfcluster.client.placements import Placements
from tfcluster.client.runs import Event, RunResponse, follow, script_exit_code
from tfcluster.core.caller import Caller, OutputStreams
from tfcluster.core.programs import ProgramTraits
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.protocol.api import runs as api


@dataclass(frozen=True)
class RunRequest:
    """The request to run a program.

    Attributes:
        program: The name of the program.
        traits: What the agent has to know of the program.
        parameters: The program's own parameters.
        patterns: TensorFlow device strings by which devices are chosen; if empty, the cluster chooses.
        gpus: The number of GPU devices to use; None uses what is available.
        strict: Fail if there are fewer GPUs than requested.
        timeout: Seconds after which the run is stopped, counted from its submission; None for no timeout.
        log_placement: Report each operation's placement, as the servers log it.
        detach: Return as soon as the run is submitted.
        upload: An open file to upload with the run; None for none.
        upload_name: The name of the file in the run's folder.
        shows_output: The run's output is written to this command's streams as it arrives.
    """

    program: str
    traits: ProgramTraits
    parameters: dict[str, Any]
    patterns: list[str]
    gpus: int | None
    strict: bool
    timeout: float | None
    log_placement: bool = False
    detach: bool = False
    upload: BinaryIO | None = None
    upload_name: str = "upload"
    shows_output: bool = True

    def events(self, cluster: Cluster) -> Generator[Event, None, None]:
        """Submit the run and follow it up to its result; an interrupt cancels the run.

        A run on another host continues while the connection to it is lost, and is followed again as soon as the host
        can be reached. If the head's host cannot be reached in the first place, another host leads the run.

        Args:
            cluster: The cluster to run on.

        Yields:
            The events of the run; if it is detached, the first event only, unless the run has ended by then.

        Raises:
            ClusterError: The run could not be started; or it could not be cancelled, and continues.
        """
        cluster = find_leader(cluster, self.patterns)
        client = cluster.connect_head()
        is_remote = client.transport.is_remote
        if is_remote and self.traits.is_script and self.upload is None:
            raise ClusterError(
                f"-m {self.parameters['module']}: a module is executed on this machine only, and the cluster's leading "
                f"task is on {cluster.head}",
                hint="A script of one file is sent there: tfcluster run SCRIPT.py",
                exit_code=ExitCode.USAGE,
            )
        canceller = RunCanceller(cluster, is_script=self.traits.is_script)
        # Start before the run is submitted: every line that is logged from now on can belong to the run.
        placements = Placements(cluster) if self.log_placement and not self.detach else None
        result: Event = {}
        with contextlib.ExitStack() as stack:
            caller = None
            if self.traits.is_script and not is_remote:
                caller = describe_caller(None if self.detach else stack.enter_context(StdinServer()).name)
            request = self._request(caller, is_remote)
            interrupt = stack.enter_context(GracefulInterrupt(canceller))
            response = client.stream(request, interrupt=interrupt)
            upload = self.upload if request.upload is not None else None
            for event in self._events_of(response, cluster, canceller, interrupt, placements, upload):
                result = event
                yield event
        if script_exit_code(result) is None:
            interrupt.raise_if_any()

    def _request(self, caller: Caller | None, is_remote: bool) -> api.RunRequest:
        """Return the request for the agent.

        Args:
            caller: What the script takes over from this process; None unless it runs on this machine.
            is_remote: Whether the run is on another host.
        """
        # On this machine, a script runs where it is, unless it is a pipe.
        is_uploaded = self.upload is not None and not (caller is not None and os.path.isfile(self.parameters["path"]))
        return api.RunRequest(
            program=self.program,
            traits=self.traits,
            parameters=self.parameters,
            patterns=tuple(self.patterns),
            gpus=self.gpus,
            strict=self.strict,
            timeout=self.timeout,
            log_placement=self.log_placement,
            detach=self.detach,
            owned=not is_remote,
            upload=self.upload_name if is_uploaded else None,
            caller=caller,
            streams=self._streams(),
        )

    def _streams(self) -> OutputStreams | None:
        if not self.traits.is_script:
            return None
        return describe_output() if self.shows_output and not self.detach else OutputStreams()

    def _events_of(
        self,
        response: RunResponse,
        cluster: Cluster,
        canceller: RunCanceller,
        interrupt: GracefulInterrupt,
        placements: Placements | None,
        upload: BinaryIO | None,
    ) -> Generator[Event, None, None]:
        owned = not cluster.connect_head().transport.is_remote
        # On this machine, closing the response before the result, for any reason, also cancels the run. On another
        # host the command has to cancel it explicitly, because there a closed connection may just be a lost one.
        with contextlib.closing(response):
            first = next(response).record
            run = canceller.run = str(first["run"])
            with contextlib.nullcontext() if owned or self.detach else canceller:
                yield first
                if upload is not None:
                    response.send_file(upload)
                if placements is not None and not self.traits.is_script:
                    placements.keep_only(run)
                yield from follow(cluster, response, run, interrupt, events=1, owned=owned, placements=placements)
