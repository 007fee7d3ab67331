"""What a spec may say; test_refusals.py has what it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import load_spec, parse_cluster_notation, parse_spec
from tfcluster.spec.policies import Backoff, JobBackoff, JobRestart, Limit, RestartSpec
from tfcluster.spec.schema import Address, Job, Spec


def job_of(text: str) -> Job:
    return parse_spec(f"jobs:\n  a: {text}\n", "c.yaml", "c").jobs["a"]


def test_a_full_spec_is_read_into_frozen_values() -> None:
    text = """
name: demo
jobs:
  ps: {tasks: 1}
  worker: {tasks: 2, cpus: 2, gpus: 1, env: {OMP_NUM_THREADS: "1"}}
  local: ["localhost:2222", "127.0.0.2", "[::1]:2223"]
network: open
restart: {policy: always, backoff: {initial: 1, max: 2.5}, limit: 3 in 7.5}
"""
    spec = parse_spec(text, "c.yaml", "c")
    assert spec == Spec(
        name="demo",
        jobs={
            "ps": Job(tasks=(None,)),
            "worker": Job(tasks=(None, None), cpus=2, gpus=1, env={"OMP_NUM_THREADS": "1"}),
            "local": Job(
                tasks=(
                    Address(host="localhost", port=2222),
                    Address(host="127.0.0.2"),
                    Address(host="::1", port=2223),
                )
            ),
        },
        network="open",
        restart=RestartSpec(policy="always", backoff=Backoff(initial=1, max=2.5), limit=Limit(count=3, seconds=7.5)),
    )
    assert list(spec.jobs) == ["ps", "worker", "local"]
    assert [str(address) for address in spec.jobs["local"].tasks] == ["localhost:2222", "127.0.0.2", "[::1]:2223"]


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


def test_a_list_is_the_tasks_of_a_job_and_merge_keys_are_overridden_by_the_keys_beside_them() -> None:
    assert job_of("[localhost:1, localhost:2]") == job_of("{tasks: [localhost:1, localhost:2]}")
    text = "jobs:\n  a: &a {tasks: 1, cpus: 2}\n  b: {cpus: 3, <<: *a}\n  c: {<<: [{cpus: 4}, *a]}"
    jobs = parse_spec(text, "c.yaml", "c").jobs
    assert jobs["b"] == Job(tasks=(None,), cpus=3)
    assert jobs["c"] == Job(tasks=(None,), cpus=4)


def test_a_job_overrides_the_restart_policy_key_by_key() -> None:
    spec = parse_spec(
        """
jobs:
  ps: {tasks: 1}
  worker: {tasks: 1, restart: {policy: never}}
  chief: {tasks: 1, restart: {backoff: {max: 7}, limit: 9 in 90}}
restart: {policy: always, backoff: {initial: 2}, limit: 3 in 7.5}
""",
        "c.yaml",
        "c",
    )
    cluster = RestartSpec(policy="always", backoff=Backoff(initial=2, max=30), limit=Limit(count=3, seconds=7.5))
    assert {name: spec.effective_restart(job) for name, job in spec.jobs.items()} == {
        "ps": cluster,
        "worker": cluster.model_copy(update={"policy": "never"}),
        "chief": RestartSpec(policy="always", backoff=Backoff(initial=2, max=7), limit=Limit(count=9, seconds=90)),
    }
    assert spec.jobs["chief"].restart == JobRestart(backoff=JobBackoff(max=7), limit=Limit(count=9, seconds=90))


def test_a_number_of_many_digits_is_an_error() -> None:
    with pytest.raises(ClusterError) as caught:
        job_of("{tasks: " + "9" * 5000 + "}")
    assert caught.value.message == "c.yaml:2:14: jobs.a.tasks: the number is 5000 characters long"


@pytest.mark.parametrize(("number", "tasks"), [("07", 7), ("0x10", 16), ("0b10", 2), ("1_0", 10)])
def test_numbers_with_one_reading_are_accepted(number: str, tasks: int) -> None:
    assert len(parse_spec(f"jobs: {{a: {{tasks: {number}}}}}", "c.yaml", "c").jobs["a"].tasks) == tasks


def test_keys_at_the_top_that_begin_with_x_hold_anchors() -> None:
    text = (
        "x-job: &job {tasks: 1, env: {A: &text b}}\nx-1: {task: [*text, 010, !x 1]}\njobs: {a: {<<: *job, cpus: 2}}\n"
    )
    job = parse_spec(text, "c.yaml", "c").jobs["a"]
    assert (job.cpus, job.env) == (2, {"A": "b"})


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


@pytest.mark.parametrize("text", BAD_NOTATION)
def test_problems_of_that_notation_have_a_column(text: str) -> None:
    with pytest.raises(ClusterError) as caught:
        parse_cluster_notation(text)
    assert caught.value.message.splitlines() == [f"--cluster-spec:1:{line}" for line in BAD_NOTATION[text]]
    assert caught.value.exit_code is ExitCode.USAGE
