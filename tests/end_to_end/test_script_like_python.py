"""`tfcluster run script.py` and `python script.py`: the same output on each stream, byte by byte, and the same exit."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any
from zipfile import ZipFile, ZipInfo

import pytest

from tests.conftest import COMMAND, Command, Sandbox, mostly_slow


@dataclass(frozen=True)
class Case:
    """A script, and how it is run."""

    text: str
    arguments: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    umask: int = 0o022
    script: str = "script.py"
    module: str | None = None
    start: str = ""  # the folder or archive whose __main__.py is the script
    error: str = ""  # in the record of the run, behind the name of the script

    @property
    def words(self) -> list[str]:
        return [*([f"./{self.start or self.script}"] if self.module is None else ["-m", self.module]), *self.arguments]


SHOW_PLACE = """
import os, sys
from pathlib import Path
from typing import Any
import neighbour
print(__file__, sys.argv, sys.path[0], os.getcwd())
print(neighbour.__file__, (Path(__file__).parent / "data.txt").read_text())
print(__name__, __spec__, __builtins__, __doc__, __loader__.name)
"""
SHOW_ENVIRONMENT = """
import os
ours = {"TF_CONFIG", "CUDA_VISIBLE_DEVICES", "no_grpc_proxy"}
shown = {name: value for name, value in os.environ.items() if name not in ours and not name.startswith("TFCLUSTER_")}
for name, value in sorted(shown.items()):
    print(name, os.fsencode(value))
open("made.txt", "w")
print(oct(os.stat("made.txt").st_mode))
os.remove("made.txt")
"""
SHOW_STREAMS = """
import io, sys
for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.isatty(), stream.seekable(), stream.fileno())
print(sys.stdout is sys.__stdout__, sys.stdin.buffer.name, sys.flags)
"""
INPUT = """
import sys
print("name?", input("> "))
print(sys.stdin.readline(), sys.stdin.buffer.read())
"""
SHOW_MODULE = """
import os, sys
from . import name
from .inner import other
print(__file__, __cached__, __name__, __package__, __spec__.name, __loader__.name, name, other)
print(sys.argv, sys.orig_argv[1:], sys.path[0], os.getcwd())
if "fail" in sys.argv:
    raise ValueError("no data")
sys.exit(len(sys.argv))
"""
SHOW_MAIN = """
import sys
print(__file__, __name__, __package__, __spec__.name, sys.argv, sys.orig_argv[1:], sys.path[0])
import other
if "fail" in sys.argv:
    raise ValueError(other.__file__)
"""
POOL = """
import multiprocessing, os, sys

def square(number):
    return number * number

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(5)), flush=True)
    child = multiprocessing.get_context("fork").Process(target=__import__("time").sleep, args=(600,))
    child.start()
    child.terminate()
    child.join()
    print(child.exitcode)
"""
HANDLERS = """
import asyncio, os, signal, traceback

def interrupt():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        traceback.print_exc()

def handler(number, frame):
    print(number, frame.f_code.co_name, frame.f_back.f_code.co_name)
    raise KeyboardInterrupt("handled")

async def wait():
    asyncio.get_running_loop().call_later(0.1, os.kill, os.getpid(), signal.SIGINT)
    await asyncio.sleep(600)

interrupt()
print(signal.getsignal(signal.SIGINT), signal.signal(signal.SIGINT, handler))
print(signal.getsignal(signal.SIGINT) is handler)
interrupt()
print(signal.signal(signal.SIGINT, signal.default_int_handler) is handler, signal.signal(signal.SIGUSR1, handler))
try:
    asyncio.run(wait())
except KeyboardInterrupt:
    print(signal.getsignal(signal.SIGINT), signal.signal(signal.SIGINT, signal.SIG_IGN))
interrupt()
"""
CSV = """
import csv
file = open("rows.csv", "w")
writer = csv.writer(file)
for number in range(200):
    writer.writerow([number, number ** 2])
def rows(): return writer  # so that only the end of the interpreter closes the file
"""
RECORDS = """
import tensorflow as tf
writer = tf.io.TFRecordWriter("train.tfrecord")
for number in range(100):
    writer.write(str(number).encode() * 10)
def records(): return writer
"""
DESTRUCTORS = """
class Resource:
    def __init__(self): self.itself = self
    def __del__(self):
        with open("released.txt", "a") as file:
            file.write("released")
