"""Many hosts behind one jump host, whose sshd refuses some of the logins that it gets at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.hosts import over

NAMES = tuple(f"h{number}" for number in range(16))


@pytest.mark.slow
@pytest.mark.usefixtures("needs_sshd")
@pytest.mark.parametrize("proxy", ["ProxyJump jump", "ProxyCommand ssh -W %h:%p jump"])
def test_sixteen_hosts_are_reached_through_an_sshd_as_it_is_installed(tmp_path: Path, proxy: str) -> None:
    with over(tmp_path, "jump", *NAMES) as sandbox:
        sandbox.network.kill("jump")
        sandbox.network.start("jump", "MaxStartups 10:30:100")
        sandbox.network.use_key("user_key", f"Host h*\n  {proxy}\n")
        spec = sandbox.spec(sandbox.text(NAMES, "jobs: {worker: {tasks: 16}}"))
        sandbox("doctor", spec, timeout=300)
        sandbox("up", spec, timeout=300)
        sandbox("down", timeout=300)
