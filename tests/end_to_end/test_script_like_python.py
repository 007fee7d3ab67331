"""`tfcluster run script.py` and `python script.py`: the same output on each stream, byte by byte, and the same exit.

The scripts are those of tests/scripts/like_python. A comment of each has the lines that run it, one test for each.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import zipapp
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import COMMAND, SCRIPTS, Command, Sandbox, mostly_slow

FOLDER = SCRIPTS / "like_python"
# Whether it runs in a fork of the fork server, which no fresh interpreter imports.
IS_WARM = "import sys\nprint('tfcluster.processes.runs.fork_server' in sys.modules)\n"


def rows() -> Iterator[Any]:
    """Yield the lines that run the scripts: `# $ LINE` or `# slow $ LINE`, each perhaps with `# error: ERROR` below.

    The error is that of the record of the run.
    """
    for script in sorted(FOLDER.rglob("*.py")):
        if script.stem == "kept_by_tensorflow" and version("tensorflow").startswith("2.14."):
            continue  # a warm interpreter of 2.14 leaves it to the kernel
        pattern = r"^# (slow )?\$ (.*)\n(?:# error: (.*)\n)?"
        for slow, line, error in re.findall(pattern, script.read_text(), re.MULTILINE):
            name = line.rpartition("python ")[2].replace("./", "")
            yield pytest.param(line, error, id=name, marks=[pytest.mark.slow] if slow else [])


def run_line(
    line: str, command: tuple[str, ...], folder: Path, env: dict[str, str]
) -> tuple[subprocess.CompletedProcess[bytes], dict[Path, bytes]]:
    """Run a line in a copy of the scripts, with a command for `python`; return its result and all files."""
    shutil.copytree(FOLDER, folder, ignore=shutil.ignore_patterns("__pycache__"))
    zipapp.create_archive(folder / "main", folder / "main.pyz")
    shell = ["bash", "-c", f'python() {{ exec {shlex.join(command)} "$@"; }}\n{line}']
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "capture_output": True}
    result = subprocess.run(shell, cwd=folder, env=env, timeout=120, check=False, **streams)
    files = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    shutil.rmtree(folder)
    return result, files


# A line of the log of TensorFlow before 2.16, after its time.
_OLD_LOG_LINE = re.compile(rb" [IWE] tensorflow/")


# Of the command itself; the note is about a script that starts cold.
_OWN = (b"error: ", b"hint: ", b"note: six.py beside the script has the name of a module that TensorFlow imports")


def own_lines(text: bytes) -> bytes:
    """Standard error without the lines of TensorFlow and of the command itself."""
    foreign = (b"WARNING: All log", b"I0000", b"W0000", b"E0000", b"To enable the following", *_OWN)
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(foreign) and not _OLD_LOG_LINE.search(line))


@pytest.mark.parametrize(("line", "error"), [*rows()])
def test_a_script_runs_as_python_runs_it(demo: Sandbox, tmp_path: Path, line: str, error: str) -> None:
    """It writes the same files, too."""
    commands = ((sys.executable,), (*COMMAND, "run"))
    both = [run_line(line, command, tmp_path / "folder", demo.environment) for command in commands]
    (python, expected_files), (ours, files) = both
    assert ours.stdout == python.stdout
    assert own_lines(ours.stderr) == own_lines(python.stderr)
    assert ours.returncode == (python.returncode if python.returncode >= 0 else 128 - python.returncode)
    assert files == expected_files
    if error:
        assert demo.last_run()["error"]["message"] == error


def test_a_module_that_makes_a_script_start_cold_is_noted(demo: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tfcluster").mkdir()
    (tmp_path / "tfcluster" / "__init__.py").write_text("raise ImportError('another version')\n")
    script = tmp_path / "script.py"
    script.write_text(f"import tfcluster\n{IS_WARM}")
    beside_a_clone = demo("run", script)
    assert (beside_a_clone.stdout, beside_a_clone.stderr) == ("True\n", "")
    assert demo("run", "script", "--cold", script).stdout == "False\n", "it imports the cluster's tfcluster too"
    (tmp_path / "wrapt.py").touch()
    noted = demo("run", script)
    assert noted.stdout == "False\n"
    assert noted.stderr.startswith(
        "note: wrapt.py beside the script has the name of a module that TensorFlow imports: "
    )
    assert demo("run", "script", "--cold", script).stderr == ""


def test_a_variable_that_other_code_sets_too_late_is_noted_once(demo: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "own.env").write_text("HDF5_USE_FILE_LOCKING=FALSE\n")
    (tmp_path / "setter.py").write_text(
        "import dotenv\nfor _ in range(2): dotenv.load_dotenv('own.env', override=True)\n"
    )
    shutil.copy(FOLDER / "locks.py", tmp_path)
    (tmp_path / "script.py").write_text("import setter\nimport locks\nraise SystemExit(3)\n")
    warm = demo("run", "script.py", cwd=tmp_path, code=3)
    assert warm.stdout == "True\nlocked\n"
    note = "note: HDF5_USE_FILE_LOCKING was set when TensorFlow was already imported, so it might have no effect: "
    assert warm.stderr.startswith(f"{note}with `tfcluster run script --cold`, ")
    assert warm.stderr.count("note: HDF5") == 1
    run = demo.last_run()["run"]
    assert note in demo("logs", run).stdout
    cold = demo("run", "script", "--cold", "script.py", cwd=tmp_path, code=3)
    assert (cold.stdout, cold.stderr) == ("False\nnot locked\n", "")
    launched = demo("launch", "--each", "ps", "script.py", cwd=tmp_path, code=3)
    assert f" | {note}name the variable in the script itself" in launched.stderr


@pytest.mark.slow
def test_a_module_is_shown_by_its_name_and_a_missing_one_by_where_it_was_searched(
    demo: Sandbox, tmp_path: Path
) -> None:
    (tmp_path / "part.py").write_text("print('on')")
    result = demo("run", "--timeout", "600", "-mpart", "--epochs", "3", cwd=tmp_path)
    assert result.stdout == "on\n"
    assert "-m part --epochs 3" in demo("runs", "-n", "1").stdout
    missing = demo("run", "script", "-m", "parts", cwd=tmp_path, code=1).stderr
    assert ": No module named parts\nhint: It must be in " + str(tmp_path) in missing
    assert demo.last_run()["error"]["message"] == "parts failed: No module named parts"


def test_a_script_does_not_take_more_of_the_standard_input_than_it_reads(demo: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text("import os\nprint(os.read(0, 4))\n")
    (tmp_path / "numbers").write_bytes(b"0123456789")
    shell = ("sh", "-c", '{ "$@"; cat; } < numbers', "sh", *COMMAND)
    assert demo.execute(*shell, "run", "reads.py", cwd=tmp_path).stdout == "b'0123'\n456789"


@pytest.mark.parametrize("arguments", mostly_slow([(), ("5",)], fast=[()]))
def test_ctrl_c_is_the_scripts(demo: Sandbox, arguments: tuple[str, ...]) -> None:
    command = demo.start("run", SCRIPTS / "interruptible.py", *arguments)
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert out == "saved\n"
    assert command.returncode == int(arguments[0] if arguments else 130)
    last = demo.last_run()
    if arguments:
        assert err == ""
        assert last["state"] == "failed"
    else:
        assert err.startswith("Traceback (most recent call last):\n")
        assert err.endswith("\nKeyboardInterrupt\n")
        assert last["state"] == "cancelled"


HANDLES = """
import signal, time
for number in (signal.SIGINT, signal.SIGUSR1):
    signal.signal(number, lambda number, _: print("got", signal.Signals(number).name, flush=True))
