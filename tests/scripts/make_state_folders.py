"""Four processes make the same state folders at the same time, fifty times; errors are printed."""

import multiprocessing
import os
import sys
from pathlib import Path

from tfcluster.agent.state.state_dir import StateDir

barrier = multiprocessing.get_context("fork").Barrier(4)
for _ in range(3):
    if not os.fork():
        break
for number in range(50):
    barrier.wait(60)
    try:
        StateDir(Path(sys.argv[1]) / str(number)).make()
    except Exception as error:
        print(error, flush=True)
