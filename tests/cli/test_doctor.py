"""`doctor`: which hosts connect to which, what it says of those that cannot, and its exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from tests.core.clusters import with_ports
from tests.fake_agent import WAIT
from tests.project import Outcome, Project
from tfcluster.client.resolve import load_topology
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.paths import journal_path
from tfcluster.protocol.api import Reply
from tfcluster.protocol.api.cluster import (
    LARGE_PACKETS_LOST,
    Allocation,
    FailedCheck,
    Preparation,
    PrepareRequest,
    ReachReply,
    ReachRequest,
)

Check = dict[str, Any]
#: Says why a host cannot connect to an address; empty if it can.
Why = Callable[[str, str], str]
NONE: Why = lambda source, address: ""  # noqa: E731 - a value, as those in the tests

THREE = (
    "name: demo\nhosts: {alpha: {address: 10.0.0.1}, beta: {address: 10.0.0.2}, gamma: {address: 10.0.0.3}}\n"
    "jobs: {ps: ['10.0.0.1:2222'], worker: ['10.0.0.2:2222', '10.0.0.3:2223']}\n"
)


def many(count: int, tasks: int = 1) -> str:
    """Return a spec with hosts h0, h1, … at 10.0.0.100 and so on, each with some tasks from port 2222 on."""
    hosts = ", ".join(f"h{number}: {{address: 10.0.0.{100 + number}}}" for number in range(count))
    tasks_of_host = [f"'10.0.0.{100 + number}:{2222 + task}'" for number in range(count) for task in range(tasks)]
    return f"name: demo\nhosts: {{{hosts}}}\njobs: {{worker: [{', '.join(tasks_of_host)}]}}\n"


def check(
    project: Project, spec: str, why: Why = NONE, sources: Mapping[str, Mapping[str, str]] | None = None
) -> list[Check]:
    """Return the checks of the connections; `sources` is what other hosts see of a host."""

    def answer(request: ReachRequest, host: str) -> list[object]:
        failures = {address: why(host, address) for address in request.addresses if why(host, address)}
        return [Reply(ReachReply(failures, dict((sources or {}).get(host, {}))))]

    project.file("cluster.yaml", spec)
    project.agent.answer(ReachRequest, answer)
    checks: list[Check] = json.loads(project.run("doctor -o json").stdout)["checks"]
    return [each for each in checks if each["check"] == "network"]


def problems(checks: list[Check]) -> list[Check]:
    return [each for each in checks if not each["ok"]]


def asked(project: Project) -> dict[str, ReachRequest]:
    """Return to what each host was to connect."""
    return {host: request for host, request in project.agent.requests if isinstance(request, ReachRequest)}


def test_hosts_connect_to_the_tasks_of_all_others_and_failures_name_both_and_the_rule(project: Project) -> None:
    failing = {("beta", "10.0.0.3:2223"): "timed out"}
    checks = check(project, THREE, lambda *connection: failing.get(connection, ""))
    assert {host: sorted(request.addresses) for host, request in asked(project).items()} == {
        "alpha": ["10.0.0.2:2222", "10.0.0.3:2223"],
        "beta": ["10.0.0.1:2222", "10.0.0.3:2223"],
        "gamma": ["10.0.0.1:2222", "10.0.0.2:2222"],
    }
    passed = [(each["host"], each["result"]) for each in checks if each["ok"]]
    assert passed == [(host, "reaches the tasks of 2 other hosts") for host in ("alpha", "gamma")]
    (gamma,) = problems(checks)
    assert gamma["host"] == "gamma"
    assert gamma["result"] == "cannot be reached from beta at 10.0.0.3:2223 (worker:1): timed out"
    assert "`sudo iptables -I INPUT -p tcp -s 10.0.0.2 --dport 2223 -j ACCEPT`" in gamma["hint"]


def test_a_host_behind_a_firewall_is_one_problem_however_many_hosts_and_tasks_there_are(project: Project) -> None:
    checks = check(project, many(20, tasks=5), lambda _, to: "timed out" if to.startswith("10.0.0.103:") else "")
    (problem,) = problems(checks)
    assert problem["host"] == "h3"
    assert problem["result"] == (
        "cannot be reached from h1, h2, h7, h15 and 1 more at 10.0.0.103:2222 (worker:15), 10.0.0.103:2223 (worker:16),"
        " 10.0.0.103:2224 (worker:17), 10.0.0.103:2225 (worker:18) and 1 more: timed out"
    )
    # The rule opens all its ports to all other hosts: those that did not try it will connect to it, too.
    others = ",".join(f"10.0.0.{100 + number}" for number in range(20) if number != 3)
    assert f"`sudo iptables -I INPUT -p tcp -s {others} --dport 2222:2226 -j ACCEPT`" in problem["hint"]
    reaching = [each["result"] for each in checks if each["ok"]]
    assert reaching == ["reaches the tasks of the 5 other hosts that it tried, of 19"] * (20 - 5)


def toward(target: str, **why: str) -> dict[tuple[str, str], str]:
    """Why the connections of some of five hosts to one of them fail."""
    return {(source, f"10.0.0.10{target[1:]}:2222"): text for source, text in why.items()}


OUT_OF_H1 = {("h1", f"10.0.0.10{number}:2222"): "timed out" for number in range(5)}
INTO_H1 = toward("h1", h0="timed out", h2="timed out", h3="timed out")
FROM_H1 = {**toward("h0", h1="timed out"), **toward("h2", h1="timed out"), **toward("h3", h1="timed out")}


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        (OUT_OF_H1, ["reaches none of the hosts that it tried (4): timed out"]),
        (
            {**OUT_OF_H1, **INTO_H1, **toward("h1", h4="timed out")},
            [
                "cannot be reached from h0, h2, h3, h4 at 10.0.0.101:2222 (worker:1): timed out",
                "reaches none of the hosts that it tried (4): timed out",
            ],
        ),
        (
            {**FROM_H1, **INTO_H1},
            [
                "cannot be reached from h0, h2, h3 at 10.0.0.101:2222 (worker:1): timed out",
                "cannot reach h2, h3, h0: timed out",
            ],
        ),
        (
            toward("h1", h0="timed out", h2="timed out", h3="Connection refused"),
            [
                "cannot be reached from h0, h2 at 10.0.0.101:2222 (worker:1): timed out",
                "cannot be reached from h3 at 10.0.0.101:2222 (worker:1): Connection refused",
            ],
        ),
    ],
    ids=["cut off", "cut off in each direction", "cut off from some", "several causes"],
)
def test_each_host_direction_and_cause_is_one_problem(
    project: Project, failures: dict[tuple[str, str], str], expected: list[str]
) -> None:
    found = problems(check(project, many(5), lambda *connection: failures.get(connection, "")))
    assert [each["result"] for each in found] == expected
    assert {each["host"] for each in found} == {"h1"}


@pytest.mark.parametrize(
    ("seen", "where", "hint"),
    [
        (["10.9.2.3"], "10.9.2.3", "Set `address: 10.9.2.3` for beta in the spec."),
        (["fd00::9", "10.9.2.3"], "10.9.2.3 and fd00::9", "Set `address:` to a name that stands for all of these"),
    ],
)
def test_the_address_that_a_hosts_connections_come_from_is_to_be_in_the_spec(
    project: Project, seen: list[str], where: str, hint: str
) -> None:
    sources = {"beta": dict(zip(["10.0.0.1:2222", "10.0.0.3:2223"], seen, strict=False))}
    checks = check(project, THREE, sources=sources)
    (problem,) = problems(checks)
    assert problem["host"] == "beta"
    expected = f"connections from beta come from {where}, not from 10.0.0.2: the other hosts refuse them"
    assert problem["result"] == expected
    assert problem["hint"].startswith(hint)
    assert [each["host"] for each in checks if each["ok"]] == ["alpha", "gamma"]


def test_one_port_of_each_host_that_is_not_up_is_to_answer_and_a_host_alone_is_not_checked(project: Project) -> None:
    check(project, many(3, tasks=2))
    request = asked(project)["h0"]
    assert len(request.addresses) == 4
    assert sorted(request.answered) == ["10.0.0.101:2222", "10.0.0.102:2222"]
    project.agent.requests.clear()
    assert check(project, many(1, tasks=2)) == []
    assert asked(project) == {}


def test_no_hint_for_a_host_that_connect_reaches_names_what_a_container_does_not_have(project: Project) -> None:
    pods = THREE.replace("}, beta", ", connect: enter}, beta").replace("}, gamma", ", connect: enter}, gamma")
    pods = pods.replace("10.0.0.3}", "10.0.0.3, connect: enter}")
    (refused,) = problems(check(project, pods, lambda _, to: "refused" if to.startswith("10.0.0.3") else ""))
    assert "a network policy is probably blocking the connection: allow TCP from 10.0.0.1, 10.0.0.2" in refused["hint"]
    assert "to its port 2223 (" in refused["hint"]
    (cut,) = problems(check(project, pods, lambda source, _: "lost" if source == "gamma" else ""))
    assert cut["result"] == "reaches none of the hosts that it tried (2): lost"
    assert "a network policy between gamma and alpha" in cut["hint"]
    assert not any(word in each["hint"] for each in (refused, cut) for word in ("sudo", "iptables", "ip route"))


@pytest.mark.parametrize(
    ("to", "hosts"), [("10.0.0.10", "h3, h0, h1, h2 and of what"), ("10.0.0.101:2222", "h1, h3 and of what")]
)
def test_if_large_packets_are_lost_the_mtu_is_to_be_compared(project: Project, to: str, hosts: str) -> None:
    def why(source: str, address: str) -> str:
        return LARGE_PACKETS_LOST if source == "h3" and address.startswith(to) else ""

    (problem,) = problems(check(project, many(4), why))
    assert problem["result"].endswith("small packets pass, large ones do not")
    assert problem["hint"].startswith(f"Compare the MTU of {hosts}")


def test_a_check_that_fails_while_another_command_changes_the_cluster_is_made_again(project: Project) -> None:
    """Or it would find a firewall where an `up` starts tasks."""
    spec = project.file("cluster.yaml", THREE)

    def answer(request: ReachRequest, host: str) -> list[object]:
        project.agent.up["demo"] = with_ports(load_topology(spec, None))
        for each in ("alpha", "beta", "gamma"):
            journal_path("demo", each).touch()
        return [Reply(ReachReply(dict.fromkeys(request.addresses, "Connection refused")))]

    project.agent.answer(ReachRequest, answer)
    outcome = project.run("doctor -o json")
    assert outcome.code == 0
    assert all(each["ok"] for each in json.loads(outcome.stdout)["checks"])
    assert len(project.agent.asked(PrepareRequest)) == 2 * 3


@pytest.mark.parametrize(
    ("away", "lacking", "code"),
    [("", "", 0), ("", "beta", 1), ("alpha", "", 5), ("alpha", "beta", 5)],
)
def test_the_exit_code_of_doctor(project: Project, away: str, lacking: str, code: int) -> None:
    usual = project.agent.usual

    def prepare(request: PrepareRequest, host: str) -> Any:
        failed = FailedCheck("host", ClusterError("no TensorFlow", hint="Install it.", exit_code=ExitCode.USAGE))
        lacks = Preparation(None, Allocation({}, {}), (failed,), None), WAIT
        return lacks if host == lacking else usual(request, host)

    project.agent.away = {away}
    project.agent.answer(PrepareRequest, prepare)
    project.file("cluster.yaml", THREE)
    outcome = project.run("doctor")
    assert outcome.code == code
    assert ("problem  cannot be reached: no route to host\n" in outcome.stdout) is bool(away)
    assert ("no TensorFlow\n    Install it.\n" in outcome.stdout) is bool(lacking)


def test_all_problems_of_all_hosts_are_named_at_once(project: Project) -> None:
    def prepare(request: PrepareRequest, host: str) -> list[object]:
        ports = FailedCheck("ports", ClusterError("port 2222 is taken\nport 2223 is taken", hint="Free them."))
        return [Preparation("2.21.0", Allocation({}, {}), (ports,) * (host == "alpha"), None), WAIT]

    project.agent.answer(PrepareRequest, prepare)
    project.agent.away = {"beta"}
    project.file("cluster.yaml", THREE)
    outcome = project.run("up")
    expected = (
        "error: Nothing was started; 2 problems found:\n"
        "  host 'alpha': port 2222 is taken\n"
        "  host 'alpha': port 2223 is taken\n"
        "    Free them.\n"
        "  host 'beta' cannot be reached: no route to host\n"
        "    Type `ssh beta`.\n"
        "hint: `tfcluster doctor` runs the same checks by itself.\n"
    )
    assert (outcome.code, outcome.stderr.partition("error: ")[2]) == (5, expected.removeprefix("error: "))


def test_a_host_alone_needs_no_name_in_an_error(project: Project) -> None:
    problem = FailedCheck("ports", ClusterError("worker:0: port 1 is taken", hint="Free it."))
    project.agent.answer(PrepareRequest, [Preparation("2.21.0", Allocation({}, {}), (problem,), None), WAIT])
    project.file("cluster.yaml", "jobs: {worker: {tasks: 1}}\n")
    assert project.run("up") == Outcome(1, "", "error: worker:0: port 1 is taken\nhint: Free it.\n")
