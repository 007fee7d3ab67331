"""A played Kubernetes: `kubectl`, and behind it the API server and the controllers of StatefulSets and Jobs.

Its pods run for real, see `tests.kubelet`. As a program: the folder of the state, then the arguments of kubectl.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

Json = dict[str, Any]
_NAMESPACE = "ml"
_EMPTY: Json = {"objects": {}, "pods": {}, "forbidden": [], "states": {}, "addresses": 0}
_IMMUTABLE = ("selector", "serviceName", "podManagementPolicy", "volumeClaimTemplates")
_FORBIDDEN = (
    "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', "
    "'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden"
)


def version(folder: Path) -> tuple[int, int]:
    """Return what differs after each change of the state."""
    status = (folder / "state.json").stat()
    return status.st_ino, status.st_mtime_ns


def read(folder: Path) -> Json:
    """Return the state: `objects` and `pods` by name, and what tests set.

    That is: rights that are `forbidden`; `states` of pods that do not start, by name; a `quota` of pods; `events`; the
    `error` of all commands but `config` and `exec`.
    """
    path = folder / "state.json"
    return {**_EMPTY, **json.loads(path.read_text())} if path.exists() else json.loads(json.dumps(_EMPTY))


@contextlib.contextmanager
def changing(folder: Path) -> Iterator[Json]:
    """Yield the state, and store it at the end."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        state = read(folder)
        yield state
        new = folder / "state.new"
        new.write_text(json.dumps(state))
        new.replace(folder / "state.json")  # readers take no lock


def control(folder: Path, state: Json) -> None:
    """Make and delete pods as the controllers do, those of StatefulSets with `Parallel` and `OnDelete`."""
    wanted = {
        f"{each['metadata']['name']}-{index}": (key, index)
        for key, each in state["objects"].items()
        for index in range(_count(each))
    }
    for name, pod in state["pods"].items():
        pod["is_deleted"] |= wanted.get(name, ("",))[0] != pod["owner"]
    for name in [name for name in wanted if name not in state["pods"]]:
        if len(state["pods"]) < state.get("quota", len(wanted)):
            _make_pod(folder, state, name, *wanted[name])


def _make_pod(folder: Path, state: Json, name: str, key: str, index: int) -> None:
    owner = state["objects"][key]
    claims = [each["metadata"]["name"] for each in owner["spec"].get("volumeClaimTemplates", ())]
    for claim in claims:
        metadata = {"name": f"{claim}-{name}", "labels": owner["spec"]["selector"]["matchLabels"]}
        found = {"kind": "PersistentVolumeClaim", "metadata": metadata, "spec": {}}
        state["objects"].setdefault(f"PersistentVolumeClaim/{metadata['name']}", found)
    state["addresses"] += 1  # each pod has another one
    state["pods"][name] = {
        "owner": key,
        "labels": owner["spec"]["template"]["metadata"]["labels"] | {"controller-revision-hash": _revision(owner)},
        "spec": owner["spec"]["template"]["spec"],
        "claims": claims,
        "address": f"10.77.0.{100 + state['addresses']}",
        "variables": {"JOB_COMPLETION_INDEX": str(index)} if owner["kind"] == "Job" else {},
        "is_deleted": False,
        "is_ready": False,
        "pid": None,  # of the first process of its container
        "restarts": 0,
        "exit_code": None,  # of a container that is not restarted
    }
    publish_names(folder, state)
    command = [sys.executable, "-S", "-m", "tests.kubelet", str(folder), name]
    with (folder / "kubelet.log").open("a") as log:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        subprocess.Popen(command, start_new_session=True, **streams)


