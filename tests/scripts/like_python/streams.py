"""What the standard streams are, the flags of Python, and where it searches for modules first."""
# $ python ./streams.py
# slow $ PYTHONSAFEPATH=1 python ./streams.py

import sys

for stream in (sys.stdin, sys.stdout, sys.stderr):
    print(stream.name, stream.mode, stream.encoding, stream.errors, stream.isatty(), stream.seekable(), stream.fileno())
print(sys.stdout is sys.__stdout__, sys.stdin.buffer.name, sys.flags, sys.path[0])
