"""Which hosts are the same place."""

from __future__ import annotations

import pytest

from tfcluster.core.hosts import Host, is_same_place


def reached(connect: str) -> Host:
    return Host("beta", "10.0.0.2", connect=connect)


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/usr/bin/docker exec -i beta", "docker exec -i beta"),
        ("docker exec -i beta", "/opt/docker/bin/docker exec -i beta"),
        ("""/bin/sh -c 'exec "$0" "$@"' /usr/bin/srun -w beta""", """/bin/sh -c 'exec "$0" "$@"' srun -w beta"""),
        ("docker  exec -i beta", "docker exec -i 'beta'"),
    ],
)
def test_the_folder_of_a_program_on_path_is_no_part_of_a_place(before: str, now: str) -> None:
    assert is_same_place(reached(before), reached(now))


@pytest.mark.parametrize(
    ("before", "now"),
    [
        ("/opt/a/enter beta", "/opt/b/enter beta"),
        ("docker exec -i beta", "podman exec -i beta"),
        ("docker exec -i beta", "docker exec -i beta -u tf"),
        ("docker exec -i beta", "docker exec -i gamma"),
        ("docker exec -w /srv/tf -i beta", "docker exec -w tf -i beta"),
        ("env -c line /usr/bin/enter", "env -c other enter"),
    ],
)
def test_another_way_is_another_place(before: str, now: str) -> None:
    assert not is_same_place(reached(before), reached(now))


def test_the_state_folder_and_ssh_are_compared_as_they_are() -> None:
    here = Host("beta", "10.0.0.2", ssh="beta", state="/srv/state")
    assert is_same_place(here, Host("beta", "10.0.0.3", ssh="beta", state="/srv/state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", ssh="beta", state="state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", ssh="/usr/beta", state="/srv/state"))
    assert not is_same_place(here, Host("beta", "10.0.0.2", connect="ssh beta", state="/srv/state"))