import builtins; open = builtins.open
resource = Resource()
"""
# What TensorFlow's own modules keep: a connection to servers, a default session, the events of a default writer.
STATE = """
import glob, os
import tensorflow as tf
from tensorflow.python.eager import context
class Tag:
    def __init__(self, name): self.name = name
    def __del__(self, open=open):
        with open(self.name, "w") as file:
            file.write("released")
context.context().tag = Tag("context.txt")
tf.compat.v1.InteractiveSession().tag = Tag("session.txt")
with tf.Graph().as_default() as graph:
    tf.compat.v1.InteractiveSession(graph=graph).tag = Tag("another.txt")
"""
# Whether it runs in a fork of the fork server, which no fresh interpreter imports.
SHOW_WARM = "import os, sys\nprint('tfcluster.processes.runs.fork_server' in sys.modules)\n"
# Whether HDF5 has locked the file that it writes, which HDF5_USE_FILE_LOCKING decides when h5py is imported.
SHOW_LOCK = """
import fcntl, h5py
with h5py.File("data.h5", "w"), open("data.h5") as file:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("not locked")
    except BlockingIOError:
        print("locked")
"""
CASES = {
    "place": Case(SHOW_PLACE, ("--flag", "a b", "", "--", "-m", "x")),
    "a safe path": Case("import sys\nprint(sys.path[0])\n", env={"PYTHONSAFEPATH": "1"}),
    "environment": Case(SHOW_ENVIRONMENT, env={"DATA_DIR": "/data", "BYTES": os.fsdecode(b"\xff=\n")}, umask=0o077),
    "streams": Case(SHOW_STREAMS),
    "standard input": Case(INPUT, stdin=b"me\nsecond\n\xff\x00third"),
    "no standard input": Case("import sys\nprint(sys.stdin.read())\nprint(input())\n"),
    "exit message": Case("import sys\nsys.exit('no data')\n"),
    "an exception": Case("def inner():\n    raise ValueError('no\\ndata')\n\n\ninner()\n"),
    "a syntax error": Case("print('x'\n"),
    "a partial line": Case("import sys\nprint('10 %\\r', end='')\nsys.stderr.write('no end')\n"),
    "bytes": Case("import sys\nsys.stdout.buffer.write(bytes(range(256)) * 1000)\nsys.stderr.buffer.write(b'\\xff')\n"),
    "SIGTERM": Case("import os, signal\nsignal.signal(15, signal.SIG_DFL)\nos.kill(os.getpid(), 15)\n"),
    "processes": Case(POOL),
    "variables that Python reads": Case(
        "import sys, addition\nprint(sys.flags.optimize, addition.__name__, sys.stdout.encoding)\n",
        env={"PYTHONPATH": "{folder}/more", "PYTHONOPTIMIZE": "1", "PYTHONIOENCODING": "latin-1", "LC_ALL": "C"},
    ),
    "variables that libraries read": Case(
        "import os\nprint(os.environ['OMP_NUM_THREADS'])\n"
        "import tensorflow as tf\nprint(tf.config.threading.get_inter_op_parallelism_threads())\n",
        env={"OMP_NUM_THREADS": "1", "TF_NUM_INTEROP_THREADS": "3"},
    ),
    "a variable that the script sets": Case(
        SHOW_WARM + "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n"
        "import tensorflow as tf\nprint(int(tf.constant(1) + 1))\n"
    ),
    "a variable that HDF5 reads": Case(SHOW_LOCK, env={"HDF5_USE_FILE_LOCKING": "FALSE"}),
    "a variable that an update sets": Case(
        SHOW_WARM + f"os.environ.update(HDF5_USE_FILE_LOCKING='FALSE')\n{SHOW_LOCK}"
    ),
    "another folder for temporary files": Case(
        "import tempfile\nprint(tempfile.gettempdir())\n", env={"TMPDIR": "{folder}/more"}
    ),
    "a neighbour that has the name of a library": Case("import six\nprint(six.__file__)\n", script="six/script.py"),
    "a module": Case(SHOW_MODULE, ("--", "-m", "x"), script="package/part.py", module="package.part"),
    "a module that fails": Case(SHOW_MODULE, ("fail",), script="package/part.py", module="package.part"),
    "a package": Case("print(__name__, __package__)\n", script="package/__main__.py", module="package"),
    "a folder": Case(SHOW_MAIN, ("a",), script="main/__main__.py", start="main"),
    "a folder that fails": Case(SHOW_MAIN, ("fail",), script="main/__main__.py", start="main/"),
    "an archive": Case(SHOW_MAIN, ("a",), script="main/__main__.py", start="main.pyz"),
    "an archive that fails": Case(
        SHOW_MAIN, ("fail",), {"PYTHONSAFEPATH": "1"}, script="main/__main__.py", start="main.pyz"
    ),
    "a folder without __init__.py": Case(
        "print(__spec__.origin)\n", script="more/deep/part.py", module="more.deep.part"
    ),
    "a module that sets a variable": Case(SHOW_WARM + "os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'\n", module="script"),
    "a module of Python": Case("", ("--help",), module="json.tool"),
    "an unknown module": Case("", module="package.none"),
    "handlers of signals": Case(HANDLERS),
    "an interpreter's end": Case(
        "import atexit, sys, threading\natexit.register(print, 'first')\natexit.register(print, 'last')\n"
        "threading.Timer(0.2, print, ['thread']).start()\nprint('main', file=sys.stderr)\n"
    ),
    "a file that only the end of the interpreter closes": Case(CSV),
    "a file of TensorFlow that is not closed": Case(RECORDS),
    "destructors": Case(DESTRUCTORS),
    "an exception that is no Exception": Case(
        f"{CSV}class Stop(BaseException): pass\nraise Stop\n", error="failed: Stop"
    ),
    "a hook for exceptions that fails": Case(
        f"{CSV}import os, sys\nos.close(2)\nsys.stderr = sys.excepthook = None\nraise ValueError('bad data')\n",
        error="failed: ValueError: bad data",
    ),
    "no standard output": Case("import sys\nopen('left.txt', 'w').write('x')\nsys.stdout = sys.stderr = None\n"),
    "output that is not written": Case(
        "import sys\nsys.stderr = None\nsys.stdout = open('/dev/full', 'w')\nprint('lost')\n"
    ),
    "an exit code too large for C": Case("import sys\nsys.exit(2**70)\n"),
    "exit code 256": Case("import sys\nsys.exit(256)\n"),
    "exit by a thread": Case(
        "import os, threading\nthreading.Thread(target=os._exit, args=(6,)).start()\n", error="ended with exit code 6"
    ),
    "exit by atexit": Case("import atexit, os\natexit.register(os._exit, 9)\nopen('left.txt', 'w').write('x')\n"),
}
if not version("tensorflow").startswith("2.14."):  # a warm interpreter of 2.14 leaves them to the kernel
    CASES["what TensorFlow keeps"] = Case(STATE)

# One of each kind, and none that imports TensorFlow in a fresh interpreter.
FAST_CASES = [
    *("place", "environment", "streams", "standard input", "an exception", "a partial line", "SIGTERM", "processes"),
    *(
        "a folder",
        "an archive",
        "a module",
        "a package",
        "a folder without __init__.py",
        "an unknown module",
        "handlers of signals",
        "a variable that HDF5 reads",
        "a variable that an update sets",
        "another folder for temporary files",
    ),
    *("a file that only the end of the interpreter closes", "an exception that is no Exception", "exit by a thread"),
]


def folder_of(case: Case, path: Path) -> Path:
    for name in ("main", "more/deep", "six", "package/inner"):
        (path / name).mkdir(parents=True)
    (path / "package" / "__init__.py").write_text("name = 'package'\n")
    (path / "package" / "inner" / "__init__.py").write_text("other = __name__\n")
    (path / "neighbour.py").touch()
    (path / "more" / "addition.py").touch()
    (path / "six" / "six.py").touch()
    (path / "data.txt").write_text("data")
    (path / case.script).write_text(case.text)
    (path / "main" / "other.py").touch()
    if case.start.endswith(".pyz"):
        with ZipFile(path / case.start, "w") as archive:
            for file in sorted((path / "main").iterdir()):
                archive.writestr(ZipInfo(file.name), file.read_bytes())  # of no time: the same each time
    return path


# A line of the log of TensorFlow before 2.16, after its time.
_OLD_LOG_LINE = re.compile(rb" [IWE] tensorflow/")


# Of the command itself; the note is about a script that starts cold.
_OWN = (b"error: ", b"hint: ", b"note: six.py beside the script has the name of a module that TensorFlow imports")


def own_lines(text: bytes) -> bytes:
    """Standard error without the lines of TensorFlow and of the command itself."""
    foreign = (b"WARNING: All log", b"I0000", b"W0000", b"E0000", b"To enable the following", *_OWN)
    lines = text.splitlines(keepends=True)
    return b"".join(line for line in lines if not line.startswith(foreign) and not _OLD_LOG_LINE.search(line))


@pytest.mark.parametrize("name", mostly_slow(CASES, fast=FAST_CASES))
def test_a_script_runs_as_python_runs_it(demo: Sandbox, tmp_path: Path, name: str) -> None:
    """It writes the same files, too."""
    case = CASES[name]
    inherited = demo.environment
    results = []
    for command in ((sys.executable,), (*COMMAND, "run")):
        folder = folder_of(case, tmp_path / "folder")
        environment = {**inherited, **{key: value.format(folder=folder) for key, value in case.env.items()}}
        if "PYTHONPATH" in case.env:
            environment["PYTHONPATH"] += f":{inherited['PYTHONPATH']}"
        options: Any = {"stdin": subprocess.DEVNULL} if case.stdin is None else {"input": case.stdin}
        options |= {"cwd": folder, "env": environment, "umask": case.umask, "capture_output": True, "timeout": 120}
        result = subprocess.run([*command, *case.words], check=False, **options)
        paths = [path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        results.append((result, {path: path.read_bytes() for path in paths}))
        shutil.rmtree(folder)
    (python, expected_files), (ours, files) = results
    assert ours.stdout == python.stdout
    assert own_lines(ours.stderr) == own_lines(python.stderr)
    assert ours.returncode == (python.returncode if python.returncode >= 0 else 128 - python.returncode)
    assert files == expected_files
    if case.error:
        assert demo.json("runs")[-1]["error"]["message"] == f"script.py {case.error}"


def test_a_module_that_makes_a_script_start_cold_is_noted(demo: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "tfcluster").mkdir()
    (tmp_path / "tfcluster" / "__init__.py").write_text("raise ImportError('another version')\n")
    script = tmp_path / "script.py"
    script.write_text(f"import tfcluster\n{SHOW_WARM}")
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
    (tmp_path / "script.py").write_text(f"{SHOW_WARM}import setter\n{SHOW_LOCK}raise SystemExit(3)\n")
    warm = demo("run", "script.py", cwd=tmp_path, code=3)
    assert warm.stdout == "True\nlocked\n"
    note = "note: HDF5_USE_FILE_LOCKING was set when TensorFlow was already imported, so it might have no effect: "
    assert warm.stderr.startswith(f"{note}with `tfcluster run script --cold`, ")
    assert warm.stderr.count("note: HDF5") == 1
    run = demo.json("runs", "-n", "1")[0]["run"]
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
    assert demo.json("runs")[-1]["error"]["message"] == "parts failed: No module named parts"


def test_a_script_does_not_take_more_of_the_standard_input_than_it_reads(demo: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "reads.py").write_text("import os\nprint(os.read(0, 4))\n")
    (tmp_path / "numbers").write_bytes(b"0123456789")
    shell = ("sh", "-c", '{ "$@"; cat; } < numbers', "sh", *COMMAND)
    assert demo.execute(*shell, "run", "reads.py", cwd=tmp_path).stdout == "b'0123'\n456789"


INTERRUPTIBLE = """
import sys, time
try:
    print("on", flush=True)
    time.sleep(600)
