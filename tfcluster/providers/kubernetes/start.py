"""The program of a pod's container that starts the agent: of the cluster's journal, or of what the manifests brought.

`up` reaches pods that have no journal by itself. A pod that replaces another one has what was mounted: the code as a
zip archive, from which this module is imported at first, and the topology of the cluster.
"""

from __future__ import annotations

import gzip
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING
from zipfile import ZipFile

if TYPE_CHECKING:
    from tfcluster.core.topology import ClusterTopology

#: The folder in which the manifests mount these files.
MOUNTED = Path("/etc/tfcluster")
CODE = "code.zip"
#: What the bootstrap program of a session needs to find the code, as JSON.
SESSION = "session.json"
#: The topology as it is stored, compressed, and the secret values that it does not have; both are optional.
TOPOLOGY = "topology.json.gz"
SECRETS = "secrets.json"


def install() -> None:
    """Install the mounted code where sessions look for it, and run this module from there.

    The code of a journal is used for that journal. The host's variables in the spec are those of the agent.
    """
    from tfcluster.paths import CODE_LINK, state_folder
    from tfcluster.transport.remote.bootstrap import cache_folders, find_code
    from tfcluster.transport.remote.install import install as install_code

    cluster, host = sys.argv[1:]
    session = json.loads((MOUNTED / SESSION).read_text())
    linked = state_folder(cluster, host) / CODE_LINK
    folder = str(linked) if linked.is_dir() else find_code(session)
    if folder is None:
        with ZipFile(MOUNTED / CODE) as archive:
            folder = install_code(archive, session["code"], cache_folders(session), lambda: find_code(session))
    os.chdir(folder)
    topology = _read_topology()
    hosts = [] if topology is None else [each for each in topology.hosts if each.name == host]
    variables = {**os.environ, **(hosts[0].env if hosts else {})}
    os.execve(sys.executable, [sys.executable, "-m", "tfcluster.providers.kubernetes.start", *sys.argv[1:]], variables)


def _read_topology() -> ClusterTopology | None:
    """Return the topology that is mounted, with its secret values; None if there is none."""
    from tfcluster.core.secrets import with_values
    from tfcluster.core.topology import ClusterTopology
    from tfcluster.protocol.serialization import from_stored

    if not (MOUNTED / TOPOLOGY).exists():
        return None
    topology = from_stored(ClusterTopology, json.loads(gzip.decompress((MOUNTED / TOPOLOGY).read_bytes())))
    secrets = MOUNTED / SECRETS
    return with_values(topology, json.loads(secrets.read_text())) if secrets.exists() else topology


def main() -> int:
    """Start the agent of a cluster on this host, which both are arguments; return its exit code."""
    from tfcluster.agent.recover import write_journal
    from tfcluster.errors import ClusterError
    from tfcluster.transport import resume

    cluster, host = sys.argv[1:]
    try:
        topology = _read_topology()
        if topology is not None and not any(each.setup for each in topology.hosts if each.name == host):
            write_journal(host, topology)
        resume.keep_code(cluster, host)
    except (OSError, ValueError, ClusterError) as error:
        print(f"the tasks of {cluster} cannot be started from {MOUNTED}: {error}", file=sys.stderr)
        return 1
    return resume.main([cluster, host])


if __name__ == "__main__":
    sys.exit(main())
