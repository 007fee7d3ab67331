"""What `doctor` and `up` say of hosts that cannot connect to each other: a line for each host and cause."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.conftest import wait_for
from tests.end_to_end.test_ssh import Over, over

NAMES = ("alpha", "beta", "gamma", "delta")
JOBS = f"jobs:\n  worker: {{tasks: 8, hosts: [{', '.join(NAMES)}]}}\n"


@pytest.fixture(scope="module")
def four(needs_network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Over]:
    """Hosts without a cluster, shared by the tests of the module."""
    with over(tmp_path_factory.mktemp("four"), *NAMES, has_sshd=False) as sandbox:
        sandbox.spec(sandbox.text(NAMES, JOBS))
        yield sandbox


@pytest.mark.slow
def test_a_host_that_is_cut_off_from_several_is_one_problem_in_each_direction(four: Over) -> None:
    addresses = {name: four.network.address(name) for name in NAMES}
    with four.network.network["delta"].losing(*(addresses[name] for name in ("alpha", "beta", "gamma"))):
        told = four.json("doctor", code=1)["checks"]
        lines = four("up", code=1).stderr.splitlines()
    failed = [(check["host"], check["check"]) for check in told if not check["ok"]]
    assert failed == [("delta", "network")] * 2
    assert {check["host"] for check in told if check["check"] == "network"} == {"delta"}
    found = [line for line in lines if line.startswith("  host ")]
    first, second = sorted(found)
    assert first.startswith(f"  host 'delta' cannot be reached from alpha, beta, gamma at {addresses['delta']}:")
    assert second.startswith("  host 'delta' reaches none of the hosts that it tried (3): ")
    assert "error: Nothing was started; 2 problems found:" in lines, lines
    wait_for(lambda: not four.leftovers())


def test_of_many_hosts_each_tries_some(four: Over) -> None:
    many = four.with_settings({"CONNECTIVITY_ALL_PAIRS_HOSTS": 3})
    checks = json.loads(four("doctor", "-o", "json", env=many).stdout)["checks"]
    told = [check for check in checks if check["check"] == "network"]
    assert [(check["host"], check["result"]) for check in told] == [
        (name, "reaches the tasks of the 2 other hosts that it tried, of 3") for name in NAMES
    ]
