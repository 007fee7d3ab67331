"""The environment of a process of a cluster: TF_CONFIG with the roles right, proxies, GPUs, variables of the spec."""

from __future__ import annotations

import json
import shlex
import subprocess
from io import StringIO

import pytest
from dotenv import dotenv_values

from tests.core.clusters import topology_of, with_ports
from tfcluster.core.environment import (
    add_to,
    client_variables,
    format_dotenv,
    format_json,
    format_sh,
    gpu_variables,
    needs_quotes,
    no_proxy_env,
    task_variables,
)
from tfcluster.core.tf_config import refusal_notes, refused_jobs

SPEC = """
name: demo
hosts: {alpha: {env: {PROXY: "of the host"}}, beta: {}}
jobs:
  ps: {tasks: 1, hosts: [beta]}
  worker: {tasks: 2, hosts: [alpha], gpus: 1, env: {GREETING: "it's"}}
  evaluator: {tasks: 1, hosts: [beta]}
  local: {tasks: 1, hosts: [beta]}
"""
CLUSTER = with_ports(topology_of(SPEC))


def test_a_client_is_the_chief_of_a_cluster_that_strategies_accept_and_leaves_the_gpus_to_the_servers() -> None:
    variables = client_variables(CLUSTER, "beta", "beta:99", {})
    config = json.loads(variables["TF_CONFIG"])
    assert config["task"] == {"type": "chief", "index": 0}
    assert config["cluster"] == {"ps": ["beta:2222"], "worker": ["alpha:2222", "alpha:2223"], "chief": ["beta:99"]}
    assert variables["TFCLUSTER_MASTER"] == config["session_master"] == "grpc://alpha:2222"
    assert variables["TFCLUSTER_CLUSTER"] == "demo"
    assert refused_jobs(CLUSTER.addresses()) == ["local"]
    assert "CUDA_VISIBLE_DEVICES" not in variables, "no server there has a GPU to itself"
    variables = client_variables(CLUSTER, "alpha", "alpha:99", {})
    assert (variables["PROXY"], variables["CUDA_VISIBLE_DEVICES"]) == ("of the host", "-1")
    assert refusal_notes(["chief", "worker", "ps", "evaluator"]) == []
    (note,) = refusal_notes([*CLUSTER.addresses(), "chief"])
    assert note == "TF_CONFIG leaves out local: strategies refuse other jobs than chief, worker, ps, evaluator"


def test_a_task_has_its_gpus_of_the_list_of_its_host_but_a_list_of_its_job_as_it_is() -> None:
    def visible(keys: str) -> str:
        hosts = 'hosts: {alpha: {env: {CUDA_VISIBLE_DEVICES: "3,5"}}}'
        (task,) = with_ports(topology_of(f"name: demo\n{hosts}\njobs: {{worker: {{tasks: 1{keys}}}}}")).tasks
        return task_variables(CLUSTER, task, {})["CUDA_VISIBLE_DEVICES"]

    assert visible(", gpus: 1") == "worker:0-0"
    assert visible("") == "3,5"
    assert visible(', gpus: 1, env: {CUDA_VISIBLE_DEVICES: "0,1"}') == "0,1"


def test_a_task_has_its_place_its_gpus_and_its_variables() -> None:
    task = next(task for task in CLUSTER.tasks if task.short == "worker:1")
    variables = task_variables(CLUSTER, task, {})
    assert json.loads(variables["TF_CONFIG"])["task"] == {"type": "worker", "index": 1}
    assert variables["CUDA_VISIBLE_DEVICES"] == "worker:1-0"
    assert (variables["GREETING"], variables["PROXY"]) == ("it's", "of the host")


@pytest.mark.parametrize("short", ["evaluator:0", "local:0"])
def test_tasks_that_are_no_part_of_a_strategy_have_a_place_of_their_own(short: str) -> None:
    task = next(task for task in CLUSTER.tasks if task.short == short)
    config = json.loads(task_variables(CLUSTER, task, {})["TF_CONFIG"])
    assert config["task"] == {"type": task.job, "index": 0}
    assert ("local" in config["cluster"], "evaluator" in config["cluster"]) == (short == "local:0", False)


