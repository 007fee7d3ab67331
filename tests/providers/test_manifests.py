"""What `manifests` prints: as the golden files have it, valid in five versions of the API, and without privileges."""

from __future__ import annotations

import base64
import functools
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import yaml
from click.testing import CliRunner

from tests.conftest import ROOT, mostly_slow, wait_for
from tfcluster.cli.main import cli
from tfcluster.core.resolve import resolve_spec
from tfcluster.core.topology import ClusterTopology
from tfcluster.providers.kubernetes.kubectl import place_for_manifests
from tfcluster.providers.kubernetes.manifests import code_manifest, job_manifests, pod_manifests, topology_manifests
from tfcluster.providers.kubernetes.request import KubernetesSpec
from tfcluster.spec.load import parse_spec

GOLDEN = Path(__file__).parent / "manifests"
VERSIONS = ("1.33.0", "1.34.0", "1.35.0", "1.36.0", "1.37.0")
SECRET = (
    "name: secret\nkubernetes: {pods: 2, image: a/b, namespace: ml, gpus: 2}\n"
    "jobs: {worker: {tasks: 4, gpus: 1, env: {A: {secret: xyzzy}}}}\n"
)
JOBS = "jobs: {ps: {tasks: 1, hosts: [pod0]}, worker: {tasks: 4, gpus: 1}, evaluator: {tasks: 1}}\n"
SPECS = {
    "small": "name: small\nkubernetes: {image: a/b}\nnetwork: open\njobs: {worker: {tasks: 1}}\n",
    "train": 'name: train\nkubernetes: {pods: 4, image: "tensorflow/tensorflow:2.21.0", namespace: ml, gpus: 1, '
    f"cpu: 8, memory: 32Gi, storage: 10Gi, context: prod}}\nhost: {{python: /opt/tf/bin/python}}\n{JOBS}",
    "on": 'name: "on"\nkubernetes: {image: "true", namespace: "1e3", memory: 1E, cpu: 500m}\n'
    'host: {shell: "source /opt/conda/bin/activate tf"}\njobs: {worker: {tasks: 2}}\n',
}


def load(name: str) -> tuple[ClusterTopology, KubernetesSpec]:
    spec = parse_spec(SPECS.get(name, SECRET), "cluster.yaml", "demo")
    assert spec.kubernetes is not None
    return resolve_spec(spec, "cluster.yaml"), spec.kubernetes


def texts() -> dict[str, str]:
    printed = {f"{name}.yaml": pod_manifests(*load(name)) for name in SPECS}
    return {**printed, "train-job.yaml": job_manifests(*load("train"), ["python3", "/app/train.py", "--epochs=3"])}


@pytest.mark.parametrize("name", ["small.yaml", "train.yaml", "on.yaml", "train-job.yaml"])
def test_the_manifests_are_those_of_the_golden_files(name: str) -> None:
    assert texts()[name] == (GOLDEN / name).read_text()


@pytest.mark.parametrize("version", mostly_slow(VERSIONS, fast=[VERSIONS[0], VERSIONS[-1]]))
def test_the_manifests_are_valid_in_strict_mode(version: str) -> None:
    topology, request = load("secret")
    added = (code_manifest("train", "ml"), topology_manifests(place_for_manifests(topology, request), "ml"))
    for text in (*texts().values(), *added):
        for each in yaml.safe_load_all(text):
            kubernetes_validate.validate(each, version, strict=True)


def pod_spec(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = [*yaml.safe_load_all(texts()[name])][-1]["spec"]["template"]["spec"]
    return spec


@pytest.mark.parametrize("name", ["train.yaml", "train-job.yaml"])
def test_pods_have_no_privileges_and_a_home_that_they_can_write_to(name: str) -> None:
    pod = pod_spec(name)
    container = pod["containers"][0]
    assert pod["automountServiceAccountToken"] is False
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    home = next(each["value"] for each in container["env"] if each["name"] == "HOME")
    code = [] if name == "train-job.yaml" else [{"name": "start", "mountPath": "/etc/tfcluster"}]
    assert container["volumeMounts"] == [{"name": "home", "mountPath": home}, *code]


def test_the_topology_has_the_addresses_of_all_tasks_and_no_secret_value() -> None:
    topology, request = load("secret")
    placed = place_for_manifests(topology, request)
    stored, secret = yaml.safe_load_all(topology_manifests(placed, "ml"))
    text = gzip.decompress(base64.b64decode(stored["binaryData"]["topology.json.gz"])).decode()
    assert "xyzzy" not in text
    assert "xyzzy" in secret["stringData"]["secrets.json"]
    tasks = json.loads(text)["tasks"]
    places = [(task["address_host"], task["port"], task["gpu_ids"]) for task in tasks]
    first, second = "secret-0.secret.ml.svc", "secret-1.secret.ml.svc"
    assert places == [(first, 2222, ["0"]), (second, 2222, ["0"]), (first, 2223, ["1"]), (second, 2223, ["1"])]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ("kubernetes: {image: a/b}\n", "the spec has no `namespace:`, which the addresses of the tasks need"),
        ("kubernetes: {image: a/b, namespace: ml}\nhost: {setup: [echo]}\n", "the spec has `setup:`"),
        ("kubernetes: {image: a/b, namespace: ml}\nlease: 60\n", "the spec has a `lease:`"),
    ],
)
def test_manifests_whose_pods_do_not_start_their_tasks_say_why(more: str, reason: str, tmp_path: Path) -> None:
    spec = tmp_path / "pods.yaml"
    spec.write_text(f"name: alone\n{more}jobs: {{worker: {{tasks: 1}}}}\n")
    printed = CliRunner().invoke(cli, ["manifests", str(spec)])
    assert printed.exit_code == 0
    assert printed.output.startswith(f"# These pods wait for `tfcluster up`, which starts the tasks: {reason}")
    names = [(each["kind"], each["metadata"]["name"]) for each in yaml.safe_load_all(printed.output)]
    assert ("StatefulSet", "alone") in names
    assert ("ConfigMap", "alone-tfcluster-topology") not in names


