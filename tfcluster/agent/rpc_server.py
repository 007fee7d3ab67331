"""The agent's RPC server: its Unix domain socket, and its connections, each with one request."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import select
import socket
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

from tfcluster import settings
from tfcluster.agent.context import AgentContext
from tfcluster.agent.event_loop import Timer
from tfcluster.agent.handlers.access import AccessHandlers, profile, run_stacks, task_threads
from tfcluster.agent.handlers.cluster import ClusterHandlers, Shutdown, UnreadableCluster
from tfcluster.agent.handlers.files import Upload, list_files, read_files, receive_code
from tfcluster.agent.handlers.logs import LogHandlers
from tfcluster.agent.handlers.runs import RunHandlers
from tfcluster.agent.handlers.view import ViewHandler
from tfcluster.errors import ClusterError
from tfcluster.os.process_handle import peer_credentials
from tfcluster.os.unix_socket import socket_address
from tfcluster.protocol.api import Reply, Request, Response, decode_request
from tfcluster.protocol.api.cluster import (
    ApplyRequest,
    DevicesRequest,
    DownRequest,
    EnvironmentRequest,
    ExecRequest,
    ObserveRequest,
    PrepareRequest,
    ReachRequest,
    RestartRequest,
    StatusRequest,
    TopologyRequest,
    UsageRequest,
    WatchRequest,
)
from tfcluster.protocol.api.files import OutputsRequest, ReadOutputsRequest, SendCodeRequest
from tfcluster.protocol.api.logs import EventsRequest, LogsRequest
from tfcluster.protocol.api.processes import ProfileRequest, RunStacksRequest, TaskThreadsRequest
from tfcluster.protocol.api.runs import (
    AttachRequest,
    CancelRequest,
    FailingRunsRequest,
    JoinRequest,
    RunRequest,
    RunsRequest,
    SignalRequest,
)
from tfcluster.protocol.api.view import ViewRequest
from tfcluster.protocol.codec import MessageDecoder, encode, encode_greeting, encode_rejection
from tfcluster.protocol.serialization import to_json

_logger = logging.getLogger(__name__)
# The requests that are answered without a journal.
_WITHOUT_JOURNAL = (LogsRequest, EventsRequest)


class RpcConnection:
    """Serves the request of one connection, in an asyncio task of its own.

    When the command disconnects, that is cancelled and its generator closed. `connections` are all connections of the
    agent.
    """

    def __init__(
        self,
        context: AgentContext,
        dispatcher: Dispatcher,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        connections: Collection[RpcConnection],
    ) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._reader = reader
        self._writer = writer
        self._connections = connections
        self._decoder = MessageDecoder(is_agent=True)
        self._upload = Upload()
        self._response: asyncio.Task[None] | None = None
        self.announced_end = False  # whether the command was told that the agent exits after it has disconnected

    @property
    def has_request(self) -> bool:
        """Return whether the command has sent its request: one that has only looked for the agent does not."""
        return self._response is not None

    async def wait_for_response(self) -> None:
        """Wait until the response has ended."""
        if self._response is not None:
            await asyncio.wait([self._response])

    async def serve(self) -> None:
        """Serve the request until the command disconnects; raise ConnectionError if the connection breaks."""
        try:
            while data := await self._reader.read(settings.IO_BLOCK_BYTES):
                try:
                    await self._receive(data)
                except ClusterError as error:
                    await self._write(encode_rejection(error))
                    return
        finally:
            if self._response is not None:
                self._response.cancel()
                await asyncio.wait([self._response])

    async def _receive(self, data: bytes) -> None:
        if self._response is not None and self._response.done():  # the rest of an upload that was refused
            return
        had_greeting = self._decoder.has_greeting
        self._decoder.feed(data)
        if self._response is None:
            message = self._decoder.take_message()
            if self._decoder.has_greeting and not had_greeting:
                await self._write(encode_greeting())
            if message is None:
                return
            self._response = asyncio.create_task(self._respond(message))
        while (block := self._decoder.take_block()) is not None:
            self._upload.feed(block)
        await self._wait_for_handler(self._response)

    async def _wait_for_handler(self, response: asyncio.Task[None]) -> None:
        """Wait until the handler has taken enough of an upload, or has ended, or the command has disconnected.

        During that nothing is read, so the command cannot send more.
        """
        if self._upload.has_room:
            return
        room = asyncio.ensure_future(self._upload.wait_for_room())
        try:
            while not room.done() and not response.done() and not self.has_hung_up():
                seconds = settings.RPC_UPLOAD_LOOK_SECONDS
                await asyncio.wait([room, response], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            room.cancel()

    def has_hung_up(self) -> bool:
        """Return whether the command has shut down its side, although data may be left to read."""
        if self._writer.is_closing():
            return True
        poll = select.poll()
        poll.register(self._writer.get_extra_info("socket").fileno(), select.POLLRDHUP)
        return bool(poll.poll(0))

    async def _respond(self, body: Any) -> None:
        """Handle the request and send its response."""
        try:
            with self._context.lease.renew():
                request = decode_request(body)
                async with contextlib.aclosing(self._dispatcher.respond(request, self._upload)) as response:
                    async for item in response:
                        if isinstance(item, Reply):
                            await self._send_last("reply", item.value)
                        else:
                            await self._write(encode({"event": to_json(item)}))
        except ClusterError as error:
            await self._send_last("error", error)
        except Exception as error:
            if isinstance(error, ConnectionError) and self._writer.is_closing():  # which `serve` notices, too
                return
            _logger.exception("a request failed")
            await self._send_last("error", ClusterError(f"the agent failed: {type(error).__name__}: {error}"))

    async def _send_last(self, kind: str, value: Any) -> None:
        """Send the end of the response, with whether the agent exits after the command has disconnected."""
        others = (other for other in self._connections if other is not self)
        is_held = any(other.has_request and not other.has_hung_up() for other in others)
        self.announced_end = self._context.is_idle and not is_held
        with contextlib.suppress(ConnectionError):
            await self._write(encode({kind: to_json(value), "ends": self.announced_end}))

    async def _write(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


class Dispatcher:
    """The handlers of all requests.

    `unreadable` handles the requests that need a journal if that is damaged or missing; otherwise it is None.
    """

    def __init__(self, context: AgentContext) -> None:
        self.unreadable: UnreadableCluster | None = None
        self.cluster = cluster = ClusterHandlers(context)
        self.shutdown = shutdown = Shutdown(context, cluster)
        self.runs = runs = RunHandlers(context)
        logs = LogHandlers(context)
        access = AccessHandlers(context)
        view = ViewHandler(context, cluster)
        self._handlers: dict[type[Request[Any, Any]], Callable[[Any], Response[Any, Any]]] = {
            TopologyRequest: cluster.topology,
            PrepareRequest: cluster.prepare,
            ObserveRequest: cluster.observe,
            ReachRequest: cluster.reach,
            ApplyRequest: cluster.apply,
            WatchRequest: cluster.watch,
            StatusRequest: cluster.status,
            UsageRequest: cluster.usage,
            ViewRequest: view.view,
            DevicesRequest: cluster.devices,
            RestartRequest: cluster.restart,
            DownRequest: shutdown.down,
            EnvironmentRequest: access.environment,
            ExecRequest: access.exec,
            ProfileRequest: partial(profile, context),
            LogsRequest: logs.logs,
            EventsRequest: logs.events,
            RunsRequest: runs.runs,
            AttachRequest: runs.attach,
            CancelRequest: runs.cancel,
            SignalRequest: runs.signal,
            JoinRequest: runs.join,
            FailingRunsRequest: runs.failing_runs,
            RunStacksRequest: partial(run_stacks, context),
            TaskThreadsRequest: partial(task_threads, context),
            OutputsRequest: partial(list_files, context.runs.store),
            ReadOutputsRequest: partial(read_files, context.runs.store),
        }
        self._receivers: dict[type[Request[Any, Any]], Callable[[Any, Upload], Response[Any, Any]]] = {
            RunRequest: runs.run,
            SendCodeRequest: receive_code,
        }

    def respond(self, request: Request[Any, Any], upload: Upload) -> Response[Any, Any]:
        """Pass a request, and what the command sends after it, to its handler; return the response.

        The caller closes the response. If the request fails, its iteration raises ClusterError.
        """
        if self.unreadable is not None and not isinstance(request, _WITHOUT_JOURNAL):
            return self.unreadable.down(request) if isinstance(request, DownRequest) else self.unreadable.reject()
        if (receive := self._receivers.get(type(request))) is not None:
            return receive(request, upload)
        return self._handlers[type(request)](request)


Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class AgentSocket:
    """The Unix socket in the state folder, on which the agent of a cluster listens; `path` is of any length.

    It replaces the file that a dead agent has left: the agent holds the lock, so no other one uses it. Raises OSError:
    the socket cannot be created.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._server: asyncio.Server | None = None
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        path.unlink(missing_ok=True)
        previous = os.umask(0o177)
        try:
            with socket_address(path) as address:
                self._listener.bind(address)
        finally:
            os.umask(previous)
        self._listener.listen(settings.AGENT_BACKLOG)

    async def serve(self, handler: Handler) -> None:
        """Accept connections on the event loop from now on, and pass each to the handler."""
        self._server = await asyncio.start_unix_server(handler, sock=self._listener, limit=settings.IO_BLOCK_BYTES)

    def close(self) -> None:
        """Stop accepting connections."""
        if self._server is not None:
            self._server.close()
        self._listener.close()

    def remove(self) -> None:
        """Remove the socket's file."""
        self.path.unlink(missing_ok=True)


