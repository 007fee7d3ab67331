"""The levels of what TensorFlow's own code logs, and which lines of a log are shown from a level on.

Only lines with the prefix of TensorFlow's C++ log have a level, with the lines that continue them. All other lines,
such as those that a program prints, are shown at every level.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from enum import Enum, StrEnum, auto


class LogLevel(StrEnum):
    """A level from which on TensorFlow's entries are shown; with `INFO` these are all."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class Visibility(Enum):
    """What becomes of a line."""

    SHOWN = auto()
    HIDDEN = auto()  # an entry that is hidden begins
    CONTINUES_HIDDEN = auto()


# `I0000 00:00:1795539855.24  21935 file.cc:355] text`, or `2026-11-24 16:38:07.12: I tensorflow/file.cc:355] text`.
# A script's own messages by absl name a file of Python.
_PREFIX = re.compile(
    r"(?:([IWEF])\d{4} \d\d:\d\d:[\d.]+ +\d+ |\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+: ([IWEF]) )\S+\.(?:cc|h|cpp|c):\d+\] "
)
_LEVELS = {"I": LogLevel.INFO, "W": LogLevel.WARNING, "E": LogLevel.ERROR, "F": LogLevel.ERROR}
_ORDER = list(LogLevel)
# What TensorFlow logs as a warning or an error although nothing is wrong.
_HARMLESS = re.compile(
    r"Local rendezvous is aborting|failed call to cuInit|Could not find cuda drivers|Could not find TensorRT"
    r"|Unable to register cu\w+ (?:factory|plugin)|computation placer already registered"
    r"|End of sequence|This TensorFlow binary is optimized|CUDA driver|Overriding orig_value setting"
)
_NO_PREFIX = "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR"
_DUMP = re.compile(r"(?:SessionOptions|session_options|with config|config_proto)\b.*?:", re.IGNORECASE)
# The fields of TensorFlow's ConfigProto: `loss: 0.5`, which a program prints between them, is no part of a dump.
_FIELDS = re.compile(
    r"(?:device_count|intra_op_parallelism_threads|inter_op_parallelism_threads|use_per_session_threads"
    r"|session_inter_op_thread_pool|placement_period|device_filters|gpu_options|pluggable_device_options"
    r"|allow_soft_placement|log_device_placement|graph_options|operation_timeout_in_ms|rpc_options|cluster_def"
    r"|isolate_session_state|share_cluster_devices_in_session|experimental)(?:: .*| \{)"
)
_NESTED = re.compile(r" +(?:\w+: .*|\w+ \{|\})|\}")
_CONTINUATION = re.compile(
    r"To enable the following instructions: |\s*\[\[\{\{(?:function_)?node |Additional GRPC error information"
    r'|:?\{"created"|  StreamExecutor \['
)


def entry_level(text: str) -> LogLevel | None:
    """Return the level of the entry that begins with a line: info if it is known to be harmless; None without one."""
    if text == _NO_PREFIX:
        return LogLevel.INFO
    prefix = _PREFIX.match(text)
    if prefix is None:
        return None
    return LogLevel.INFO if _HARMLESS.search(text, prefix.end()) else _LEVELS[prefix[1] or prefix[2]]


class LevelFilter:
    """Tells which lines of logs are shown from a level on. The lines of each log are given in their order."""

    def __init__(self, level: LogLevel) -> None:
        self._level = level
        self._hidden: dict[Hashable, _HiddenEntry] = {}  # the latest entry of each log, if it is hidden

    def check(self, log: Hashable, text: str) -> Visibility:
        """Return what becomes of the next line of a log; `log` is any key for it."""
        level = entry_level(text)
        if level is None:
            hidden = self._hidden.get(log)
            if hidden is not None and hidden.continues(text):
                return Visibility.CONTINUES_HIDDEN
            return Visibility.SHOWN
        self._hidden.pop(log, None)
        if _ORDER.index(level) >= _ORDER.index(self._level):
            return Visibility.SHOWN
        self._hidden[log] = _HiddenEntry(text)
        return Visibility.HIDDEN


class _HiddenEntry:
    """An entry that is hidden, as far as it was read."""

    def __init__(self, text: str) -> None:
        self._is_dump = _DUMP.search(text) is not None
        self._depth = 0  # of the braces that are open

    def continues(self, text: str) -> bool:
        """Return whether a line is a part of the entry. A program may have printed it meanwhile, at any place."""
        if not self._is_dump:
            return _CONTINUATION.match(text) is not None
        if self._depth == 0 and not text:
            self._is_dump = False  # the dump ends with an empty line
            return True
        if not (_NESTED if self._depth else _FIELDS).fullmatch(text):
            return False
        self._depth += text.endswith("{") - text.endswith("}")
        return True
