"""The same short story on two hosts behind a router, each time with other oddities of real sites.

`alpha` is reached by `connect:`, and `delta` by an sshd that is configured as Debian does it.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.accounts import Account
from tests.conftest import wait_for
from tests.end_to_end.test_podman import container, docker_profile
from tests.hosts import CONNECT, HERE, HostsSandbox, over
from tests.namespaces import Network

NAMES = ("alpha", "delta")
_SECOND_ADDRESS = "10.77.9.1"
_SCRIPT = "import os\nprint('on', os.environ['NAME'])\n"
_IN_A_DELETED_FOLDER = 'cd "$(mktemp -d)" && rmdir "$PWD" && exec "$@"'


@dataclass
class Story:
    """The hosts, and what oddities change of the story.

    Attributes:
        keys: The keys of each host in the spec.
        network: The `network:` of the spec.
        env: More variables of the commands.
    """

    site: HostsSandbox
    stack: ExitStack  # what an oddity has begun, and ends with the story
    keys: dict[str, dict[str, Any]]
    network: str = "closed"
    env: dict[str, str] = field(default_factory=dict)

    @property
    def machines(self) -> Network:
        return self.site.network.network


def slow_cables(story: Story) -> None:
    for name in (HERE, *NAMES):
        story.machines.slow_down(name)


def small_packets(story: Story) -> None:
    for name in (HERE, *NAMES):
        story.machines.limit_packets(name, 1280)


def names_in_place_of_addresses(story: Story) -> None:
    for name, keys in story.keys.items():
        keys["address"] = f"{name}.lab"


def second_address(story: Story) -> None:
    """Ssh reaches a host at its first address; its connections come from the second."""
    story.machines.add_address("delta", _SECOND_ADDRESS)
    story.keys["delta"]["address"] = _SECOND_ADDRESS


def name_of_two_addresses(story: Story) -> None:
    story.machines.add_address("delta", _SECOND_ADDRESS)
    names = story.site.network.etc_hosts
    assert names is not None
    names.write_text(f"{names.read_text()}{_SECOND_ADDRESS} delta.lab\n")
    story.keys["delta"]["address"] = "delta.lab"


def jump_host(story: Story) -> None:
    """Only alpha reaches the other host."""
    story.site.network.use_key("user_key", "Host delta\n  ProxyJump alpha\n")
    story.stack.enter_context(story.machines[HERE].losing(story.machines["delta"].ipv4))


def second_factor(story: Story) -> None:
    """The user has typed a code for a connection that is open, and that stays the user's."""
    hosts = story.site.network
    hosts.start_with_second_factor("delta")
    hosts.use_key("user_key", f"ControlMaster auto\nControlPath {hosts.folder}/%C\nControlPersist yes\n")
    assert story.site.execute("ssh", "delta", "true", env=hosts.typing_the_code()).returncode == 0

    def end() -> None:
        assert story.site.execute("ssh", "-O", "exit", "delta").returncode == 0, "it is still open"

    story.stack.callback(end)


def container_with_dockers_profile(story: Story) -> None:
    folder = Path(tempfile.mkdtemp(prefix="tfc-", dir="/tmp"))
    profile = f"--security-opt=seccomp={docker_profile(story.site.folder)}"
    network = f"ns:/run/netns/{story.machines['alpha'].namespace}"
    podman = story.stack.enter_context(container(folder, profile, "--cap-add=NET_ADMIN", network=network))
    variables = [f"--env={name}={value}" for name, value in story.site.network.variables("alpha").items()]
    story.keys["alpha"]["connect"] = f"{shlex.join([*podman, 'exec', '-i', *variables])} {{terminal:-t}} box1"


def user_id_without_a_name(story: Story) -> None:
    """As `docker run --user` makes it; it may not close ports, but have a network of its own."""
    hosts, user = story.site.network, Account("", 54321)
    hosts.folder.chmod(0o711)
    for path in (hosts.home("alpha"), *hosts.home("alpha").iterdir()):
        os.chown(path, user.uid, user.uid)
    hosts.enter_as("alpha", *user.command())
    story.network = "private"


def home_on_another_file_system(story: Story) -> None:
    hosts, home = story.site.network, Path(tempfile.mkdtemp(prefix="tfc-", dir="/dev/shm"))
    story.stack.callback(shutil.rmtree, home)
    shutil.copytree(hosts.home("alpha") / "state", home / "state")
    hosts.home("elsewhere").symlink_to(home)  # what is left there is found
    hosts.enter_as("alpha", HOME=str(home), XDG_STATE_HOME=f"{home}/state", XDG_CACHE_HOME=f"{home}/cache")


