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
#: What is known of the topology, as JSON: the names of these are true or false.
FACTS = "facts.json"
HAS_SECRETS = "has_secrets"
WAS_UP = "was_up"
_MODULE = "tfcluster.providers.kubernetes.start"


def install() -> None:
    """Install the mounted code where sessions look for it, and run this module from there.

    The code of a journal is used for that journal. The host's variables in the spec are those of the agent.
    """
    from tfcluster.paths import CODE_LINK, state_folder

    cluster, host = sys.argv[1:]
    linked = state_folder(cluster, host) / CODE_LINK
    module, variables = _MODULE, dict[str, str]()
    try:
        folder = linked if linked.is_dir() else Path(_install_code())
        topology = _read_topology()
        if topology is not None:
            variables = dict(next((each.env for each in topology.hosts if each.name == host), {}))
    except (OSError, ValueError) as error:
        print(f"tfcluster cannot be started from {MOUNTED}: {error}", file=sys.stderr)
        if not linked.is_dir():
            sys.exit(1)
        folder = linked
    if not folder.joinpath(*_MODULE.split(".")).with_suffix(".py").exists():  # the code of an earlier version
        module = "tfcluster.transport.resume"
    os.chdir(folder)
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], {**os.environ, **variables})


def _install_code() -> str:
    from tfcluster.transport.remote.bootstrap import cache_folders, find_code
    from tfcluster.transport.remote.install import install as install_code

    session = json.loads((MOUNTED / SESSION).read_text())
    if (found := find_code(session)) is not None:
        return found
    with ZipFile(MOUNTED / CODE) as archive:
        return install_code(archive, session["code"], cache_folders(session), lambda: find_code(session))


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
        if (topology := _read_topology()) is not None:
            write_journal(host, topology, is_replaced=json.loads((MOUNTED / FACTS).read_text())[WAS_UP])
    except (OSError, ValueError, LookupError, ClusterError) as error:  # a journal that exists is enough
        print(f"the tasks of {cluster} cannot be started from {MOUNTED}: {error}", file=sys.stderr)
    resume.keep_code(cluster, host)
    return resume.main([cluster, host])


if __name__ == "__main__":
    sys.exit(main())
