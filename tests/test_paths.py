"""Folders that only this user can enter, with any umask, and in a folder that others may write to."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.agent.test_uploads import receive_code_files
from tfcluster import paths, runtime_dir, settings
from tfcluster.client.cluster import record_spec
from tfcluster.client.preflight.certificates import issue_certificates
from tfcluster.core.code import digest_of
from tfcluster.errors import ClusterError
from tfcluster.paths import authority_path, code_cache, make_private_folder, spec_record_path, system_error
from tfcluster.transport.remote.install import install


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0, 0o022], ids=["umask 0", "umask 022"], autouse=True)
def open_folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder to which all accounts can write, in which there is no state home yet."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    monkeypatch.setattr(paths, "_state_home", tmp_path / "open" / "state" / "tfcluster")
    previous = os.umask(request.param)
    yield tmp_path / "open"
    os.umask(previous)


def test_all_folders_that_are_made_are_private_others_stay_as_they_are_and_a_file_in_the_way_is_an_error(
    open_folder: Path,
) -> None:
    make_private_folder(open_folder / "a" / "b" / "c")
    make_private_folder(open_folder / "a" / "b" / "c")
    assert [mode_of(open_folder / each) for each in ("", "a", "a/b", "a/b/c")] == [0o777, 0o700, 0o700, 0o700]
    (open_folder / "file").touch()
    for path in (open_folder / "file", open_folder / "file" / "below"):
        with pytest.raises(OSError, match="file"):
            make_private_folder(path)


def test_without_a_home_folder_an_error_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_state_home", None)
    monkeypatch.setattr(os, "getuid", lambda: 54321)  # no account
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    with pytest.raises(ClusterError, match="this account has no home folder") as error:
        paths.state_home()
    assert "XDG_STATE_HOME" in error.value.hint


def store_code(content: bytes = b"code") -> Path:
    receive_code_files(code_cache(), {digest_of(content): len(content)}, content)
    return code_cache()


def keep_authority() -> Path:
    issue_certificates("demo", ["a"])
    return authority_path("demo").parent


def register() -> Path:
    record_spec("demo", "cluster.yaml")
    return spec_record_path("demo").parent


@pytest.mark.parametrize("make", [store_code, keep_authority, register])
def test_the_state_home_and_all_in_it_are_private(open_folder: Path, make: Callable[[], Path]) -> None:
    folder = make()
    assert mode_of(folder) == 0o700
    assert {mode_of(parent) for parent in folder.parents if parent.is_relative_to(open_folder / "state")} == {0o700}


def test_the_cache_of_a_host_for_tfclusters_code_is_private(open_folder: Path) -> None:
    with ZipFile(open_folder / "code.zip", "w") as archive:
        archive.writestr("tfcluster/a.py", "")
        install(archive, "name", [str(open_folder / "cache" / "tfcluster")], lambda: None)
    for folder in ("cache", "cache/tfcluster", "cache/tfcluster/name"):
        assert mode_of(open_folder / folder) == 0o700


def test_the_runtime_folder_and_what_is_made_above_it_are_private(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_folder / "run"))
    runtime_dir.secrets_path("demo")
    assert mode_of(open_folder / "run") == mode_of(open_folder / "run" / "tfcluster") == 0o700


def test_a_folder_with_a_random_name_is_recorded_in_a_private_state_home(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "TEMPORARY_FOLDER", str(open_folder))
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    (open_folder / f"tfcluster-{os.getuid()}").touch()  # as another account could
    runtime_dir.secrets_path("demo")
    assert mode_of(open_folder / "state") == mode_of(open_folder / "state" / "tfcluster") == 0o700


def test_sockets_can_be_made_even_if_the_runtime_folder_is_too_long(
    open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (open_folder / ("x" * 100)).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(open_folder / ("x" * 100)))
    path = runtime_dir.link_socket_path("n" * 63, "code")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.unlink()


def test_a_state_home_that_cannot_be_used_has_the_variable_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_state_home", Path("/root/state/tfcluster"))
    for path in ("/root/state/tfcluster/demo/lock", "/root/state", "/root"):
        refused = system_error(PermissionError(errno.EACCES, "Permission denied", path))
        assert refused.message == f"{path}: Permission denied"
        assert "XDG_STATE_HOME" in refused.hint
    for other in (("/root/x", errno.EACCES), ("/root/state/tfcluster/demo", errno.ENOSPC)):
        assert system_error(OSError(other[1], "no", other[0])).hint == ""
