"""Start the agent of a cluster again on this host after a reboot: `python -m tfcluster.transport.resume`.

`tfcluster doctor --print-systemd` prints what runs this. The agent brings up the tasks that the journal names.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from tfcluster.errors import ClusterError
from tfcluster.paths import CODE_LINK, PACKAGE_ROOT, set_state_home, state_folder
from tfcluster.process_mark import mark_of
from tfcluster.transport.local import LocalTransport


def keep_code(cluster: str, host: str) -> None:
    """Keep the version of the code that a journal names, see `remote.install.prune`.

    The link leads to one beside the journal, which the agent may not have written yet.
    """
    state = state_folder(cluster, host)
    with contextlib.suppress(OSError):  # it is there already
        (PACKAGE_ROOT.parent / f".{mark_of(state)}").symlink_to(state / CODE_LINK)


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
