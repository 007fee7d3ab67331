"""A spec as a file: its defaults and name, and what cannot be read; test_layouts.py has what it may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import load_spec, parse_cluster_notation, parse_spec
from tfcluster.spec.policies import Backoff, Limit, RestartSpec
from tfcluster.spec.schema import Address, Job, Spec


def test_every_key_but_jobs_has_a_default() -> None:
    spec = parse_spec("jobs: {worker_: {tasks: 1}}", "c.yaml", "fallback")
    assert (spec.name, spec.network) == ("fallback", "closed")
    assert spec.restart == RestartSpec(
        policy="on-failure", backoff=Backoff(initial=0.1, max=30), limit=Limit(count=5, seconds=60)
    )
    assert spec.jobs["worker_"] == Job(tasks=(None,), cpus=1, gpus=0, env={})


def test_a_size_is_bytes_or_has_a_unit() -> None:
    for text, size in {
        **{"1000": 1000, "2000 B": 2000, "500 kB": 500_000, "10MB": 10**7, "1.5 gb": 1_500_000_000, "1000 TB": 10**15},
        **{"1 KiB": 1024, "64 MiB": 64 << 20, "1 GiB": 1 << 30, "2 TiB": 2 << 40},
    }.items():
        spec = parse_spec(f"jobs: {{a: {{tasks: 1}}}}\nlogs: {{size: {text}}}", "c.yaml", "c")
        assert (spec.logs.size, spec.logs.count) == (size, 5), text
        assert Spec.model_validate(spec.model_dump()) == spec


def test_a_number_of_many_digits_is_an_error() -> None:
    with pytest.raises(ClusterError) as caught:
        parse_spec("jobs:\n  a: {tasks: " + "9" * 5000 + "}", "c.yaml", "c")
    assert caught.value.message == "c.yaml:2:14: jobs.a.tasks: the number is 5000 characters long"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("lab/demo.yaml", "demo"),
        ("lab/cluster.yaml", "lab"),
        ("My Lab (2)/cluster.yaml", "MyLab2"),
        ("_.lab/cluster.yaml", "lab"),
        ("lab/my cluster.yaml", "mycluster"),
        ("x" * 70 + "/cluster.yaml", "x" * 63),
    ],
)
def test_the_default_name_of_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, name: str) -> None:
    file = tmp_path / path
    file.parent.mkdir()
    file.write_text("jobs: {a: {tasks: 1}}")
    assert load_spec(file).name == name
    monkeypatch.chdir(file.parent)
    assert load_spec(Path(file.name)).name == name


def test_a_path_that_gives_no_name_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "結果.yaml"
    file.write_text("# mine\njobs: {a: {tasks: 0}}")
    with pytest.raises(ClusterError) as caught:
        load_spec(file)
    assert caught.value.message.splitlines() == [
        f"{file}:2:1: name: the file's path gives no name for the cluster; add name: and a name to the file",
        f"{file}:2:19: jobs.a.tasks: must be 1 or more, found 0",
    ]


@pytest.mark.parametrize(("name", "reason"), [("no.yaml", "no such file or directory"), ("", "is a directory")])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, reason: str) -> None:
    with pytest.raises(ClusterError) as caught:
        load_spec(tmp_path / name)
    assert caught.value.message == f"{tmp_path / name}: {reason}"
    assert caught.value.hint == "tfcluster init writes a commented cluster.yaml"
    assert caught.value.exit_code is ExitCode.USAGE


def test_an_invalid_path_and_a_file_that_is_too_large_are_errors(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="embedded null"):
        load_spec(Path("a\0b"))
    file = tmp_path / "c.yaml"
    file.write_bytes(b"#" * (settings.SPEC_MAX_BYTES + 1))
    with pytest.raises(ClusterError) as caught:
        load_spec(file)
    assert caught.value.message == f"{file}:1:1: the file is larger than 1 MiB"


NOTATION = "write it as worker|localhost:2223;localhost:2224"
#: What is wrong with texts in the notation of grpc_tensorflow_server, and the column.
BAD_NOTATION = {
    "": [f"1: no job is named; {NOTATION}"],
    "a": [f"1: expected JOB|ADDRESS, found 'a'; {NOTATION}"],
    "a|localhost:1,": [f"15: expected JOB|ADDRESS, found ''; {NOTATION}"],
    "a|": ["3: jobs.a[0]: expected an address such as localhost:2222 or [::1]:2222, found the text ''"],
    "a|localhost:1, a|localhost:2": ["16: jobs.a: this job is already at column 1"],
    "1|localhost": ["1: jobs.1: expected the name of a job to be letters, digits and _, and to start with a letter"],
    "a|localhost:1;x:2,b|localhost:0; localhost:1": [
        "15: jobs.a[1]: the task's address is not on this machine: 'x'; write localhost:2, or give the spec hosts:",
        "21: jobs.b[0]: expected a port from 1 to 65535, found the text 'localhost:0'",
        "34: jobs.b[1]: b:1 has the address localhost:1 of a:0",
    ],
}


def test_jobs_and_their_addresses_are_read_from_the_notation_of_grpc_tensorflow_server() -> None:
    spec = parse_cluster_notation("master|localhost:2222, worker|localhost:2223;localhost:2224")
    first, second, third = (Address(host="localhost", port=port) for port in (2222, 2223, 2224))
    assert spec == Spec(name="cluster", jobs={"master": Job(tasks=(first,)), "worker": Job(tasks=(second, third))})


def test_what_is_below_a_key_that_begins_with_x_may_have_any_tag() -> None:
    assert parse_spec("x-1: !x 1\njobs: {a: {tasks: 1}}\n", "c.yaml", "c").jobs.keys() == {"a"}


@pytest.mark.parametrize("text", BAD_NOTATION)
def test_problems_of_that_notation_have_a_column(text: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster_notation(text)
    assert caught.value.message.splitlines() == [f"--cluster-spec:1:{line}" for line in BAD_NOTATION[text]]
    assert caught.value.exit_code is ExitCode.USAGE
