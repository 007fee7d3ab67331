"""Which hosts of a private cluster need a certificate, and their certificates."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from datetime import timedelta

from tfcluster import settings
from tfcluster.client.preflight.host_preflight import AgentInspector, HostPreflight
from tfcluster.core.forwarding import Certificate, needs_forwarders
from tfcluster.core.topology import ClusterTopology
from tfcluster.errors import ClusterError
from tfcluster.paths import authority_path, make_private_folder


def hosts_without_certificate(topology: ClusterTopology, hosts: Mapping[str, HostPreflight]) -> list[str]:
    """Return the hosts that need a certificate: they have none, it ends soon, or it is of an authority not known here.

    In a dry run, which cannot ask for certificates, no host needs one.
    """
    if not needs_forwarders(topology):
        return []
    try:
        authority = authority_path(topology.cluster).read_text()
    except (OSError, UnicodeDecodeError):
        authority = ""
    earliest = time.time() + timedelta(days=settings.CERTIFICATE_DAYS / 10).total_seconds()

    def is_good(each: HostPreflight) -> bool:
        own = each.certificate
        return own is not None and own.authority in authority and own.until > earliest

    asked = {host: each for host, each in hosts.items() if isinstance(each.inspector, AgentInspector)}
    return [host.name for host in topology.hosts if host.name in asked and not is_good(asked[host.name])]


def issue_certificates(cluster: str, hosts: Collection[str]) -> dict[str, Certificate]:
    """Issue certificates for hosts by the cluster's authority, which is created if it is not there."""
    if not hosts:
        return {}
    from tfcluster.client.preflight.certificates import Authority  # the import takes as long as all others of a command

    path = authority_path(cluster)
    try:
        try:
            authority = Authority.load(path)
        except (FileNotFoundError, ValueError):
            authority = Authority.create(cluster)
            make_private_folder(path.parent)
            authority.save(path)
    except OSError as error:
        raise ClusterError(
            f"{path}: cannot keep the authority for the hosts' certificates: {error.strerror}",
            hint="Set XDG_STATE_HOME to a folder that you can write to.",
        ) from error
    return {host: authority.issue(host) for host in hosts}