def publish_names(folder: Path, state: Json) -> None:
    """Write the names of the pods into /etc/hosts of all of them, as the DNS of their headless Service has them."""
    lines = ["127.0.0.1 localhost"]
    for name, pod in state["pods"].items():
        service = pod["owner"].partition("/")[2]
        lines.append(f"{pod['address']} {name}.{service}.{_NAMESPACE}.svc {name}.{service} {name}")
    descriptor = os.open(folder / "hosts", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(descriptor, "\n".join(lines).ljust(4096, "\n").encode())  # without a moment in which it is empty
    os.close(descriptor)


def _spec(each: Json) -> Json:
    found: Json = each.get("spec", {})
    return found


def _count(each: Json) -> int:
    spec = _spec(each)
    return int(spec["replicas"] if "replicas" in spec else spec.get("completions", 0))


def _revision(stateful_set: Json) -> str:
    template = json.dumps(stateful_set["spec"]["template"], sort_keys=True)
    return f"{stateful_set['metadata']['name']}-{hashlib.sha256(template.encode()).hexdigest()[:8]}"


def _status(stateful_set: Json) -> Json:
    return {"status": {"updateRevision": _revision(stateful_set)}}


class Kubectl:
    """One command."""

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._folder = folder
        self._words = [word for word in arguments if not word.startswith("--")]
        self._options = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
        self._arguments = arguments

    def run(self) -> str:
        """Carry it out, and return what it prints; an error exits."""
        if "exec" in self._words:
            self._exec()
        with changing(self._folder) as self._state:
            if "config" not in self._words and self._state.get("error"):
                sys.exit(self._state["error"])
            printed: str = getattr(self, f"_{self._words[0]}")(*self._words[1:])
            control(self._folder, self._state)
        return printed

    def _exec(self) -> None:
        from tests.kubelet import exec_command  # with which few commands have to do

        split = self._arguments.index("--")
        name = self._arguments[split - 3]
        pod = read(self._folder)["pods"].get(name)
        if pod is None:
            sys.exit(f'Error from server (NotFound): pods "{name}" not found')
        if pod["pid"] is None:
            sys.exit('error: unable to upgrade connection: container not found ("tfcluster")')
        command = exec_command(name, pod, self._arguments[split + 1 :])
        os.execvp(command[0], command)

    def _config(self, _view: str) -> str:
        contexts = [{"name": "prod", "context": {"namespace": _NAMESPACE}}]
        return json.dumps({"current-context": self._state.get("context", "prod"), "contexts": contexts})

    def _create(self) -> str:
        """Answer reviews of access, with the option that prints what is allowed."""
        assert self._options["output"] == 'jsonpath={.status.allowed}{"\\n"}'
        asked = [each["spec"]["resourceAttributes"] for each in json.load(sys.stdin)["items"]]
        rights = ([each["verb"], "/".join(filter(None, (each["resource"], each["subresource"])))] for each in asked)
        return "\n".join("false" if right in self._state["forbidden"] else "true" for right in rights)

    def _apply(self) -> str:
        import yaml

        assert {"server-side", "field-manager"} <= self._options.keys()
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # many times as fast
        applied = [*yaml.load_all(sys.stdin, loader)]
        objects = self._state["objects"]
        for each in applied:
            before = objects.get(f"{each['kind']}/{each['metadata']['name']}")
            if before and any(_spec(before).get(name) != _spec(each).get(name) for name in _IMMUTABLE):
                sys.exit(f'The {each["kind"]} "{each["metadata"]["name"]}" is invalid: spec: Forbidden: {_FORBIDDEN}')
        if "dry-run" in self._options:
            return json.dumps({"items": applied})
        objects |= {f"{each['kind']}/{each['metadata']['name']}": each for each in applied}
        return ""

    def _get(self, kinds: str = "", *names: str) -> str:
        if "raw" in self._options:
            kind, name = self._options["raw"].rsplit("/", 2)[1:]
            for each in self._find(kind):
                if each["metadata"]["name"] == name:
                    return json.dumps(each)
            sys.exit(f'Error from server (NotFound): {kind}.apps "{name}" not found')
        if kinds == "namespace":
            return names[0] if names[0] == _NAMESPACE else sys.exit(f'(NotFound): namespaces "{names[0]}" not found')
        if kinds == "events":
            return json.dumps({"items": self._state.get("events", [])})
        pods = [self._show_pod(name) for name in self._state["pods"]] if kinds == "pods" else []
        found = [each for each in (*pods, *self._find(kinds)) if self._is_selected(each, names)]
        if self._options["output"] == "name":
            groups = {"StatefulSet": ".apps", "NetworkPolicy": ".networking.k8s.io"}
            return "\n".join(
                f"{each['kind'].lower()}{groups.get(each['kind'], '')}/{each['metadata']['name']}" for each in found
            )
        if self._options["output"].startswith("jsonpath={.data."):
            key = self._options["output"][len("jsonpath={.data.") : -1].replace("\\.", ".")
            return "".join(each["data"][key] for each in found)
        shown = [each | _status(each) if each["kind"] == "StatefulSet" else each for each in found]
        return "".join(map(json.dumps, shown)) if names else json.dumps({"items": shown})

    def _find(self, kinds: str) -> list[Json]:
        """Return the objects of some kinds, which are in the plural."""
        return [each for each in self._state["objects"].values() if each["kind"].lower() in kinds.replace("ies", "y")]

    def _is_selected(self, each: Json, names: tuple[str, ...]) -> bool:
        metadata, wanted = each["metadata"], self._options.get("selector", "").split(",")
        labels = metadata.get("labels", {})
        pairs = [(word.partition("!=" if "!=" in word else "=")) for word in wanted if word]
        is_labelled = all((labels.get(name) == value) is (sign == "=") for name, sign, value in pairs)
        return is_labelled and (not names or metadata["name"] in names)

    def _show_pod(self, name: str) -> Json:
        pod = self._state["pods"][name]
        metadata = {
            "name": name,
            "uid": pod["address"],
            "labels": pod["labels"],
            **(pod.setdefault("deletion", self._deletion(pod)) if pod["is_deleted"] else {}),
        }
        status: Json = {"phase": "Pending"}
        if name in self._state["states"]:
            status = self._state["states"][name]
        elif pod["exit_code"] is not None:
            status = {"phase": "Failed" if pod["exit_code"] else "Succeeded"}
        elif pod["pid"] is not None:
            container = {
                "name": "tfcluster",
                "state": {"running": {}},
                "ready": pod["is_ready"],
                "restartCount": pod["restarts"],
            }
            status = {"phase": "Running", "containerStatuses": [container]}
        return {"kind": "Pod", "metadata": metadata, "status": status}

    def _deletion(self, pod: Json) -> Json:
        """Return what a pod that is deleted has in its metadata: when its grace period ends, and how long it is."""
        grace = pod["spec"].get("terminationGracePeriodSeconds", 30)
        end = datetime.now(UTC) + timedelta(seconds=grace)
        return {"deletionTimestamp": f"{end:%Y-%m-%dT%H:%M:%SZ}", "deletionGracePeriodSeconds": grace}

    def _delete(self, kinds: str, *names: str) -> str:
        if kinds == "pods":
            assert self._options["wait"] == "false", "what runs in a pod may take two minutes to end"
            for name in names:
                self._state["pods"][name]["is_deleted"] = True
        else:
            assert names or "selector" in self._options
            for each in self._find(kinds):
                if self._is_selected(each, names):
                    del self._state["objects"][f"{each['kind']}/{each['metadata']['name']}"]
        return ""


if __name__ == "__main__":
    print(Kubectl(Path(sys.argv[1]), sys.argv[2:]).run())
