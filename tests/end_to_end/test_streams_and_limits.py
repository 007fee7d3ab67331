"""Commands whose standard streams are closed or cannot encode text, and whose limits are too low."""

from __future__ import annotations

import shlex

import pytest

from tests.conftest import Result, Sandbox, mostly_slow

SPEC = "jobs: {worker: {tasks: 1}}\n"


def shell(sandbox: Sandbox, arguments: str, before: str = "") -> Result:
    """Run a command by a shell, which closes its streams or lowers its limits."""
    return sandbox.execute("bash", "-c", f"{before}exec {shlex.join(sandbox.command)} {arguments}")


@pytest.mark.parametrize("closed", mostly_slow([">&-", "<&- >&- 2>&-"], fast=[">&-"]))
def test_closed_streams_are_no_error(sandbox: Sandbox, closed: str) -> None:
    (sandbox.folder / "cluster.yaml").write_text(SPEC)
    for command in ("validate", "up", "status", "logs", "--help", "down"):
        result = shell(sandbox, f"{command} {closed}")
        assert result.returncode == 0, (command, result.stderr)
        assert "AttributeError" not in result.stderr
    assert (sandbox.folder / "cluster.yaml").read_text() == SPEC


def test_a_result_that_a_stream_cannot_encode_is_escaped(demo: Sandbox) -> None:
    result = demo("run", "pi", "--samples", "1e4", "--seed", "1", env={"PYTHONIOENCODING": "ascii"})
    assert result.stdout.startswith("pi = 3.121 \\xb1 0.017 (standard error)")


def test_output_that_cannot_be_written_is_no_mistake_of_ours(demo: Sandbox) -> None:
    result = shell(demo, "logs > /dev/full")
    assert (result.returncode, result.stderr) == (1, "error: No space left on device\n")


def test_a_limit_that_is_too_low_is_named(sandbox: Sandbox) -> None:
    (sandbox.folder / "cluster.yaml").write_text(SPEC)
    result = shell(sandbox, "up", before="ulimit -n 10; ")
    assert (result.returncode, result.stderr.splitlines()[-2:]) == (
        1,
        ["error: Too many open files", "hint: The limit on open files is too low: raise it with `ulimit -n 1024`."],
    )
    result = shell(sandbox, "up", before="ulimit -v 400000; ")
    assert result.returncode == 1
    assert "hint: The limit on memory (`ulimit -v`) is too low." in result.stderr
