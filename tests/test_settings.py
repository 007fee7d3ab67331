"""Every timeout, interval, limit and retry count is in one of two modules, and tests can override it there."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Sandbox
from tfcluster import settings
from tfcluster.programs import settings as program_settings

ROOT = Path(settings.__file__).parent
MODULES = {Path(str(module.__file__)): module for module in (settings, program_settings)}
#: Numbers in modules that are no settings, with the reason.
CONSTANTS = {
    **dict.fromkeys(
        (
            "agent/host_facts.py:_FIRST_UID",
            "agent/host_facts.py:_NOBODY_UID",
            "agent/state/journal_record.py:_MAX_PID",
            "agent/state/journal_record.py:_MAX_PORT",
            "agent/state/journal_record.py:_MAX_TICKS",
            "agent/state/journal_record.py:_MAX_TIME",
            "runtime_dir.py:_SOCKET_PATH_LIMIT",
            "client/runs/caller.py:_STDERR",
            "client/runs/caller.py:_STDIN",
            "client/runs/caller.py:_STDOUT",
            "input_file.py:_NULL_DEVICE",
            "process_handle.py:_CORE_DUMPED",
            "process_handle.py:_PIDFD_GET_INFO",
            "process_handle.py:_PIDFD_INFO_EXIT",
            "private_network.py:*",
            "processes/servers/port_isolation.py:*",
            "processes/daemonize.py:_LINE_BUFFERED",
            "processes/daemonize.py:_PR_SET_PDEATHSIG",
            "processes/runs/stored_output.py:_BLOCK_BYTES",
            "processes/sparse_files.py:_KEEP_SIZE",
            "processes/sparse_files.py:_PUNCH_HOLE",
            "processes/inotify.py:_IN_MODIFY",
            "processes/servers/listen_guard.py:_SYS_PIDFD_GETFD",
            "processes/protos.py:_MESSAGES",
            "processes/daemonize.py:_PR_SET_CHILD_SUBREAPER",
            "processes/servers/seccomp.py:*",
            "processes/socket_traffic.py:*",
            "processes/gpus.py:*",
            "agent/usage.py:_IDLE_FIELDS",
            "agent/usage.py:_FIELDS",
            "programs/script/run.py:_C_LONG",
            "transport/cluster_process.py:_NOT_EXECUTABLE",
            "transport/cluster_process.py:_NOT_FOUND",
            "transport/cluster_process.py:_STDIN",
            "transport/remote/session.py:_INPUT",
            "transport/remote/session.py:_OUTPUT",
        ),
        "the kernel, the C library or NVML defines it",
    ),
    **dict.fromkeys(
        (
            "agent/logs/log_file.py:_PREFIX_BYTES",
            "core/groups.py:_PREEMPTED",
            "core/usage.py:_NOT_KNOWN",
            "runtime_dir.py:_DIGEST",
            "runtime_dir.py:_SSH_SUFFIX",
            "processes/logs/rotating_log.py:_MAX_HEADER",
            "processes/forwarder/pump.py:_RECORD_BYTES",
            "processes/forwarder/refusal_log.py:_FOREIGN",
            "programs/mean/partition.py:WHOLE",
            "processes/probes.py:_CHANNEL_OPTIONS",
            "client/rpc/agent_connection.py:_NO_REQUEST",
            "protocol/codec.py:VERSION",
            "reporting.py:_STEP_MAX",
            "spec/yaml_source.py:_TOP",
            "processes/notice_sender.py:_TIMED_OUT",
            "transport/ssh_errors.py:SSH_FAILED",
            "transport/ssh_keys.py:_NO_AGENT",
            "transport/ssh_session.py:_NOT_RUN",
            "transport/ssh_session.py:SHELL_FAILED",
        ),
        "a format, a protocol or a marker has it",
    ),
    **dict.fromkeys(
        (
            "programs/expfit/run.py:*",
            "programs/graph/run.py:_EXACT",
            "programs/linear/config.py:LEARNING_RATES",
            "programs/linear/dataset.py:*",
            "programs/linear/model.py:*",
            "programs/mean/partition.py:_LARGE",
            "programs/mean/partition.py:_SMALL",
            "programs/mean/window_sums.py:*",
            "programs/pi/run.py:*",
            "programs/threefry.py:*",
        ),
        "part of a program's algorithm: the same options and seed would give other results",
    ),
    **dict.fromkeys(
        ("ui/graph_diagram.py:*", "ui/chart.py:*", "ui/top/rows.py:*", "programs/expfit/render.py:_WIDTH"),
        "part of a drawing's geometry",
    ),
    "transport/remote/bootstrap.py:_VERSIONS_KEPT": "the source of this module is sent alone and can import nothing",
}


def numbers_in(path: Path) -> Iterator[str]:
    """Yield FILE:NAME of each constant (a name in capitals) that a module assigns a number or an expression of numbers.

    Collections count only if all of their items are such expressions.
    """
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            targets, value = node.targets, node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            targets, value = [node.target], node.value
        else:
            continue
        for target in targets:
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            values = (
                value.elts if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) else [value] * len(names)
            )
            for name, each in zip(names, values, strict=True):
                if isinstance(name, ast.Name) and re.fullmatch(r"[A-Z_0-9]+", name.id) and has_number(each):
                    yield f"{path.relative_to(ROOT)}:{name.id}"


def has_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return type(node.value) in {int, float}
        case ast.UnaryOp():
            return has_number(node.operand)
        case ast.BinOp():
            return not has_text(node) and (has_number(node.left) or has_number(node.right))
        case ast.Tuple() | ast.List() | ast.Set():
            return bool(node.elts) and any(has_number(each) for each in node.elts)
        case ast.Dict():
            return any(has_number(each) for each in node.values)
        case ast.Call():
            return any(has_number(each) for each in [*node.args, *(keyword.value for keyword in node.keywords)])
    return False


def has_text(node: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(node))


VALUES = {name: value for module in MODULES.values() for name, value in vars(module).items() if name.isupper()}


def all_numbers() -> list[str]:
    """Return the constants of all modules without those that are for settings; see `numbers_in`."""
    return [number for path in sorted(ROOT.rglob("*.py")) if path not in MODULES for number in numbers_in(path)]


def test_no_other_module_defines_a_setting() -> None:
    numbers = all_numbers()
    allowed = {number for number in numbers if number in CONSTANTS or f"{number.partition(':')[0]}:*" in CONSTANTS}
    assert [number for number in numbers if number not in allowed] == []


def test_the_list_of_constants_is_up_to_date() -> None:
    numbers = all_numbers()
    existing = {*numbers, *(f"{number.partition(':')[0]}:*" for number in numbers)}
    assert [name for name in CONSTANTS if name not in existing] == []


def test_every_setting_is_used() -> None:
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py"))
    assert VALUES.keys() - set(re.findall(r"\bsettings\.(\w+)", sources)) == set()


def test_the_settings_of_programs_are_used_by_programs_alone() -> None:
    names = [name for name in vars(program_settings) if name.isupper()]
    sources = "".join(path.read_text() for path in ROOT.rglob("*.py") if not path.is_relative_to(ROOT / "programs"))
    assert set(names) & set(re.findall(r"\bsettings\.(\w+)", sources)) == set()


def test_settings_are_read_when_they_are_used_and_not_copied() -> None:
    pattern = re.compile(
        r"from tfcluster\.(programs\.)?settings import|^_?[A-Z_0-9]+ = settings\.[A-Z_0-9]+$", re.MULTILINE
    )
    assert [str(path) for path in ROOT.rglob("*.py") if pattern.search(path.read_text())] == []


def has_unit(name: str, value: object) -> bool:
    """Return whether a setting that needs a unit has it in its name."""
    if isinstance(value, float | tuple):
        return re.search(r"_SECONDS(_|$)|_FACTOR$", name) is not None
    if isinstance(value, int) and value >= 1 << 12 and not name.endswith("_PORT"):
        return re.search(r"_(SECONDS|MS|BYTES|NUMBERS|VALUES|ITEMS|MAX)(_|$)", name) is not None
    return True


def test_a_setting_has_its_unit_in_its_name() -> None:
    assert [name for name, value in VALUES.items() if not has_unit(name, value)] == []


def test_processes_of_a_test_have_the_settings_of_the_test(sandbox: Sandbox) -> None:
    def values(environment: dict[str, str]) -> str:
        program = "from tfcluster import settings; print(settings.SSH_CONNECT_SECONDS, settings.STATUS_RUNS)"
        result = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
        )
        return result.stdout

    other = {**sandbox.environment, **sandbox.with_settings({"SSH_CONNECT_SECONDS": 77})}
    assert values(sandbox.environment) == f"{settings.SSH_CONNECT_SECONDS} {settings.STATUS_RUNS}\n"
    assert values(other) == f"77 {settings.STATUS_RUNS}\n"
    with pytest.raises(subprocess.CalledProcessError):
        values({**sandbox.environment, **sandbox.with_settings({"NO_SUCH_SETTING": 1})})
