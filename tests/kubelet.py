"""A played kubelet: it runs one pod as its manifest says: command, environment, user, volumes, DNS names and probes.

A pod is a set of namespaces of this machine. It has this machine's files as its image, without those in /home and /tmp.
As a program: the folder of `tests.kubernetes` and the name of a pod; it exits when the pod has been deleted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.accounts import ROOT, show_hidden_folders
from tests.kubernetes import Json, changing, control, publish_names, read, version

_POLL_SECONDS = 0.1
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The tests find the processes of pods by these, and change settings of agents.
_INHERITED = ("TEST_MARK", "TEST_RUN", "TEST_SETTINGS", "TEST_CHANGES", "TEST_HIDDEN_MODULES")
# In new namespaces, as root. An image has no account of the user.
_SET_UP = """\
hostname {name}
{show}
chmod 1777 /tmp
mount --bind {folder}/hosts /etc/hosts
mount --bind {folder}/passwd /etc/passwd
{mounts}
touch {folder}/{name}.started
exec "$@"
"""


def exec_command(name: str, pod: Json, arguments: list[str]) -> list[str]:
    """Return a command line that runs another one in the container of a pod."""
    enter = ["nsenter", f"--target={pod['pid']}", "--net", "--mount", "--pid", "--uts", "--ipc", "--"]
    return [*enter, *_as_container(name, pod, arguments)]


def _as_container(name: str, pod: Json, arguments: list[str]) -> list[str]:
    """Return a command line that runs another one with the user and the environment of a container."""
    [container] = pod["spec"]["containers"]
    user = pod["spec"]["securityContext"]
    assert user["runAsUser"] > 0
    variables = {
        **{variable: os.environ[variable] for variable in _INHERITED if variable in os.environ},
        **{"PYTHONPATH": str(ROOT / "tests" / "changed"), "PATH": _PATH, "HOSTNAME": name, **pod["variables"]},
        **{each["name"]: each["value"] for each in container["env"]},
    }
    return [
        *("setpriv", f"--reuid={user['runAsUser']}", f"--regid={user['runAsGroup']}", f"--groups={user['fsGroup']}"),
        *("--no-new-privs", "--", "env", "-i", *(f"{key}={value}" for key, value in variables.items())),
        *arguments,
    ]


class Kubelet:
    """Runs a pod, and starts its container again when it ends."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name
        self._version: tuple[int, int] | None = None  # of the state as it was last read
        self._was_deleted = False
        with changing(folder) as state:  # what has started this stores the pod
            self._pod: Json = state["pods"][name]
        [self._container] = self._pod["spec"]["containers"]

    def run(self) -> None:
        namespace = (self._folder / "namespaces" / self._name).read_text()
        for words in (["flush"], ["add", f"{self._pod['address']}/24"]):
            subprocess.run(["ip", "-n", namespace, "-4", "address", *words, "dev", "eth0"], check=True)
        while not self._is_deleted():
            if self._name in read(self._folder)["states"] or self._pod["exit_code"] is not None:
                time.sleep(_POLL_SECONDS)
                continue
            exit_code = self._run_container(namespace)
            if self._pod["spec"].get("restartPolicy") == "Never":
                self._report(pid=None, exit_code=exit_code)
            else:
                self._report(pid=None, is_ready=False, restarts=self._pod["restarts"] + 1)
        shutil.rmtree(self._folder / "volumes" / self._name, ignore_errors=True)
        with changing(self._folder) as state:
            del state["pods"][self._name]
            publish_names(self._folder, state)
            control(self._folder, state)

    def _is_deleted(self) -> bool:
        if (found := version(self._folder)) != self._version:  # the state is large, and this is asked often
            self._version = found
            self._was_deleted = bool(read(self._folder)["pods"][self._name]["is_deleted"])
        return self._was_deleted

    def _report(self, **values: bool | int | None) -> None:
        self._pod |= values
        with changing(self._folder) as state:
            state["pods"][self._name] |= values

    def _run_container(self, namespace: str) -> int:
        """Run the container until it ends, and return its exit code."""
        started = self._folder / f"{self._name}.started"
        with (self._folder / f"{self._name}.log").open("ab") as log:
            container = subprocess.Popen(self._command(namespace), stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        while not started.exists() and container.poll() is None:
            time.sleep(0.01)
        started.unlink(missing_ok=True)
        if container.poll() is None:
            first = int(Path(f"/proc/{container.pid}/task/{container.pid}/children").read_text())
            self._report(pid=first)
            self._watch(container, first)
        return container.wait()

    def _command(self, namespace: str) -> list[str]:
        mounts = []
        group = self._pod["spec"]["securityContext"]["fsGroup"]
        sources = {claim: self._folder / "claims" / f"{claim}-{self._name}" for claim in self._pod["claims"]}
        for volume in self._pod["spec"].get("volumes", ()):
            source = sources[volume["name"]] = self._folder / "volumes" / self._name / volume["name"]
            if "projected" in volume:
                self._project(volume["projected"]["sources"], source, group)
            else:
                assert volume["emptyDir"] == {}
        for mount in self._container["volumeMounts"]:
            source, target = sources[mount["name"]], shlex.quote(mount["mountPath"])
            source.mkdir(parents=True, exist_ok=True)
            os.chown(source, 0, group)
            source.chmod(0o2775)
            mounts.append(f"mkdir -p {target}; mount --bind {source} {target}")
        script = _SET_UP.format(
            **{"name": self._name, "folder": self._folder, "mounts": "\n".join(mounts)},
            show=show_hidden_folders("/home", "/tmp"),
        )
        return [
            *("setpriv", "--pdeathsig=KILL", "nsenter", f"--net=/run/netns/{namespace}", "--", "unshare", "--mount"),
            *("--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc", "--", "sh", "-ec", script, "sh"),
            *_as_container(self._name, self._pod, self._container["command"] + self._container.get("args", [])),
        ]

    def _project(self, sources: list[Json], folder: Path, group: int) -> None:
        """Write the files of ConfigMaps and Secrets, which the container can only read."""
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        objects = read(self._folder)["objects"]
        for source in sources:
            [(kind, named)] = source.items()
            found = objects.get(f"{'ConfigMap' if kind == 'configMap' else 'Secret'}/{named['name']}")
            assert found is not None or named.get("optional"), named
            texts = {name: text.encode() for name, text in (found or {}).get("data", {}).items()}
            texts |= {name: text.encode() for name, text in (found or {}).get("stringData", {}).items()}
            texts |= {name: base64.b64decode(text) for name, text in (found or {}).get("binaryData", {}).items()}
            for name, content in texts.items():
                (folder / name).write_bytes(content)
                (folder / name).chmod(0o640)
                os.chown(folder / name, 0, group)

    def _watch(self, container: subprocess.Popen[bytes], first: int) -> None:
        """Execute the probe until the container ends, which a deleted pod is told by SIGTERM, and later by SIGKILL."""
        probe = self._container.get("readinessProbe")
        next_probe = time.monotonic()
        end = None
        while container.poll() is None:
            now = time.monotonic()
            if end is None and self._is_deleted():
                os.kill(first, signal.SIGTERM)
                end = now + self._pod["spec"].get("terminationGracePeriodSeconds", 30)
            if end is not None and now >= end:
                os.kill(first, signal.SIGKILL)
            if probe is not None and now >= next_probe:
                next_probe = now + probe.get("periodSeconds", 10)
                self._probe(probe)
            time.sleep(_POLL_SECONDS)

    def _probe(self, probe: Json) -> None:
        is_ready = False
        with contextlib.suppress(subprocess.TimeoutExpired):
            command = exec_command(self._name, self._pod, probe["exec"]["command"])
            result = subprocess.run(command, timeout=probe["timeoutSeconds"], check=False, capture_output=True)
            is_ready = result.returncode == 0
        if is_ready is not self._pod["is_ready"]:
            self._report(is_ready=is_ready)


if __name__ == "__main__":
    Kubelet(Path(sys.argv[1]), sys.argv[2]).run()
