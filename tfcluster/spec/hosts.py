"""The schema of `hosts:`, the machines of a cluster; the mapping from addresses to hosts; hostfiles."""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr

from tfcluster import settings
from tfcluster.input_file import read_input
from tfcluster.paths import HOME_PREFIX, LOCAL_HOST
from tfcluster.spec.base import FrozenModel, Key, Matches, PublicValue, VariableName, validation_error
from tfcluster.spec.diagnostics import Diagnostic
from tfcluster.spec.host_ranges import expand_names

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_SHELL_SYNTAX = re.compile(r"""[\s'"`$;&<>|(){}]""")
# A line of a hostfile, and each of its options.
_HOSTFILE_LINE = re.compile(r"\s*(\S+?)(?::([0-9]+))?((?:\s+[\w-]+\s*=\s*\S+)*)\s*")
_HOSTFILE_OPTION = re.compile(r"([\w-]+)\s*=\s*(\S+)")
_SLOTS = re.compile("[0-9]{1,9}")
# What Open MPI calls the slots, and their limit, which are the slots if a line has nothing else.
_SLOTS_OPTIONS = ("slots", "cpu", "count", "max_slots", "max-slots", "slots_max", "slots-max")
_SSH_OPTIONS = ("port", "user", "username", "user-name", "user_name")
# Names in braces in `connect:`. Other braces are for what it runs, such as ${HOME}, {{.ID}} and { print; }.
_NAME_IN_BRACES = re.compile(r"(?<![${])\{[A-Za-z_]\w*(:[^{}]*)?\}")
_TERMINAL = re.compile(r"\{terminal:[^{}]+\}")
_PLACEHOLDER = re.compile(rf"\{{(host|address|command)\}}|{_TERMINAL.pattern}")
_PLACEHOLDER_HINT = (
    "what is replaced is {host}, {address}, {command} and {terminal:OPTION}; write other braces with spaces inside"
)
_ABSOLUTE = ("/", HOME_PREFIX)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _address(text: str) -> str:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        # Resolvers treat a name that ends in a number as an IPv4 address, so 10.0.0.256 is an invalid address.
        if HOST_NAME.fullmatch(text) and not text.rpartition(".")[2].isdigit():
            return text
        raise validation_error("expected", "expected a host name or an IP address, without a port") from None
    if ip.is_unspecified or getattr(ip, "scope_id", None):
        raise validation_error("expected", "expected an address that other hosts can connect to")
    return text


def _one_line(text: str) -> str:
    if not text or _CONTROL.search(text):
        raise validation_error("expected", "expected text of one line")
    return text


def _destination(text: str) -> str:
    # ssh interprets an argument that begins with - as an option, and -oProxyCommand=… runs a command on this machine.
    # If ~/.ssh/config has ProxyCommand or Match exec with %h, %n or %r, ssh also passes the parts of a destination to a
    # shell on this machine; versions before 9.6 pass characters that are special to the shell unfiltered.
    host = text.removeprefix("ssh://").rpartition("@")[2]
    begins = (text, text.removeprefix("ssh://"), host)
    if any(part.startswith("-") for part in begins) or _SHELL_SYNTAX.search(text) or "\\" in host:
        raise validation_error("expected", "expected a destination of ssh such as user@host or a name of ~/.ssh/config")
    return text


def _connect(text: str) -> str:
    # The argument of an option such as docker's -H can be anything; only the program must be one.
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise validation_error("expected", f"expected words as a shell splits them: {str(error).lower()}") from None
    if not words or words[0].startswith(("-", "{")):
        raise validation_error("expected", "expected a command such as docker exec -i {host}")
    for match in _NAME_IN_BRACES.finditer(text):
        if not _PLACEHOLDER.fullmatch(match[0]):
            raise validation_error("complete", f"{match[0]} is not replaced", _PLACEHOLDER_HINT)
    for word in words:
        if (option := _TERMINAL.search(word)) is not None and option[0] != word:
            raise validation_error("complete", f"{option[0]} is not a word by itself", "write spaces around it")
    return text


