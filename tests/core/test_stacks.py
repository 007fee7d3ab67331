"""What is read from faulthandler's text: threads without tfcluster's own calls, and the call of TensorFlow."""

from __future__ import annotations

import faulthandler
import tempfile

import pytest

from tfcluster.core.stacks import StackFrame, ThreadStack, find_wait, parse_stack

TENSORFLOW = "/venv/lib/python3.11/site-packages/tensorflow/python"
THREADING = '  File "/usr/lib/python3.11/threading.py", line 327 in wait\n'
SCRIPT = """  File "/home/me/train.py", line 12 in main
  File "/home/me/train.py", line 20 in <module>
  File "/opt/tfcluster/processes/runs/run_script.py", line 102 in _run_script
  File "<string>", line 7 in <module>
"""


def calls(*lines: str) -> str:
    """The text of the calls of TensorFlow, each `FILE:LINE:FUNCTION`."""
    parts = [line.split(":") for line in lines]
    return "".join(f'  File "{TENSORFLOW}/{file}", line {line} in {name}\n' for file, line, name in parts)


def parse(main: str, *others: str) -> list[ThreadStack]:
    """Parse what the main thread, then the others, have written."""
    texts = {"main": main, **{str(number): text for number, text in enumerate(others, 1)}}
    stacks = (parse_stack(name, f"Stack (most recent call first):\n{text}") for name, text in texts.items())
    return [stack for stack in stacks if stack is not None]


def test_a_stack_has_only_the_scripts_own_calls_and_is_what_the_interpreter_writes() -> None:
    main, other = parse(SCRIPT, THREADING)
    assert (main.name, other.name) == ("main", "1")
    assert main.frames == (StackFrame("/home/me/train.py", 12, "main"), StackFrame("/home/me/train.py", 20, "<module>"))
    assert other.frames == (StackFrame("/usr/lib/python3.11/threading.py", 327, "wait"),)
    assert parse_stack("7", "") is None
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=False)
        file.seek(0)
        stack = parse_stack("main", file.read())
    assert stack is not None
    assert stack.frames[0].function == "test_a_stack_has_only_the_scripts_own_calls_and_is_what_the_interpreter_writes"
    assert stack.frames[0].file == __file__


@pytest.mark.parametrize(
    ("stack", "call", "connects"),
    [
        (calls("client/session.py:1430:_extend_graph", "client/session.py:977:run"), "Session.run", True),
        (calls("client/session.py:1480:_call_tf_sessionrun", "client/session.py:977:run"), "Session.run", False),
        (
            calls(
                "eager/context.py:736:ensure_initialized",
                "distribute/parameter_server_strategy_v2.py:563:_connect_to_cluster",
                "distribute/parameter_server_strategy_v2.py:490:__init__",
            ),
            "ParameterServerStrategy",
            True,
        ),
        (
            calls("eager/context.py:736:ensure_initialized", "eager/remote.py:262:connect_to_cluster"),
            "connect_to_cluster",
            True,
        ),
        (
            THREADING + calls("distribute/coordinator/cluster_coordinator.py:700:join"),
            "ClusterCoordinator.join",
            False,
        ),
        (calls("framework/ops.py:406:_numpy", "framework/ops.py:440:numpy"), "numpy", False),
        (
            calls(
                "eager/execute.py:53:quick_execute",
                "eager/polymorphic_function/polymorphic_function.py:833:__call__",
                "util/traceback_utils.py:150:error_handler",
            ),
            "tf.function",
            False,
        ),
    ],
)
def test_a_call_of_tensorflow_has_the_name_and_the_line_that_the_user_knows(
    stack: str, call: str, connects: bool
) -> None:
    wait = find_wait(parse(stack + SCRIPT, THREADING))
    assert wait is not None
    assert (wait.call, wait.connects) == (call, connects)
    assert (wait.file, wait.line, wait.function) == ("/home/me/train.py", 12, "main")


def test_what_tfcluster_puts_in_between_is_left_out() -> None:
    strategy = "distribute/collective_all_reduce_strategy.py"
    stack = (
        calls("eager/context.py:736:ensure_initialized", f"{strategy}:602:_initialize_multi_worker")
        + '  File "/opt/tfcluster/processes/runs/strategies.py", line 51 in initialize\n'
        + calls(f"{strategy}:187:__init__")
    )
    wait = find_wait(parse(stack + SCRIPT))
    assert wait is not None
    assert (wait.call, wait.line, wait.connects) == ("MultiWorkerMirroredStrategy", 12, True)


def test_a_call_in_another_thread_counts_if_the_main_thread_is_in_none_and_it_is_the_programs() -> None:
    other = calls("client/session.py:1430:_extend_graph", "client/session.py:977:run")
    other += '  File "/home/me/train.py", line 7 in feed\n' + THREADING
    wait = find_wait(parse(THREADING + SCRIPT, other))
    assert wait is not None
    assert wait.line == 7
    own_thread = THREADING + calls("distribute/coordinator/cluster_coordinator.py:1177:_process_queue") + THREADING
    assert find_wait(parse(SCRIPT, own_thread)) is None
    assert find_wait(parse('  File "/home/me/model.py", line 3 in load\n' + SCRIPT)) is None
    assert find_wait(()) is None
