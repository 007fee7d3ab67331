"""The manifests of a cluster of pods, as YAML for people: what `up` applies, and a plain Job without tfcluster.

With the topology they are an `up` by themselves: the pods find tfcluster's code and the topology in ConfigMaps, and
start their tasks. `up` applies the topology after it has started the tasks, for pods that replace others.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tfcluster.core.secrets import has_secrets, values_of, without_values
from tfcluster.core.topology import CLOSED, ClusterTopology
from tfcluster.paths import LOCK, SOCKET
from tfcluster.protocol.serialization import to_stored
from tfcluster.providers.kubernetes import start
from tfcluster.providers.kubernetes.start import CODE, FACTS, HAS_SECRETS, MOUNTED, SECRETS, SESSION, TOPOLOGY, WAS_UP
from tfcluster.transport.provision import code_session, code_zip, in_environment

if TYPE_CHECKING:
    from tfcluster.providers.kubernetes.request import KubernetesSpec

#: The container of each pod.
CONTAINER = "tfcluster"
#: What all objects of a cluster, and no others, have.
MANAGED_BY = ("app.kubernetes.io/managed-by", "tfcluster")
INSTANCE = "app.kubernetes.io/instance"
# What needs no quotes in YAML.
_PLAIN = re.compile(r"[A-Za-z][\w.-]*[/:][\w./:@-]*\w|[0-9]+[KMGT]i|/?[a-z][\w./-]{2,}")
_NOT_TEXT = ("yes", "true", "off", "false", "null")
# Seconds for runs to save their state when a pod is deleted; without runs, a pod ends at once.
_GRACE = 120
# The user of the pods: TensorFlow's own images have root, which runAsNonRoot refuses.
_USER = 1000
_HOME = "/home/tfcluster"

_METADATA = """\
metadata:
  name: {name}
{namespace}  labels: &labels
    app.kubernetes.io/managed-by: tfcluster
    app.kubernetes.io/instance: {cluster}
"""
_SERVICE = """\
# Gives each pod a name that the others can resolve, also before it is ready.
apiVersion: v1
kind: Service
{metadata}spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: *labels
"""
_POLICY = """\
# Admits only the pods of the cluster: a TensorFlow server asks nobody who he is. A network plugin has to enforce it.
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
{metadata}spec:
  podSelector:
    matchLabels: *labels
  policyTypes: [Ingress]
  ingress:
  - from:
    - podSelector:
        matchLabels: *labels
