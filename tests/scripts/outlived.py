"""A parent forks a child that would wait for ever, and ends; `b''` is printed once the child has ended too.

The child holds a pipe as the last one. The argument is the parent that it is told, 0 for the real one.
"""

import os
import sys

from tfcluster.os import daemonize

alive, alive_writing = os.pipe()
if os.fork() == 0:
    parent = os.getpid()
    ready, ready_writing = os.pipe()
    if os.fork() == 0:
        never, other = os.pipe()
        daemonize.detach("t", keep=[alive_writing, ready_writing, never, other], parent=int(sys.argv[1]) or parent)
        os.write(ready_writing, b"x")
        os.read(never, 1)
    os.close(ready_writing)
    os.read(ready, 1)
    os._exit(0)
os.close(alive_writing)
print(os.read(alive, 1))
