"""The program that finds or receives tfcluster's code on a host, played by a folder: its Python has its home there."""

from __future__ import annotations

import fcntl
import io
import json
import os
import shutil
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.conftest import ROOT, mostly_slow
from tests.older import make_older
from tfcluster.transport.provision import code_bundle, code_hash
from tfcluster.transport.remote.bootstrap import MESSAGE_PREFIX
from tfcluster.transport.remote.install import prune

# Prints what the client of a version of tfcluster starts and sends.
_CLIENT = """
import json, shlex, sys
from tfcluster.transport.provision import bootstrap, bootstrap_command, code_bundle
print(json.dumps([shlex.split(bootstrap_command(sys.executable)), bootstrap(), code_bundle().hex()]))
"""


class Client:
    """The client of a version of tfcluster, which starts sessions on hosts."""

    def __init__(self, source: Path) -> None:
        printed = subprocess.run([sys.executable, "-c", _CLIENT], cwd=source, check=True, capture_output=True).stdout
        self.argv, self.fields, bundle = json.loads(printed)
        self.bundle = bytes.fromhex(bundle)

    def start_session(self, home: Path, **fields: Any) -> list[dict[str, Any]]:
        """Start a session and end it when it serves or fails; return what the host has sent."""
        first_line = {
            **{"cluster": "c", "host": "h", "state": None, "env": {}, "provided": None},
            **self.fields,
            **fields,
        }
        variables = {"HOME": str(home), "PATH": os.environ["PATH"]}
        with subprocess.Popen(
            self.argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=variables, cwd=home
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(json.dumps(first_line).encode() + b"\n")
            process.stdin.flush()
            messages = []
            for line in process.stdout:
                if line.startswith(MESSAGE_PREFIX.encode()):
                    messages.append(json.loads(line[len(MESSAGE_PREFIX) :]))
                    if "need" in messages[-1]:
                        process.stdin.write(b"%d\n" % len(self.bundle) + self.bundle)
                        process.stdin.flush()
                    if {"reply", "error"} & messages[-1].keys():
                        break
            process.stdin.close()
        return messages


_FOUND: Sequence[dict[str, Any]] = [{"begun": True}, {"reply": {}}]
_SENT: Sequence[dict[str, Any]] = [{"begun": True}, {"need": "code"}, {"reply": {}}]


@pytest.fixture(scope="module")
def client() -> Client:
    return Client(ROOT)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The home folder of a host, which has no code yet."""
    return tmp_path


def cache_of(home: Path) -> Path:
    return home / ".cache" / "tfcluster" / "code"


def test_versions_share_the_cache_of_a_host(
    client: Client, home: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    older = Client(make_older(tmp_path_factory.mktemp("older")))
    versions = [older, client, older, client]
    assert [each.start_session(home) for each in versions] == [_SENT, _SENT, _FOUND, _FOUND]
    assert {path.name for path in cache_of(home).iterdir()} == {older.fields["code"], client.fields["code"], "lock"}


#: What is done in the folder of the code, with its path as $0.
DAMAGES = {
    "append": "echo \"raise SystemExit('damaged')\" >>tfcluster/errors.py",
    # a package comes before the module of the same name
    "shadow": "mkdir tfcluster/errors; echo \"raise SystemExit('damaged')\" >tfcluster/errors/__init__.py",
    "remove": "rm tfcluster/agent/main.py",
    "remove folder": "rm -r tfcluster/agent",
    "empty": ": >tfcluster/agent/main.py",  # as after a crash of the machine
    "share": "chmod 770 .",
    "link": 'aside=$(mktemp -d ../../XXXXXX); mv "$0" $aside/moved; ln -s $aside/moved "$0"',
    "replace by file": 'rm -r "$0"; touch "$0"',
}


@pytest.mark.parametrize("damage", mostly_slow([*DAMAGES], fast=["append", "remove", "share"]))
def test_code_that_is_incomplete_or_that_others_can_enter_is_sent_again(
    client: Client, home: Path, damage: str
) -> None:
    assert client.start_session(home) == _SENT
    code = cache_of(home) / code_hash()
    subprocess.run(["sh", "-ec", DAMAGES[damage], code], cwd=code, check=True)
    assert client.start_session(home) == _SENT
    assert client.start_session(home) == _FOUND
    assert {path.name for path in cache_of(home).iterdir()} == {code_hash(), "lock"}


def test_bytecode_in_the_folder_does_not_matter(client: Client, home: Path) -> None:
    client.start_session(home)
    code = cache_of(home) / code_hash() / "tfcluster"
    assert (code / "__pycache__").is_dir()
    shutil.rmtree(code / "__pycache__")
    assert client.start_session(home) == _FOUND


def altered_bundle() -> bytes:
    """The code, complete and with all files, of which one has another content."""
    altered = io.BytesIO()
    with ZipFile(io.BytesIO(zlib.decompress(code_bundle()))) as code, ZipFile(altered, "w") as archive:
        for name in code.namelist():
            archive.writestr(name, code.read(name) + b"# altered\n" * name.endswith("agent/main.py"))
    return zlib.compress(altered.getvalue())


@pytest.mark.parametrize(
    "bundle",
    [b"not compressed", code_bundle()[:-5], Path(__file__).read_bytes(), altered_bundle()],
    ids=["text", "a part", "a file", "altered"],
)
def test_something_else_that_arrives_is_not_kept(home: Path, bundle: bytes) -> None:
    client = Client(ROOT)
    client.bundle = bundle
    error = client.start_session(home)[-1]["error"]
    assert error["message"].startswith("cannot keep tfcluster's code: ")
    assert not (home / ".cache").exists()


@pytest.fixture
def broken_home(home: Path) -> Path:
    """A home folder in which nothing can be made, not even by root."""
    (home / ".cache").touch()
    return home


def test_code_goes_to_the_state_folder_if_the_home_cannot_be_written(client: Client, broken_home: Path) -> None:
    error = client.start_session(broken_home)[-1]["error"]
    assert error["message"] == (
        f"cannot keep tfcluster's code: [Errno 20] Not a directory: '{broken_home}/.cache/tfcluster'"
    )
    state = broken_home / "scratch"
    assert client.start_session(broken_home, state="~/scratch") == _SENT
    assert client.start_session(broken_home, state=str(state)) == _FOUND
    assert {path.name for path in (state / ".code").iterdir()} == {code_hash(), "lock"}


def test_versions_of_the_code_that_that_are_old_are_pruned_unless_a_journal_names_them_or_an_agent_runs_them(
    tmp_path: Path,
) -> None:
    root, state = tmp_path / "code", tmp_path / "state"
    state.mkdir()
    for number in range(6):
        (root / str(number)).mkdir(parents=True)
        os.utime(root / str(number), (number, number))
    (state / "code").symlink_to(root / "0")
    (root / ".up").symlink_to(state / "code")
    (root / ".down").symlink_to(tmp_path / "gone" / "code")
    (root / ".killed").mkdir()  # while it was received
    (root / "1" / "tfcluster").mkdir()
    (root / "1" / "tfcluster" / "__init__.py").touch()
    os.utime(root / "1", (1, 1))
    with (root / "1" / "tfcluster" / "__init__.py").open() as used:
        fcntl.flock(used, fcntl.LOCK_SH)
        prune(str(root))
    assert {path.name for path in root.iterdir()} == {"0", "1", "3", "4", "5", ".up"}
    (state / "code").unlink()  # the cluster is down
    prune(str(root))
    assert {path.name for path in root.iterdir()} == {"3", "4", "5"}
