"""Has no standard output at its end, or one that cannot be written."""
# slow $ python ./no_streams.py
# slow $ python ./no_streams.py full

import sys

open("left.txt", "w").write("x")
sys.stdout = open("/dev/full", "w") if sys.argv[1:] else None
print("lost")
sys.stderr = None
