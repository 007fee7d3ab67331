"""The RPC server on the agent's Unix domain socket, which serves the commands of this user only."""

from __future__ import annotations

import asyncio
import contextlib
import os

from tfcluster import settings
from tfcluster.agent.agent import Agent
from tfcluster.agent.agent_socket import AgentSocket
from tfcluster.agent.rpc_connection import RpcConnection
from tfcluster.process_handle import peer_credentials


class RpcServer:
    """Serves the agent's methods.

    Args:
        agent: The agent.
    """

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._connections: set[RpcConnection] = set()
        self._idle_exit: asyncio.TimerHandle | None = None
        # Descriptors of connections that stay open until this process has exited, which tells the commands that wait.
        self._kept: list[int] = []

    async def serve(self, agent_socket: AgentSocket) -> None:
        """Serve until the agent shuts down, or is idle and has no connections.

        Args:
            agent_socket: The socket.
        """
        self._schedule_idle_exit(settings.AGENT_FIRST_REQUEST_SECONDS)
        await agent_socket.serve(self._serve_connection)
        await self._agent.quitting.wait()
        agent_socket.close()
        # The command that requested the shutdown, and commands that follow a stream, still get their final message.
        with contextlib.suppress(asyncio.TimeoutError):
            responses = asyncio.gather(*(connection.wait_for_responses() for connection in self._connections))
            await asyncio.wait_for(responses, settings.AGENT_DRAIN_SECONDS)

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = RpcConnection(self._agent, reader, writer, lambda: len(self._connections) == 1)
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
            if connection.has_request or self._idle_exit is None:
                self._schedule_idle_exit(0.0)
            writer.close()

    def _exits(self) -> bool:
        """Return whether the agent shuts down, or exits because it is idle and no command is connected."""
        is_unused = self._agent.idle and not self._connections
        return is_unused or self._agent.quitting.is_set()

    def _schedule_idle_exit(self, delay: float) -> None:
        """Schedule the exit of an idle agent; replaces an exit that was scheduled before.

        Args:
            delay: Seconds until the check. The agent exits if it is idle and has no connections then.
        """

        def exit_if_idle() -> None:
            self._idle_exit = None
            if self._agent.idle and not self._connections:
                self._agent.quitting.set()
            while self._kept and not self._agent.quitting.is_set():
                os.close(self._kept.pop())

        if self._idle_exit is not None:
            self._idle_exit.cancel()
        self._idle_exit = asyncio.get_running_loop().call_later(delay, exit_if_idle)
