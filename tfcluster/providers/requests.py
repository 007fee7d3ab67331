"""The keys of a spec that request hosts, one for each provider: a new one is added here, beside its own folder."""

from __future__ import annotations

from typing import Annotated

from tfcluster.providers.kubernetes.request import KubernetesSpec
from tfcluster.providers.request import HostRequest
from tfcluster.providers.slurm.request import SlurmSpec
from tfcluster.spec.base import FrozenModel, Key
from tfcluster.spec.yaml_source import YamlDocument


class Requests(FrozenModel):
    """The part of a spec that requests hosts; at most one of its keys is set."""

    slurm: Annotated[
        SlurmSpec | None,
        Key(
            "keys",
            "The allocation whose nodes are the hosts, instead of `hosts`: they are `node0`, `node1` and so on.",
            '{nodes: 4, time: "8:00:00"}',
            "none",
        ),
    ] = None
    kubernetes: Annotated[
        KubernetesSpec | None,
        Key(
            "keys",
            "The pods that are the hosts, instead of `hosts`: they are `pod0`, `pod1` and so on.",
            "{pods: 4, image: tensorflow/tensorflow:2.21.0}",
            "none",
        ),
    ] = None

    @property
    def request(self) -> HostRequest | None:
        """The request of the spec; None if it names its hosts."""
        return next((each for key in REQUESTS if (each := getattr(self, key)) is not None), None)


#: The class of each key.
REQUESTS: dict[str, type[HostRequest]] = {each.key: each for each in (SlurmSpec, KubernetesSpec)}


def normalize_requests(source: YamlDocument) -> bool:
    """Name the hosts that a spec requests; problems go to the document. Return whether it requests any."""
    requested = [each for each in REQUESTS.values() if each.is_in(source)]
    for each in requested[-1:]:
        each.normalize(source, [other for other in REQUESTS if other != each.key])
    if not requested and source.value.get("host") is not None:
        wherever = " or ".join(f"each {each.noun} of {each.key}:" for each in REQUESTS.values())
        source.report_key(("host",), f"it applies to {wherever}", "name the hosts under hosts:")
        source.broken.add(("host",))
    return bool(requested)