def test_the_code_in_the_manifests_fits_into_a_config_map() -> None:
    assert len(code_manifest("train", "ml")) < 900_000, "Kubernetes refuses objects of more than 1 MiB"


@pytest.mark.needs("network")
def test_a_pod_that_is_deleted_gives_runs_the_time_to_save_their_state(tmp_path: Path) -> None:
    """The container's command is process 1 of a pod; the process of the lock stands for the agent and for a program."""
    [container] = pod_spec("train.yaml")["containers"]
    command = [word.replace("/opt/tf/bin/python", sys.executable) for word in container["command"]]
    state = tmp_path / ".local" / "state" / "tfcluster" / "train" / "pod0"
    state.mkdir(parents=True)
    program = (
        "import json, os, signal, sys, time\n"
        "def save(*_):\n"
        f"    time.sleep(1); open({str(tmp_path / 'saved')!r}, 'w').write('all'); sys.exit()\n"
        "signal.signal(signal.SIGPWR, save)\n"
        f"json.dump({{'pid': os.getpid()}}, open({str(state / 'lock')!r}, 'w'))\n"
        f"open({str(tmp_path / 'ready')!r}, 'w').close(); time.sleep(60)\n"
    )
    title = "tfcluster: train train-83e8 program"
    beside = f'(exec -a \'{title}\' {sys.executable} -c "$1") & shift; exec "$@"'
    pod = [
        *("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", beside, "bash", program),
        *command,
    ]
    environment = {**os.environ, "HOME": str(tmp_path), "HOSTNAME": "train-0"}
    with subprocess.Popen(pod, env=environment) as outside:
        wait_for((tmp_path / "ready").exists)
        [first] = Path(f"/proc/{outside.pid}/task/{outside.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        assert outside.wait(30) == 0
    assert (tmp_path / "saved").read_text() == "all"


def test_only_the_pods_of_the_cluster_are_admitted_unless_the_network_is_open() -> None:
    policy = next(each for each in yaml.safe_load_all(texts()["train.yaml"]) if each["kind"] == "NetworkPolicy")
    stateful_set = [*yaml.safe_load_all(texts()["train.yaml"])][-1]
    labels = stateful_set["spec"]["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["ingress"] == [{"from": [{"podSelector": {"matchLabels": labels}}]}]
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    assert [each["kind"] for each in yaml.safe_load_all(texts()["small.yaml"])] == ["Service", "StatefulSet"]


def test_a_pod_of_the_job_gives_its_program_its_own_tf_config() -> None:
    container = pod_spec("train-job.yaml")["containers"][0]
    show = ["python3", "-c", "import os; print(os.environ['TF_CONFIG'])"]
    configs = []
    for index in range(6):
        result = subprocess.run(
            [sys.executable, *container["command"][1:], *show],
            env={"JOB_COMPLETION_INDEX": str(index), "PATH": "/usr/bin:/bin"},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        configs.append(json.loads(result.stdout))
    names = [f"train-{index}.train:2222" for index in range(6)]
    assert {json.dumps(each["cluster"]) for each in configs} == {json.dumps({"ps": names[:1], "worker": names[1:5]})}
    tasks = [(each["task"]["type"], each["task"]["index"]) for each in configs]
    assert tasks == [("ps", 0), *(("worker", index) for index in range(4)), ("evaluator", 0)]


def read_page() -> tuple[str, str]:
    """The spec and the kustomization of the documentation."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    blocks = [block.partition("```")[0] for block in text.split("```yaml\n")[1:]]
    [spec] = [block for block in blocks if block.startswith("# pods.yaml")]
    [kustomization] = [block for block in blocks if block.startswith("# kustomization.yaml")]
    return spec, kustomization


def test_the_kustomization_of_the_documentation_fits_the_manifests(tmp_path: Path) -> None:
    text, written = read_page()
    spec = parse_spec(text, "pods.yaml", "demo")
    assert spec.kubernetes is not None
    printed = pod_manifests(resolve_spec(spec, "pods.yaml"), spec.kubernetes)
    kustomization = yaml.safe_load(written)
    [patch] = kustomization["patches"]
    [expected] = select(printed, **patch["target"])
    [operation] = yaml.safe_load(patch["patch"])
    assert operation["op"] == "add"
    *parents, name = operation["path"].strip("/").split("/")
    functools.reduce(lambda value, key: value[key], parents, expected)[name] = operation["value"]
    kubernetes_validate.validate(expected, VERSIONS[-1], strict=True)

    if not has_kustomize():
        return
    (tmp_path / "kustomization.yaml").write_text(written)
    (tmp_path / kustomization["resources"][0]).write_text(printed)
    command = ["kubectl", "kustomize", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert select(result.stdout, **patch["target"]) == [expected]


def select(manifests: str, kind: str, name: str) -> list[dict[str, Any]]:
    """Return the objects of a kind and name."""
    found = yaml.safe_load_all(manifests)
    return [each for each in found if (each["kind"], each["metadata"]["name"]) == (kind, name)]


def has_kustomize() -> bool:
    """Return whether there is a kubectl that knows `patches`; Debian's is older."""
    if shutil.which("kubectl") is None:
        return False
    command = ["kubectl", "version", "--client", "--output=json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return "kustomizeVersion" in result.stdout
