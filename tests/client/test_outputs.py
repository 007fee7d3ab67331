"""Where the files and the traces of a run are written here, whatever a host lists and sends."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from tests.conftest import wait_for
from tests.project import Outcome, Project
from tfcluster.protocol.api import Done, Reply
from tfcluster.protocol.api.files import (
    OutputBlock,
    OutputFile,
    OutputFiles,
    OutputsReply,
    OutputsRequest,
    ReadOutputsRequest,
)
from tfcluster.protocol.api.processes import ProfileReply, ProfileRequest, TracePart

CONTENT = b"of the run"
DATA = base64.b64encode(CONTENT).decode()


def file(path: str, modified_ns: int = 1_000_000_000) -> OutputFile:
    return OutputFile(path, len(CONTENT), modified_ns, False, None)


def link(path: str, target: Path | str) -> OutputFile:
    return OutputFile(path, 0, 1_000_000_000, False, str(target))


@pytest.fixture
def demo(project: Project) -> Project:
    """A cluster that sends the content of each file that it is asked for."""
    project.bring_up("name: demo\njobs: {worker: {tasks: 2}}\n")
    project.agent.answer(
        ReadOutputsRequest,
        lambda request, host: [
            *(OutputBlock(path, each) for path in request.paths for each in (DATA, "")),
            Reply(Done()),
        ],
    )
    return project


def fetch(project: Project, *files: OutputFile, run: str = "train-1") -> Outcome:
    """Fetch what a host lists."""
    project.agent.answer(OutputsRequest, [OutputFiles(files), Reply(OutputsReply(run))])
    return project.run("fetch train out")


def has_begun(folder: Path, path: str) -> bool:
    """Whether a file is there, or the part of it that has arrived."""
    return not {path, f"{path}.tfcluster-part"}.isdisjoint(names(folder))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_files_and_links_are_made(demo: Project) -> None:
    files = file("a"), file("deep/er/b"), link("deep/latest", "er")
    assert fetch(demo, *files) == Outcome(0, "3 files, 20 B, fetched to out\n", "")
    out = demo.folder / "out"
    assert (out / "deep/latest/b").read_bytes() == (out / "a").read_bytes() == CONTENT
    assert fetch(demo, *files) == Outcome(0, "0 files, 0 B, fetched to out, 3 files were there already\n", "")


def test_a_file_appears_when_all_of_it_has_arrived_and_is_not_copied_again(demo: Project) -> None:
    out, appeared = demo.folder / "out", []

    def answer(request: ReadOutputsRequest, host: str) -> Iterator[object]:
        for path in request.paths:
            yield OutputBlock(path, DATA)
            wait_for(partial(has_begun, out, path), 30)
            appeared.append((out / path).exists())
            yield OutputBlock(path, "")
        yield Reply(Done())

    demo.agent.answer(ReadOutputsRequest, answer)
    fetch(demo, file("a"))
    assert fetch(demo, file("a"), file("b")).stdout == "1 file, 10 B, fetched to out, 1 file were there already\n"
    assert appeared == [False, False], "neither before its content nor after it"
    assert [request.paths for request in demo.agent.asked(ReadOutputsRequest)] == [("a",), ("b",)]


def test_other_files_of_the_same_names_are_an_error_before_anything_is_copied(demo: Project) -> None:
    demo.file("out/b", "mine")
    assert fetch(demo, file("a"), file("b")) == Outcome(
        2,
        "",
        "error: out has other files of the same names: b\n"
        "hint: Name another folder, or replace them with --overwrite.\n",
    )
    assert names(demo.folder / "out") == ["b"]
    assert (demo.folder / "out/b").read_text() == "mine"
    assert demo.run("fetch train out --overwrite").code == 0
    assert (demo.folder / "out/b").read_bytes() == CONTENT


@pytest.mark.parametrize("below", [file("d/authorized_keys"), link("d/e/authorized_keys", "x")])
@pytest.mark.parametrize("is_earlier", [False, True])
def test_nothing_is_written_below_a_link_that_the_host_lists(
    demo: Project, below: OutputFile, is_earlier: bool
) -> None:
    (elsewhere := demo.folder / "elsewhere").mkdir()
    if is_earlier:
        fetch(demo, link("d", elsewhere))
    outcome = fetch(demo, *([] if is_earlier else [link("d", elsewhere)]), below)
    assert (outcome.code, outcome.stdout) == (1, "")
    assert "out/d is a symbolic link: nothing is written below it" in outcome.stderr
    assert list(elsewhere.iterdir()) == []


def test_a_link_with_the_name_of_an_incomplete_file_is_not_followed(demo: Project) -> None:
    elsewhere = demo.folder / "elsewhere"
    assert fetch(demo, link("a.tfcluster-part", elsewhere), file("a")).code == 0
    assert not elsewhere.exists()
    assert (demo.folder / "out/a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("blocks", "modified_ns", "problem"),
    [
        ([("../other", DATA)], 1, "a file arrived that was not requested: '../other'"),
        ([("a", DATA), ("b", "")], 1, "a file arrived before the one before it was complete: 'b'"),
        ([("a", "a"), ("a", "")], 1, "the host sent a file that cannot be written"),
        ([("a", ""), ("a", "")], 10**40, "the host sent a file that cannot be written"),
    ],
)
def test_what_is_not_the_files_that_were_asked_for_is_an_error_and_not_written(
    demo: Project, blocks: list[tuple[str, str]], modified_ns: int, problem: str
) -> None:
    demo.agent.answer(ReadOutputsRequest, [*(OutputBlock(*block) for block in blocks), Reply(Done())])
    outcome = fetch(demo, *(file(path, modified_ns) for path in "ab"))
    assert (outcome.code, outcome.stdout) == (1, "")
    assert problem in outcome.stderr
    assert {*names(demo.folder)} <= {"cluster.yaml", "out", ".tfclusterignore"}


@pytest.mark.parametrize("run", ["../train-1", "/train-1", "..", "train-1/../../x"])
def test_a_run_whose_id_is_a_path_is_refused(demo: Project, run: str) -> None:
    outcome = fetch(demo, file("a"), run=run)
    assert outcome.code == 1
    assert f"localhost has answered with a run that cannot exist: {run!r}" in outcome.stderr
    assert names(demo.folder) == ["cluster.yaml"]


def test_a_host_that_is_away_hides_no_failure_of_another(project: Project) -> None:
    project.bring_up("name: far\nhosts: [alpha, beta]\njobs: {worker: {tasks: 2}}\n")
    project.agent.away = {"beta"}
    project.agent.answer(ProfileRequest, [Reply(ProfileReply((), {"worker:0": "it is failed"}))])
    assert project.run("profile --logdir logs --seconds 1") == Outcome(
        5,
        "",
        "error: host 'beta' cannot be reached: no route to host\nthere is no trace of worker:0: it is failed\n"
        "hint: Type `ssh beta`. `tfcluster status` shows the tasks. A task has one profiler at a time.\n",
    )
    assert names(project.folder) == ["cluster.yaml"]


def test_what_another_command_captures_meanwhile_is_kept(demo: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    trace = demo.file("logs/plugins/profile/.now/worker_1.xplane.pb")
    monkeypatch.setattr(time, "strftime", lambda *arguments: "now")
    outcome = demo.run("profile --logdir logs --seconds 1")
    assert outcome.code == 1
    assert outcome.stderr.endswith("logs/plugins/profile/.now: cannot be made: File exists\n")
    assert trace.exists()


TRACE = base64.b64encode(b"trace").decode()


def test_the_traces_are_where_tensorboard_looks_and_idle_tasks_are_named(demo: Project) -> None:
    demo.agent.answer(ProfileRequest, [*[TracePart("worker:0", TRACE)] * 2, Reply(ProfileReply(("worker:1",), {}))])
    outcome = demo.run("profile --logdir logs --seconds 1")
    assert outcome.code == 0
    assert outcome.stderr == "note: nothing ran on worker:1 during the capture\n"
    (trace,) = (demo.folder / "logs/plugins/profile").glob("*/*")
    assert outcome.stdout == f"the traces of worker:0 are in {trace.parent.relative_to(demo.folder)}\n"
    assert (trace.name, trace.read_bytes()) == ("worker_0.xplane.pb", b"tracetrace")


def test_tasks_on_which_nothing_runs_have_no_trace(demo: Project) -> None:
    demo.agent.answer(ProfileRequest, [Reply(ProfileReply(("worker:0", "worker:1"), {}))])
    outcome = demo.run("profile --logdir logs --seconds 1")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert outcome.stderr.startswith("error: nothing ran on these tasks for 1 s, so there is no trace\nhint: ")
    assert names(demo.folder) == ["cluster.yaml"]


@pytest.mark.parametrize(
    ("task", "name", "data", "problem"),
    [
        ("worker:0", "worker:2", TRACE, "'worker:2', which was not requested"),
        ("worker:0", "../../escaped", TRACE, "'../../escaped', which was not requested"),
        ("worker:0", "/tmp/escaped", TRACE, "'/tmp/escaped', which was not requested"),
        ("../../escaped:0", "../../escaped:0", TRACE, "'../../escaped:0', which was not requested"),  # told by hosts
        ("worker:0", "worker:0", "a", "worker:0 that cannot be decoded: "),
    ],
)
def test_what_is_not_the_trace_that_was_asked_for_is_not_written(
    demo: Project, task: str, name: str, data: str, problem: str
) -> None:
    topology = demo.agent.up["demo"]
    tasks = replace(topology.tasks[0], job=task.partition(":")[0]), topology.tasks[1]
    demo.agent.up["demo"] = replace(topology, tasks=tasks)
    demo.agent.answer(ProfileRequest, [TracePart(name, data), Reply(ProfileReply((), {}))])
    outcome = demo.run("profile --logdir logs --seconds 1")
    assert (outcome.code, outcome.stdout) == (1, "")
    assert f"sent a trace of {problem}" in outcome.stderr
    assert names(demo.folder) == ["cluster.yaml"]
