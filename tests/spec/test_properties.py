"""Malformed specs by the hundred end in a ClusterError; valid ones survive being written and read."""

from __future__ import annotations

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tfcluster.cli.spec import TEMPLATE
from tfcluster.core.resolve import resolve_spec
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.hosts import HostSpec
from tfcluster.spec.load import parse_cluster_notation, parse_spec
from tfcluster.spec.policies import Backoff, RestartSpec
from tfcluster.spec.schema import Job, Spec

MANY = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
FEW = settings(MANY, max_examples=30)
LINE = re.compile(r"(c\.yaml|hosts|--cluster-spec):[1-9][0-9]*:[1-9][0-9]*: .+")
JARGON = re.compile(r"pydantic|Input should|something else|function-")  # "something else": we have no words for it
VALID = re.sub(r"^( *)#(?=\w+: )", r"\1", TEMPLATE, flags=re.MULTILINE)

PIECES = [
    *"\n:-,[]{}&*!|>'\"%@`#? \t~=.\r\x85\u2028\ufeff\0é🙂",
    *("\n  ", "\n    ", ": ", "- ", "<<: ", "*a", "&a ", "---\n", "...\n", "5 in 60"),
    *("!!int ", "!!str ", "!!binary ", "!!python/object:os.x ", '"\\ud83d"', '"\\0"', "9" * 5000),
    *("1", "-1", "0x1f", "1e999", ".inf", ".nan", "1:30", "2026-99-99", "true", "null"),
    *("localhost:2222", "10.0.0.1:1", "[::1]:7", "name", "jobs", "tasks", "env", "restart", "limit"),
    *("hosts", "hostfile", "localhost", "alpha", "address", "ssh", "secret", "slots", "state"),
]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.dates() | st.text(max_size=8) | st.binary()
FIELDS = [key for part in (Spec, Job, RestartSpec, Backoff, HostSpec) for key in part.model_fields]
KEYS = st.sampled_from([*FIELDS, "ps", "A", "secret", "localhost", "alpha"])
VALUES = st.recursive(
    SCALARS | st.sampled_from(["localhost:1", "localhost", "[::1]:1", "5 in 60", "open", 1, 2, "alpha", "alpha:1"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS | SCALARS, inner, max_size=4),
    max_leaves=15,
)


def check(text: str | bytes) -> None:
    """The text is a spec, or an error with a place in every line."""
    try:
        spec = parse_spec(text, "c.yaml", "c")
    except ClusterError as error:
        check_error(error)
    else:
        assert Spec.model_validate(spec.model_dump()) == spec


def check_error(error: ClusterError) -> None:
    assert error.exit_code is ExitCode.USAGE
    lines = error.message.splitlines()
    assert lines
    for line in lines:
        assert LINE.fullmatch(line), line
        assert not JARGON.search(line), line
    error.message.encode()


@MANY
@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=30).map("".join))
def test_random_text(text: str) -> None:
    check(text)


@MANY
@given(st.binary(max_size=60))
def test_random_bytes(text: bytes) -> None:
    check(text)


@MANY
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID)), st.integers(0, 12), st.sampled_from(["", *PIECES])),
        min_size=1,
        max_size=4,
    )
)
def test_mutations_of_a_valid_spec(edits: list[tuple[int, int, str]]) -> None:
    text = VALID
    for start, length, piece in edits:
        text = text[:start] + piece + text[start + length :]
    check(text)


@MANY
@given(st.dictionaries(KEYS, VALUES, max_size=5) | VALUES)
def test_random_values(value: Any) -> None:
    check(yaml.safe_dump(value, allow_unicode=True))


@MANY
@given(st.dictionaries(st.sampled_from(["ps", "worker"]), VALUES, min_size=1), VALUES, VALUES)
def test_random_values_in_their_places(jobs: Any, restart: Any, env: Any) -> None:
    jobs["local"] = {"tasks": 1, "env": env}
    check(yaml.safe_dump({"jobs": jobs, "restart": restart}, default_flow_style=None))


@FEW
@given(VALUES, VALUES, VALUES, st.lists(VALUES | st.just("alpha"), max_size=3))
def test_random_hosts(localhost: Any, alpha: Any, named: Any, addresses: list[Any]) -> None:
    jobs = {"a": {"tasks": 1, "hosts": named}, "b": addresses}
    check(yaml.safe_dump({"hosts": {"localhost": localhost, "alpha": alpha}, "jobs": jobs}))
    check(yaml.safe_dump({"hosts": [localhost, alpha, "alpha"], "jobs": jobs, "lease": named}))


@FEW
@given(st.binary(max_size=60) | st.text("ab-1. #=@:\n\tslotsmax_", max_size=60).map(str.encode))
def test_random_hostfiles(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "hosts").write_bytes(text)
        try:
            spec = parse_spec("hostfile: hosts\njobs: {a: {tasks: 1}}", f"{folder}/c.yaml", "c")
        except ClusterError as error:
            lines = error.message.removeprefix(f"{folder}/").split(f"\n{folder}/")
            check_error(ClusterError("\n".join(lines), exit_code=error.exit_code))
        else:
            assert spec.hosts


