"""The agent's RPC server: its Unix domain socket, and the connections to it.

A connection serves many requests at the same time, each by the handler of its type.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
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
from tfcluster.protocol.codec import Frame, FrameDecoder, FrameKind, encode_frame, encode_greeting, encode_rejection
from tfcluster.protocol.serialization import to_json

_logger = logging.getLogger(__name__)
# The requests that are answered without a journal.
_WITHOUT_JOURNAL = (LogsRequest, EventsRequest)


class _EventWindow:
    """The bytes of a response's events that may be sent before the command has read some of them."""

    def __init__(self) -> None:
        self._free = settings.RPC_EVENT_WINDOW_BYTES
        self._granted = asyncio.Event()

    async def take(self, size: int) -> None:
        """Wait until an event of this size may be sent."""
        while self._free <= 0:
            self._granted.clear()
            await self._granted.wait()
        self._free -= size

    def grant(self, size: int) -> None:
        """Allow the handler to send more, as the command has read so many bytes of events."""
        self._free += size
        self._granted.set()


class RpcConnection:
    """Serves the requests of one connection.

    Every request is handled by an asyncio task of its own. When the command disconnects, all of them are cancelled and
    their generators closed. `connections` are all connections of the agent.
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
        self.has_request = False
        self._requests: dict[int, asyncio.Task[None]] = {}
        self._uploads: dict[int, Upload] = {}
        self._windows: dict[int, _EventWindow] = {}

    async def wait_for_responses(self) -> None:
        """Wait until no request is in progress."""
        while self._requests:
            await asyncio.wait([*self._requests.values()])

    async def serve(self) -> None:
        """Serve requests until the command disconnects; raise ConnectionError if the connection breaks."""
        decoder = FrameDecoder(is_agent=True)
        try:
            greeted = False
            while data := await self._reader.read(settings.IO_BLOCK_BYTES):
                try:
                    frames = decoder.feed(data)
                    if not greeted and decoder.has_greeting:
                        greeted = True
                        await self._write(encode_greeting())
                    for frame in frames:
                        await self._receive(frame)
                except ClusterError as error:
                    await self._write(encode_rejection(error))
                    return
        finally:
            await self._cancel(*self._requests)

    async def _receive(self, frame: Frame) -> None:
        if frame.kind is FrameKind.REQUEST:
            self.has_request = True
            if frame.id in self._requests:
                raise ClusterError(f"two requests have the number {frame.id}")
            self._uploads[frame.id] = Upload(lambda size: self._send(frame.id, FrameKind.WINDOW, size))
            self._windows[frame.id] = _EventWindow()
            self._requests[frame.id] = asyncio.ensure_future(self._respond(frame.id, frame.body))
            # Not at the end of `_respond`: a request that is cancelled at once never begins.
            self._requests[frame.id].add_done_callback(lambda _: self._forget(frame.id))
        elif frame.kind is FrameKind.CANCEL:
            # The command may repeat the request at once, so it must not overlap with what is left of this one.
            await self._cancel(frame.id)
        elif frame.id not in self._requests:  # it has ended
            return
        elif frame.kind is FrameKind.WINDOW:
            self._windows[frame.id].grant(frame.body)
        else:
            self._uploads[frame.id].feed(frame.data)

    async def _cancel(self, *numbers: int) -> None:
        requests = [self._requests[number] for number in numbers if number in self._requests]
        for request in requests:
            request.cancel()
        if requests:
            await asyncio.wait(requests)

    async def _respond(self, number: int, body: Any) -> None:
        """Handle one request and send its response."""
        try:
            with self._context.lease.renew():
                request = decode_request(body)
                async with contextlib.aclosing(self._dispatcher.respond(request, self._uploads[number])) as response:
                    async for item in response:
                        if isinstance(item, Reply):
                            await self._send_last(number, FrameKind.REPLY, item.value)
                        else:
                            event = encode_frame(Frame(number, FrameKind.EVENT, to_json(item)))
                            await self._windows[number].take(len(event))
                            await self._write(event)
        except ClusterError as error:
            await self._send_last(number, FrameKind.ERROR, error)
        except ConnectionError:
            pass  # the command has disconnected, which `serve` notices, too
        except Exception as error:
            _logger.exception("a request failed")
            problem = ClusterError(f"the agent failed: {type(error).__name__}: {error}")
            await self._send_last(number, FrameKind.ERROR, problem)

    def _forget(self, number: int) -> None:
        del self._requests[number], self._uploads[number], self._windows[number]

    async def _send_last(self, number: int, kind: FrameKind, value: Any) -> None:
        """Send the end of a response, with whether the agent exits after the command has disconnected."""
        # A process that has only looked whether the agent answers may still be connected: it has no request.
        is_last = not any(other.has_request for other in self._connections if other is not self)
        ends = self._context.is_idle and is_last and len(self._requests) == 1
        with contextlib.suppress(ConnectionError):
            await self._send(number, kind, {"value": to_json(value), "ends": ends})

    async def _send(self, number: int, kind: FrameKind, body: Any) -> None:
        await self._write(encode_frame(Frame(number, kind, body)))

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
        self._handlers: dict[type[Request[Any, Any]], Callable[[Any], Response[Any, Any]]] = {
            TopologyRequest: cluster.topology,
            PrepareRequest: cluster.prepare,
            ObserveRequest: cluster.observe,
            ReachRequest: cluster.reach,
            ApplyRequest: cluster.apply,
            WatchRequest: cluster.watch,
            StatusRequest: cluster.status,
            UsageRequest: cluster.usage,
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
                await asyncio.gather(*(connection.wait_for_responses() for connection in self._connections))

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
            if self._exits():
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
