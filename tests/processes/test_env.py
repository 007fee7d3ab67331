"""The hosts of a cluster are exempt from a web proxy; a task sees its own GPUs and no others."""

from __future__ import annotations

import pytest

from tfcluster.processes.env import gpu_variables, no_proxy_env


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
