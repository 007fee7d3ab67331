"""What starts the agents of a cluster after a reboot: a systemd user unit for each host, or a line for its crontab."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass

from tfcluster.core.hosts import Host
from tfcluster.core.topology import ClusterTopology
from tfcluster.paths import CODE_LINK, LOCAL_HOST, PACKAGE_ROOT, state_home
from tfcluster.transport.provision import in_environment
from tfcluster.transport.shell import quote_path, typed_path

_UNIT = """\
[Unit]
Description=Agent of the tfcluster cluster {cluster} on {host}

[Service]
Type=oneshot
RemainAfterExit=yes
KillMode=process
Restart=on-failure
RestartSec=5
ExecStart=/bin/sh -c "{command}"

[Install]
WantedBy=default.target
"""


@dataclass(frozen=True)
class BootUnit:
    """What starts the agent of one host after a reboot."""

    host: str
    file: str  # the path of the unit there
    unit: str  # the content of the unit
    cron: str  # a line for the crontab, where there is no systemd


def boot_units(topology: ClusterTopology) -> list[BootUnit]:
    """Return what starts the agents of all hosts of a topology; this connects to none of them."""
    units = []
    for host in topology.hosts:
        command = _command(topology.cluster, host)
        # In double quotes systemd interprets these characters; cron interprets the percent sign.
        escaped = command.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
        unit = BootUnit(
            host=host.name,
            file=f"~/.config/systemd/user/tfcluster-{topology.cluster}.service",
            unit=_UNIT.format(cluster=topology.cluster, host=host.name, command=escaped),
            cron=f"@reboot {command}".replace("%", "\\%"),
        )
        units.append(unit)
    return units


def _command(cluster: str, host: Host) -> str:
    """Return a command line of sh that starts the agent of a cluster on a host, and ends when it listens."""
    variables = [f"export {name}={shlex.quote(value)};" for name, value in host.env.items()]
    if host.name == LOCAL_HOST:
        recent = shlex.quote(str(PACKAGE_ROOT))
        python, state = shlex.quote(sys.executable), str(state_home())
    else:
        # The version of the code that was used last, if the one that wrote the journal was removed; see
        # `remote.bootstrap.cache_folders`.
        caches = ['"${XDG_CACHE_HOME:-$HOME/.cache}"/tfcluster/code/*/']
        caches += [f"{typed_path(host.state)}/.code/*/"] if host.state else []
        recent = f'"$(ls -td {" ".join(caches)} 2>/dev/null | head -n 1)"'
        python, state = quote_path(host.interpreter), host.state or ""
    home = typed_path(state) if state else '"${XDG_STATE_HOME:-$HOME/.local/state}"/tfcluster'
    code = f"{home}/{shlex.quote(cluster)}/{shlex.quote(host.name)}/{CODE_LINK}"
    arguments = shlex.join([cluster, host.name]) + (f" {typed_path(state)}" if state else "")
    start = in_environment(f"{python} -m tfcluster.transport.resume {arguments}", host.shell)
    return " ".join([*variables, f"cd {code}/tfcluster 2>/dev/null && cd .. || cd {recent} && exec {start}"])
