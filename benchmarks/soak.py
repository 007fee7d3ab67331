"""What the suite does a few times, at length: 300 faults, 100 times up and down, 3000 sequences of the crash model.

The faults and the sequences are others each time. Of the faults it prints how long the cluster took to be whole again,
with agents that probe servers each half second.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FAULTS = 300
#: Sequences of events of the crash model for each fault.
EXAMPLES_PER_FAULT = 10


def main() -> int:
    """Run them with as many faults as the first argument says, and show what they print."""
    faults = int(sys.argv[1]) if len(sys.argv) > 1 else FAULTS
    tests = [
        ("tests/end_to_end/test_chaos.py::test_chaos", "--faults", faults),
        ("tests/end_to_end/test_chaos.py::test_random_faults_on_two_private_hosts", "--faults", faults // 3),
        ("tests/end_to_end/test_cycles.py::test_cycles_leave_nothing", "--cycles", faults // 3),
        ("tests/agent/test_crash_model.py::test_whatever_happens[many]", "--examples", EXAMPLES_PER_FAULT * faults),
    ]
    command = [sys.executable, "-m", "pytest", "-q", "-s", "--timeout", "0"]
    codes = [
        subprocess.run([*command, *map(str, test)], cwd=Path(__file__).parent.parent, check=False).returncode
        for test in tests
    ]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
