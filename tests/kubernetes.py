"""A played kubectl: it keeps the objects that are applied in a folder, and its pods are hosts of `tests.hosts`.

Run as a program: FOLDER, the folder of this file's state, then the arguments of kubectl.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]
_NAMESPACE = "ml"
_EMPTY: Json = {"objects": {}, "pods": {}, "forbidden": [], "states": {}}


class Kubectl:
    """One command on the stored state: `objects` and `pods` by name, rights that are `forbidden`, `states` of pods.

    A `quota` is the number of pods that may exist, and `events` are what `get events` prints.
    """

    def __init__(self, folder: Path, arguments: list[str]) -> None:
        self._folder = folder
        self._words = [word for word in arguments if not word.startswith("--")]
        self._options = dict(word[2:].partition("=")[::2] for word in arguments if word.startswith("--"))
        self._arguments = arguments

    def run(self) -> int:
        if "exec" in self._words:
            self._exec()
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            path = self._folder / "state.json"
            self._state: Json = json.loads(path.read_text()) if path.exists() else _EMPTY
            method = getattr(self, f"_{self._words[0]}")
            code: int = method(*self._words[1:])
            path.write_text(json.dumps(self._state))
        return code

    def _exec(self) -> None:
        """Run a command in a pod: as a host on the network, with the names of the pods in /etc/hosts."""
        split = self._arguments.index("--")
        pod = self._arguments[split - 3]
        if pod not in json.loads((self._folder / "state.json").read_text())["pods"]:
            print(f'Error from server (NotFound): pods "{pod}" not found', file=sys.stderr)
            sys.exit(1)
        terminal = ["-t"] * ("-t" in self._arguments[:split])
        script = f'mount --bind {self._folder}/hosts /etc/hosts; exec "$@"'
        enter = ["enter", *terminal, pod, *self._arguments[split + 1 :]]
        os.execvp("unshare", ["unshare", "--mount", "sh", "-ec", script, "sh", *enter])

    def _config(self, _view: str) -> int:
        contexts = [{"name": "prod", "context": {"namespace": _NAMESPACE}}]
        print(json.dumps({"current-context": self._state.get("context", "prod"), "contexts": contexts}))
        return 0

    def _auth(self, _can: str, verb: str, kind: str) -> int:
        is_forbidden = [verb, kind] in self._state["forbidden"]
        print("no - RBAC: not allowed" if is_forbidden else "yes")
        return int(is_forbidden)

    def _apply(self) -> int:
        assert {"server-side", "field-manager"} <= self._options.keys()
        if "dry-run" in self._options:
            print(json.dumps({"items": [*yaml.safe_load_all(sys.stdin)]}))
            return 0
        for each in yaml.safe_load_all(sys.stdin):
            self._state["objects"][f"{each['kind']}/{each['metadata']['name']}"] = each
            if each["kind"] == "StatefulSet":
                template = json.dumps(each["spec"]["template"], sort_keys=True)
                each["status"] = {"updateRevision": hashlib.sha256(template.encode()).hexdigest()[:8]}
        self._control()
        return 0

    def _control(self) -> None:
        """Make and delete pods, as the controller of StatefulSets does with `Parallel` and `OnDelete`."""
        wanted: dict[str, str] = {}
        for each in self._state["objects"].values():
            if each["kind"] == "StatefulSet":
                names = (f"{each['metadata']['name']}-{index}" for index in range(each["spec"]["replicas"]))
                wanted |= dict.fromkeys(names, each["status"]["updateRevision"])
        pods = {name: revision for name, revision in self._state["pods"].items() if name in wanted}
        quota = self._state.get("quota", len(wanted))
        self._state["pods"] = dict([*{**wanted, **pods}.items()][:quota])

    def _get(self, kinds: str, *names: str) -> int:
        if kinds == "namespace":
            if names[0] != _NAMESPACE:
                print(f'Error from server (NotFound): namespaces "{names[0]}" not found', file=sys.stderr)
            return int(names[0] != _NAMESPACE)
        if kinds == "events":
            print(json.dumps({"items": self._state.get("events", [])}))
            return 0
        items = [self._pod(name) for name in self._state["pods"]] if kinds == "pods" else []
        items += [each for each in self._state["objects"].values() if each["kind"].lower() in kinds.replace("ies", "y")]
        if names:
            print(json.dumps(items[0]) if items else "")
        else:
            print(json.dumps({"items": items}))
        return 0

    def _pod(self, name: str) -> Json:
        state = self._state["states"].get(name, {"containerStatuses": [{"state": {"running": {}}}]})
        labels = {"controller-revision-hash": self._state["pods"][name]}
        return {"kind": "Pod", "metadata": {"name": name, "labels": labels}, "status": state}

    def _delete(self, kinds: str, *names: str) -> int:
        if kinds == "pods":
            assert self._options["wait"] == "false", "what runs in a pod may take two minutes to end"
            for name in names:
                del self._state["pods"][name]
        else:
            assert "selector" in self._options
            objects = self._state["objects"].items()
            self._state["objects"] = {
                name: each for name, each in objects if each["kind"].lower() not in kinds.replace("ies", "y")
            }
        self._control()
        return 0


if __name__ == "__main__":
    sys.exit(Kubectl(Path(sys.argv[1]), sys.argv[2:]).run())
