"""Which lines of a log are shown: by TensorFlow's prefix, with the lines that continue an entry, and never prints."""

from __future__ import annotations

import pytest

from tfcluster.core.log_levels import LevelFilter, LogLevel, Visibility, entry_level

_DUMP = """I0000 00:00:1795539855.248035   21935 eager_service_impl.cc:355] SessionOptions: goo.gle/debugstr \x20
device_count {
  key: "CPU"
  value: 1
}
gpu_options {
  experimental {
  }
}
allow_soft_placement: true
experimental {
  collective_group_leader: "/job:worker/replica:0/task:0"
}
"""
_STARTED = "I0000 00:00:1795539850.55   21652 grpc_server_lib.cc:467] Started server with target: grpc://localhost:2224"
_ABORTING = (
    "2026-11-24 16:38:07.12: W tensorflow/core/framework/local_rendezvous.cc:407] "
    "Local rendezvous is aborting with status: CANCELLED"
)
_WARNING = "W0000 00:00:1795539850.55   21652 master.cc:10] slow"


@pytest.mark.parametrize(
    ("line", "level"),
    [
        (_STARTED, LogLevel.INFO),
        (_WARNING, LogLevel.WARNING),
        (_ABORTING, LogLevel.INFO),
        ("E0000 00:00:1795539850.5   21652 cuda_platform.cc:52] failed call to cuInit: INTERNAL", LogLevel.INFO),
        ("F0000 00:00:1795539850.5   21652 a.cc:52] failed", LogLevel.ERROR),
        ("2026-11-24 16:38:07.12: I tensorflow/core/platform/cpu_feature_guard.cc:210] x", LogLevel.INFO),
        ("WARNING: All log messages before absl::InitializeLog() is called are written to STDERR", LogLevel.INFO),
        ("I1124 16:38:07.123456 139871 train.py:12] loss 0.5", None),
        ("INFO:tensorflow:loss = 0.5", None),
        ("2026-11-24 16:38:07 I am here", None),
        ("MatMul: (MatMul): /job:worker/replica:0/task:1/device:CPU:0", None),
        ("", None),
    ],
)
def test_the_level_of_a_line(line: str, level: LogLevel | None) -> None:
    assert entry_level(line) is level


def shown(text: str, level: LogLevel = LogLevel.WARNING) -> tuple[list[str], int]:
    levels = LevelFilter(level)
    found = [(line, levels.check("worker:0", line)) for line in text.split("\n")]
    hidden = sum(visibility is Visibility.HIDDEN for _, visibility in found)
    return [line for line, visibility in found if visibility is Visibility.SHOWN], hidden


def test_a_dump_is_one_entry_and_what_is_printed_meanwhile_is_shown() -> None:
    assert shown(f"before\n{_DUMP}\nafter") == (["before", "after"], 1)
    in_between = _DUMP.replace("allow_soft", "loss: 0.5\nallow_soft")
    assert shown(f"{in_between}\nlr: 0.1\n") == (["loss: 0.5", "lr: 0.1", ""], 1)
    assert shown(f"{_STARTED}\nloss: 0.5\n\n  indented") == (["loss: 0.5", "", "  indented"], 1)


def test_levels_and_the_entries_of_each_log() -> None:
    error = _WARNING.replace("W0000", "E0000")
    text = "\n".join([_STARTED, _WARNING, _ABORTING, "\t [[{{node Assert}}]]", error, "\t [[{{node A}}]]"])
    assert shown(text) == ([_WARNING, error, "\t [[{{node A}}]]"], 2)
    assert shown(text, LogLevel.ERROR) == ([error, "\t [[{{node A}}]]"], 3)
    assert shown(text, LogLevel.INFO) == (text.split("\n"), 0)
    levels = LevelFilter(LogLevel.WARNING)
    assert levels.check("a", _ABORTING) is Visibility.HIDDEN
    assert levels.check("b", "\t [[{{node A}}]]") is Visibility.SHOWN
    assert levels.check("a", "\t [[{{node A}}]]") is Visibility.CONTINUES_HIDDEN
