"""Where the hosts of a cluster come from, if the spec does not name them: a folder for each provider.

A folder has the modules `request` (its key in the spec), `provider` (what commands do with it) and `host_side` (what is
done on a host). Nothing outside of this package depends on which provider it is.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tfcluster.errors import ClusterError

if TYPE_CHECKING:
    from tfcluster.core.hosts import Provided
    from tfcluster.providers.host_side import HostSide
    from tfcluster.providers.provider import Provider

#: The commands of providers: the module and the attribute of each.
COMMANDS = {"manifests": "tfcluster.providers.kubernetes.command:manifests_command"}


def load_provider(name: str) -> type[Provider[Any]]:
    """Import the class of a provider by its name, which is that of its folder and of its key in the spec.

    Raises ValueError if there is none of that name.
    """
    try:
        provider: type[Provider[Any]] = import_module(f"tfcluster.providers.{name}.provider").PROVIDER
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("tfcluster.providers."):
            raise
        raise ValueError(f"there is no provider {name!r}") from error
    return provider


def load_host_side(provided: Provided) -> HostSide:
    """Return what a provider does on a host; a ClusterError says that its facts there cannot be read."""
    try:
        module = import_module(f"tfcluster.providers.{provided.provider}.host_side")
        side: HostSide = module.HOST_SIDE(provided.facts)
    except (ModuleNotFoundError, ValueError) as error:
        raise ClusterError(f"what provides this host ({provided.provider}) cannot be read: {error}") from error
    return side
