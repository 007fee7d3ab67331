"""The RPC server on the agent's Unix domain socket: one request per connection, from this user only."""

from __future__ import annotations

import asyncio
import contextlib
import os
import traceback

from tfcluster import settings
from tfcluster.agent.agent import Agent
from tfcluster.agent.agent_socket import AgentSocket
from tfcluster.agent.request_stream import RequestStream
from tfcluster.errors import ClusterError
from tfcluster.process_handle import peer_credentials
from tfcluster.protocol import api
from tfcluster.protocol.api import Request
from tfcluster.protocol.codec import Decoder, Message, encode


class RpcServer:
    """Serves the agent's methods.

    Args:
        service: The agent.
    """

    def __init__(self, service: Agent) -> None:
        self._service = service
        self._connections = 0
        self._all_closed = asyncio.Event()  # set while there is no connection
        self._all_closed.set()
        self._quitting: asyncio.TimerHandle | None = None

    async def serve(self, agent_socket: AgentSocket) -> None:
        """Serve until the agent shuts down, or is idle and has no connections.

        Args:
            agent_socket: The socket.
        """
        self._quit_if_idle(settings.AGENT_FIRST_REQUEST_SECONDS)
        await agent_socket.serve(self._serve_one)
        await self._service.quitting.wait()
        agent_socket.close()
        # The command that requested the shutdown, and commands that follow a stream, still get their final message.
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._all_closed.wait(), settings.AGENT_DRAIN_SECONDS)

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        self._all_closed.clear()
        try:
            if peer_credentials(writer.get_extra_info("socket"))[1] == os.getuid():
                await self._answer(reader, writer)
        except ConnectionError:
            pass  # the command disconnected
        finally:
            self._connections -= 1
            if not self._connections:
                self._all_closed.set()
            self._quit_if_idle(self._service.awaiting or 0.0)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve the one request of a connection; stop if the command disconnects before the response ends."""
        line = await reader.readline()
        if not line:
            return
        try:
            request = Request.from_message(Decoder().feed(line)[0])
        except ClusterError as problem:
            writer.write(encode(api.error(problem)))
            await writer.drain()
            return
        incoming = RequestStream(reader, expects_file=request.has_upload)
        with self._service.contact():
            answering = asyncio.ensure_future(self._write_answer(request, incoming, writer))
            hung_up = asyncio.ensure_future(incoming.hung_up())
            await asyncio.wait({answering, hung_up}, return_when=asyncio.FIRST_COMPLETED)
            for pending in (answering, hung_up):
                pending.cancel()
                with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                    await pending

    async def _write_answer(self, request: Request, incoming: RequestStream, writer: asyncio.StreamWriter) -> None:
        try:
            async for message in self._service.answer(request, incoming):
                writer.write(encode(message if "event" in message else self._last(message)))
                await writer.drain()
        except ClusterError as problem:
            writer.write(encode(self._last(api.error(problem))))
            await writer.drain()
        except (ConnectionError, asyncio.CancelledError):
            raise
        except Exception as problem:
            traceback.print_exc()  # standard error is the agent's log
            told = ClusterError(f"the agent failed: {type(problem).__name__}: {problem}")
            writer.write(encode(self._last(api.error(told))))
            await writer.drain()

    def _last(self, message: Message) -> Message:
        """Add to the final message of a response whether the agent exits after the command disconnects."""
        alone = self._service.idle and not self._service.awaiting and self._connections == 1
        return {**message, "ends": alone}

    def _quit_if_idle(self, delay: float) -> None:
        """Schedule the exit of an idle agent; replaces an exit that was scheduled before.

        Args:
            delay: Seconds until the check. The agent exits if it is idle and has no connections then.
        """

        def quit_now() -> None:
            if self._service.idle and not self._connections:
                self._service.quitting.set()

        if self._quitting is not None:
            self._quitting.cancel()
        self._quitting = asyncio.get_running_loop().call_later(delay, quit_now)
