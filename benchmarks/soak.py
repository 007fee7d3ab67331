"""The suite's chaos test at length: 300 faults, with the time that the cluster took to be whole again after each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAULTS = 300


def main() -> int:
    """Run it with as many faults as the first argument says, and show what it prints."""
    faults = sys.argv[1] if len(sys.argv) > 1 else str(FAULTS)
    test = "tests/end_to_end/test_chaos.py::test_chaos[closed]"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--timeout", "0", test, "--faults", faults]
    return subprocess.run(command, cwd=Path(__file__).parent.parent, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
