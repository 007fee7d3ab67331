"""The entry point: `python -m tfcluster` runs the command `tfcluster`."""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """Run the command line, and end the process."""
    # Before the command can report an interrupt, and after it has finished, SIGINT ends the process without a message.
    # Python's own handler would print a traceback from the middle of an import.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tfcluster.cli.main import main as run

    try:
        run()
    except SystemExit as end:
        code = end.code
    _exit(int(code or 0))


def _exit(code: int) -> NoReturn:
    """End the process as the interpreter does, except that the interpreter is not taken apart.

    The background threads of a command, such as those that read the streams of hosts, still run then. One that imports
    a module at that moment crashes the process, as it takes a lock that has been freed.
    """
    import atexit
    import contextlib
    import os
    import sys
    import threading

    threading._shutdown()  # type: ignore[attr-defined]  # waits for the threads that are not in the background
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a full disk, which the command has reported
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    main()
