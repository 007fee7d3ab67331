"""Prints what an account finds of the processes and temporary folders of others."""

import contextlib
import glob
from pathlib import Path

for pattern in ("/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ", "/proc/[0-9]*/task/*/comm", "/tmp/tfcluster-*/*"):
    for path in glob.glob(pattern):
        with contextlib.suppress(OSError):
            print(Path(path).read_bytes().replace(b"\0", b" ").decode(errors="replace"))
