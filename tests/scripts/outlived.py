"""A parent forks a child that would wait for ever, and ends; `b''` is printed once the child has ended too.

The pipe that is read in the end is closed when the last process that holds it, the child, ends. The argument is the
parent that the child is told, 0 for the real one.
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