except KeyboardInterrupt:
    print("saved", flush=True)
    if len(sys.argv) > 1:
        sys.exit(int(sys.argv[1]))
    raise
"""


@pytest.mark.parametrize("arguments", mostly_slow([(), ("5",)], fast=[()]))
def test_ctrl_c_is_the_scripts(demo: Sandbox, arguments: tuple[str, ...]) -> None:
    script = demo.spec(INTERRUPTIBLE, "interruptible.py")
    command = demo.start("run", script, *arguments)
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert out == "saved\n"
    assert command.returncode == int(arguments[0] if arguments else 130)
    last = demo.json("runs")[-1]
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
    assert demo.json("runs")[-1]["state"] == "cancelled"


# It is inside TensorFlow when it prints: for ever, or for some seconds.
INSIDE = """
import signal, sys, time
import tensorflow.compat.v1 as tf

def get_from_empty_queue(message, seconds=0.0):
    with tf.Graph().as_default(), tf.control_dependencies([tf.print(message, output_stream="file:///dev/stdout")]):
        item = tf.identity(tf.constant(0.0))
        with tf.control_dependencies([item]):
            never = tf.FIFOQueue(1, [tf.float32]).dequeue()
        with tf.Session() as session:
            try:
                session.run(never, options=tf.RunOptions(timeout_in_ms=int(1000 * seconds)))
            except tf.errors.DeadlineExceededError:
                pass
