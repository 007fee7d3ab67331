"""What is shown of an error in one line; the commands in hints, which name the cluster or the spec."""

from __future__ import annotations

import unicodedata

import pytest

from tfcluster.control_characters import escape_control_characters
from tfcluster.core.hints import complete_commands
from tfcluster.core.text import join_problems, summarize_error

GRAPH = """errors_impl.UnavailableError: Graph execution error:

Detected at node CollectiveReduceV2 defined at (most recent call last):
  File "/home/me/train.py", line 11, in <module>

  File "/home/me/train.py", line 9, in total

Collective ops is aborted by: Socket closed
The error could be from a previous operation. Restart your program to reset.
\t [[{{node CollectiveReduceV2}}]] [Op:__inference_total_37]"""
SEVERAL = """errors_impl.UnavailableError: Graph execution error:

=====================
UNAVAILABLE: From /job:worker/replica:0/task:1:
failed to connect to all addresses; last error: UNKNOWN: ipv4:10.77.0.3:2222: Connection refused
Additional GRPC error information from remote target /job:worker/replica:0/task:1:
UNAVAILABLE: From /job:worker/replica:0/task:0:
failed to connect to all addresses"""
NUMBERED = """errors_impl.AbortedError: Graph execution error:

Detected at node AssignSubVariableOp_1/_11 defined at (most recent call last):
<stack traces unavailable>
Detected at node AssignSubVariableOp_1/_11 defined at (most recent call last):
<stack traces unavailable>
2 root error(s) found.
  (0) UNAVAILABLE:  Socket closed
Additional GRPC error information from remote target /job:ps/replica:0/task:1 while calling RecvTensor:
  (1) UNAVAILABLE:  Socket closed"""
UNHEALTHY = """From /job:worker/replica:0/task:0:
The following tasks are unhealthy (stopped sending heartbeats):
/job:worker/replica:0/task:1
Check the task logs."""


@pytest.mark.parametrize(
    ("message", "summary"),
    [
        (GRAPH, "errors_impl.UnavailableError: Graph execution error: Collective ops is aborted by: Socket closed"),
        (
            SEVERAL,
            "errors_impl.UnavailableError: Graph execution error: UNAVAILABLE: failed to connect to all addresses; "
            "last error: UNKNOWN: ipv4:10.77.0.3:2222: Connection refused",
        ),
        (NUMBERED, "errors_impl.AbortedError: Graph execution error: UNAVAILABLE: Socket closed"),
        (
            UNHEALTHY,
            "The following tasks are unhealthy (stopped sending heartbeats): /job:worker/replica:0/task:1",
        ),
        (
            "tensorflow.python.framework.errors_impl.InvalidArgumentError: {{function_node __wrapped__Reshape_device_"
            "/job:localhost/replica:0/task:0/device:CPU:0}} Input to reshape is a tensor with 20 values [Op:Reshape]",
            "InvalidArgumentError: Input to reshape is a tensor with 20 values [Op:Reshape]",
        ),
        ("ValueError: no such data\n\nsecond part", "ValueError: no such data"),
        ("RuntimeError: \n\nsee below", "RuntimeError: see below"),
        ("OSError: From /job:worker/replica:0/task:0:\nSocket closed\nAdditional GRPC error", "OSError: Socket closed"),
        ("OSError: From /job:ps/replica:0/task:0:\n", "OSError"),
        ("ValueError: From here: on", "ValueError: From here: on"),
        ("", ""),
    ],
)
def test_the_first_line_that_says_something(message: str, summary: str) -> None:
    assert summarize_error(message) == summary


