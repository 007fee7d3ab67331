"""Examining a host for a layout: named ports are held or told, ports left out are chosen."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tfcluster.agent import ports as ports_module
from tfcluster.agent.examination import Choices, examine, hold_ports
from tfcluster.agent.ports import Ports
from tfcluster.errors import ClusterError
from tfcluster.model.laying_out import lay_out
from tfcluster.model.layout import Layout
from tfcluster.spec.load import parse_spec


def layout_of(jobs: str) -> Layout:
    return lay_out(parse_spec(f"jobs: {{{jobs}}}", "c", "c"), "c")


@pytest.fixture
def ports() -> Iterator[Ports]:
    made = Ports()
    yield made
    made.keep_only(())


@pytest.fixture
def taken() -> Iterator[list[int]]:
    """Two ports that this process listens on."""
    with ExitStack() as stack:
        found = []
        for _ in range(2):
            listener = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            found.append(listener.getsockname()[1])
        yield found


@pytest.fixture
def free() -> int:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def is_held(port: int) -> bool:
    with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as binder:
        try:
            binder.bind(("", port))
        except OSError:
            return True
        return False


def test_named_ports_are_held_and_not_chosen(ports: Ports, free: int) -> None:
    assert examine(layout_of(f"ps: ['localhost:{free}']"), ports, []) == Choices({}, {})
    assert is_held(free)


def test_ports_left_out_are_chosen_by_task_and_held(ports: Ports, free: int, monkeypatch: pytest.MonkeyPatch) -> None:
    # Counting up begins at the very port that a later task names.
    monkeypatch.setattr(ports_module, "FIRST_PORT", free)
    monkeypatch.setattr(ports_module, "_LAST_PORT", 65535)
    layout = layout_of(f"ps: {{tasks: 1}}, worker: [localhost, 'localhost:{free}', localhost]")
    chosen = examine(layout, ports, []).ports
    assert list(chosen) == ["/job:ps/task:0", "/job:worker/task:0", "/job:worker/task:2"]
    assert free not in chosen.values()
    assert len(set(chosen.values())) == 3
    assert all(map(is_held, chosen.values()))


def test_every_taken_port_is_told_with_who_has_it(ports: Ports, taken: list[int], free: int) -> None:
    one, two = taken
    layout = layout_of(f"ps: ['localhost:{one}'], worker: ['localhost:{free}', 'localhost:{two}', localhost]")
    with pytest.raises(ClusterError) as caught:
        examine(layout, ports, ["0"])
    first, second = caught.value.message.split("\n")
    assert first.startswith(f"ps:0: port {one} is taken by process {os.getpid()} (")
    assert second.startswith(f"worker:1: port {two} is taken by process {os.getpid()} (")
    assert "Stop that process" in caught.value.hint


def test_a_port_that_cannot_be_used_is_told_with_the_reason(
    ports: Ports, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: socket.socket, address: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    with pytest.raises(ClusterError) as caught:
        examine(layout_of(f"ps: ['localhost:{free}']"), ports, [])
    assert caught.value.message == f"ps:0: port {free} cannot be used: Permission denied"


def test_gpus_are_handed_out_once_each_to_those_that_ask(ports: Ports) -> None:
    layout = layout_of("ps: {tasks: 1}, worker: {tasks: 2, gpus: 2}, chief: {tasks: 1, gpus: 1}")
    assert examine(layout, ports, ["3", "1", "GPU-5f", "0", "7", "8"]).gpus == {
        "/job:worker/task:0": ["3", "1"],
        "/job:worker/task:1": ["GPU-5f", "0"],
        "/job:chief/task:0": ["7"],
    }


def test_too_few_gpus_are_told_with_who_asks(ports: Ports) -> None:
    layout = layout_of("ps: {tasks: 1}, worker: {tasks: 2, gpus: 2}, chief: {tasks: 1, gpus: 1}")
    with pytest.raises(ClusterError) as caught:
        examine(layout, ports, ["0", "1", "2", "3"])
    assert caught.value.message == ("the tasks ask for 5 GPUs (worker:0 2, worker:1 2, chief:0 1), localhost has 4")
    assert caught.value.hint == "Lower `gpus:` in the spec; `cpus: N` gives a task several CPU devices instead."


def test_taken_ports_and_missing_gpus_are_told_at_once(ports: Ports, taken: list[int]) -> None:
    layout = layout_of(f"ps: ['localhost:{taken[0]}'], worker: {{tasks: 1, gpus: 1}}")
    with pytest.raises(ClusterError) as caught:
        examine(layout, ports, [])
    port, gpus = caught.value.message.split("\n")
    assert port.startswith(f"ps:0: port {taken[0]} is taken by ")
    assert gpus == "the tasks ask for 1 GPU (worker:0 1), localhost has 0"
    assert "Stop that process" in caught.value.hint
    assert "Lower `gpus:`" in caught.value.hint


def test_addresses_that_are_only_reserved_have_a_port_and_no_gpus(ports: Ports) -> None:
    layout = layout_of("worker: {tasks: 1, max: 3, gpus: 1}")
    choices = examine(layout, ports, ["0"])
    assert list(choices.ports) == ["/job:worker/task:0", "/job:worker/task:1", "/job:worker/task:2"]
    assert all(map(is_held, choices.ports.values()))
    assert choices.gpus == {"/job:worker/task:0": ["0"]}


def test_gpus_that_a_task_has_are_given_to_nobody_else(ports: Ports) -> None:
    layout = layout_of("worker: {tasks: 3, gpus: 1}").with_choices({}, {"/job:worker/task:1": ["0"]})
    gpus = examine(layout, ports, ["0", "1", "2"]).gpus
    assert gpus == {"/job:worker/task:0": ["1"], "/job:worker/task:2": ["2"]}


def test_the_ports_of_the_cluster_itself_are_neither_examined_nor_chosen(
    ports: Ports, taken: list[int], monkeypatch: pytest.MonkeyPatch, free: int
) -> None:
    monkeypatch.setattr(ports_module, "FIRST_PORT", free)
    monkeypatch.setattr(ports_module, "_LAST_PORT", 65535)
    layout = layout_of(f"worker: ['localhost:{taken[0]}', localhost]")
    chosen = examine(layout, ports, [], ours={taken[0], free}).ports
    assert list(chosen) == ["/job:worker/task:1"]
    assert free not in chosen.values()


def test_ports_of_a_plan_are_held_all_or_none(ports: Ports, taken: list[int], free: int) -> None:
    layout = layout_of(f"worker: ['localhost:{free}', 'localhost:{taken[0]}']")
    with pytest.raises(ClusterError) as caught:
        hold_ports(layout, ports, ())
    assert caught.value.message.startswith(f"worker:1: port {taken[0]} is taken by process {os.getpid()} (")
    assert caught.value.hint == "Nothing was changed. Run the command again: it plans anew."
    assert not ports.held
    hold_ports(layout, ports, {taken[0]})
    assert ports.held == {free}