def _absolute(text: str) -> str:
    if not text.startswith(_ABSOLUTE):
        raise validation_error("expected", "expected an absolute path, which begins with / or ~/")
    return text


def _executable(text: str) -> str:
    if text.startswith("-") or ("/" in text and not text.startswith(_ABSOLUTE)):
        raise validation_error(
            "expected", "expected the name of a command such as python3, or a path that begins with / or ~/"
        )
    return text


def _command(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise validation_error("expected", "expected a shell command")
    return text


_OneLine = Annotated[StrictStr, AfterValidator(_one_line)]


class HostSpec(FrozenModel):
    """A host: a machine that tasks run on; None stands for the default in the reference."""

    address: Annotated[
        Annotated[StrictStr, AfterValidator(_address)] | None,
        Key("a name or an IP address", "What the other hosts connect to.", "10.0.0.11", "the host's name"),
    ] = None
    ssh: Annotated[
        Annotated[_OneLine, AfterValidator(_destination)] | None,
        Key("`USER@HOST`, or a name in ~/.ssh/config", "Its ssh destination.", "tf@alpha", "the host's name"),
    ] = None
    connect: Annotated[
        Annotated[_OneLine, AfterValidator(_connect)] | None,
        Key(
            "a command line",
            "The command that runs a command there, if that is not ssh.",
            '"docker exec -i {terminal:-t} {host}"',
            "ssh",
        ),
    ] = None
    python: Annotated[
        Annotated[_OneLine, AfterValidator(_executable)] | None,
        Key(
            "a command, or a path that begins with / or ~/",
            "The Python there that has TensorFlow.",
            "/opt/tf/bin/python",
            "`python3`",
        ),
    ] = None
    shell: Annotated[
        Annotated[_OneLine, AfterValidator(_command)] | None,
        Key(
            "a command of bash",
            "A command that sets up the environment of that Python: for example, it activates a conda environment or "
            "loads modules.",
            '"source /opt/conda/bin/activate tf"',
            "none",
        ),
    ] = None
    env: Annotated[
        Mapping[VariableName, PublicValue],
        Key("names and texts", "Environment variables of its tasks; those of a job override them.", '{TZ: "UTC"}'),
    ] = Field(default_factory=dict)
    state: Annotated[
        Annotated[_OneLine, AfterValidator(_absolute)] | None,
        Key(
            "a path that begins with / or ~/",
            "The folder there for logs and runs.",
            "/scratch/me",
            "`tfcluster` in `$XDG_STATE_HOME` there, which is `~/.local/state` unless it is set",
        ),
    ] = None
    tls_port: Annotated[
        Annotated[StrictInt, Field(ge=1, le=65535)] | None,
        Key(
            "1 to 65535",
            "The port for the other hosts of a cluster with `network: private`: the only one that they connect to.",
            "4433",
            "a free one",
        ),
    ] = None
    setup: Annotated[
        tuple[Annotated[StrictStr, AfterValidator(_command)], ...],
        Key(
            "a list of shell commands", "What `up` runs there once, before anything else.", '["pip install tensorflow"]'
        ),
    ] = ()
    slots: Annotated[
        StrictInt,
        Field(ge=1, le=settings.MAX_TASKS),
        Key("1 to 1000", "How many tasks of a job are placed on it before the next host is used.", "2"),
    ] = 1


def _or_nothing(value: Any) -> Any:
    return {} if value is None else value


HostName = Annotated[
    StrictStr,
    Matches(
        HOST_NAME,
        "key",
        "the name of a host to be letters, digits, _, . and -, and to start with a letter or digit",
    ),
]
Hosts = Mapping[HostName, Annotated[HostSpec, BeforeValidator(_or_nothing)]]

#: The addresses, by host, of a cluster whose spec names no hosts.
LOCAL_ONLY = {LOCAL_HOST: LOCAL_HOST}


def host_for_address(written: str, addresses: Mapping[str, str]) -> str | None:
    """Resolve the host part of a task's address to the name of a host; return None if no host matches.

    It is a host's name or its address; or a loopback address, if `localhost` has a loopback address.
    """
    if written in addresses:
        return written
    for name, address in addresses.items():
        if normalize_address(address) == normalize_address(written):
            return name
    if is_loopback(written) and is_loopback(addresses.get(LOCAL_HOST, "")):
        return LOCAL_HOST
    return None


def is_loopback(address: str) -> bool:
    """Return whether only the machine itself can connect to an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == LOCAL_HOST


def normalize_address(address: str) -> str:
    """Return the canonical spelling of an IP address or host name, for comparisons."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()


def read_hostfile(path: Path) -> tuple[dict[str, int], list[Diagnostic]]:
    """Parse a hostfile in the notation of Open MPI and DeepSpeed, `alpha slots=2`, or of MPICH, `alpha:2`.

    A line can name several hosts in Slurm's notation, such as `lab[01-04,07]`. As in Open MPI, a host has one slot by
    default, and the slots of a host that is listed several times are added up. Messages quote nothing of the file,
    because the path may be that of a file with secrets.

    Return the slots by the host's name, and the problems of the file. A file that cannot be read raises an OSError, a
    path that is not valid a ValueError.
    """
    text = read_input(path, settings.SPEC_MAX_BYTES)
    if len(text) > settings.SPEC_MAX_BYTES:
        return {}, [Diagnostic(str(path), 1, 1, f"the file is larger than {settings.SPEC_MAX_BYTES >> 20} MiB")]
    slots: dict[str, int] = {}
    problems: list[Diagnostic] = []
    for number, line in enumerate(text.decode(errors="replace").removeprefix("\ufeff").split("\n"), 1):
        content = line.partition("#")[0].rstrip()
        try:
            names, count = _read_hosts(content) if content else ([], 0)
        except _LineError as error:
            problems.append(Diagnostic(str(path), number, error.start + 1, error.message, error.hint))
            continue
        for name in names:
            slots[name] = min(settings.MAX_TASKS, slots.get(name, 0) + count)
    if not slots and not problems:
        problems.append(Diagnostic(str(path), 1, 1, "the file names no host"))
    return slots, problems


class _LineError(Exception):
    """A line of a hostfile is not valid from one of its characters on."""

    def __init__(self, start: int, message: str, hint: str = "") -> None:
        self.start, self.message, self.hint = start, message, hint


def _read_hosts(content: str) -> tuple[list[str], int]:
    """Return the hosts that a line of a hostfile names, and the slots of each."""
    match = _HOSTFILE_LINE.fullmatch(content)
    if match is None:
        raise _LineError(
            len(content) - len(content.lstrip()), "expected a host such as alpha, alpha slots=2 or alpha:2"
        )
    way = "name the hosts under hosts: to say how ssh reaches them"
    try:
        names = expand_names(match[1])
    except ValueError as error:
        raise _LineError(match.start(1), str(error)) from None
    if not all(map(HOST_NAME.fullmatch, names)):
        raise _LineError(match.start(1), "expected the name of a host", way if "@" in match[1] else "")
    given = {} if match[2] is None else {":": (match[2], match.start(2) - 1)}
    for option in _HOSTFILE_OPTION.finditer(content, match.start(3)):
        if option[1] in _SSH_OPTIONS:
            raise _LineError(option.start(), "this is for ssh", f"{way}, or set it in ~/.ssh/config")
        if option[1] not in _SLOTS_OPTIONS:
            raise _LineError(option.start(), "expected slots or max_slots")
        if "max" not in option[1] and any("max" not in name for name in given):
            raise _LineError(option.start(), "the slots are given twice")
        given[option[1]] = (option[2], option.start())
    for name, (count, start) in given.items():
        if not (_SLOTS.fullmatch(count) and 1 <= int(count) <= settings.MAX_TASKS):
            hint = "a port is for ssh: set it in ~/.ssh/config" if name == ":" else ""
            raise _LineError(start, f"expected slots from 1 to {settings.MAX_TASKS}", hint)
    counts = {name: int(count) for name, (count, _) in given.items()}
    return names, next((count for name, count in counts.items() if "max" not in name), [*counts.values(), 1][0])
