"""The schema of `kubernetes:`, the pods that are the hosts of a cluster; their names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, StrictInt, StrictStr, WithJsonSchema

from tfcluster import settings
from tfcluster.paths import HOME_PREFIX
from tfcluster.providers.request import HostRequest
from tfcluster.spec.base import Key, Matches, whole
from tfcluster.spec.diagnostics import KeyPath, to_error
from tfcluster.spec.yaml_source import YamlDocument

# The keys of a host that the manifests answer.
_WAYS = ("address", "ssh", "connect", "tls_port", "state")
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
#: The name of a cluster of pods is that of a Service, which begins with a letter; and Kubernetes appends a hash of 11
#: characters to that of a StatefulSet, for a label of its pods that has at most 63.
NAME_MAX = 52
_NAME = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_PS = "ps"
_QUANTITY = re.compile(r"[0-9]+(\.[0-9]+)?([munkKMGTPE]|[KMGTPE]i)?")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]*")
_CONTEXT = re.compile(r"[^\s\x00-\x1f\x7f{}-][^\x00-\x1f\x7f{}]*")


def _quantity(value: Any) -> Any:
    return str(value) if type(value) in (int, float) else value


def _pattern(pattern: re.Pattern[str], expected: str) -> Matches:
    return Matches(pattern, "expected", expected)


_Quantity = Annotated[
    StrictStr,
    BeforeValidator(_quantity),
    _pattern(_QUANTITY, 'a quantity of Kubernetes such as 8, "500m" or 32Gi'),
    WithJsonSchema({"type": ["string", "number"], "pattern": whole(_QUANTITY)}),
]


class KubernetesSpec(HostRequest):
    """The pods of a cluster."""

    key: ClassVar[str] = "kubernetes"
    noun: ClassVar[str] = "pod"
    numbers: ClassVar[tuple[str, ...]] = ("pods", "gpus")

    pods: Annotated[StrictInt, Field(ge=1, le=settings.MAX_TASKS), Key("1 to 1000", "How many pods.", "4")] = 1
    image: Annotated[
        Annotated[StrictStr, _pattern(_IMAGE, "the name of an image such as tensorflow/tensorflow:2.21.0")],
        Key("the name of an image", "What the pods run; it has Python and TensorFlow.", "tensorflow/tensorflow:2.21.0"),
    ]
    namespace: Annotated[
        Annotated[StrictStr, _pattern(_LABEL, "a DNS label: a-z, 0-9 and -, at most 63 characters")] | None,
        Key("a name", "The namespace.", "ml", "that of the context"),
    ] = None
    context: Annotated[
        Annotated[StrictStr, _pattern(_CONTEXT, "the name of a context of kubectl")] | None,
        Key("a name", "The context of kubectl, which says which cluster of Kubernetes.", "prod", "the current one"),
    ] = None
    cpu: Annotated[_Quantity | None, Key("a quantity", "The cores of each pod.", '"8"', "no request")] = None
    memory: Annotated[
        _Quantity | None, Key("a quantity", "The memory of each pod, and its limit.", "32Gi", "no limit")
    ] = None
    gpus: Annotated[StrictInt, Field(ge=0), Key("0 or more", "How many GPUs each pod has.", "1")] = 0
    storage: Annotated[
        _Quantity | None,
        Key("a quantity", "The volume of each pod for logs and runs, which `down` keeps.", "10Gi", "none that lasts"),
    ] = None

    @classmethod
    def normalize(cls, source: YamlDocument, others: Iterable[str]) -> None:
        """Name the pods as the hosts; problems go to the document."""
        if source.value.get("network") == "private":
            message = "pods cannot make their own network: their seccomp profile forbids it"
            source.problems.append(source.problem(("network",), message, "write closed", source.values["network",]))
        host = source.value.get("host")
        python = host.get("python") if isinstance(host, dict) else None
        if isinstance(python, str) and python.startswith(HOME_PREFIX):
            path: KeyPath = ("host", "python")
            message = "the home folder in the image is not known"
            source.problems.append(source.problem(path, message, "write the absolute path", source.values[path]))
        count = _pod_count(source.value[cls.key])
        cls.name_hosts(source, count, others=others, fixed=_WAYS, why="the manifests say it for each pod")

    def check_name(self, name: str, source: YamlDocument) -> None:
        """Raise a ClusterError if the name cannot be that of a Service and of a StatefulSet."""
        if _NAME.fullmatch(name) and len(name) <= NAME_MAX:
            return
        path: KeyPath = ("name",)
        at = source.values.get(path) or source.keys[self.key,]
        message = f"expected a name for pods: a-z, 0-9 and -, starting with a letter, at most {NAME_MAX} characters"
        found = f", found {name!r}" if len(name) <= NAME_MAX else f", found {len(name)}"
        raise to_error([source.problem(path, message + found, "set name: in the spec", at)])

    def place_jobs(self, hosts: Sequence[str], jobs: Mapping[str, int | None]) -> Mapping[str, Sequence[str]]:
        """Give ps tasks their own pods, the first ones.

        With control groups of version 2, a process that runs out of memory can end its whole pod.
        """
        tasks = jobs.get(_PS)
        if tasks is None or len(hosts) < 2 or len(jobs) == 1:
            return {}
        count = min(tasks, len(hosts) - 1)
        free = [name for name, number in jobs.items() if number is not None]
        return {name: hosts[:count] if name == _PS else hosts[count:] for name in free}


def _pod_count(kubernetes: Any) -> int | None:
    """Return the number of pods; None if it is not valid."""
    written = kubernetes.get("pods", 1) if isinstance(kubernetes, dict) else None
    return written if type(written) is int and 1 <= written <= settings.MAX_TASKS else None
