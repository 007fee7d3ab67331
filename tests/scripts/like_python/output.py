"""Output that is not text, and a line without an end."""
# $ python ./output.py

import sys

sys.stdout.buffer.write(bytes(range(256)) * 1000)
sys.stderr.buffer.write(b"\xff\n")
print("10 %\r", end="")
sys.stderr.write("no end")