def deleted_working_folder(story: Story) -> None:
    story.site.network.enter_as("alpha", "sh", "-c", _IN_A_DELETED_FOLDER, "sh")


def active_virtual_environment(story: Story) -> None:
    """Of the user who types: the hosts have Pythons of their own."""
    folder = story.site.folder / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    path = f"{folder}/bin:{story.site.environment['PATH']}"
    story.env = {"VIRTUAL_ENV": str(folder), "PATH": path, "CONDA_PREFIX": str(folder)}


#: Oddities of different parts of a host share a story.
ODDITIES: tuple[tuple[Callable[[Story], None], ...], ...] = (
    (jump_host, slow_cables),
    (second_address, deleted_working_folder),
    (names_in_place_of_addresses, second_factor, home_on_another_file_system),
    (name_of_two_addresses, active_virtual_environment),
    (user_id_without_a_name, small_packets),
)
_IN_PODMAN = pytest.param((container_with_dockers_profile,), marks=pytest.mark.needs("podman"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "oddities", [*ODDITIES, _IN_PODMAN], ids=lambda oddities: "-".join(each.__name__ for each in oddities)
)
def test_a_short_story(needs_sshd: None, tmp_path: Path, oddities: tuple[Callable[[Story], None], ...]) -> None:
    with over(tmp_path, *NAMES, routed=True) as site, ExitStack() as stack:
        keys: dict[str, dict[str, Any]] = {
            name: {"address": site.network.address(name), "python": sys.executable, "env": {"NAME": name}}
            for name in NAMES
        }
        keys["alpha"]["connect"] = CONNECT
        story = Story(site, stack, keys)
        for change in oddities:
            change(story)
        jobs = {"worker": {"tasks": 2, "hosts": list(NAMES)}}
        spec = {"name": "odd", "network": story.network, "hosts": keys, "jobs": jobs}
        site("up", site.spec(json.dumps(spec)), env=story.env)
        assert len(site.json("run", "pi", "--samples", "1e6", env=story.env)["devices"]) == 2
        (site.folder / "code").mkdir()
        shown = site("launch", site.spec(_SCRIPT, "code/script.py"), env=story.env).stdout
        assert sorted(shown.splitlines()) == ["worker:0 | on alpha", "worker:1 | on delta"]
        assert site.status()["state"] == "running"
        site("down", env=story.env)
        wait_for(lambda: not site.network.leftovers())


@pytest.mark.slow
def test_hosts_are_reached_through_one_sshd_that_refuses_some_of_the_logins(needs_sshd: None, tmp_path: Path) -> None:
    names = tuple(f"h{number}" for number in range(6))
    with over(tmp_path, "jump", *names) as site:
        site.network.use_key("user_key", "Host h*\n  ProxyJump jump\n")
        site.network.kill("jump")
        site.network.start("jump", "MaxStartups 2:100:2")
        site("up", site.spec(site.text(names, "jobs: {worker: {tasks: 1}}\n")))  # each has an agent
        assert "MaxStartups" in (site.network.folder / "jump.sshd_log").read_text(), "some were refused"
        site("down")


# The kernel doubles the time until it sends a segment again that was not answered: after so long, some seconds pass
# after the outage before a connection recovers.
_OUTAGE_SECONDS = 8.0


@pytest.mark.slow
def test_a_run_that_begins_when_a_link_is_back_uses_the_tasks_there(needs_network: None, tmp_path: Path) -> None:
    networks = ("closed", "private")
    with over(tmp_path, *NAMES, has_sshd=False) as site:
        for network in networks:
            jobs = f"network: {network}\njobs: {{worker: {{tasks: 2, hosts: [alpha, delta]}}}}\n"
            # The agent of alpha asks delta's task all the time.
            text = site.text(NAMES, jobs + "notify: {command: 'true', events: [host-away]}\n")
            site("up", site.spec(text.replace("name: wide", f"name: {network}"), f"{network}.yaml", warm=True))
        with site.without("link", "delta"):
            time.sleep(_OUTAGE_SECONDS)
        runs = [site.start("run", "-c", network, "pi", "--samples", "1e7", "-o", "json") for network in networks]
        for run in runs:
            result = json.loads(run.communicate(timeout=90)[0].splitlines()[-1])
            assert sorted(result["devices"]) == [f"/job:worker/task:{index}/device:CPU:0" for index in range(2)]
            assert result["notes"] == []
        site("down", "--all")
