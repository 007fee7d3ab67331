"""How a script ends: nothing of what it wrote is lost, nothing is left of it, and no run is like another one."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from tests.conftest import COMMAND, SCRIPTS, Sandbox, wait_for
from tfcluster.os.process_handle import ProcessHandle
from tfcluster.process_mark import NO_MARK, processes_with_marks


@pytest.mark.slow
def test_what_tensorflow_writes_in_threads_of_its_own_is_written_to_its_end(demo: Sandbox, tmp_path: Path) -> None:
    """A checkpoint, and the summaries of a writer that is not closed."""
    demo("run", SCRIPTS / "writes_late.py", cwd=tmp_path)
    assert "sum 499500.0 records 6\n" in demo("run", SCRIPTS / "reads_late.py", cwd=tmp_path).stdout


# The parent says nothing of its end, so what the child says would count.
FORKS = """
import os, sys
import tfcluster
if os.fork() == 0:
    tfcluster.result("of the child")
    sys.exit(3)
os.wait()
os._exit(0)
"""


def test_a_child_that_a_script_has_forked_and_that_exits_does_not_end_the_run(demo: Sandbox) -> None:
    demo("run", demo.spec(FORKS, "forks.py"))
    assert demo.last_run()["result"] == {"exit_code": 0}


BACKGROUND = """
import os, time
if os.fork() == 0:
    while not os.path.exists("go"):
        time.sleep(0.05)
    open("went.txt", "w").write("x")
    os._exit(0)
"""


def test_a_run_does_not_wait_for_a_child_that_its_script_leaves_in_the_background(demo: Sandbox) -> None:
    """It has a copy of all that the script had open."""
    demo.spec(BACKGROUND, "background.py")
    demo("run", "background.py", timeout=30)
    assert not (demo.folder / "went.txt").exists()
    (demo.folder / "go").touch()
    wait_for((demo.folder / "went.txt").exists)


def test_a_run_whose_driver_was_stopped_by_a_signal_is_cancelled_with_all_that_it_has_started(demo: Sandbox) -> None:
    text = "import os, subprocess, time\nchild = subprocess.Popen(['sleep', '600'])\nprint(child.pid, os.getppid())\n"
    demo.spec(text + "time.sleep(600)\n", "waits.py")
    run = demo("run", "--detach", "waits.py").stdout.strip()
    child, driver = map(int, wait_for(lambda: demo("logs", run, "--no-prefix").stdout).split())
    process = ProcessHandle.from_pid(child)
    assert process is not None
    os.kill(driver, signal.SIGSTOP)
    demo("cancel", run)
    wait_for(lambda: not process.is_alive())


@pytest.mark.slow
def test_a_very_long_exception_message_is_truncated(demo: Sandbox) -> None:
    demo.spec("file = open('left.txt', 'w')\nfile.write('x')\nraise ValueError('x' * 20_000_000)\n", "long.py")
    result = demo.execute(*COMMAND, "run", "long.py")
    assert result.returncode == 1
    assert len(result.stderr) > 20_000_000
    error = demo.last_run()["error"]["message"]
    assert error.startswith("long.py failed: ValueError: xxx")
    assert len(error) < 3000
    assert (demo.folder / "left.txt").read_text() == "x"


def test_what_a_script_executes_or_forks_does_not_count_as_the_clusters(demo: Sandbox) -> None:
    """`down` ends by a mark in the environment what belongs to a cluster and is in no journal."""
    demo.spec("import subprocess\nprint(subprocess.run(['env'], capture_output=True, text=True).stdout)\n", "env.py")
    printed = demo("run", "env.py").stdout
    assert "TFCLUSTER_RUN=env-" in printed
    assert "TFCLUSTER_AGENT_MARK" not in printed
    daemon = "import os, time\nif os.fork() == 0:\n    os.setsid()\n    os.closerange(0, 3)\n    time.sleep(600)\n"
    demo.spec(f"{daemon}print('ended', flush=True)\n", "daemon.py")
    before = set(demo.processes())
    demo("run", "daemon.py")
    run = demo.last_run()["run"]
    [pid] = [pid for pid, title in demo.processes().items() if run in title and pid not in before]
    try:
        assert pid not in {process.pid for process, mark in processes_with_marks() if mark != NO_MARK}
    finally:
        os.kill(pid, signal.SIGKILL)


def drawn(sandbox: Sandbox, *arguments: str) -> dict[str, object]:
    lines = sandbox("run", *arguments, SCRIPTS / "draws.py").stdout.splitlines()
    found: dict[str, object] = json.loads(next(line[5:] for line in lines if line.startswith("DRAWN")))
    return found


def test_two_runs_draw_nothing_alike(demo: Sandbox) -> None:
    first, second = drawn(demo), drawn(demo)
    assert [name for name in first if first[name] == second[name]] == []


@pytest.mark.slow
def test_a_seed_sets_the_generators_of_python_numpy_and_tensorflow(demo: Sandbox) -> None:
    first, second, other = (drawn(demo, "script", "--seed", seed) for seed in ("5", "5", "6"))
    same = [name for name in first if first[name] == second[name]]
    assert same == ["random", "numpy", "tf.random", "tf shuffle", "tf dataset"]
    assert [name for name in same if first[name] == other[name]] == []


GARBAGE = """
import os, stat, sys
for fd in map(int, os.listdir("/proc/self/fd")):
    if fd > 2 and os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode):
        os.write(fd, b'{"event": "metric"}\\n[]\\n\\xff')
        print("written", flush=True)
raise SystemExit(5)
"""


def test_a_script_that_writes_to_a_descriptor_that_it_has_not_opened(demo: Sandbox) -> None:
    """It is the socket of its driver, which ignores that."""
    result = demo("run", demo.spec(GARBAGE, "garbage.py"), code=5)
    assert result.stdout.count("written") == 1
    assert demo.last_run()["result"]["exit_code"] == 5


def test_sigterm_leaves_a_script_its_own_exit_code(demo: Sandbox) -> None:
    text = "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('on', flush=True)\n"
    command = demo.start("run", demo.spec(f"{text}time.sleep(600)\n", "handles_term.py"))
    assert command.stdout.readline() == "on\n"
    command.terminate()
    _, error = command.communicate(timeout=60)
    assert (command.returncode, error) == (7, "")
    last = demo.last_run()
    assert (last["state"], last["result"]) == ("cancelled", {"exit_code": 7})


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "launch"])
def test_a_run_can_save_its_state_when_its_host_shuts_down(demo: Sandbox, command: str) -> None:
    (demo.folder / "checkpoint").unlink(missing_ok=True)
    process = demo.start(command, *(["--each", "ps"] if command == "launch" else []), SCRIPTS / "saves.py")
    assert process.stdout.readline().endswith("trains\n")
    os.kill(demo.agent(), signal.SIGPWR)  # as the container of a pod does
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "the host is shutting down" in error
    assert (demo.folder / "checkpoint").read_text() == "all"
