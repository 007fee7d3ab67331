"""The request for hosts in a spec, the key of a provider: it has their number, and the provider names them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from tfcluster.spec.base import FrozenModel
from tfcluster.spec.diagnostics import KeyPath
from tfcluster.spec.yaml_source import YamlDocument

_NAMED = ("hosts", "hostfile")


class HostRequest(FrozenModel):
    """The base class of the keys of a spec that request hosts."""

    #: The key, which is also the name of the provider.
    key: ClassVar[str]
    #: What a host is called, such as `node`: the hosts are `node0`, `node1` and so on.
    noun: ClassVar[str]
    #: Its keys whose values are numbers.
    numbers: ClassVar[tuple[str, ...]]

    @classmethod
    def is_in(cls, source: YamlDocument) -> bool:
        """Return whether a spec requests hosts by this key."""
        return source.value.get(cls.key) is not None

    @classmethod
    def normalize(cls, source: YamlDocument, others: Iterable[str]) -> None:
        """Name the hosts that a spec requests; problems, also those with the keys of other providers, go to it."""
        raise NotImplementedError

    def check_name(self, name: str, source: YamlDocument) -> None:
        """Raise a ClusterError if a name of a cluster is not valid for the provider."""

    def place_jobs(self, hosts: Sequence[str], jobs: Mapping[str, int | None]) -> Mapping[str, Sequence[str]]:
        """Return the hosts of jobs that are not to be on all, in turn.

        `jobs` has the number of tasks of each; None if the spec says where they are.
        """
        return {}

    @classmethod
    def name_hosts(
        cls, source: YamlDocument, count: int | None, *, others: Iterable[str], fixed: Iterable[str], why: str
    ) -> bool:
        """Name the hosts; problems go to the document. Return False if another key names hosts too.

        Args:
            source: The spec.
            count: How many hosts there are; None if the number is not valid, which the schema reports.
            others: The keys of other providers.
            fixed: The keys that `host:` cannot have.
            why: Why it cannot have them.
        """
        value = source.value
        for other in (*_NAMED, *others):
            if value.get(other) is not None:
                source.report_key((other,), f"the hosts are the {cls.noun}s of {cls.key}:", "keep one of the two")
                source.broken.add(("hosts",))
                return False
        host = value.get("host")
        for each in fixed:
            if isinstance(host, dict) and each in host:
                source.report_key(("host", each), why, "delete this key")
        names = [f"{cls.noun}{index}" for index in range(count or 1)]
        value["hosts"] = {name: {} for name in names}
        paths: list[KeyPath] = [("hosts",), *(("hosts", name) for name in names)]
        for path in paths:
            source.keys[path] = source.values[path] = source.keys[cls.key,]
        if count is None:
            source.broken.add(("hosts",))
        return True
