"""The schema of `hosts:`, the machines of a cluster, and which of them an address means."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, StrictInt, StrictStr

from tfcluster.paths import LOCAL_HOST, MAX_TASKS
from tfcluster.spec.base import FrozenModel, matches, validation_error
from tfcluster.spec.environment import PublicValue, VariableName

HOST_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,252}")
_SHELL_SYNTAX = re.compile(r"""[\s'"`$;&<>|(){}]""")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


def _address(text: str) -> str:
    try:
        ip = ipaddress.ip_address(text)
    except ValueError:
        # What ends in a number is an IPv4 address to a resolver, so 10.0.0.256 is one that is wrong.
        if HOST_NAME.fullmatch(text) and not text.rpartition(".")[2].isdigit():
            return text
        raise validation_error("found", "expected a host name or an IP address, without a port") from None
    if ip.is_unspecified or getattr(ip, "scope_id", None):
        raise validation_error("found", "expected an address that other hosts can dial")
    return text


def _one_line(text: str) -> str:
    if not text or _CONTROL.search(text):
        raise validation_error("found", "expected text of one line")
    return text


def _destination(text: str) -> str:
    # ssh takes what begins with - for an option, as -oProxyCommand=…, which runs a command here. And it hands a
    # destination's parts to a shell here, where ~/.ssh/config has ProxyCommand or Match exec with %h, %n or %r; before
    # version 9.6 with all that is special to the shell.
    host = text.removeprefix("ssh://").rpartition("@")[2]
    begins = (text, text.removeprefix("ssh://"), host)
    if any(part.startswith("-") for part in begins) or _SHELL_SYNTAX.search(text) or "\\" in host:
        raise validation_error("found", "expected a destination of ssh such as user@host or a name of ~/.ssh/config")
    return text


def _absolute(text: str) -> str:
    if not text.startswith("/"):
        raise validation_error("found", "expected the whole path, which begins with /")
    return text


def _executable(text: str) -> str:
    if text.startswith("-") or ("/" in text and not text.startswith("/")):
        raise validation_error("found", "expected the name of a command such as python3, or a whole path")
    return text


def _command(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise validation_error("found", "expected a shell command")
    return text


_OneLine = Annotated[StrictStr, AfterValidator(_one_line)]


class Host(FrozenModel):
    """A machine that tasks run on; `localhost` is the one that the command runs on.

    Attributes:
        address: What the other hosts dial; None for its name.
        ssh: Its destination as ssh takes it; None for its name.
        python: The Python there that has TensorFlow; None for python3. Also an examination executes it.
        env: What is added to the environment of each of its tasks; a job's own overrides it.
        state: The folder there for the state of all clusters; None for the one that XDG_STATE_HOME names there.
        setup: Shell commands that `up` runs there once, before anything else.
        slots: How many tasks it gets in a row, before the next host gets some.
    """

    address: Annotated[StrictStr, AfterValidator(_address)] | None = None
    ssh: Annotated[_OneLine, AfterValidator(_destination)] | None = None
    python: Annotated[_OneLine, AfterValidator(_executable)] | None = None
    env: Mapping[VariableName, PublicValue] = Field(default_factory=dict)
    state: Annotated[_OneLine, AfterValidator(_absolute)] | None = None
    setup: tuple[Annotated[StrictStr, AfterValidator(_command)], ...] = ()
    slots: Annotated[StrictInt, Field(ge=1, le=MAX_TASKS)] = 1


def _or_nothing(value: Any) -> Any:
    return {} if value is None else value


HostName = Annotated[
    StrictStr,
    AfterValidator(
        matches(
            HOST_NAME,
            "key",
            "the name of a host to be letters, digits, _, . and -, and to start with a letter or digit",
        )
    ),
]
Hosts = Mapping[HostName, Annotated[Host, BeforeValidator(_or_nothing)]]

#: The addresses of a cluster whose spec names no hosts.
LOCAL_ONLY = {LOCAL_HOST: LOCAL_HOST}


def host_of(written: str, addresses: Mapping[str, str]) -> str | None:
    """The name of the host that the host part of a task's address means; None when it means none.

    Args:
        written: A host's name, its address, or on `localhost` itself any address by which it dials itself.
        addresses: The addresses of all hosts by name.
    """
    if written in addresses:
        return written
    for name, address in addresses.items():
        if canonical(address) == canonical(written):
            return name
    if is_loopback(written) and is_loopback(addresses.get(LOCAL_HOST, "")):
        return LOCAL_HOST
    return None


def is_loopback(address: str) -> bool:
    """Whether only the machine itself can dial an address."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address.lower() == LOCAL_HOST


def canonical(address: str) -> str:
    """The one spelling of an address."""
    try:
        return str(ipaddress.ip_address(address))
    except ValueError:
        return address.lower()
