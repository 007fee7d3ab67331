"""`tfcluster.connect()` in a plain Python process: sessions, strategies, devices and runs."""

from __future__ import annotations

import json
import sys

import pytest

from tests.conftest import SCRIPTS, Sandbox


def python(sandbox: Sandbox, program: str) -> str:
    """Return what a program prints in a Python process of its own, which has only tfcluster's folders."""
    proxy = {"https_proxy": "http://127.0.0.1:9"}
    result = sandbox.execute(sys.executable, "-c", program, env=proxy, timeout=200)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.slow
def test_a_strategy_and_a_session_find_the_cluster_in_spite_of_a_proxy(demo: Sandbox) -> None:
    output = python(demo, (SCRIPTS / "connected_strategy.py").read_text())
    assert output.split() == ["/job:ps/replica:0/task:0/device:CPU:0", "21.0"]


def test_runs_return_their_results(demo: Sandbox) -> None:
    (demo.folder / "hello.py").write_text("import sys; print('hello', *sys.argv[1:]); print('err', file=sys.stderr)")
    (demo.folder / "fails.py").write_text("raise ValueError('no such thing')")
    output = python(demo, (SCRIPTS / "connected_runs.py").read_text()).splitlines()
    assert output[0] == "hello you --there"
    assert "no such thing" in output[1]
    assert output[2:] == ["2", "2", "2"]


def test_a_script_finds_the_cluster_that_it_runs_on(demo: Sandbox) -> None:
    (demo.folder / "asks.py").write_text("import tfcluster; print(tfcluster.connect().run('graph', '1 + 1')['value'])")
    assert demo("run", "asks.py").stdout == "2\n"


@pytest.mark.slow
def test_runs_work_in_a_thread(demo: Sandbox) -> None:
    program = """
import tfcluster
from concurrent.futures import ThreadPoolExecutor
cluster = tfcluster.connect()
with ThreadPoolExecutor() as pool:
    print([r["inside"] for r in pool.map(lambda seed: cluster.run("pi", samples=1e5, seed=seed), [3, 3])])
"""
    first, second = json.loads(python(demo, program))
    assert first == second
