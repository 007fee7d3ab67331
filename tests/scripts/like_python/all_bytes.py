"""Output that is not text."""
# slow $ python ./all_bytes.py

import sys

sys.stdout.buffer.write(bytes(range(256)) * 1000)
sys.stderr.buffer.write(b"\xff")
