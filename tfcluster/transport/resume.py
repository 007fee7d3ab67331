"""Start the agent of a cluster again on this host after a reboot: `python -m tfcluster.transport.resume`.

`tfcluster doctor --print-systemd` prints what runs this. The agent brings up the tasks that the journal names.
"""

from __future__ import annotations

import sys
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.paths import set_state_home
from tfcluster.transport.local import LocalTransport


def main(arguments: list[str]) -> int:
    """Start the agent of a cluster (the cluster, this host, the state home if any), unless one runs or it is not up."""
    cluster, host, *state = arguments
    if state:
        set_state_home(Path(state[0]))
    transport = LocalTransport(cluster, host)
    if not transport.is_up():  # it was taken down before the reboot
        return 0
    try:
        transport.open(start=False).close()
    except ClusterError as error:
        print(f"{error.message}\n{error.hint}".rstrip(), file=sys.stderr)
        return int(error.exit_code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
