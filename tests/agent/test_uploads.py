"""Uploads of files from a command to an agent, through a real socket, and the cache of the code that was sent."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.agent.hosts import run_request
from tests.conftest import wait_for
from tfcluster import settings
from tfcluster.agent.context import AgentContext, Lease
from tfcluster.agent.handlers.files import CodeStore, Upload, receive, receive_code, validate_filename
from tfcluster.agent.rpc_server import Dispatcher, RpcConnection
from tfcluster.client.rpc.agent_client import ResponseStream
from tfcluster.core.code import CodeFile, digest_of, encode_manifest
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Done, Reply, Request, Response, encode_request
from tfcluster.protocol.api.files import CodeWanted, SendCodeRequest
from tfcluster.protocol.api.runs import EventRecord
from tfcluster.protocol.codec import MessageDecoder, encode, encode_block, encode_greeting
from tfcluster.transport.local import LocalAgentConnection, LocalTransport

RUN = run_request("script", {"args": []}, upload="", upload_name="data.bin")


class UploadAgent:
    """An agent that stores the upload of each request in a file, and counts the requests that were cancelled."""

    is_idle = False

    def __init__(self, path: Path) -> None:
        self.lease = Lease()
        self.cancelled = 0
        self._path = path

    async def respond(self, request: Request[Any, Any], upload: Upload) -> Response[EventRecord, Done]:
        yield EventRecord({"event": "run"})
        try:
            await receive(upload, self._path)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        yield Reply(Done())


class BlockedAgent(UploadAgent):
    """An agent that reads only the first block of an upload."""

    async def respond(self, request: Request[Any, Any], upload: Upload) -> Response[EventRecord, Done]:
        async for _ in upload.blocks():
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        yield Reply(Done())


def serve(agent: UploadAgent, use: Callable[[socket.socket], None]) -> UploadAgent:
    own, other = socket.socketpair()
    using = threading.Thread(target=use, args=(other,))

    async def serve_connection() -> None:
        reader, writer = await asyncio.open_unix_connection(sock=own)
        context, dispatcher = cast(AgentContext, agent), cast(Dispatcher, agent)
        # A write can meet the closed other end before the reader does, just as in the agent.
        with contextlib.suppress(ConnectionError):
            await RpcConnection(context, dispatcher, reader, writer, []).serve()
        assert len(asyncio.all_tasks()) == 1, "no request outlives its connection"
        writer.close()

    using.start()
    try:
        asyncio.run(serve_connection())
    finally:
        using.join()
    return agent


def upload(path: Path, source: Any) -> list[ClusterError]:
    """Send a file as a command does to an agent that stores it; return the error of the command, if there is one."""
    errors: list[ClusterError] = []

    def use(connection: socket.socket) -> None:
        channel = LocalAgentConnection(connection)
        channel.send(encode_greeting())
        try:
            response = ResponseStream(LocalTransport("played"), channel, RUN)
            assert next(response) == EventRecord({"event": "run"})
            response.send_file(source)
            assert response.result() == Done()
        except ClusterError as error:
            errors.append(error)
        finally:
            channel.close()

    serve(UploadAgent(path), use)
    return errors


@pytest.mark.parametrize(
    "size", [0, 1, settings.RPC_BLOCK_MAX_BYTES, settings.RPC_BLOCK_MAX_BYTES + 1, 20 * 2**20 + 17]
)
def test_a_file_arrives_unchanged(tmp_path: Path, size: int) -> None:
    data = os.urandom(size)
    source = tmp_path / "source"
    source.write_bytes(data)
    with source.open("rb") as file:
        assert upload(tmp_path / "sent" / "data.bin", file) == []
    assert (tmp_path / "sent" / "data.bin").read_bytes() == data


def test_a_pipe_is_sent_while_it_is_filled(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    reading, writing = os.pipe()

    def fill() -> None:
        with open(writing, "wb", buffering=0) as pipe:
            for at in range(0, len(data), 1000):
                pipe.write(data[at : at + 1000])

    filling = threading.Thread(target=fill)
    filling.start()
    with open(reading, "rb") as pipe:
        assert upload(tmp_path / "sent" / "data.bin", pipe) == []
    filling.join()
    assert (tmp_path / "sent" / "data.bin").read_bytes() == data


@pytest.mark.parametrize("sent", [b"", encode_block(b"half"), encode_block(b"half")[:-2]])
def test_a_disconnect_during_the_upload_cancels_the_request(tmp_path: Path, sent: bytes) -> None:
    path = tmp_path / "sent" / "data.bin"

    def use(connection: socket.socket) -> None:
        with connection:
            send_request(connection)
            connection.sendall(sent)
            wait_for(lambda: any(path.parent.glob("*")))

    assert serve(UploadAgent(path), use).cancelled == 1


def send_request(connection: socket.socket) -> None:
    """Send a request, and wait for the first event of its response."""
    connection.sendall(encode_greeting() + encode(encode_request(RUN)))
    decoder = MessageDecoder(is_agent=False)
    while decoder.take_message() is None:
        decoder.feed(connection.recv(1 << 16))


def test_what_is_not_read_of_an_upload_piles_up_nowhere(tmp_path: Path) -> None:
    taken = 0

    def use(connection: socket.socket) -> None:
        nonlocal taken
        with connection:
            connection.sendall(encode_greeting() + encode(encode_request(RUN)))
            connection.setblocking(False)
            block = encode_block(b"x" * settings.RPC_BLOCK_MAX_BYTES)
            is_full = False
            while not is_full and taken < 10 * settings.RPC_UPLOAD_WAITING_BYTES:
                place = taken % len(block)
                try:
                    taken += connection.send(block[place:])
                except BlockingIOError:
                    is_full = (
                        taken > settings.RPC_UPLOAD_WAITING_BYTES and not select.select([], [connection], [], 1)[1]
                    )

    assert serve(BlockedAgent(tmp_path), use).cancelled == 1, "it notices that the command has gone"
    assert settings.RPC_UPLOAD_WAITING_BYTES < taken < 2 * settings.RPC_UPLOAD_WAITING_BYTES


def test_an_error_of_the_agent_ends_the_upload(tmp_path: Path) -> None:
    """A run that ends must not wait for a standard input from which nothing comes."""
    (tmp_path / "sent").touch()
    reading, writing = os.pipe()
    with open(reading, "rb") as silent:
        [error] = upload(tmp_path / "sent" / "data.bin", silent)
    os.close(writing)
    assert error.message.endswith("sent/data.bin: cannot store the uploaded file: File exists")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc/passwd", "a\0b"])
def test_a_name_is_not_a_path(name: str) -> None:
    with pytest.raises(ClusterError, match="is not the name of a file"):
        validate_filename(name)
    assert validate_filename("train.py") == "train.py"


def test_an_upload_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "UPLOAD_MIN_FREE_BYTES", 2**62)
    path = tmp_path / "sent" / "data.bin"
    with open("/dev/zero", "rb") as file:
        [error] = upload(path, file)
    assert error.message == f"{path}: cannot store the uploaded file: No space left on device"


def receive_code_files(folder: Path, sizes: dict[str, int], *blocks: bytes) -> None:
    async def feed() -> None:
        upload = Upload()
        for block in blocks:
            upload.feed(block)
        await CodeStore(folder).receive(upload, sizes)

    asyncio.run(feed())


def send(manifest: bytes, *contents: bytes) -> list[object]:
    async def exchange() -> list[object]:
        upload = Upload()
        answers: list[object] = []
        async for answer in receive_code(SendCodeRequest(digest_of(manifest), len(manifest)), upload):
            answers.append(answer.value if isinstance(answer, Reply) else answer)
            if isinstance(answer, CodeWanted):
                for digest in answer.digests:
                    upload.feed({digest_of(each): each for each in (manifest, *contents)}[digest])
        return answers

    return asyncio.run(exchange())


def test_contents_arrive_in_any_pieces(tmp_path: Path) -> None:
    contents = [b"first", b"", b"x" * 1000]
    sizes = {digest_of(content): len(content) for content in contents}
    receive_code_files(tmp_path / "code", sizes, b"fir", b"stxxx", b"x" * 997)
    assert [(tmp_path / "code" / digest).read_bytes() for digest in sizes] == contents
    assert CodeStore(tmp_path / "code").find_missing(sizes) == []
    (tmp_path / "code" / digest_of(b"first")).chmod(0o600)
    (tmp_path / "code" / digest_of(b"first")).write_bytes(b"")  # as after a power loss
    assert CodeStore(tmp_path / "code").find_missing(sizes) == [digest_of(b"first")]


def test_another_content_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="differs from the one announced"):
        receive_code_files(tmp_path / "code", {digest_of(b"first"): 5}, b"third")
    with pytest.raises(ClusterError, match="less code than it announced"):
        receive_code_files(tmp_path / "code", {digest_of(b"first"): 5}, b"fir", b"")
    assert list((tmp_path / "code").iterdir()) == []


def test_code_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "UPLOAD_MIN_FREE_BYTES", 2**62)
    with pytest.raises(ClusterError, match=r"code: the code requires 5 B, and only .* are free there"):
        receive_code_files(tmp_path / "code", {digest_of(b"first"): 5}, b"first")


def test_what_was_not_used_for_long_is_removed_when_there_is_too_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another agent removes the same at the same time. With `state:`, tfcluster's own code can be there too."""
    unlink = os.unlink

    def unlink_twice(path: str) -> None:
        unlink(path)
        unlink(path)

    (tmp_path / "0123").mkdir()
    (tmp_path / ".mark").symlink_to("0123")
    for path in tmp_path.iterdir():
        os.utime(path, (time.time() - 9000,) * 2, follow_symlinks=False)
    monkeypatch.setattr(settings, "CODE_CACHE_MAX_BYTES", 25)
    ages = {".new-left": 9000, "oldest": 8000, "old": 7000, "older": 7500, "new": 5}
    for name, age in ages.items():
        (tmp_path / name).write_bytes(b"x" * 10)
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink_twice)
        CodeStore(tmp_path).prune()
    assert {path.name for path in tmp_path.iterdir()} == {"old", "new", "0123", ".mark"}


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="cannot read the code: No such file"):
        CodeStore(tmp_path).find_missing_of("0" * 64)


def test_code_arrives_though_no_process_is_left_to_prune_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fork, forks = os.fork, iter([True])

    def fork_once() -> int:
        if next(forks, False):
            return fork()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "fork", fork_once)
    manifest = encode_manifest([CodeFile("train.py", 5, digest=digest_of(b"first"))])
    with caplog.at_level(logging.WARNING):
        answers = send(manifest, b"first")
    assert answers == [CodeWanted((digest_of(manifest),)), CodeWanted((digest_of(b"first"),)), Done()]
    problem = "the process 'tfcluster: code cache' cannot be started: Resource temporarily unavailable"
    assert f"the cache of code cannot be made smaller: {problem}" in caplog.text