print("on", flush=True)
while True:
    time.sleep(0.1)  # a signal just before signal.pause() would be handled at the next one
"""


@pytest.mark.parametrize(
    ("seconds", "goes_on"),
    [pytest.param(600.0, False, id="in a row"), pytest.param(0.0, True, id="now and then", marks=pytest.mark.slow)],
)
def test_a_script_that_goes_on_after_ctrl_c_is_ended_by_several_in_a_row(
    demo: Sandbox, seconds: float, goes_on: bool
) -> None:
    environment = demo.with_settings({"INTERRUPTS_ROW_SECONDS": seconds})
    command = demo.start("run", demo.spec(HANDLES, "handles.py"), env=environment)
    assert command.stdout.readline() == "on\n"
    for number in (signal.SIGINT, signal.SIGUSR1, signal.SIGINT):
        command.send_signal(number)
        assert command.stdout.readline() == f"got {signal.Signals(number).name}\n"
    command.send_signal(signal.SIGINT)
    if goes_on:
        assert command.stdout.readline() == "got SIGINT\n"
        command.terminate()
    assert command.wait(60) == (143 if goes_on else 130)
    assert demo.last_run()["state"] == "cancelled"


INSIDE = SCRIPTS / "inside_tensorflow.py"
NOTE = "note: interrupted, but the program is inside TensorFlow: press Ctrl-C again to end it\n"


def read_note(command: Command) -> None:
    assert NOTE in iter(command.stderr.readline, "")


@pytest.mark.parametrize("words", mostly_slow([("run",), ("launch",)], fast=[("run",)]), ids="".join)
def test_a_program_that_hangs_inside_tensorflow_is_ended_by_the_second_ctrl_c(
    demo: Sandbox, words: tuple[str, ...]
) -> None:
    command = demo.start(*words, INSIDE, "hangs")
    expected = ["on"] if words == ("run",) else ["worker:0 | on", "worker:1 | on"]
    assert sorted(command.stdout.readline().rstrip("\n") for _ in expected) == expected
    command.send_signal(signal.SIGINT)
    read_note(command)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert NOTE not in err, "it is shown once, also for several members"
    assert command.returncode == 130
    assert demo.last_run()["state"] == "cancelled"


@pytest.mark.slow
def test_a_second_ctrl_c_before_it_is_known_that_the_program_hangs_ends_it(demo: Sandbox) -> None:
    command = demo.start("run", INSIDE, "reports", env=demo.with_settings({"INTERRUPTS_ROW_SECONDS": 60.0}))
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    assert command.stdout.readline() == "signalled\n"
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 130
    assert demo.last_run()["state"] == "cancelled"


@pytest.mark.slow
def test_an_interrupt_is_handled_when_its_handler_has_begun(demo: Sandbox) -> None:
    """A handler may save a checkpoint, inside TensorFlow, and takes its time."""
    command = demo.start("run", INSIDE, "saves")
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert out == "saving\n"
    assert NOTE not in err
    assert command.returncode == 0


@pytest.mark.slow
def test_an_interrupt_that_is_handled_late_does_not_count(demo: Sandbox) -> None:
    environment = demo.with_settings({"INTERRUPTS_ROW_SECONDS": 0.0})
    command = demo.start("run", "script", "-o", "json", INSIDE, "late", env=environment)
    seen = (json.loads(line) for line in command.stdout)
    shown = (each for each in seen if each["event"] == "interrupt" or each.get("stream") == "stdout")
    events = ((each["event"], each.get("line", each.get("is_handled"))) for each in shown)
    assert next(events) == ("output", "on")
    command.send_signal(signal.SIGINT)
    assert next(events) == ("interrupt", False)
    assert {next(events), next(events)} == {("output", "handled"), ("interrupt", True)}
    for _ in range(2):
        command.send_signal(signal.SIGINT)
        assert next(events) == ("output", "handled")
    command.terminate()
    assert command.wait(60) == 143


@pytest.mark.parametrize(
    "words",
    mostly_slow([("run",), ("run", "script", "--cold"), ("launch",)], fast=[("run",), ("launch",)]),
    ids=" ".join,
)
def test_two_calls_of_ours_are_below_those_of_a_script(demo: Sandbox, words: tuple[str, ...]) -> None:
    script = SCRIPTS / "calls.py"
    lines = demo(*words, script).stdout.splitlines()
    shown = [json.loads(line.rpartition(" | ")[2]) for line in lines]
    calls = [files for files in shown if files.count(str(script)) == 1]
    graphs = [files for files in shown if files.count(str(script)) == 2]
    assert len(calls) == len(graphs) == (2 if words == ("launch",) else 1)
    assert all(len(files) <= 3 for files in calls)
    assert all(len(files) <= 4 for files in graphs)


def test_secrets_of_the_environment_are_in_no_file(demo: Sandbox) -> None:
    script = demo.spec("import os\nprint(len(os.environ['TOKEN']))\n", "shows.py")
    assert demo("run", script, env={"TOKEN": "s3cr3t-9f"}).stdout == "9\n"
    found = [path for path in demo.folder.rglob("*") if path.is_file() and b"s3cr3t-9f" in path.read_bytes()]
    assert found == []
    assert "s3cr3t" not in json.dumps(demo.last_run())
