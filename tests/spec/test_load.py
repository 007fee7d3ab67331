"""What a spec may say, and the whole message for each thing that it may not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfcluster import settings
from tfcluster.errors import ClusterError, ExitCode
from tfcluster.spec.load import load_spec, parse_cluster_notation, parse_spec
from tfcluster.spec.policies import Backoff, JobBackoff, JobRestart, Limit, RestartSpec
from tfcluster.spec.schema import Address, Job, Spec


def problems_of(text: str | bytes, default_name: str = "c") -> list[str]:
    with pytest.raises(ClusterError) as caught:
        parse_spec(text, "c.yaml", default_name)
    assert caught.value.exit_code is ExitCode.USAGE
    return caught.value.message.splitlines()


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


BAD_VALUES = {
    # restart
    "{tasks: 1, restart: {backof: {}}}": "2:27: jobs.a.restart.backof: unknown key; did you mean 'backoff'?",
    "{tasks: 1, restart: {policy: }}": "2:35: jobs.a.restart.policy: expected a value, found nothing",
    "{tasks: 1, restart: {backoff: {most: 1}}}": "2:37: jobs.a.restart.backoff.most: unknown key; "
    "known keys: initial, max",
    "{tasks: 1, restart: {backoff: {initial: 2, max: 1}}}": "2:36: jobs.a.restart.backoff: "
    "max (1) must be initial (2) or more",
    "{tasks: 1, restart: {backoff: {initial: 50}}}": "2:36: jobs.a.restart.backoff: "
    "initial (50) must be the cluster's max (30) or less",
    "{tasks: 1, restart: {backoff: {max: 0.01}}}": "2:36: jobs.a.restart.backoff: "
    "max (0.01) must be the cluster's initial (0.1) or more",
    # tasks
    **{
        f"{{tasks: {written}}}": f"2:14: jobs.a.tasks: expected a whole number or a list of addresses, found {found}"
        for written, found in (("'2'", "the text '2'"), ("true", "true"), ("2.0", "2.0"), ("", "nothing"))
    },
    "{tasks: -1}": "2:14: jobs.a.tasks: must be 1 or more, found -1",
    "{tasks: 1001}": "2:14: jobs.a.tasks: must be 1000 or less, found 1001",
    "{tasks: 999}\n  b: {tasks: 1}\n  c: [localhost:1]": "4:3: jobs.c: "
    "with this job the cluster has more than 1000 tasks; split them into several clusters",
    "[]": "2:6: jobs.a: expected 1 to 1000 addresses, found an empty list",
    "{}": "2:3: jobs.a.tasks: this key is missing",
    "2": "2:6: jobs.a: expected keys such as tasks:, or a list of addresses, found 2; write {tasks: 2}",
    "two": "2:6: jobs.a: expected keys such as tasks:, or a list of addresses, found the text 'two'",
    # addresses
    "{tasks: [localhost:1, 7]}": "2:28: jobs.a.tasks[1]: expected an address such as localhost:2222, found 7",
    "[~]": "2:7: jobs.a[0]: expected an address such as localhost:2222, found nothing",
    "[localhost: 22]": "2:7: jobs.a[0]: expected an address such as localhost:2222, found keys and values; "
    "write localhost:22 without the space",
    "['a b']": "2:7: jobs.a[0]: expected an address such as localhost:2222 or [::1]:2222, found the text 'a b'",
    "['::1']": "2:7: jobs.a[0]: expected an address such as localhost:2222 or [::1]:2222, found the text '::1'",
    **{
        f"[localhost:{port}]": f"2:7: jobs.a[0]: expected a port from 1 to 65535, found the text 'localhost:{port}'"
        for port in ("65536", "http", "0", "0x8ae")
    },
    "[localhost:02222]": "2:7: jobs.a[0]: expected a port that does not begin with 0, "
    "found the text 'localhost:02222'; write localhost:2222",
    "[10.0.0.1:2222]": "2:7: jobs.a[0]: the task's address is not on this machine: '10.0.0.1'; write localhost:2222, "
    "or give the spec hosts:",
    "[gpu.example.org]": "2:7: jobs.a[0]: the task's address is not on this machine: 'gpu.example.org'; "
    "write localhost:PORT, or give the spec hosts:",
    # cpus, gpus
    "{tasks: 1, cpus: 0}": "2:23: jobs.a.cpus: must be 1 or more, found 0",
    "{tasks: 1, cpus: 257}": "2:23: jobs.a.cpus: must be 256 or less, found 257",
    "{tasks: 1, cpus: 1.0}": "2:23: jobs.a.cpus: expected a whole number, found 1.0",
    "{tasks: 1, gpus: -1}": "2:23: jobs.a.gpus: must be 0 or more, found -1",
    "{tasks: 1, gpus: '1'}": "2:23: jobs.a.gpus: expected a whole number, found the text '1'",
    # max
    "{tasks: 2, max: 1}": "2:6: jobs.a: max (1) must be the number of tasks (2) or more",
    "{tasks: 1, max: 1001}": "2:22: jobs.a.max: must be 1000 or less, found 1001",
    # env
    "{tasks: 1, env: [A=1]}": "2:22: jobs.a.env: expected names and values, found a list of 1",
    "{tasks: 1, env: {OMP_NUM_THREADS: 1}}": "2:40: jobs.a.env.OMP_NUM_THREADS: YAML does not read this value "
    "as text; write it in quotes",
    "{tasks: 1, env: {A: yes}}": "2:26: jobs.a.env.A: YAML does not read this value as text; write it in quotes",
    "{tasks: 1, env: {A: ~}}": "2:26: jobs.a.env.A: expected text; write it in quotes",
    "{tasks: 1, env: {1A: x}}": "2:23: jobs.a.env.1A: expected the name of a variable to be letters, "
    "digits and _, and not to start with a digit",
    '{tasks: 1, env: {A: "\\0"}}': "2:26: jobs.a.env.A: the value of an environment variable cannot hold "
    "a NUL character",
    # keys
    "{task: 1}": "2:7: jobs.a.task: unknown key; did you mean 'tasks'?",
    "{tasks: 1, x: 1}": "2:17: jobs.a.x: unknown key; known keys: tasks, hosts, max, cpus, threads, gpus, env, restart",
    # numbers and dates that YAML itself cannot make sense of
    "{tasks: 2026-99-99}": "2:14: jobs.a.tasks: expected a whole number or a list of addresses, "
    "found the date 2026-99-99",
    "{tasks: " + "9" * 5000 + "}": "2:14: jobs.a.tasks: the number is 5000 characters long",
    "{tasks: 0x" + "f" * 80 + "}": "2:14: jobs.a.tasks: must be 1000 or less, found 0x" + "f" * 57 + "…",
    "{tasks: 1:30}": "2:14: jobs.a.tasks: YAML reads this as a number in base 60; write it in quotes",
    **{
        f"{{tasks: {number}}}": "2:14: jobs.a.tasks: YAML 1.1 reads this as 8 (octal), YAML 1.2 as 10; write 8 or 10"
        for number in ("010", "+0_10_", "!!int 010")
    },
    "{tasks: 1, restart: {backoff: {initial: 010}}}": "2:46: jobs.a.restart.backoff.initial: "
    "YAML 1.1 reads this as 8 (octal), YAML 1.2 as 10; write 8 or 10",
    "{tasks: 0o10}": "2:14: jobs.a.tasks: expected a whole number or a list of addresses, found the text '0o10'",
    "{tasks: 1, env: {A: 010}}": "2:26: jobs.a.env.A: YAML reads this as an octal number; "
    "write it in quotes, or without the first 0",
    "{tasks: !!int x}": "2:14: jobs.a.tasks: this cannot be read as int",
    "{tasks: !!python/name:os.system ''}": "2:14: jobs.a.tasks: the tag !!python/name:os.system has no "
    "meaning here; delete it",
    "!!set {tasks}": "2:6: jobs.a: the tag !!set has no meaning here; delete it",
    "{<<: 1, tasks: 1}": "2:11: jobs.a.<<: expected an alias of keys and values, or a list of such",
}


@pytest.mark.parametrize("text", BAD_VALUES)
def test_an_error_of_a_job_has_one_line(text: str) -> None:
    assert problems_of(f"jobs:\n  a: {text}\n") == [f"c.yaml:{BAD_VALUES[text]}"]


BAD_TOPS = {
    "{}": "1:1: jobs: this key is missing",
    "jobs: {}": "1:7: jobs: must have at least one entry, found an empty mapping",
    "jobs:": "1:6: jobs: expected names and values, found nothing",
    "jobs: {1: {tasks: 1}}": '1:8: jobs.1: YAML does not read this key as text; write it in quotes: "1"',
    "jobs: {[a]: {tasks: 1}}": "1:8: jobs.?: expected a name as the key, found a list or a mapping",
    "jobs: {b-c: {tasks: 1}}": "1:8: jobs.b-c: expected the name of a job to be letters, digits and _, "
    "and to start with a letter",
    "jobs: {a: {tasks: 1}}\nname: 1": '2:7: name: expected text, found 1; write it in quotes: "1"',
    "jobs: {a: {tasks: 1}}\nname: -x": "2:7: name: expected a name of at most 63 letters, digits, _, . and - "
    "that starts with a letter or digit, found the text '-x'",
    "jobs: {a: {tasks: 1}}\nnetwork: off": "2:10: network: expected closed, private or open, found false",
    "jobs: {a: {tasks: 1}}\nrestart: never": "2:10: restart: expected the keys policy, backoff, limit, "
    "found the text 'never'",
    "jobs: {a: {tasks: 1}}\nrestart: {policy: no}": "2:19: restart.policy: expected never, on-failure "
    "or always, found false",
    "jobs: {a: {tasks: 1}}\nrestart: {limit: 0 in 60}": "2:18: restart.limit: expected a count and seconds "
    "such as 5 in 60, found the text '0 in 60'",
    "jobs: {a: {tasks: 1}}\nrestart: {limit: 5}": "2:18: restart.limit: expected a count and seconds "
    "such as 5 in 60, found 5",
    "jobs: {a: {tasks: 1}}\nrestart: {backoff: 1}": "2:20: restart.backoff: expected the keys initial, max, found 1",
    "jobs: {a: {tasks: 1}}\nrestart: {backoff: {initial: 0}}": "2:30: restart.backoff.initial: "
    "must be more than 0, found 0",
    "jobs: {a: {tasks: 1}}\nrestart: {backoff: {max: .nan}}": "2:26: restart.backoff.max: "
    "expected a finite number, found .nan",
    "jobs: {a: {tasks: 1}}\nrestart: {backoff: {initial: 50}}": "2:20: restart.backoff: "
    "max (30) must be initial (50) or more",
    "jobs: {a: {tasks: 1}}\nrestart: {backof: {}}": "2:11: restart.backof: unknown key; did you mean 'backoff'?",
    'jobs: {a: {tasks: 1}}\n"x\\ny": 1': "2:1: x\\ny: unknown key; known keys: name, hosts, hostfile, slurm, "
    "kubernetes, host, jobs, network, restart, logs, notify, warm, lease; one that begins with x- is ignored",
    "jobs: {a: {tasks: 1}}\nwarm: 1": "2:7: warm: expected true or false, found 1",
    "jobs: {a: {tasks: 1}}\nwarm: 'false'": "2:7: warm: expected true or false, found the text 'false'; "
    "write it without quotes",
    "jobs: {a: {tasks: 1}}\nnotify: 5": "2:9: notify: expected the keys webhook, command, events, found 5",
    "jobs: {a: {tasks: 1}}\nnotify: {events: [task-failed]}": "2:9: notify: expected a webhook or a command; "
    "without one, no notice is sent",
    "jobs: {a: {tasks: 1}}\nnotify: {webhook: 'ftp://me:pw@x'}": "2:19: notify.webhook: "
    "expected a URL that begins with http:// or https://",
    "jobs: {a: {tasks: 1}}\nnotify: {webhook: {secret: 'http://:99'}}": "2:19: notify.webhook: "
    "expected a URL that begins with http:// or https://",
    "jobs: {a: {tasks: 1}}\nnotify: {events: [lost]}": "2:19: notify.events[0]: expected task-failed, host-away or "
    "run-finished, found the text 'lost'",
    "jobs: {a: {tasks: 1}}\nlogs: {sice: 5}": "2:8: logs.sice: unknown key; did you mean 'size'?",
    "jobs: {a: {tasks: 1}}\nlogs: {size: 10 apples}": "2:14: logs.size: expected a size such as 10 MB, 1 GiB "
    "or 500 kB, or bytes, found the text '10 apples'",
    "jobs: {a: {tasks: 1}}\nlogs: {size: true}": "2:14: logs.size: expected a size such as 10 MB, 1 GiB "
    "or 500 kB, or bytes, found true",
    "jobs: {a: {tasks: 1}}\nlogs: {size: 1.5}": "2:14: logs.size: expected a size such as 10 MB, 1 GiB "
    "or 500 kB, or bytes, found 1.5",
    "jobs: {a: {tasks: 1}}\nlogs: {size: 0.9 kB}": "2:14: logs.size: must be 1 kB or more, found the text '0.9 kB'",
    "jobs: {a: {tasks: 1}}\nlogs: {size: 1001 TB}": "2:14: logs.size: must be 1000 TB or less, "
    "found the text '1001 TB'",
    "jobs: {a: {tasks: 1}}\nlogs: {run: 999 kB}": "2:13: logs.run: must be 1 MB or more, found the text '999 kB'",
    "jobs: {a: {tasks: 1}}\nlogs: {run: 5 GB}": "2:7: logs: runs (2000 MB) must be run (5000 MB) or more",
    "jobs: {a: {tasks: 1}}\nlogs: {count: 0}": "2:15: logs.count: must be 1 or more, found 0",
    "jobs: {a: {tasks: 1}, a: {tasks: 2}}": "1:23: jobs.a: this key is already at line 1, column 8; "
    "keep one of the two",
    "jobs: {ps: [localhost:5], w: [localhost, localhost:5]}": "1:42: jobs.w[1]: w:1 has the address "
    "localhost:5 of ps:0",
    "jobs: {ps: {tasks: [localhost:5]}, w: ['[::1]:5']}": "1:40: jobs.w[0]: w:0 has the port of ps:0, "
    "which is localhost:5; a TensorFlow server listens on every interface",
}


@pytest.mark.parametrize(("number", "tasks"), [("07", 7), ("0x10", 16), ("0b10", 2), ("1_0", 10)])
def test_numbers_with_one_reading_are_accepted(number: str, tasks: int) -> None:
    assert len(parse_spec(f"jobs: {{a: {{tasks: {number}}}}}", "c.yaml", "c").jobs["a"].tasks) == tasks


def test_keys_at_the_top_that_begin_with_x_hold_anchors() -> None:
    text = (
        "x-job: &job {tasks: 1, env: {A: &text b}}\nx-1: {task: [*text, 010, !x 1]}\njobs: {a: {<<: *job, cpus: 2}}\n"
    )
    job = parse_spec(text, "c.yaml", "c").jobs["a"]
    assert (job.cpus, job.env) == (2, {"A": "b"})
    problem = "c.yaml:1:22: jobs.a.x-b: unknown key; known keys: tasks, hosts, max, cpus, threads, gpus, env, restart"
    assert problems_of("jobs: {a: {tasks: 1, x-b: 1}}") == [problem]


@pytest.mark.parametrize("text", BAD_TOPS)
def test_an_error_of_a_spec_has_one_line(text: str) -> None:
    assert problems_of(text) == [f"c.yaml:{BAD_TOPS[text]}"]


def test_every_problem_is_reported_in_the_order_of_the_file() -> None:
    text = """\
