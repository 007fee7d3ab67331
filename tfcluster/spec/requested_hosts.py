"""The hosts that `up` requests, the nodes of `slurm:` or the pods of `kubernetes:`: a spec has only their number."""

from __future__ import annotations

from collections.abc import Iterable

from tfcluster.spec.diagnostics import KeyPath
from tfcluster.spec.yaml_source import YamlDocument

_OTHERS = ("hosts", "hostfile", "slurm")


def name_hosts(source: YamlDocument, key: str, noun: str, count: int | None, fixed: Iterable[str], why: str) -> bool:
    """Name the hosts that a key of a spec requests `node0`, `node1` and so on; problems go to the document.

    Return False if another key names hosts too. The count is None if it is not valid, which the schema reports. `why`
    says why `host:` cannot have the keys `fixed`.
    """
    value = source.value
    for other in _OTHERS:
        if other != key and value.get(other) is not None:
            source.report_key((other,), f"the hosts are the {noun}s of {key}:", "keep one of the two")
            source.broken.add(("hosts",))
            return False
    host = value.get("host")
    for each in fixed:
        if isinstance(host, dict) and each in host:
            source.report_key(("host", each), why, "delete this key")
    names = [f"{noun}{index}" for index in range(count or 1)]
    value["hosts"] = {name: {} for name in names}
    paths: list[KeyPath] = [("hosts",), *(("hosts", name) for name in names)]
    for path in paths:
        source.keys[path] = source.values[path] = source.keys[key,]
    if count is None:
        source.broken.add(("hosts",))
    return True