@FEW
@given(
    st.text("XYZ", min_size=8).map(lambda text: text[:40]),
    st.sampled_from(["{}", "!!int {}", "[{}]", "{{x: {}}}", "{{secret: {{secret: {}}}}}", "{{secret: [{}]}}", '"\\0{}"',
                     "{{secret: !!int {}}}", "{{secret: !!float '{}'}}", "{{secret: {}, x: {}}}"]),
)  # fmt: skip
def test_no_error_shows_the_value_of_a_variable(secret: str, written: str) -> None:
    value = written.format(secret, secret)
    text = f"jobs: {{a: {{tasks: 0, env: {{A: {value}}}}}}}\nhosts: {{alpha: {{slots: 0, env: {{B: {value}}}}}}}"
    with pytest.raises(ClusterError) as caught:
        parse_spec(text, "c.yaml", "c")
    check_error(caught.value)
    assert secret not in caught.value.message


@FEW
@given(st.lists(st.sampled_from(["alpha", "beta", "gamma"]), min_size=1), st.integers(1, 20), st.integers(0, 20))
def test_adding_tasks_moves_no_task(named: list[str], count: int, more: int) -> None:
    def hosts_of(tasks: int) -> list[str]:
        value = {"hosts": ["alpha", "beta", "gamma"], "jobs": {"a": {"tasks": tasks, "hosts": named}}}
        return [task.host for task in resolve_spec(parse_spec(yaml.safe_dump(value), "c.yaml", "c"), "c.yaml").tasks]

    assert hosts_of(count + more)[:count] == hosts_of(count)
    assert hosts_of(len(named)) == named


@MANY
@given(st.text("ab1|;,: []localhost.\n\0é", max_size=40))
def test_random_cluster_notation(text: str) -> None:
    try:
        parse_cluster_notation(text)
    except ClusterError as error:
        check_error(error)


@st.composite
def valid_specs(draw: st.DrawFn) -> dict[str, Any]:
    ports = draw(st.lists(st.integers(1, 65535), unique=True, min_size=12, max_size=12))
    names = draw(
        st.lists(st.from_regex(r"[A-Za-z0-9][A-Za-z_.-]{0,8}", fullmatch=True), unique_by=str.lower, max_size=3)
    )
    local_addresses = ["localhost", "127.0.0.1", "127.9.9.9", "[::1]"]
    addresses = st.sampled_from(names or local_addresses)
    addresses = addresses | addresses.map(lambda host: f"{host}:{ports.pop()}")
    tasks = st.integers(1, 250) | st.lists(addresses, min_size=1, max_size=3)
    text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
    variables = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]*", fullmatch=True)
    env = st.dictionaries(variables, text | st.fixed_dictionaries({"secret": text}), max_size=3)
    path = st.from_regex("/[ -~]{0,8}", fullmatch=True)
    host = st.fixed_dictionaries(
        {},
        optional={
            "ssh": st.from_regex(
                r"([a-z\\][a-z\\.-]{0,4}@)?[A-Za-z0-9_.:%~\[][A-Za-z0-9_.:%~\]-]{0,8}", fullmatch=True
            ),
            "python": path | st.just("python3.11"),
            "env": st.dictionaries(variables, text, max_size=3),
            "state": path,
            "setup": st.lists(st.from_regex("[!-~][ -~\n]{0,8}", fullmatch=True), max_size=2),
            "slots": st.integers(1, 1000),
        },
    )
    policies = st.sampled_from(["never", "on-failure", "always"])
    # Between the cluster's initial and max, whichever of the two it overrides.
    waits = st.dictionaries(st.sampled_from(["initial", "max"]), st.just(11.0), max_size=1)
    restart = st.fixed_dictionaries({}, optional={"policy": policies, "backoff": waits, "limit": st.just("2 in 30")})
    job = st.fixed_dictionaries(
        {"tasks": tasks},
        optional={
            "max": st.just(1000),
            "cpus": st.integers(1, 256),
            "gpus": st.integers(0),
            "env": env,
            "restart": restart,
        },
    )
    job_names = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,8}", fullmatch=True)
    initial = draw(st.floats(0.001, 10) | st.integers(1, 10))
    limit = f"{draw(st.integers(1, 99))} in {draw(st.integers(1, 9999))}"
    return {
        **({"hosts": {name: draw(host) for name in names}} if names else {}),
        "lease": draw(st.floats(0.001, 1e9)),
        "warm": draw(st.booleans()),
        "name": draw(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}", fullmatch=True)),
        "jobs": draw(st.dictionaries(job_names, job, min_size=1, max_size=4)),
        "network": draw(st.sampled_from(["closed", "open"])),
        "restart": {
            "policy": draw(policies),
            "backoff": {"initial": initial, "max": 11 + draw(st.integers(0, 10))},
            "limit": limit,
        },
    }


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(valid_specs(), st.booleans())
def test_a_valid_spec_survives_a_round_trip(value: dict[str, Any], flow: bool) -> None:
    spec = parse_spec(yaml.safe_dump(value, default_flow_style=flow), "c.yaml", "c")
    dumped = spec.model_dump(mode="json", exclude_unset=True)
    assert dumped == value
    assert Spec.model_validate(json.loads(json.dumps(dumped))) == spec
    without_slurm = {"slurm"} if spec.slurm is None else set[str]()  # an empty `slurm:` is a job of the user's own
    assert parse_spec(yaml.safe_dump(spec.model_dump(exclude=without_slurm)), "c.yaml", "other") == spec