"""
NOTE = "note: interrupted, but the program is inside TensorFlow: press Ctrl-C again to end it\n"


def read_note(command: Command) -> None:
    assert NOTE in iter(command.stderr.readline, "")


@pytest.mark.parametrize("words", mostly_slow([("run",), ("launch",)], fast=[("run",)]), ids="".join)
def test_a_program_that_hangs_inside_tensorflow_is_ended_by_the_second_ctrl_c(
    demo: Sandbox, words: tuple[str, ...]
) -> None:
    command = demo.start(*words, demo.spec(f"{INSIDE}get_from_empty_queue('on')", "hangs.py"))
    expected = ["on"] if words == ("run",) else ["worker:0 | on", "worker:1 | on"]
    assert sorted(command.stdout.readline().rstrip("\n") for _ in expected) == expected
    command.send_signal(signal.SIGINT)
    read_note(command)
    command.send_signal(signal.SIGINT)
    _, err = command.communicate(timeout=60)
    assert NOTE not in err, "it is shown once, also for several members"
    assert command.returncode == 130
    assert demo.json("runs")[-1]["state"] == "cancelled"


# Says as soon as the process has got a signal, though Python does not handle it.
SAYS = """
import os, threading
reading, writing = os.pipe()
os.set_blocking(writing, False)
signal.set_wakeup_fd(writing)
def say():
    while os.read(reading, 1):
        print("signalled", flush=True)
