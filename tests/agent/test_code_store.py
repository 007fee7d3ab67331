"""The cache of the code that was sent to a host."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import time
from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.agent import subprocesses
from tfcluster.agent.handlers.files import CodeStore, Upload, receive_code
from tfcluster.core.code import CodeFile, digest_of, encode_manifest
from tfcluster.errors import ClusterError
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.files import CodeWanted, SendCodeRequest


def receive(folder: Path, sizes: dict[str, int], *chunks: bytes) -> None:
    async def feed() -> None:
        async def grant(size: int) -> None:
            while waiting:
                upload.feed(waiting.pop(0))

        waiting = list(chunks)
        upload = Upload(grant)
        await CodeStore(folder).receive(upload, sizes)

    asyncio.run(feed())


def send(manifest: bytes, *contents: bytes) -> list[object]:
    async def exchange() -> list[object]:
        async def grant(size: int) -> None:
            return

        upload = Upload(grant)
        answers: list[object] = []
        async for answer in receive_code(SendCodeRequest(digest_of(manifest), len(manifest)), upload):
            answers.append(answer.value if isinstance(answer, Reply) else answer)
            if isinstance(answer, CodeWanted):
                await upload._allow(settings.RPC_UPLOAD_WINDOW_BYTES)
                for digest in answer.digests:
                    upload.feed({digest_of(each): each for each in (manifest, *contents)}[digest])
        return answers

    return asyncio.run(exchange())


def test_contents_arrive_in_any_pieces(tmp_path: Path) -> None:
    contents = [b"first", b"", b"x" * 1000]
    sizes = {digest_of(content): len(content) for content in contents}
    receive(tmp_path / "code", sizes, b"fir", b"stxxx", b"x" * 997)
    assert [(tmp_path / "code" / digest).read_bytes() for digest in sizes] == contents
    assert CodeStore(tmp_path / "code").find_missing(sizes) == []
    (tmp_path / "code" / digest_of(b"first")).chmod(0o600)
    (tmp_path / "code" / digest_of(b"first")).write_bytes(b"")  # as after a power loss
    assert CodeStore(tmp_path / "code").find_missing(sizes) == [digest_of(b"first")]


def test_another_content_is_not_stored(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="differs from the one announced"):
        receive(tmp_path / "code", {digest_of(b"first"): 5}, b"third")
    with pytest.raises(ClusterError, match="less code than it announced"):
        receive(tmp_path / "code", {digest_of(b"first"): 5}, b"fir", b"")
    assert list((tmp_path / "code").iterdir()) == []


def test_code_does_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings, "UPLOAD_MIN_FREE_BYTES", 2**62)
    with pytest.raises(ClusterError, match=r"code: the code requires 5 B, and only .* are free there"):
        receive(tmp_path / "code", {digest_of(b"first"): 5}, b"first")


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
    fork, forks = subprocesses._fork, iter([True])

    def fork_once() -> int:
        if next(forks, False):
            return fork()
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr(subprocesses, "_fork", fork_once)
    manifest = encode_manifest([CodeFile("train.py", 5, digest=digest_of(b"first"))])
    with caplog.at_level(logging.WARNING):
        answers = send(manifest, b"first")
    assert answers == [CodeWanted((digest_of(manifest),)), CodeWanted((digest_of(b"first"),)), Done()]
    problem = "the process 'tfcluster: code cache' cannot be started: Resource temporarily unavailable"
    assert f"the cache of code cannot be made smaller: {problem}" in caplog.text
