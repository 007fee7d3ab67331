"""What tests and benchmarks need of the machine besides Python: programs, and the privileges of root.

A test says so with the mark `needs`, a fixture by requesting `needs_NAME`. As a program, prints all Debian packages.
"""

from __future__ import annotations

import ctypes
import functools
import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

#: What an ordinary account lacks.
ROOT = "root that may create namespaces"
#: The Debian package of each program or library; a program stands for the others of its package.
_PACKAGES = {
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ip": "iproute2",
    "git": "git",
    "dot": "graphviz",
    "fish": "fish",
    "zsh": "zsh",
    "tcsh": "tcsh",
    "man": "man-db",
    "systemd-analyze": "systemd",
    "chromium": "chromium",
    "chromedriver": "chromium-driver",
    "podman": "podman",
    "runc": "runc",
    "strace": "strace",
    "slurmctld": "slurm-wlm",
    "libnss_myhostname.so.2": "libnss-myhostname",
}
#: What a test needs, by what its mark says.
NEEDS = {
    **{name: (name,) for name in ("ssh", "git", "fish", "zsh", "tcsh", "man")},
    "root": (ROOT,),
    "network": (ROOT, "ip"),
    "sshd": (ROOT, "ip", "sshd", "ssh"),
    "strace": (ROOT, "strace"),
    "graphviz": ("dot",),
    "systemd": ("systemd-analyze",),
    "podman": (ROOT, "podman", "runc"),
    "slurm": (ROOT, "ip", "slurmctld"),
    "browser": ("chromium", "chromedriver"),
    "own-name": (ROOT, "ip", "libnss_myhostname.so.2"),
}
#: What the test that runs now says that it needs; None outside of tests.
declared: Collection[str] | None = None


@functools.cache
def is_privileged() -> bool:
    """Return whether this is root, in no container that forbids root to create namespaces."""
    command = ["unshare", "--net", "--mount", "true"]
    return os.geteuid() == 0 and not subprocess.run(command, check=False, stderr=subprocess.DEVNULL).returncode


def find_program(name: str) -> str | None:
    """Return the path of a program, which for a daemon may be in a folder that is not in an ordinary user's PATH."""
    return shutil.which(name, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin")


@functools.cache
def _is_there(thing: str) -> bool:
    if ".so" not in thing:
        return is_privileged() if thing == ROOT else find_program(thing) is not None
    try:
        return bool(ctypes.CDLL(thing))
    except OSError:
        return False


def missing(needs: Iterable[str]) -> list[str]:
    """Return what this machine lacks of what the mark `needs` names."""
    things = dict.fromkeys(thing for name in needs for thing in NEEDS[name])
    return [thing for thing in things if not _is_there(thing)]


def explain(missing: Collection[str], counts: Mapping[str, int] | None = None) -> str:
    """Return a clause that says what is missing, for how many tests if that is given, and what installs it."""
    words = [f"{thing} ({counts[thing]})" if counts else thing for thing in missing]
    hint = "; `make test-setup` installs the programs (apt, as root)" if {*missing} - {ROOT} else ""
    return f"as this is missing: {', '.join(words)}{hint}"


def check_declared(name: str) -> None:
    """Check that the test that runs now says that it needs this, as otherwise it would fail where that is missing."""
    if declared is not None:
        things = {thing for each in declared for thing in NEEDS[each]}
        assert things.issuperset(NEEDS[name]), f"the test uses `{name}` without the mark or fixture that says so"


def summarize(tests: Iterable[Collection[str]]) -> str:
    """Return one line on the tests that are skipped and what is missing for them; empty if none is skipped.

    Args:
        tests: What each test needs.
    """
    skipped = [things for needs in tests if (things := missing(needs))]
    if not skipped:
        return ""
    counts = dict(Counter(thing for things in skipped for thing in things).most_common())
    return f"tests skipped: {len(skipped)}, {explain(counts, counts)}"


if __name__ == "__main__":
    print(*_PACKAGES.values())
