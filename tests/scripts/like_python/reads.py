"""Reads its standard input, if there is any, line by line and as bytes."""
# $ printf 'me\nsecond\n\xff\x00third' | python ./reads.py
# slow $ python ./reads.py

import sys

print("name?", input("> "))
print(sys.stdin.readline(), sys.stdin.buffer.read())
