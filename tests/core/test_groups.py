"""Groups of processes: who is in one, what each is told, and when it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfcluster import settings
from tfcluster.core.environment import gpu_variables, server_variables
from tfcluster.core.groups import (
    DISTRIBUTION_VARIABLES,
    Group,
    Member,
    NextStep,
    check_arguments,
    distribution_variables,
    expand,
    next_step,
    place_variables,
    restart_delay,
    select_members,
    stop_delay,
)
from tfcluster.core.programs import BUNDLED, SCRIPT
from tfcluster.core.runs import RunOptions
from tfcluster.core.topology import ClusterTopology, RestartPolicy, Task
from tfcluster.errors import ClusterError, ExitCode

POLICY = RestartPolicy("never", 0.1, 1.0, 1, 1.0)


def topology(*tasks: str) -> ClusterTopology:
    """A cluster with tasks as `worker:0@alpha`."""
    made = []
    for port, task in enumerate(tasks):
        short, _, host = task.partition("@")
        job, index = short.split(":")
        made.append(Task(job, int(index), host or "localhost", host or "localhost", 2222 + port, 1, 0, {}, POLICY))
    return ClusterTopology("demo", "spec", "closed", tuple(made))


def members(*shorts: str) -> list[Member]:
    return [
        Member(short.split(":")[0], int(short.split(":")[1]), rank, "localhost", "localhost")
        for rank, short in enumerate(shorts)
    ]


def test_workers_are_the_default_and_ranks_begin_with_the_chief() -> None:
    cluster = topology("ps:0", "worker:0", "worker:1", "chief:0", "evaluator:0")
    assert [each.short for each in select_members(cluster, [])] == ["chief:0", "worker:0", "worker:1"]
    assert [each.rank for each in select_members(cluster, [])] == [0, 1, 2]
    cluster = topology("ps:0", "worker:0", "chief:0", "evaluator:0")
    chosen = select_members(cluster, ["evaluator", "ps", "worker", "chief", "ps"])
    assert [each.short for each in chosen] == ["chief:0", "worker:0", "evaluator:0", "ps:0"]


def test_a_member_has_the_gpus_that_the_server_of_its_task_has_of_the_list_of_the_host() -> None:
    env = {"CUDA_VISIBLE_DEVICES": "2,3", "A": "a"}
    (task,) = topology("worker:0").tasks
    task = replace(task, gpus=1, gpu_ids=("3",), env=env, from_host=("CUDA_VISIBLE_DEVICES",))
    cluster = replace(topology("worker:0"), tasks=(task,))
    (member,) = select_members(cluster, [])
    assert member.env == {"CUDA_VISIBLE_DEVICES": "3", "A": "a"}
    server = server_variables(cluster, task, {})
    gpus = {**gpu_variables(member.env, member.gpu_ids), **member.env}
    assert {name: value for name, value in server.items() if name != "no_grpc_proxy"} == gpus
    assert "CUDA_DEVICE_ORDER" not in gpus, "the ids are those of the list"


@pytest.mark.parametrize(("jobs", "message"), [(["boss"], "no job 'boss'"), ([], "no job `worker`")])
def test_a_job_that_the_cluster_does_not_have(jobs: list[str], message: str) -> None:
    with pytest.raises(ClusterError, match=message) as caught:
        select_members(topology("local:0"), jobs)
    assert caught.value.exit_code is ExitCode.USAGE
    assert "local" in caught.value.hint


def test_placeholders_of_known_jobs_and_addresses() -> None:
    chosen = tuple(members("worker:0", "worker:1"))
    group = Group(chosen, {"ps": ["c:3"]}, "", "localhost")
    addresses = {"worker": ["a:1", "b:2"]}
    text = "{job} {index} {rank} {world_size} {address} {worker_hosts} {ps_hosts} {other} {x_hosts} {{job}}"
    assert expand(text, group, chosen[1], addresses) == "worker 1 1 2 b:2 a:1,b:2 c:3 {other} {x_hosts} {worker}"
    chosen = tuple(members("chief:0", "worker:0", "worker:1"))
    group, addresses = Group(chosen, {}, "", "localhost"), {"chief": ["d:4"], "worker": ["a:1", "b:2"]}
    assert [expand("{rank} {address}", group, each, addresses) for each in chosen] == ["0 d:4", "1 a:1", "2 b:2"]
    check_arguments(["{job}", "{worker_hosts}", "{other}"], ["worker"])
    with pytest.raises(ClusterError, match="has no job 'boss'"):
        check_arguments(["--hosts={boss_hosts}"], ["worker"])
    member = replace(members("worker:0")[0], address_host="fd00::1")
    assert Group((member,), {}, "", "fd00::1").addresses({0: 2222}) == {"worker": ["[fd00::1]:2222"]}


@pytest.mark.parametrize(
    ("shorts", "exited", "has_failed", "step"),
    [
        (["worker:0", "worker:1"], [0], False, NextStep.WAIT),
        (["worker:0", "worker:1"], [0], True, NextStep.STOP_OTHERS),
        (["worker:0", "worker:1"], [0, 1], False, NextStep.SUCCEED),
        (["worker:0", "worker:1"], [0, 1], True, NextStep.FAIL),
        (["worker:0", "ps:0"], [0], False, NextStep.STOP_OTHERS),
        (["worker:0", "ps:0"], [1], False, NextStep.WAIT),
        (["worker:0", "ps:0", "evaluator:0"], [0], False, NextStep.STOP_OTHERS),
        (["chief:0", "worker:0", "ps:0"], [0], False, NextStep.STOP_IDLE),
        (["chief:0", "worker:0", "ps:0"], [0, 1], False, NextStep.STOP_OTHERS),
        (["chief:0", "worker:0", "ps:0"], [1], False, NextStep.WAIT),
        (["chief:0", "worker:0"], [0], False, NextStep.WAIT),
        (["ps:0", "ps:1"], [0], False, NextStep.WAIT),
        (["ps:0", "ps:1"], [0, 1], False, NextStep.SUCCEED),
    ],
)
def test_what_is_done_next(shorts: list[str], exited: list[int], has_failed: bool, step: NextStep) -> None:
    assert next_step(members(*shorts), exited, has_failed) is step


@pytest.mark.parametrize(
    ("exited", "exit_code", "seconds"),
    [
        ([0], 1, 0.0),
        ([0], 42, settings.GROUP_PREEMPTION_SECONDS),
        ([0], 143, settings.GROUP_PREEMPTION_SECONDS),
        ([0], None, settings.GROUP_EVALUATOR_SECONDS),
        ([0, 2], None, 0.0),
    ],
)
def test_when_the_others_are_stopped(exited: list[int], exit_code: int | None, seconds: float) -> None:
    assert stop_delay(members("worker:0", "ps:0", "evaluator:0"), exited, exit_code) == seconds


def test_restarts_back_off_except_after_preemption() -> None:
    assert [restart_delay(number, 1) for number in range(4)] == [1.0, 2.0, 4.0, 8.0]
    assert restart_delay(20, 1) == settings.GROUP_RESTART_MAX_SECONDS
    assert [restart_delay(5, code) for code in (42, 143)] == [0.0, 0.0]


def test_a_member_knows_its_host_and_the_members_that_train_with_it() -> None:
    cluster = topology("ps:0@a", "worker:1@b", "worker:0@a", "chief:0@b", "evaluator:0@a", "worker:10@b", "worker:2@b")
    chosen = select_members(cluster, ["chief", "worker", "ps", "evaluator"])
    group = Group(chosen, {}, "", "a")
    addresses = group.addresses({each.rank: 100 + each.rank for each in chosen})
    assert [each.short for each in chosen[:5]] == ["chief:0", "worker:1", "worker:0", "worker:10", "worker:2"]
    places = [place_variables(group, each) for each in chosen]
    assert {(each["TFCLUSTER_HOSTS"], each["TFCLUSTER_WORLD_SIZE"]) for each in places} == {("b,a", "7")}
    local = [(each["TFCLUSTER_LOCAL_RANK"], each["TFCLUSTER_LOCAL_SIZE"]) for each in places]
    assert local == [("0", "4"), ("1", "4"), ("0", "3"), ("2", "4"), ("3", "4"), ("1", "3"), ("2", "3")]
    variables = [distribution_variables(group, each, addresses) for each in chosen]
    assert variables[5:] == [{}, {}], "a ps and an evaluator are no clients"
    for position, each in enumerate(variables[:5]):
        assert each["DTENSOR_JOBS"] == each["KERAS_DISTRIBUTION_JOB_ADDRESSES"] == "b:100,b:101,a:102,b:103,b:104"
        assert each["DTENSOR_CLIENT_ID"] == each["KERAS_DISTRIBUTION_PROCESS_ID"] == str(position)
        assert each["DTENSOR_NUM_CLIENTS"] == each["KERAS_DISTRIBUTION_NUM_PROCESSES"] == "5"
        assert each["DTENSOR_JOB_NAME"] == "worker"
        assert tuple(each) == DISTRIBUTION_VARIABLES
    (alone,) = select_members(topology("worker:0"), [])
    assert distribution_variables(Group((alone,), {}, "", ""), alone, {"worker": ["localhost:1"]}) == {}


PS_0, WORKER_0, WORKER_1 = "/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:1"
DEVICES = [f"/job:worker/replica:0/task:{task}/device:CPU:{cpu}" for task in (0, 1) for cpu in (0, 1)]


@pytest.mark.parametrize("program", [*BUNDLED, SCRIPT])
def test_some_programs_use_the_tasks_of_their_devices_alone_and_others_may_use_all(program: str) -> None:
    used = [WORKER_0, WORKER_1] if program in ("pi", "mean") else [PS_0, WORKER_0, WORKER_1]
    assert RunOptions(program, {}).used_tasks(DEVICES, [PS_0, WORKER_0, WORKER_1]) == used


def test_the_members_of_a_group_use_no_servers() -> None:
    assert RunOptions(SCRIPT, {}, jobs=()).used_tasks(DEVICES, [PS_0, WORKER_0, WORKER_1]) == []
