"""In a pod: a hook of its container tells the agent that the pod is deleted."""

from __future__ import annotations

from tfcluster.providers.host_side import HostSide


class PodHostSide(HostSide):
    """A pod."""

    end_cause = "the pod was deleted"


HOST_SIDE = PodHostSide