def test_exceptions_of_the_environment_from_the_proxy_are_kept() -> None:
    variables = {"no_grpc_proxy": "alpha,beta", "A": "1"}
    assert add_to({"no_proxy": "own", "A": "0"}, variables) == {
        "no_proxy": "own",
        "A": "1",
        "no_grpc_proxy": "own,alpha,beta",
    }


HARMLESS = {
    "A": '{"x": ["h:1", "i:2"]}',
    "B": "",
    "C": "a#b",
    "D": r"C:\new",
    "E": '$HOME `id` "q"',
    "F": "it's ünï",
}
AWKWARD = {
    "G": "two\nlines",
    "H": " white ",
    "I": "a #b",
    "J": "'quoted'",
    "K": "${A}",
    "L": "'\\'$x \\\\n #",
    "M": "a\r\nb",
}


def test_each_format_is_read_back_as_it_was_by_docker_if_it_needs_no_quotes() -> None:
    variables = {**HARMLESS, **AWKWARD}
    script = format_sh(variables) + "\nexec env -0"
    shell = subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, check=True)
    entries = dict(entry.split("=", 1) for entry in shell.stdout.decode().split("\0") if entry)
    assert {name: entries[name] for name in variables} == variables
    assert json.loads(format_json(variables)) == variables
    # python-dotenv replaces references to other variables in any quotes, unless it is told not to.
    assert dotenv_values(stream=StringIO(format_dotenv(variables)), interpolate=False) == variables
    del variables["K"]
    assert dotenv_values(stream=StringIO(format_dotenv(variables))) == variables
    # Each line of an --env-file is a name and, up to the end of the line, a value.
    assert format_dotenv(HARMLESS).splitlines() == [f"{name}={value}" for name, value in HARMLESS.items()]
    assert [name for name, value in AWKWARD.items() if not needs_quotes(value)] == []
    assert shlex.split(format_sh({"A": "it's"})) == ["export", "A=it's"]


@pytest.mark.parametrize(
    ("environment", "hosts", "expected"),
    [
        ({}, [], ""),
        ({}, ["localhost"], "localhost"),
        ({}, ["localhost", "::1", "localhost", "127.0.0.2"], "localhost,::1,127.0.0.2"),
        ({"no_proxy": "a.example, .b.example ,"}, ["localhost"], "a.example,.b.example,localhost"),
        ({"no_grpc_proxy": "g", "no_proxy": "n"}, ["localhost"], "g,localhost"),
        ({"no_grpc_proxy": "", "no_proxy": "n"}, ["localhost"], "n,localhost"),
        ({"no_proxy": "localhost"}, ["localhost", "::1"], "localhost,::1"),
        ({"http_proxy": "http://p:1", "no_proxy": ""}, ["localhost"], "localhost"),
    ],
)
def test_exceptions_from_the_proxy(environment: dict[str, str], hosts: list[str], expected: str) -> None:
    before = dict(environment)
    assert no_proxy_env(environment, hosts) == {"no_grpc_proxy": expected}
    assert environment == before


@pytest.mark.parametrize(
    ("environment", "gpu_ids", "expected"),
    [
        ({}, [], {"CUDA_VISIBLE_DEVICES": "-1"}),
        ({"CUDA_VISIBLE_DEVICES": "2,3"}, [], {"CUDA_VISIBLE_DEVICES": "-1"}),
        (
            {},
            ["0", "1"],
            {"CUDA_VISIBLE_DEVICES": "0,1", "TF_FORCE_GPU_ALLOW_GROWTH": "true", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
        ),
        (
            {"CUDA_VISIBLE_DEVICES": "2,GPU-5f"},
            ["GPU-5f"],
            {"CUDA_VISIBLE_DEVICES": "GPU-5f", "TF_FORCE_GPU_ALLOW_GROWTH": "true"},
        ),
    ],
)
def test_gpus_of_a_task(environment: dict[str, str], gpu_ids: list[str], expected: dict[str, str]) -> None:
    assert gpu_variables(environment, gpu_ids) == expected
