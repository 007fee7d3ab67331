"""Parse the Python stacks of a process from faulthandler's text, and find the call of TensorFlow on them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath

from tfcluster.records import record_class

_HEADING = "Stack (most recent call first):"
_FRAME = re.compile(r'  File "(.*)", line (\d+|\?\?\?) in (.*)')
# The callers of the program's own code: the interpreter that executes `-c`, runpy, and tfcluster.
_CALLERS = re.compile(r"<string>|<frozen runpy>|.*/runpy\.py|.*/tfcluster/(?:processes|programs)/.*")
_WRAPPER = re.compile(r".*/tfcluster/processes/runs/strategies\.py")  # between the script and TensorFlow
_SCRIPT_CALLER = re.compile(r".*/tfcluster/processes/runs/run_script\.py")
_TENSORFLOW = re.compile(r".*/(?:tensorflow|keras|tf_keras)/.*")
_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages)/.*|.*/lib/python\d\.\d+/.*|<frozen .*")
_WAITING = re.compile(r".*/(?:threading|queue)\.py")
_DECORATOR = re.compile(r".*/tensorflow/python/util/.*")
# The functions of TensorFlow, by file, that connect to the tasks and do not compute.
_CONNECTING = {
    "client/session.py": {"_extend_graph", "list_devices"},
    "eager/context.py": {"ensure_initialized", "set_server_def", "update_server_def"},
}
# The names under which users know functions that have another name.
_CALLS = {
    "parameter_server_strategy_v2.py": "ParameterServerStrategy",
    "collective_all_reduce_strategy.py": "MultiWorkerMirroredStrategy",
    "cluster_coordinator.py": "ClusterCoordinator",
    "session.py": "Session",
    "monitored_session.py": "MonitoredSession",
    "polymorphic_function.py": "tf.function",
}


@record_class(frozen=True)
class StackFrame:
    """One call on the stack of a thread."""

    file: str
    line: int | None  # the line that is executed; None if the interpreter does not know it
    function: str


@record_class(frozen=True)
class ThreadStack:
    """The stack of one thread."""

    name: str  # `main`, or its thread id in the kernel
    frames: tuple[StackFrame, ...]  # the most recent call first


@record_class(frozen=True)
class ProcessStacks:
    """The Python stacks of one process."""

    pid: int
    command: str  # the command line, or the title that the process has given itself
    threads: tuple[ThreadStack, ...]  # the main thread first; empty if there is a problem
    problem: str  # why there are no stacks; empty if there are


@record_class(frozen=True)
class Wait:
    """A call of TensorFlow in which a program waits."""

    call: str  # as `Session.run`
    connects: bool  # whether it connects to tasks, so that it neither computes nor takes long
    file: str  # the file of the program that has the call
    line: int | None  # None if it is not known
    function: str  # the function that has the call


def describe_wait(call: str, file: str, line: int | None, problems: Sequence[str]) -> str:
    """Describe in one line where a program waits (in its own file), and why, if that is known."""
    call_site = PurePath(file).name if line is None else f"{PurePath(file).name}:{line}"
    return ": ".join([f"{call_site} waits in {call}", *(["; ".join(problems)] if problems else [])])


def parse_stack(name: str, text: str) -> ThreadStack | None:
    """Parse faulthandler's text about a thread, without tfcluster's calls; None if it has never executed Python."""
    heading, *lines = text.splitlines() or [""]
    if heading != _HEADING:
        return None
    matches = filter(None, map(_FRAME.match, lines))
    frames = [StackFrame(each[1], None if each[2] == "???" else int(each[2]), each[3]) for each in matches]
    return ThreadStack(name, _own_frames(frames))


def _own_frames(frames: Sequence[StackFrame]) -> tuple[StackFrame, ...]:
    """Leave out the calls by which tfcluster has started a script; a bundled program keeps its own."""
    if not any(_SCRIPT_CALLER.fullmatch(frame.file) for frame in frames):
        return tuple(frames)
    end = len(frames)
    while end and _CALLERS.fullmatch(frames[end - 1].file):
        end -= 1
    return tuple(frame for frame in frames[:end] or frames if not _WRAPPER.fullmatch(frame.file))


def find_wait(threads: Sequence[ThreadStack]) -> Wait | None:
    """Return the call of TensorFlow in which a program is, if any.

    The main thread counts before the others. A thread without a function of the program, such as TensorFlow's own, does
    not count.
    """
    return next((wait for thread in threads if (wait := _find_thread_wait(thread)) is not None), None)


def _find_thread_wait(thread: ThreadStack) -> Wait | None:
    frames = list(thread.frames)
    while frames and _WAITING.fullmatch(frames[0].file):
        del frames[0]
    if not frames or not _TENSORFLOW.fullmatch(frames[0].file):
        return None
    own = next((number for number, frame in enumerate(frames) if not _LIBRARY.fullmatch(frame.file)), None)
    if own is None:
        return None
    first = frames[0]
    connects = any(first.file.endswith(file) and first.function in names for file, names in _CONNECTING.items())
    public = next((frame for frame in reversed(frames[:own]) if not _DECORATOR.fullmatch(frame.file)), first)
    caller = frames[own]
    return Wait(_name_call(public), connects, caller.file, caller.line, caller.function)


def _name_call(frame: StackFrame) -> str:
    """Return the name of a call to a function of TensorFlow, as users know it."""
    name = _CALLS.get(frame.file.rpartition("/")[2])
    if name is None:
        return frame.function
    return name if frame.function.startswith("__") else f"{name}.{frame.function}"