threading.Thread(target=say, daemon=True).start()
"""


@pytest.mark.slow
def test_a_second_ctrl_c_before_it_is_known_that_the_program_hangs_ends_it(demo: Sandbox) -> None:
    script = demo.spec(f"{INSIDE}{SAYS}get_from_empty_queue('on')", "impatient.py")
    command = demo.start("run", script, env=demo.with_settings({"INTERRUPTS_ROW_SECONDS": 60.0}))
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    assert command.stdout.readline() == "signalled\n"
    command.send_signal(signal.SIGINT)
    command.communicate(timeout=60)
    assert command.returncode == 130
    assert demo.json("runs")[-1]["state"] == "cancelled"


@pytest.mark.slow
def test_an_interrupt_is_handled_when_its_handler_has_begun(demo: Sandbox) -> None:
    """A handler may save a checkpoint, inside TensorFlow, and takes its time."""
    handler = "signal.signal(signal.SIGINT, lambda *_: sys.exit(get_from_empty_queue('saving', 2.5)))"
    command = demo.start("run", demo.spec(f"{INSIDE}{handler}\nprint('on', flush=True)\ntime.sleep(600)", "saves.py"))
    assert command.stdout.readline() == "on\n"
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=60)
    assert out == "saving\n"
    assert NOTE not in err
    assert command.returncode == 0


@pytest.mark.slow
def test_an_interrupt_that_is_handled_late_does_not_count(demo: Sandbox) -> None:
    handler = "signal.signal(signal.SIGINT, lambda *_: print('handled', flush=True))"
    text = f"{INSIDE}{handler}\nget_from_empty_queue('on', 10)\nwhile True:\n    time.sleep(0.1)\n"
    environment = demo.with_settings({"INTERRUPTS_ROW_SECONDS": 0.0})
    command = demo.start("run", "script", "-o", "json", demo.spec(text, "late.py"), env=environment)
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


# The files of the calls of a script, and of those below an operation of its graph.
CALLS = """
import json, re, traceback
import tensorflow as tf

@tf.function
def pick(number):
    return tf.gather(tf.constant([1, 2]), number)

print(json.dumps([frame.filename for frame in traceback.extract_stack()]))
try:
    pick(tf.constant(7))
except tf.errors.InvalidArgumentError as error:
    print(json.dumps(re.findall('File "(.*?)"', str(error).partition("Detected at node")[2])))
"""


@pytest.mark.parametrize(
    "words",
    mostly_slow([("run",), ("run", "script", "--cold"), ("launch",)], fast=[("run",), ("launch",)]),
    ids=" ".join,
)
def test_two_calls_of_ours_are_below_those_of_a_script(demo: Sandbox, words: tuple[str, ...]) -> None:
    script = demo.spec(CALLS, "calls.py")
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
    assert "s3cr3t" not in demo("runs", "-o", "json").stdout