class RpcServer:
    """Serves the agent's methods, to the commands of this user only."""

    def __init__(self, context: AgentContext, dispatcher: Dispatcher) -> None:
        self._context = context
        self._dispatcher = dispatcher
        self._connections: set[RpcConnection] = set()
        self._idle_exit = Timer()
        # Descriptors of connections that stay open until this process has exited, which tells the commands that wait.
        self._kept: list[int] = []

    async def serve(self, agent_socket: AgentSocket) -> None:
        """Serve until the agent shuts down, or is idle and has no connections."""
        self._schedule_idle_exit(settings.AGENT_FIRST_REQUEST_SECONDS)
        await agent_socket.serve(self._serve_connection)
        await self._context.quitting.wait()
        agent_socket.close()
        # The command that requested the shutdown, and commands that follow a stream, still get their final message.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(settings.AGENT_DRAIN_SECONDS):
                await asyncio.gather(*(connection.wait_for_response() for connection in self._connections))

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._context.quitting.is_set():  # closed without a greeting: the command starts the next agent
            writer.close()
            return
        connection = RpcConnection(self._context, self._dispatcher, reader, writer, self._connections)
        self._connections.add(connection)
        try:
            if peer_credentials(writer.get_extra_info("socket"))[1] == os.getuid():
                await connection.serve()
        except (ConnectionError, asyncio.CancelledError):
            pass  # the command disconnected, or the event loop ends: asyncio would log the cancellation as an error
        finally:
            self._connections.remove(connection)
            if self._exits() or connection.announced_end:
                with contextlib.suppress(OSError):  # the command has closed the connection
                    self._kept.append(os.dup(writer.get_extra_info("socket").fileno()))
            if connection.has_request or self._idle_exit.handle is None:
                self._schedule_idle_exit(0.0)
            writer.close()

    def _exits(self) -> bool:
        """Return whether the agent shuts down, or exits because it is idle and no command is connected."""
        is_unused = self._context.is_idle and not self._connections
        return is_unused or self._context.quitting.is_set()

    def _schedule_idle_exit(self, delay: float) -> None:
        """Exit in `delay` seconds if the agent is idle and has no connections then; replaces an earlier schedule."""

        def exit_if_idle() -> None:
            self._idle_exit.cancel()
            if self._context.is_idle and not self._connections:
                self._context.quitting.set()
            while self._kept and not self._context.quitting.is_set():
                os.close(self._kept.pop())

        self._idle_exit.set(delay, exit_if_idle)
