"""What is stored of the output of runs has a limit, and a reader is told what is not stored."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from tests.clusters import Cluster
from tests.conftest import Sandbox, wait_for
from tfcluster.processes.runs.run_plan import FILES
from tfcluster.processes.runs.stored_output import stored_bytes

SPEC = "jobs: {worker: {tasks: 2}}\nlogs: {run: 1 MB, runs: 3500 kB}\n"
LIMIT, LIMIT_OF_ALL = 1_000_000, 3_500_000
#: What may be stored in addition: what was printed in the meantime, and parts of blocks.
MORE = 300_000
NOT_STORED = "of the output are not stored: `logs:` in the spec has the limits]"
# Prints so many lines, and then, if there is a second argument, waits for this file and prints a last line.
PRINT = """
import os, pathlib, sys, time
for first in range(0, int(sys.argv[1]), 1000):
    print("\\n".join(f"line {number:07d} of the output" for number in range(first, first + 1000)), flush=True)
pathlib.Path(os.environ["TFCLUSTER_OUTPUT"], f"model-{os.getpid()}").write_bytes(bytes(3_000_000))
if len(sys.argv) > 2:
    while not os.path.exists(sys.argv[2]):
        time.sleep(0.01)
    print("the end")
"""


def lines_up_to(count: int) -> str:
    return "".join(f"line {number:07d} of the output\n" for number in range(count))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


CLUSTER = Cluster(SPEC, files={"print.py": PRINT})


def run_folder(sandbox: Sandbox, run: str = "*") -> Path:
    """The folder of the latest run, or of the one with this id."""
    return max(sandbox.folder.glob(f"state/tfcluster/*/*/runs/{run}"), key=lambda path: path.stat().st_ctime)


def check_stored(text: str, printed: str) -> None:
    """Check that the text is the beginning and the end of what was printed, and says between them what is missing."""
    head, notice, tail = text.partition("[tfcluster: ")
    size, _, tail = tail.partition(f" {NOT_STORED}\n")
    assert notice, text[:200]
    assert len(size.split()) == 2
    assert len(head) > LIMIT // 4
    assert len(tail) > LIMIT // 4
    assert printed.startswith(head)
    assert printed.endswith(tail)
    assert head.endswith("\n")
    assert tail.startswith("line ")


@pytest.mark.slow
def test_the_beginning_and_the_end_are_stored(cluster: Sandbox) -> None:
    shown = cluster("run", "print.py", "30000")
    assert (digest(shown.stdout), shown.stderr) == (digest(lines_up_to(30_000)), "")
    printed = lines_up_to(200_000)
    cluster("run", "--detach", "print.py", "200000")
    folder = run_folder(cluster)
    cluster("wait", folder.name)
    assert stored_bytes(folder) < LIMIT + MORE
    assert [path.stat().st_size for path in (folder / FILES).iterdir()] == [3_000_000]
    check_stored(cluster("logs", folder.name, "--no-prefix").stdout, printed)
    assert cluster("logs", folder.name, "--no-prefix", "-n", "2").stdout == "".join(printed.splitlines(True)[-2:])
    found = cluster("logs", folder.name, "--no-prefix", "--grep", "line 0000007|0199999|tfcluster").stdout.splitlines()
    assert found == ["line 0000007 of the output", found[1], "line 0199999 of the output"]
    assert found[1].endswith(NOT_STORED)
    again = cluster("attach", folder.name)
    assert again.stderr.startswith("[tfcluster: ")
    assert again.stderr.endswith(f"{NOT_STORED}\n")
    events = cluster.json_lines("attach", folder.name)
    check_stored("".join(f"{event['line']}\n" for event in events if event["event"] == "output"), printed)
    (gap,) = [event for event in events if "missing" in event]
    assert gap["stream"] == "stderr"
    assert gap["missing"] == len(printed) - len(again.stdout)
    record = cluster.json("runs", folder.name)
    assert abs(record["missing_output"] - gap["missing"]) < MORE
    assert f"note: the output of {folder.name} is incomplete: " in cluster("runs", "-n", "1").stderr
    assert "of it are not stored" in cluster("runs", folder.name).stdout


def test_a_command_that_reads_too_slowly_holds_up_no_script_and_is_told_what_is_missing(cluster: Sandbox) -> None:
    cluster("run", "print.py", "1000")
    earlier = run_folder(cluster)
    command = cluster.start("run", "print.py", "150000")  # into a pipe that nothing reads
    folder = wait_for(lambda: path if (path := run_folder(cluster)) != earlier else None)
    cluster("wait", folder.name)
    shown, errors = command.communicate(timeout=90)
    assert command.returncode == 0
    assert errors.startswith("[tfcluster: ")
    assert errors.endswith(f"{NOT_STORED}\n")
    assert lines_up_to(150_000).startswith(shown[: LIMIT // 4])
    assert lines_up_to(150_000).endswith(shown[-LIMIT // 4 :])
    assert stored_bytes(folder) < LIMIT + MORE


def test_a_command_that_attaches_is_told_what_is_missing(cluster: Sandbox) -> None:
    cluster("run", "--detach", "print.py", "150000", "go")
    folder = run_folder(cluster)
    wait_for(lambda: any((folder / FILES).iterdir()))
    printed = lines_up_to(150_000)
    command = cluster.start("attach", folder.name, "-o", "json")
    follower = cluster.start("logs", "-f", folder.name, "--no-prefix", "-n", "3")
    first = [json.loads(command.stdout.readline()) for _ in range(2)]
    assert first[1]["line"] == "line 0000000 of the output"
    assert follower.stdout.readline() == "line 0149997 of the output\n"
    cluster.kill_agent()
    (cluster.folder / "go").touch()
    events = [*first, *map(json.loads, command.stdout)]
    assert command.wait(60) == 0
    check_stored("".join(f"{event['line']}\n" for event in events if event["event"] == "output"), printed + "the end\n")
    assert [follower.stdout.readline() for _ in range(3)][2] == "the end\n"
    assert stored_bytes(folder) < LIMIT + MORE


def test_the_members_of_a_launch(cluster: Sandbox) -> None:
    launched = cluster("launch", "print.py", "15000")
    assert launched.stderr == ""
    for task in ("worker:0", "worker:1"):
        printed = [line for line in launched.stdout.splitlines(keepends=True) if line.startswith(task)]
        assert digest("".join(line.removeprefix(f"{task} | ") for line in printed)) == digest(lines_up_to(15_000))
    cluster("launch", "--detach", "print.py", "60000")
    folder = run_folder(cluster)
    cluster("wait", folder.name)
    assert stored_bytes(folder) < LIMIT + MORE
    attached = cluster("attach", folder.name)
    assert attached.stderr.endswith(f"{NOT_STORED}\n")
    assert len(list((folder / FILES).iterdir())) == 2
    # Which member prints first, and how much before the other one begins, is not known.
    assert attached.stdout[len("worker:0") :].startswith(" | line 0000000 of the output\n")
    assert " | line 0059999 of the output\n" in attached.stdout[-LIMIT // 4 :]


@pytest.mark.slow
def test_the_oldest_output_is_removed_if_that_of_all_runs_exceeds_the_limit(cluster: Sandbox) -> None:
    folders = []
    for _ in range(6):
        cluster("run", "--detach", "print.py", "150000")
        folders.append(run_folder(cluster))
        cluster("wait", folders[-1].name)
    runs = folders[0].parent
    wait_for(lambda: sum(map(stored_bytes, runs.iterdir())) <= LIMIT_OF_ALL)
    size = 150_000 * len("line 0000000 of the output\n")
    records = {record["run"]: record for record in cluster.json("runs")}
    assert [records[each.name]["missing_output"] == size for each in folders] == [True, True, True, False, False, False]
    (line,) = cluster("logs", folders[0].name, "--no-prefix").stdout.splitlines()
    assert line.endswith(NOT_STORED)
    assert cluster("attach", folders[0].name).stderr == f"{line}\n"
    assert [path.stat().st_size for path in (folders[0] / FILES).iterdir()] == [3_000_000]