name: 1
jobs:
  1: {tasks: -1}
  ps: {tasks: two, cpus: 2026-01-01, cpus: 3}
  worker: [localhost:2222, "localhost:2222", 10.0.0.1]
nettwork: open
restart: {limit: !x 5 in 60, policy: sometimes}
"""
    assert problems_of(text) == [
        'c.yaml:1:7: name: expected text, found 1; write it in quotes: "1"',
        'c.yaml:3:3: jobs.1: YAML does not read this key as text; write it in quotes: "1"',
        "c.yaml:4:15: jobs.ps.tasks: expected a whole number or a list of addresses, found the text 'two'",
        "c.yaml:4:26: jobs.ps.cpus: expected a whole number, found the date 2026-01-01",
        "c.yaml:4:38: jobs.ps.cpus: this key is already at line 4, column 20; keep one of the two",
        "c.yaml:5:28: jobs.worker[1]: worker:1 has the address localhost:2222 of worker:0",
        "c.yaml:5:46: jobs.worker[2]: the task's address is not on this machine: '10.0.0.1'; write localhost:PORT, "
        "or give the spec hosts:",
        "c.yaml:6:1: nettwork: unknown key; did you mean 'network'?",
        "c.yaml:7:18: restart.limit: the tag !x has no meaning here; delete it",
        "c.yaml:7:38: restart.policy: expected never, on-failure or always, found the text 'sometimes'",
    ]


def test_a_problem_of_an_alias_is_reported_at_its_anchor_and_columns_count_characters() -> None:
    text = "jobs:\n  a: &a {tasks: 0}\n  b: *a\n"
    assert problems_of(text) == [
        "c.yaml:2:17: jobs.a.tasks: must be 1 or more, found 0",
        "c.yaml:2:17: jobs.b.tasks: must be 1 or more, found 0",
    ]
    text = "jobs: {a: {tasks: 1, env: {É: x, A: 1}}}"
    assert [line.split(" ")[0] for line in problems_of(text.encode())] == ["c.yaml:1:28:", "c.yaml:1:37:"]


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