"""
_STATEFUL_SET = """\
apiVersion: apps/v1
kind: StatefulSet
{metadata}spec:
  serviceName: {name}
  replicas: {replicas}
  podManagementPolicy: Parallel
  updateStrategy:
    type: OnDelete  # a ps holds the model: `tfcluster up` asks before it replaces a pod
  selector:
    matchLabels: *labels
  template:
    metadata:
      labels: *labels
    spec:
      terminationGracePeriodSeconds: {grace}
{pod}      containers:
      - name: {container}
        image: {image}
        # Starts the agent again after a restart, adopts and reaps what has lost its parent, and holds the pod.
        command:
        - sh
        - -c
        - |
          host=pod${{HOSTNAME##*-}}
          state="$HOME/.local/state/tfcluster/{cluster}/$host"
          # The agent sends SIGTERM to runs, which may save their state.
          end() {{
            cd "$state" && test -e {lock} && {warn} &&
            while grep -qs '^[t]fcluster: .* program' /proc/[0-9]*/cmdline; do sleep 0.5; done
            sleep 0.5
            exit 0
          }}
          trap end TERM
          {start} {cluster} "$host"
          while :; do sleep 3600 & wait $!; done
        # Ready: the agent listens.
        readinessProbe:
          exec:
            command:
            - sh
            - -c
            - |
              cd "$HOME/.local/state/tfcluster/{cluster}/pod${{HOSTNAME##*-}}" 2>/dev/null &&
              exec {probe}
          timeoutSeconds: 5
{container_rest}"""
_WARN = f'import json, os, signal; os.kill(json.load(open("{LOCK}"))["pid"], signal.SIGPWR)'
_PROBE = f'import socket; socket.socket(socket.AF_UNIX).connect("{SOCKET}")'
_START = f'import sys; sys.path.insert(0, "{MOUNTED / CODE}"); from {start.__name__} import install; install()'
_POD = f"""\
      automountServiceAccountToken: false
      enableServiceLinks: false
      securityContext:
        runAsNonRoot: true
        runAsUser: {_USER}
        runAsGroup: {_USER}
        fsGroup: {_USER}
        seccompProfile:
          type: RuntimeDefault
"""
_CONTAINER_REST = """\
{resources}        securityContext:
          allowPrivilegeEscalation: false
          capabilities:
            drop: [ALL]
        env:
        - name: HOME
          value: {home}
        volumeMounts:
        - name: home
          mountPath: {home}
"""
_MOUNT = """\
        - name: start
          mountPath: {mounted}
"""
_VOLUMES = """\
      volumes:
"""
_EMPTY_HOME = """\
      - name: home
        emptyDir: {}
"""
# The objects with which a new pod starts its tasks; the topology is known once they have started.
_START_VOLUME = """\
      - name: start
        projected:
          sources:
          - configMap: {{name: {code}}}
          - configMap: {{name: {topology}, optional: true}}
          - secret: {{name: {secrets}, optional: true}}
"""
_CODE = """\
# tfcluster's code, as a zip archive.
apiVersion: v1
kind: ConfigMap
{metadata}data:
  {session_file}: {session}
binaryData:
  {code_file}: {code}
"""
_TOPOLOGY = """\
# The tasks of the cluster, which a new pod starts, as compressed JSON.
apiVersion: v1
kind: ConfigMap
{metadata}data:
  {facts_file}: {facts}
binaryData:
  {file}: {topology}
"""
_SECRETS = """\
apiVersion: v1
kind: Secret
{metadata}stringData:
  {file}: {secrets}
"""
_CLAIMED_HOME = """\
  volumeClaimTemplates:
  - metadata:
      name: home
    spec:
      accessModes: [ReadWriteOnce]
      resources:
        requests:
          storage: {storage}
"""
_JOB = """\
# One pod for each task. Each program finds its own task in TF_CONFIG.
apiVersion: batch/v1
kind: Job
{metadata}spec:
  completionMode: Indexed
  completions: {count}
  parallelism: {count}
  backoffLimit: 0
  template:
    metadata:
      labels: *labels
    spec:
      subdomain: {name}
      restartPolicy: Never
{pod}      containers:
      - name: {container}
        image: {image}
        command:
        - {python}
        - -c
        - |
{code}        args: {arguments}
{container_rest}"""
# An evaluator must not be in `cluster`: the others would wait for it to serve.
_JOB_CODE = """\
import json, os, sys
jobs = {jobs}
port = {port}
index = int(os.environ["JOB_COMPLETION_INDEX"])
tasks = [(job, number) for job, count in jobs.items() for number in range(count)]
cluster = {{}}
for each, (job, number) in enumerate(tasks):
    if job != "evaluator":
        cluster.setdefault(job, []).append(f"{name}-{{each}}.{name}:{{port}}")
job, number = tasks[index]
os.environ["TF_CONFIG"] = json.dumps({{"cluster": cluster, "task": {{"type": job, "index": number}}}})
os.execvp(sys.argv[1], sys.argv[1:])
"""
_JOB_PORT = 2222


def object_names(cluster: str) -> tuple[str, str, str]:
    """Return the names of the objects with the code, the topology and the secrets of a cluster."""
    return f"{cluster}-tfcluster-code", f"{cluster}-tfcluster-topology", f"{cluster}-tfcluster-secrets"


def pod_manifests(topology: ClusterTopology, request: KubernetesSpec, replicas: int | None = None) -> str:
    """Return the objects of a cluster of pods, as many as the spec says, or `replicas`, without its topology."""
    name, host = topology.cluster, topology.hosts[0]
    code_name, topology_name, secrets_name = map(_scalar, object_names(name))
    metadata = _metadata(name, request.namespace)
    stateful_set = _STATEFUL_SET.format(
        **{
            "name": _scalar(name),
            "metadata": metadata,
            "replicas": replicas or request.pods,
            "pod": _POD,
        },
        **{"container": CONTAINER, "image": _scalar(request.image), "cluster": name},
        start=in_environment(f"{shlex.quote(host.interpreter)} -c {shlex.quote(_START)}", host.shell),
        grace=_GRACE,
        lock=LOCK,
        warn=in_environment(f"{shlex.quote(host.interpreter)} -c {shlex.quote(_WARN)}", host.shell),
        probe=in_environment(f"{shlex.quote(host.interpreter)} -c {shlex.quote(_PROBE)}", host.shell),
        container_rest=_container_rest(request) + _MOUNT.format(mounted=MOUNTED),
    )
    stateful_set += _VOLUMES + (_EMPTY_HOME if request.storage is None else "")
    stateful_set += _START_VOLUME.format(code=code_name, topology=topology_name, secrets=secrets_name)
    stateful_set += "" if request.storage is None else _CLAIMED_HOME.format(storage=_scalar(request.storage))
    policy = [_POLICY.format(metadata=metadata)] if topology.network == CLOSED else []
    return "---\n".join([_SERVICE.format(metadata=metadata), *policy, stateful_set])


def code_manifest(cluster: str, namespace: str | None) -> str:
    """Return the ConfigMap with tfcluster's code."""
    return _CODE.format(
        metadata=_metadata(object_names(cluster)[0], namespace, cluster),
        session_file=SESSION,
        session=json.dumps(json.dumps(code_session(None))),
        code_file=CODE,
        code=base64.b64encode(code_zip()).decode(),
    )


def why_up_is_needed(topology: ClusterTopology) -> str | None:
    """Return why pods do not start the tasks of a cluster by themselves; None if they do."""
    if any(host.setup for host in topology.hosts):
        return "the spec has `setup:`, which `tfcluster up` runs"
    if topology.lease is not None:  # what it has ended would start again
        return "the spec has a `lease:`"
    return None


def compress(topology: ClusterTopology) -> str:
    """Return a topology without its secret values, as it is stored."""
    text = json.dumps(to_stored(without_values(topology)))
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def topology_manifests(topology: ClusterTopology, namespace: str | None, *, was_up: bool = False) -> str:
    """Return the ConfigMap with the topology of a cluster, and the Secret with its secret values, if it has any.

    A pod that starts tasks of a topology that `was_up` replaces another one.
    """
    cluster = topology.cluster
    _, topology_name, secrets_name = object_names(cluster)
    facts = json.dumps(json.dumps({HAS_SECRETS: has_secrets(topology), WAS_UP: was_up}))
    texts = {"facts_file": FACTS, "facts": facts, "file": TOPOLOGY, "topology": compress(topology)}
    objects = [_TOPOLOGY.format(metadata=_metadata(topology_name, namespace, cluster), **texts)]
    if has_secrets(topology):
        values = json.dumps(json.dumps(values_of(topology)))
        metadata = _metadata(secrets_name, namespace, cluster)
        objects.append(_SECRETS.format(metadata=metadata, file=SECRETS, secrets=values))
    return "---\n".join(objects)


def job_manifests(topology: ClusterTopology, request: KubernetesSpec, arguments: Sequence[str]) -> str:
    """Return a Service and an Indexed Job that run a program once for each task, without tfcluster."""
    name, host = topology.cluster, topology.hosts[0]
    metadata = _metadata(name, request.namespace)
    jobs = {job: len(addresses) for job, addresses in topology.addresses().items()}
    code = _JOB_CODE.format(jobs=json.dumps(jobs), port=_JOB_PORT, name=name)
    job = _JOB.format(
        **{
            "name": _scalar(name),
            "metadata": metadata,
            "count": len(topology.tasks),
            "pod": _POD,
        },
        **{"container": CONTAINER, "image": _scalar(request.image), "python": _scalar(host.interpreter)},
        code="".join(f"          {line}\n" for line in code.splitlines()),
        arguments=json.dumps([*arguments]),
        container_rest=_container_rest(request),
    )
    policy = [_POLICY.format(metadata=metadata)] if topology.network == CLOSED else []
    return "---\n".join([_SERVICE.format(metadata=metadata), *policy, job + _VOLUMES + _EMPTY_HOME])


def _metadata(name: str, namespace: str | None, cluster: str | None = None) -> str:
    line = "" if namespace is None else f"  namespace: {_scalar(namespace)}\n"
    return _METADATA.format(name=_scalar(name), namespace=line, cluster=_scalar(cluster or name))


def _container_rest(request: KubernetesSpec) -> str:
    return _CONTAINER_REST.format(resources=_resources(request), home=_HOME)


def _resources(request: KubernetesSpec) -> str:
    requests = {"cpu": request.cpu, "memory": request.memory}
    limits = {"memory": request.memory, "nvidia.com/gpu": str(request.gpus) if request.gpus else None}
    lines: list[str] = []
    for kind, amounts in (("requests", requests), ("limits", limits)):
        given = [f"            {name}: {_scalar(amount)}\n" for name, amount in amounts.items() if amount is not None]
        lines += [f"          {kind}:\n", *given] if given else []
    return "".join(["        resources:\n", *lines]) if lines else ""


def _scalar(text: str) -> str:
    """Return a text as YAML, without quotes where a person would write none."""
    return text if _PLAIN.fullmatch(text) and text not in _NOT_TEXT else json.dumps(text)
