"""A file from a command to an agent: through a real socket, by the code of both sides."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.agent.request_stream import RequestStream
from tfcluster.agent.runs.uploads import receive, validate_name
from tfcluster.client.rpc import ResponseStream
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Method
from tfcluster.protocol.codec import encode_chunk
from tfcluster.transport.local import LocalAgentConnection, LocalTransport


def receive_from(path: Path, send: Callable[[socket.socket], None]) -> bool:
    """Receive what a thread sends on a socket; whether the hanging-up was seen afterwards."""
    ours, theirs = socket.socketpair()
    sending = threading.Thread(target=send, args=(theirs,))

    async def serve() -> bool:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        await reader.readline()  # the request
        incoming = RequestStream(reader, expects_file=True)
        hung_up = asyncio.ensure_future(incoming.hung_up())
        try:
            await receive(incoming, path)
            await asyncio.wait_for(hung_up, 30)
        finally:
            hung_up.cancel()
            writer.close()
        return hung_up.done()

    sending.start()
    try:
        return asyncio.run(serve())
    finally:
        sending.join()


@pytest.mark.parametrize(
    "size", [0, 1, settings.RPC_CHUNK_MAX_BYTES, settings.RPC_CHUNK_MAX_BYTES + 1, 20 * 2**20 + 17]
)
def test_a_file_arrives_as_it_was_sent(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(data)

    def send(connection: socket.socket) -> None:
        agent = LocalAgentConnection(connection)
        with source.open("rb") as file:
            ResponseStream(LocalTransport("played"), agent, Method.RUN, {"sent": "data.bin"}).send_file(file)
        agent.close()

    assert receive_from(tmp_path / "sent" / "data.bin", send)
    assert (tmp_path / "sent" / "data.bin").read_bytes() == data


def test_a_pipe_is_sent_as_it_is_filled(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    reading, writing = os.pipe()

    def fill() -> None:
        with open(writing, "wb", buffering=0) as pipe:
            for at in range(0, len(data), 1000):
                pipe.write(data[at : at + 1000])

    def send(connection: socket.socket) -> None:
        agent = LocalAgentConnection(connection)
        filling = threading.Thread(target=fill)
        filling.start()
        with open(reading, "rb") as pipe:
            ResponseStream(LocalTransport("played"), agent, Method.RUN, {"sent": "data.bin"}).send_file(pipe)
        filling.join()
        agent.close()

    assert receive_from(tmp_path / "sent" / "data.bin", send)
    assert (tmp_path / "sent" / "data.bin").read_bytes() == data


@pytest.mark.parametrize("sent", [b"", encode_chunk(b"half"), encode_chunk(b"half")[:-2], b"\0"])
def test_a_command_that_goes_away_is_noticed(tmp_path: Path, sent: bytes) -> None:
    def send(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"request\n" + sent)

    with pytest.raises(ConnectionError):
        receive_from(tmp_path / "sent" / "data.bin", send)


def test_a_block_that_is_too_long_is_refused_before_it_is_read(tmp_path: Path) -> None:
    def send(connection: socket.socket) -> None:
        with connection:
            connection.sendall(b"request\n" + b"\xff\xff\xff\xff")

    with pytest.raises(ClusterError, match="a block of 4294967295 bytes arrived"):
        receive_from(tmp_path / "sent" / "data.bin", send)


def test_a_folder_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "sent").touch()
    with pytest.raises(ClusterError, match=r"sent/data\.bin: cannot store the uploaded file: File exists"):
        receive_from(tmp_path / "sent" / "data.bin", lambda connection: connection.close())


def test_an_agent_that_speaks_or_goes_ends_the_sending(tmp_path: Path) -> None:
    """A run that times out must not wait for a standard input that says nothing."""
    for say in (b"{}\n", b""):
        ours, theirs = socket.socketpair()
        agent = LocalAgentConnection(theirs)
        answer = ResponseStream(LocalTransport("played"), agent, Method.RUN, {"sent": "data.bin"})
        ours.recv(1 << 16)
        if say:
            ours.sendall(say)
        else:
            ours.close()
        reading, writing = os.pipe()
        with open(reading, "rb") as silent:
            answer.send_file(silent)
        os.close(writing)
        agent.close()
        ours.close()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(ClusterError, match="is not the name of a file"):
        validate_name(name)
    assert validate_name("train.py") == "train.py"