@pytest.mark.parametrize(
    ("hint", "completed"),
    [
        ("`tfcluster status` shows it.", "`tfcluster status -c demo` shows it."),
        ("`tfcluster logs x-1`, `tfcluster stack x-1`", "`tfcluster logs -c demo x-1`, `tfcluster stack -c demo x-1`"),
        ("`tfcluster exec --on beta -- COMMAND` runs it", "`tfcluster exec -c demo --on beta -- COMMAND` runs it"),
        ("`tfcluster down -c other` or `tfcluster down --all`", "`tfcluster down -c other` or `tfcluster down --all`"),
        ("`tfcluster down x.yaml` or `tfcluster down`", "`tfcluster down x.yaml` or `tfcluster down -c demo`"),
        ("`tfcluster doctor` checks it", "`tfcluster doctor 'a b.yaml'` checks it"),
        ("`tfcluster doctor --print-systemd`", "`tfcluster doctor 'a b.yaml' --print-systemd`"),
        ("`tfcluster up SPEC` gives it again", "`tfcluster up 'a b.yaml'` gives it again"),
        ("`tfcluster up --dry-run`", "`tfcluster up 'a b.yaml' --dry-run`"),
        ("`tfcluster up x.yaml`", "`tfcluster up x.yaml`"),
        ("`tfcluster init other.yaml`", "`tfcluster init other.yaml`"),
        ("`tfcluster launch --workers 2 x.py`", "`tfcluster launch --workers 2 x.py`"),
        ("`tfcluster --help`, `tfcluster COMMAND --help`", "`tfcluster --help`, `tfcluster COMMAND --help`"),
        ("`kill -CONT 12` resumes it.", "`kill -CONT 12` resumes it."),
    ],
)
def test_commands_name_the_cluster_or_the_spec(hint: str, completed: str) -> None:
    assert complete_commands(hint, "demo", "a b.yaml") == completed
    assert complete_commands(completed, "demo", "a b.yaml") == completed
    assert complete_commands(hint) == hint


@pytest.mark.parametrize(
    ("problems", "joined"),
    [
        ([], ""),
        (["worker:1 died (SIGKILL)"], "worker:1 died (SIGKILL)"),
        (
            ["ps:0 died (its port is taken) and lost its variables"],
            "ps:0 died (its port is taken) and lost its variables",
        ),
        (
            ["worker:0 died (SIGKILL)", "ps:0 died (SIGKILL) and lost its variables", "worker:1 died (SIGKILL)"],
            "worker:0, worker:1 died (SIGKILL); ps:0 died (SIGKILL) and lost its variables",
        ),
        (
            [f"ps:{index} on alpha died (its agent killed it) and lost its variables" for index in range(60)],
            "ps:0, ps:1, ps:2, ps:3 and 56 more on alpha died (its agent killed it) and lost their variables",
        ),
        (["a:0 is stopped", "a:1 is stopped"], "a:0, a:1 are stopped"),
        (
            ["a:0 at h:1 does not answer", "a:1 at h:2 does not answer"],
            "a:0 at h:1 does not answer; a:1 at h:2 does not answer",
        ),
    ],
)
def test_tasks_with_the_same_problem_are_named_together(problems: list[str], joined: str) -> None:
    assert join_problems(problems) == joined


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain, ünïcode — 数 🙂", "plain, ünïcode — 数 🙂"),
        ("two\nlines\tand a tab\n", "two\nlines\tand a tab\n"),
        ("no\u00a0break", "no\u00a0break"),
        ("\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\x1b[2J\x1b[H", r"\x1b[2J\x1b[H"),
        ("\x1b]52;c;ZXZpbA==\x1b\\", r"\x1b]52;c;ZXZpbA==\x1b" + "\\"),
        ("\x9b2J\x85\x7f\x00", r"\x9b2J\x85\x7f\x00"),
        ("a\x08b\x0bc\x0cd", r"a\x08b\x0bc\x0cd"),
        ("user\u202egpj.exe\u202c \u2066x\u2069", r"user\u202egpj.exe\u202c \u2066x\u2069"),
        ("half a pair \ud83d, a byte \udcff", r"half a pair \ud83d, a byte \udcff"),
        ("line\r\n", "line\n"),
        ("line\r", "line"),
        ("one\r\ntwo\r\n", "one\ntwo\n"),
        ("10%\r20%\r", r"10%\r20%"),
        ("line\r\r\n", "line\\r\n"),
        (r"a literal \x1b", r"a literal \x1b"),
    ],
)
def test_what_is_shown(text: str, shown: str) -> None:
    assert escape_control_characters(text) == shown
    assert escape_control_characters(shown) == shown


def test_no_control_character_but_newline_and_tab_is_left() -> None:
    every = "".join(map(chr, range(0x3000)))
    left = [each for each in escape_control_characters(every) if unicodedata.category(each) == "Cc"]
    assert left == ["\t", "\n"]
    overriding = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
    assert not [each for each in escape_control_characters(every) if unicodedata.bidirectional(each) in overriding]
